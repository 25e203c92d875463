"""`layerlaw lm`: measure a language model block by block; under torchrun the processes find each other, and the first one
speaks for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
import typer
from typer import Argument, Option

from layerlaw.cli.app import command
from layerlaw.cli.classifier import ResultOptions, law_of
from layerlaw.cli.inputs import load_model
from layerlaw.data import load_text, text_names
from layerlaw.data.texts import MOST
from layerlaw.errors import InputError, LayerlawError
from layerlaw.files import json_safe
from layerlaw.lm import Loaded, load, load_tokenizer, pieces_of, probe_lm
from layerlaw.lm.loading import quiet_transformers
from layerlaw.lm.pieces import TIMES
from layerlaw.lm.weights import is_spread
from layerlaw.measures.columns import describe
from layerlaw.record import Record

MODEL = (
    "A folder, a Hugging Face name, a .gguf file, a .pt file of layerlaw.lab, or file.py:make (this runs your own code: "
    "`make` returns a model or (model, tokenizer))."
)
TEXT = (
    f"A .txt, .md or .jsonl file (also .gz), a folder of .txt files, {', '.join(text_names())}, or a Hugging Face dataset "
    "owner/name:config:split."
)
LONGEST = 16  # characters of a token, on average, in any text and vocabulary that is likely


@command
def lm(
    *,
    model: Annotated[str, Argument(help=MODEL)],
    text: Annotated[str, Option(help=TEXT)],
    tokens: Annotated[int | None, Option(help="Tokens to read; default: enough for about 100 per feature.")] = None,
    target: Annotated[
        str, Option(help="id, embedding, onehot, shuffled, rank, previous, current, next2; with commas.")
    ] = "id",
    null: Annotated[bool, Option("--null", help="Also measure an untrained model of the same kind.")] = False,
    null_std: Annotated[
        float | None, Option(help="Standard deviation of its weights; default: as the configuration says.")
    ] = None,
    classes: Annotated[int, Option(help="Also D of so many most frequent next tokens.")] = 0,
    words: Annotated[str, Option(help="Words to picture at every block, e.g. war,game (one token each).")] = "",
    lens: Annotated[
        str | None,
        Option(
            help="logit: also what the head predicts from every block; linear: also after a linear map to the last."
        ),
    ] = None,
    lens_tokens: Annotated[
        int | None, Option(help="Tokens that the lens reads; default: as many as cost what the head costs on all.")
    ] = None,
    blocks: Annotated[
        list[str] | None,
        Option(help="Modules to measure, where not those found: model.layers, or layers.*.mlp; with commas or again."),
    ] = None,
    normalize: Annotated[str, Option(help="fresh (a bare norm), none or standardized.")] = "fresh",
    task: Annotated[str | None, Option(help="next, masked or span; default: what fits the model.")] = None,
    length: Annotated[int, Option(help="Tokens that the model reads at once.")] = 512,
    documents: Annotated[str, Option(help="Long documents: cut, truncate or pack.")] = "cut",
    articles: Annotated[bool, Option("--articles", help="wikitext-2: an article is a document.")] = False,
    groups: Annotated[int | None, Option(help="Groups of documents for held-out values.")] = None,
    bos: Annotated[
        bool | None, Option("--bos/--no-bos", help="A BOS before every piece; default: as the tokenizer does.")
    ] = None,
    batch_size: Annotated[int, Option(help="Pieces per forward.")] = 8,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1, …; default: a GPU where there is one.")] = None,
    dtype: Annotated[str | None, Option(help="float32, bfloat16, float16 or float64.")] = None,
    device_map: Annotated[str | None, Option(help="auto: spread the model over all devices.")] = None,
    memory_gib: Annotated[float, Option(help="Memory for the statistics.")] = 2.0,
    tokenizer: Annotated[str | None, Option(help="A folder, a name, or a tokenizer.json.")] = None,
    seed: Annotated[int, Option(help="Seed of all that is drawn at random.")] = 0,
    result: ResultOptions,
) -> None:
    """Measure language model MODEL block by block: does every block make the next token more predictable?

    Prediction residual of a block: 1 − R² of a linear regression of the next
    token on its output, in-sample and on held-out documents. Under torchrun the
    processes share the text.
    """
    with processes(device, device_map) as process, quiet_transformers():
        result.check()
        enough = _characters(text, tokens, documents)
        read = load_text(text, articles=articles, characters=enough)  # quick: before the model
        how: Any = {"documents": documents}
        pieces = pieces_of(read, length=length, tokens=tokens, groups=groups, bos=bos, **how)
        loaded = chosen_model(model, tokenizer, dtype=dtype, device_map=device_map, name=result.name)
        options: Any = {"targets": target, "normalize": normalize, "task": task, "null": null, "classes": classes}
        options |= {"blocks": ",".join(blocks) if blocks else None, "seed": seed, "null_std": null_std}
        options |= {"lens": lens, "lens_tokens": lens_tokens}
        options |= {"words": [word.strip() for word in words.split(",") if word.strip()]}
        where = device if is_spread(loaded.model) else process.device  # a model that is spread stays where it is
        options |= {"batch_size": batch_size, "device": where, "memory_gib": memory_gib}
        record = probe_lm(loaded, pieces, progress=process.first, **options)
    if not process.first:
        return
    record.provenance["command"] = {"model": model, "tokenizer": tokenizer, "text": text, "articles": articles}
    used = int(record.settings["tokens"]) + int(record.settings["pieces"])  # the last of a piece has no next
    if tokens is not None and record.settings["task"] == "next" and used < 0.98 * tokens:
        record.notes.append(f"The text has fewer tokens than were requested: about {used:,} instead of {tokens:,}.")
    known = {key: record.settings.get(key) for key in ("tokens", "blocks", "lens")}
    of_law = [c for c in record.columns if describe(c).law and c.startswith(("residual", "separation"))]
    law = {column: laws(record, column) for column in of_law if "adjusted" not in column}
    result.show(record, f"found: {record.settings['blocks']}", f"text: {read}", **known, law=json_safe(law))


def laws(record: Record, column: str) -> dict[str, Any]:
    """The law of one column over all blocks, and without the last, which often departs from the line."""
    found = {"all_blocks": law_of(record, column), "without_last": law_of(record, column, 1)}
    for drop, fit in enumerate(found.values()):
        if fit is not None:
            errors = record.law_errors(column, drop_last=drop)
            fit["errors"] = asdict(errors) if errors else None
    return found


def _characters(text: str, tokens: int | None, documents: str) -> int:
    """How much of an endless text is enough; of truncated documents most is thrown away, and a file is soon read whole."""
    whole = tokens is None or documents == "truncate" or Path(text).expanduser().exists()
    return MOST if whole else max(1, min(MOST, LONGEST * TIMES * (tokens or 0)))


def chosen_model(reference: str, tokenizer: str | None, **options: Any) -> Loaded:
    """The model and its tokenizer from the words of the command line; the options are those of `lm.load`."""
    words: Any = load_tokenizer(tokenizer)
    path = Path(reference).expanduser()
    if path.suffix in (".pt", ".pth"):
        from layerlaw.lab import load_text_model

        if words is None:
            raise InputError(f"{reference}: a model of the lab has no tokenizer of its own: name one with --tokenizer.")
        return load(load_text_model(path), tokenizer=words, **options)
    if ":" not in reference or path.exists():
        return load(reference, tokenizer=words, **options)
    model, own, more = load_model(reference, more="or (model, tokenizer)")
    if more is not None or not (own is None or callable(own)):
        raise InputError(f"{reference}: expected a callable that returns a model or (model, tokenizer), got others.")
    words = words if words is not None else own
    if words is None:
        raise InputError(f"{reference}: expected a tokenizer too: return (model, tokenizer), or use --tokenizer.")
    return load(model, tokenizer=words, **options)


class Process(NamedTuple):
    """Whether this one prints and writes, and where it computes (`None`: where the model is)."""

    first: bool
    device: str | None


@contextmanager
def processes(device: str | None, device_map: str | None = None) -> Iterator[Process]:
    """Join the processes that torchrun has started; alone, only a device is chosen.

    With GPUs every process takes the one of its LOCAL_RANK and they talk through nccl, else through gloo. An error in
    another process than the first is told on standard error with its number, and never as a second JSON object.
    """
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if size == 1:
        yield Process(True, device if device or device_map or not torch.cuda.is_available() else "cuda")
        return
    try:
        where = _device(device, device_map)
        try:
            dist.init_process_group("nccl" if where.startswith("cuda") else "gloo")
        except (RuntimeError, ValueError) as error:
            found = f"WORLD_SIZE is {size}, but the processes did not find each other ({error})"
            raise InputError(f"{found}. Start them with torchrun, or unset it.") from None
        yield Process(rank == 0, where if where != "cpu" else device)
    except LayerlawError as error:
        if rank == 0:
            raise
        print(f"rank {rank}: error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _device(device: str | None, device_map: str | None) -> str:
    """Where this process computes; a GPU is made its own."""
    if device_map is not None:
        raise InputError("--device-map spreads one model over all devices; under torchrun every process has its own.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda:") and _number("LOCAL_WORLD_SIZE", 1) > 1:
        raise InputError(f"device: expected 'cuda' under torchrun (every process takes its own GPU), got {device!r}.")
    local, gpus = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    if not device.startswith("cuda"):
        return device
    if device == "cuda" and local >= gpus:
        got = f"got {gpus} for LOCAL_RANK {local}. Start fewer, or use --device cpu"
        raise InputError(f"device: expected a GPU for each process of this machine, {got}.")
    where = f"cuda:{local}" if device == "cuda" else device
    try:
        torch.cuda.set_device(where)
    except (RuntimeError, AssertionError, AttributeError) as error:  # the last: torch without CUDA
        raise InputError(f"device: cannot compute on {where!r}: {error}") from None
    return where


def _number(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise InputError(f"{name}: expected a number, as torchrun sets it, got {value!r}.")
    return int(value)
