"""`layerlaw lm`: measure a language model block by block; under torchrun the processes find each other, and the first one
speaks for all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from layerlaw.cli.app import check_folder, command, conclude, console, in_options
from layerlaw.cli.classifier import ResultOptions, law_of, summary
from layerlaw.cli.inputs import load_model
from layerlaw.cli.processes import processes
from layerlaw.data import load_text, text_names
from layerlaw.data.texts import MOST, Text
from layerlaw.errors import InputError, LayerlawError
from layerlaw.files import as_path, check_place, json_safe, made_folder
from layerlaw.lm import Loaded, load, load_tokenizer, pieces_of, probe_lm
from layerlaw.lm.loading import quiet_transformers
from layerlaw.lm.pieces import TIMES
from layerlaw.lm.weights import is_spread
from layerlaw.measures.columns import describe
from layerlaw.pages import print_comparison
from layerlaw.pages import report as write_page
from layerlaw.record import Record
from layerlaw.stats.ranks import world_size
from layerlaw.verdict.changes import paired_differences

MODEL = (
    "A folder, a Hugging Face name, a .gguf file, a .pt file of layerlaw.lab, or file.py:make (this runs your own code: "
    "`make` returns a model or (model, tokenizer)). Several are compared."
)
TEXT = (
    f"A .txt, .md or .jsonl file (also .gz), a folder of .txt files, {', '.join(text_names())}, or a Hugging Face dataset "
    "owner/name:config:split. Again for more texts."
)
REVISION = (
    "Branches or tags, with commas: step1000,step2000; of a local folder, folders in it. One page along the steps."
)
SAMPLE, SAMPLE_DOCUMENTS = 20_000, 20  # characters and documents on which tokenizers are compared
LONGEST = 16  # characters of a token, on average, in any text and vocabulary that is likely


@command
def lm(
    *,
    model: Annotated[list[str], Argument(help=MODEL)],
    text: Annotated[list[str], Option(help=TEXT)],
    revision: Annotated[str | None, Option(help=REVISION)] = None,
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
        int | None,
        Option(help="About how many tokens the lens reads; default: as many as cost what the head costs on all."),
    ] = None,
    blocks: Annotated[
        list[str] | None,
        Option(help="Modules to measure, where not those found: model.layers, or layers.*.mlp; with commas or again."),
    ] = None,
    sites: Annotated[str, Option(help="blocks, or sub-blocks: also the states between attention and MLP.")] = "blocks",
    normalize: Annotated[str, Option(help="fresh (a bare norm), none or standardized.")] = "fresh",
    task: Annotated[str | None, Option(help="next, masked or span; default: what fits the model.")] = None,
    mask_id: Annotated[
        int | None, Option(help="Token (its id) that stands for a masked one, where the tokenizer has none.")
    ] = None,
    length: Annotated[int, Option(help="Tokens that the model reads at once.")] = 512,
    documents: Annotated[str, Option(help="Long documents: cut, truncate or pack.")] = "cut",
    articles: Annotated[bool, Option("--articles", help="wikitext-2: an article is a document.")] = False,
    groups: Annotated[int | None, Option(help="Groups of documents for held-out values.")] = None,
    bos: Annotated[
        bool | None, Option("--bos/--no-bos", help="A BOS before every piece; default: as the tokenizer does.")
    ] = None,
    chat: Annotated[
        str | None, Option(help="The text in a chat, by the tokenizer's template: as the turn of user or assistant.")
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
    token on its output, in-sample and on held-out documents. Several models,
    revisions or texts give one row each, and one page: along the training steps
    that their names tell, or as differences on the same tokens. Under torchrun
    the processes share the text.
    """
    versions = versions_of(model, revision)
    one = len(versions) * len(text) == 1
    with processes(device, device_map) as process, quiet_transformers():
        if one:
            result.check()
        else:
            check_several(result, text)
        # quick: before the models
        read = {
            name: load_text(name, articles=articles, characters=_characters(name, tokens, documents)) for name in text
        }
        cut: Any = {
            "documents": documents,
            "length": length,
            "tokens": tokens,
            "groups": groups,
            "bos": bos,
            "chat": chat,
        }
        options: Any = {"targets": target, "normalize": normalize, "task": task, "null": null, "classes": classes}
        options |= {"blocks": ",".join(blocks) if blocks else None, "seed": seed, "null_std": null_std, "sites": sites}
        options |= {"lens": lens, "lens_tokens": lens_tokens}
        options |= {"words": [word.strip() for word in words.split(",") if word.strip()]}
        options |= {"batch_size": batch_size, "memory_gib": memory_gib}
        found = Measured(result, one, process.first)
        for version in versions:
            with found.failures(version):
                how: Any = {"dtype": dtype, "device_map": device_map, "name": result.name, "revision": version.revision}
                how["mask_id"] = mask_id
                loaded = chosen_model(version.model, tokenizer, **how)
                where = (
                    device if is_spread(loaded.model) else process.device
                )  # a model that is spread stays where it is
                for name, documents_read in read.items():
                    pieces = pieces_of(documents_read, **found.like_the_first(name, documents_read, loaded, cut))
                    record = probe_lm(loaded, pieces, progress=process.first, device=where, **options)
                    asked = {"model": version.model, "revision": version.revision, "tokenizer": tokenizer, "text": name}
                    record.provenance["command"] = {**asked, "articles": articles}
                    found.add(record, name, loaded, tokens)
                del loaded  # before the next one comes
    if process.first:
        found.show(read)


class ModelVersion(NamedTuple):
    """A model as it was named, and one of its revisions."""

    model: str
    revision: str | None

    def __str__(self) -> str:
        return self.model if self.revision is None else f"{self.model} {self.revision}"


def versions_of(models: list[str], revision: str | None) -> list[ModelVersion]:
    """Every model in every revision."""
    named: list[str | None] = [None]
    if revision is not None:
        named = [part.strip() for part in revision.split(",") if part.strip()]
    if not named:
        raise InputError(f"revision: expected names such as step1000,step2000, got {revision!r}.")
    found = [ModelVersion(model, one) for model in models for one in named]
    if len(set(found)) < len(found):
        raise InputError("model, revision: expected each of them once, got one twice.")
    return found


def check_several(result: ResultOptions, texts: list[str]) -> None:
    """Before minutes of measuring: records of several go into a folder."""
    if len(set(texts)) < len(texts):
        raise InputError("text: expected different texts, got one twice.")
    if result.out is not None and result.out.suffix == ".json":
        raise InputError(f"out: expected a folder for several records, got the file {result.out}.")
    check_folder(result.out)
    if result.page is not None:
        check_place(result.page)


class Measured:
    """The records so far, those that failed, and where they go; what is measured is saved at once and never lost."""

    def __init__(self, result: ResultOptions, one: bool, speaks: bool) -> None:
        self.result, self.one, self.speaks = result, one, speaks
        self.records: list[Record] = []
        self.failed: dict[str, str] = {}
        self.written: list[str] = []
        self._first: dict[str, tuple[Record, Any]] = {}  # by text: what the others are compared with, and its tokenizer

    @contextmanager
    def failures(self, version: ModelVersion) -> Iterator[None]:
        """One of several may fail without the others."""
        try:
            yield
        except LayerlawError as error:
            if self.one or world_size() > 1:
                raise
            self.failed[str(version)] = str(error)
            console(True).print(f"{version}: {in_options(str(error))}", style="red", markup=False, highlight=False)

    def like_the_first(self, name: str, read: Text, loaded: Loaded, cut: dict[str, Any]) -> dict[str, Any]:
        """How this text is cut: as for the first model, where the tokenizers agree on it, so that both see the same ids.

        The tokenizer stays the model's own: another one may have another mask or BOS, or none.
        """
        if name not in self._first:
            return cut
        record, tokenizer = self._first[name]
        if not same_ids(tokenizer, loaded.tokenizer, read):
            return cut
        known, own = record.settings, loaded.tokenizer
        same: dict[str, Any] = {"length": known["length"], "groups": known["groups"]}
        if own is None:
            same["tokenizer"] = own = tokenizer
        put = known["bos"] is not None
        if cut["chat"] or known["task"] != "next" or (put and loaded.bos(own) is None):
            return cut | same
        return cut | same | {"bos": put}

    def add(self, record: Record, text: str, loaded: Loaded, tokens: int | None) -> None:
        """Keep a record, and write it where several go into a folder."""
        used = int(record.settings["tokens"]) + int(record.settings["pieces"])  # the last of a piece has no next
        if tokens is not None and record.settings["task"] == "next" and used < 0.98 * tokens:
            record.notes.append(f"The text has fewer tokens than were requested: about {used:,} instead of {tokens:,}.")
        self._first.setdefault(text, (record, loaded.tokenizer))
        self.records.append(record)
        if not self.one and self.speaks and self.result.out is not None:
            file = re.sub(r"[^\w.=-]+", "-", f"{record.name}-{Path(text).name}").strip("-")
            self.written.append(str(record.save(made_folder(self.result.out) / f"{len(self.records):03d}-{file}.json")))

    def show(self, read: dict[str, Text]) -> None:
        """The record, or the comparison of several and their page."""
        if not self.records:
            raise InputError(f"model: none could be measured. {'; '.join(self.failed.values())}")
        if self.one:
            record = self.records[0]
            known = {key: record.settings.get(key) for key in ("tokens", "blocks", "lens")}
            of_law = [c for c in record.columns if describe(c).law and c.startswith(("residual", "separation"))]
            law = {column: laws(record, column) for column in of_law if "adjusted" not in column}
            facts = f"found: {record.settings['blocks']}", *(f"text: {text}" for text in read.values())
            self.result.show(record, *facts, **known, law=json_safe(law))
            return
        screen, written = console(self.result.as_json), {}
        if self.result.page is not None:
            try:
                written["page"] = str(write_page(self.records, self.result.page, title=self.result.name))
            except Exception as error:  # what was measured is still shown
                told = f"The page {self.result.page} could not be written ({type(error).__name__}: {error})."
                screen.print(told, style="red", markup=False, highlight=False)
        print_comparison(self.records, screen)
        pairs = paired_differences(self.records)
        data = {"records": [summary(record) for record in self.records], "failed": self.failed, "files": self.written}
        data["paired"] = [asdict(pair) | {"sentence": pair.sentence()} for pair in pairs]
        conclude(screen, self.result.as_json, json_safe(data), written)
        if self.failed:
            raise typer.Exit(1)


def same_ids(first: Any, other: Any, text: Text) -> bool:
    """Whether two tokenizers cut the beginning of a text into the same ids; a model without one takes the first's."""
    if other is None or other is first:
        return True
    sample = "\n".join(text.documents[:SAMPLE_DOCUMENTS])[:SAMPLE]
    a, b = (tokenizer(sample, add_special_tokens=False, verbose=False)["input_ids"] for tokenizer in (first, other))
    return bool(a == b)


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
    whole = tokens is None or documents == "truncate" or as_path(text, "text.txt").exists()
    return MOST if whole else max(1, min(MOST, LONGEST * TIMES * (tokens or 0)))


def chosen_model(reference: str, tokenizer: str | None, **options: Any) -> Loaded:
    """The model and its tokenizer from the words of the command line; the options are those of `lm.load`."""
    words: Any = load_tokenizer(tokenizer)
    reference = reference.removeprefix("hf:")  # as classifiers are named
    path = as_path(reference, "model")
    if ":" not in reference and path.suffix not in (".pt", ".pth"):
        found = load(reference, tokenizer=words, **options)
        if found.tokenizer is None:
            cure = "Save it there with tokenizer.save_pretrained(…), or name one with --tokenizer"
            raise InputError(
                f"no tokenizer in {reference}: expected its files (tokenizer.json) beside the model. {cure}."
            )
        return found
    if options.pop("revision", None) is not None:
        raise InputError(f"revision: expected a Hugging Face name or a folder with folders in it, got {reference}.")
    if path.suffix in (".pt", ".pth"):
        from layerlaw.lab import load_text_model

        if words is None:
            raise InputError(f"{reference}: a model of the lab has no tokenizer of its own: name one with --tokenizer.")
        return load(load_text_model(path), tokenizer=words, **options)
    if path.exists():
        return load(reference, tokenizer=words, **options)
    model, own, more = load_model(reference, more="or (model, tokenizer)")
    if more is not None or not (own is None or callable(own)):
        raise InputError(f"{reference}: expected a callable that returns a model or (model, tokenizer), got others.")
    words = words if words is not None else own
    if words is None:
        raise InputError(f"{reference}: expected a tokenizer too: return (model, tokenizer), or use --tokenizer.")
    return load(model, tokenizer=words, **options)
