"""Language models: the prediction residual of every block, in one streaming pass.

The way of the data: pieces → task → capture (hooks) → moments → residuals → record.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Never, get_args

import torch
from torch import nn

from layerlaw.capture.network import network_of, placed, probing_state
from layerlaw.errors import InputError, LayerlawError, check_choice, check_whole, renamed
from layerlaw.lm import anatomy, stream
from layerlaw.lm.blocks import BlockStack, find_blocks
from layerlaw.lm.loading import Loaded, load, load_tokenizer, quiet_transformers, refuse_images
from layerlaw.lm.loss import Head, LossSample, bos_note, loss_note
from layerlaw.lm.pieces import UncutText, check_ids, counted, pieces_of
from layerlaw.lm.stream import FrequentTokens, MomentPass, Normalize, PicturedWords, TextPlan, TextRun
from layerlaw.lm.tasks import (
    AGAINST_ITS_WAY,
    TaskName,
    around,
    check_task,
    decides_classes,
    targets_of,
    task_for,
    unnamed_sentinels,
)
from layerlaw.lm.twins import check_std, untrained_twin
from layerlaw.lm.weights import (
    dtype_of,
    is_spread,
    output_embedding,
    packed_count,
    quantization_of,
    vocabulary_of,
    weight_count,
)
from layerlaw.measures.residual import Residual, prediction_residuals
from layerlaw.progress import Progress
from layerlaw.provenance import model_provenance, provenance
from layerlaw.record import LANGUAGE_MODEL, Record, SiteRow
from layerlaw.stats.ranks import together, world_size
from layerlaw.threads import WhenBusy, claimed

__all__ = ["BlockStack", "Loaded", "find_blocks", "load", "load_tokenizer", "pieces_of", "probe_lm"]

NO_HEAD = "No output layer was found in {}: neither its loss nor the target 'embedding' is measured."
FEW = 20  # tokens per feature below which the numbers are not to be trusted
CONFIRMED = 32  # tokens of the text whose scores are compared with what the head gives
NULL_SEED = 1_000_003  # apart from any seed that the user may have drawn the model with
MOVED = {
    **{name: f"{name} of lm.load(model, {name}=…)" for name in ("tokenizer", "dtype", "device_map", "mask_id", "name")},
    **{name: f"{name} of lm.pieces_of(text, {name}=…)" for name in ("length", "documents", "tokens", "bos", "groups")},
}


@together()
def probe_lm(
    model: nn.Module | str | os.PathLike[str] | Loaded,
    text: Any,
    *,
    targets: Sequence[str] | str = "id",
    task: TaskName | None = None,
    blocks: str | Sequence[str] | None = None,
    normalize: Normalize = "fresh",
    null: bool = False,
    null_std: float | None = None,
    classes: int = 0,
    words: Sequence[str | int] = (),
    batch_size: int = 8,
    device: str | torch.device | None = None,
    memory_gib: float = 2.0,
    seed: int = 0,
    busy: WhenBusy = "wait",
    progress: bool | Progress = True,
    **old: Never,
) -> Record:
    """Measure how well each block of a language model predicts the next token linearly (prediction residual).

    model       a loaded model, a local folder, a Hugging Face name, a GGUF file, or `lm.load(…)`, which takes a tokenizer, a
                dtype, a device_map; afterwards it is exactly as it was
    text        a string, an iterable of documents, token ids of shape (documents, length), or `lm.pieces_of(…)`, which says
                how long the pieces are, how many tokens are read, how documents are cut and dealt into groups
    targets     beside the token's id (always): embedding, onehot, shuffled, rank, previous, current, next2
    task        "next", "masked" (encoders) or "span" (encoder-decoders); default: what fits the model
    blocks      names of the modules to measure, where they are not those found: "model.layers", "layers.*.mlp", or a list
    normalize   "fresh": a bare norm of the model's own kind, "none", or "standardized"
    null        also measure an untrained model of the same configuration
    null_std    standard deviation of its weights; default: what the configuration says (a GGUF file says nothing)
    classes     also measure the separation D of so many most frequent next tokens
    words       also keep pictures of these words (one token each) at every block
    batch_size  pieces per forward
    device      where to run; the model comes back to where it was
    memory_gib  what the statistics may take
    seed        of what is drawn at random: masks, shuffled vocabularies, the sketch, the untrained model
    busy        where another thread is measuring the model: "wait" until it is free, or "raise"
    """
    renamed("probe_lm", old, MOVED)
    started = time.perf_counter()
    check_choice("normalize", normalize, get_args(Normalize))
    check_choice("task", task, (*get_args(TaskName), None))
    check_whole(1, kind=Integral, batch_size=batch_size)
    check_whole(0, kind=Integral, classes=classes)
    if classes == 1:
        raise InputError("classes: expected 0 (none) or at least 2 frequent tokens, got 1.")
    _check_types(targets=targets, words=words, blocks=blocks, null=null, null_std=null_std, memory_gib=memory_gib)
    if null_std is not None and not (null and 0 < null_std < math.inf):
        expected = (
            "expected a positive number" if null else "expected with null=True, which measures an untrained model"
        )
        raise InputError(f"null_std: {expected}, got {null_std!r}.")
    if isinstance(model, Loaded):
        loaded = model
    else:
        with quiet_transformers(bars=progress is not False):
            loaded = load(model)
    uncut = text if isinstance(text, UncutText) else pieces_of(text)
    tokenizer = load_tokenizer(loaded.tokenizer if uncut.tokenizer is None else uncut.tokenizer)
    network = network_of(loaded.model)
    refuse_images(network)
    check_std(network, null_std)
    if device is not None and is_spread(network):
        why = "which say where the parts of the model are"
        raise InputError(f"device: expected none beside device_map or offloaded weights, {why}.")
    names = [part.strip() for part in targets.split(",")] if isinstance(targets, str) else list(targets)
    with (
        claimed(network, busy),
        placed(network, device) as home,
        probing_state(network, "running"),
        quiet_transformers(),
        ExitStack() as stack,
    ):
        where = home or torch.device("cpu")
        # The model: its blocks, what it can predict, where the states of the tokens stand.
        dry = anatomy.dry_inputs(network, where)
        found = find_blocks(network, dry, blocks)
        scoring = Head.of(network, dry)
        if scoring is not None:
            stack.enter_context(scoring)
        most = min(uncut.length, anatomy.longest_piece(network, found.called) or uncut.length)
        places = anatomy.places_of(network, found, where, most)
        most = places.most or most
        fits = anatomy.task_of(network, found, where, places.shift, length=most)
        task = check_task(task, fits)
        # The text: pieces of token ids.
        wanted = stream.tokens_wanted(found.width, task) if uncut.tokens is None else uncut.tokens
        special = sum(map(len, around(tokenizer))) if task == "masked" else 0
        fitting = replace(uncut, tokenizer=tokenizer, length=most - special, bos=uncut.bos if task == "next" else False)
        habit = None if loaded.file is None or loaded.bos(tokenizer) is None else loaded.file.bos
        pieces = fitting.cut(wanted=wanted, habit=habit, bos_id=loaded.bos(tokenizer))
        if most < uncut.length and max(map(len, pieces.ids)) >= most - special:
            why = f"it fails on longer ones ({places.failed})" if places.failed else "the model has no places for more"
            pieces = pieces.noted(f"Pieces have {most} tokens instead of {uncut.length}: {why}.")
        limit = None
        if pieces.tokens > wanted:
            limit, note = uncut.tokens, f"{wanted:,} tokens spread over the text were read."
            pieces = pieces.spread(wanted).noted("" if limit else note)
        vocabulary = vocabulary_of(network)
        check_ids(pieces, vocabulary, tokenizer, loaded.mask_id)
        # What is predicted, and what is measured beside it.
        head = output_embedding(network)
        chosen = targets_of(names, vocabulary, head, counted(pieces.ids, vocabulary), seed, task)
        # Nothing predicts the first token of a piece.
        predicted = counted([ids[1:] for ids in pieces.ids] if task == "next" else pieces.ids, vocabulary)
        frequent = FrequentTokens.of(predicted, classes) if classes else None
        shown = PicturedWords.of(words, tokenizer, vocabulary) if len(words) else None
        plan = TextPlan(found, tuple(chosen), normalize, places, frequent, shown)
        pieces = pieces.noted(pieces.left_out).dealt(*stream.affordable(uncut.groups, plan, memory_gib))
        pieces = pieces.noted(
            unnamed_sentinels(tokenizer) if task == "span" else "",
            AGAINST_ITS_WAY[task] if task != fits else "",
            decides_classes(network),
            NO_HEAD.format(type(network).__name__) if head is None else "",
        )
        if task == "next":  # first of all: every number that follows depends on it
            if scoring is not None:
                scoring.confirm(network, pieces.ids[0][:CONFIRMED].to(where))
            said = bos_note(network, scoring, loaded.bos(tokenizer), pieces, where)
            pieces = replace(pieces, notes=(*filter(None, [said]), *pieces.notes))
        offsets = tuple(sorted({target.offset for target in chosen} | ({0} if words else set())))
        config = getattr(network, "config", None)
        how = task_for(task, offsets=offsets, tokenizer=tokenizer, config=config, mask_id=loaded.mask_id, seed=seed)
        # The pass over the text, and the same for an untrained model.
        run = TextRun(plan, how, pieces, batch_size, where, progress)
        sampled = scoring is not None and task == fits == "next"
        loss = LossSample.of(scoring, network, pieces.tokens, places) if scoring is not None and sampled else None
        measured = run.measure(network, loss)
        stream.check_enough(measured.targets.counts, found.width, task, tokens=limit, length=most)
        later: list[str] = []  # what went wrong after the measurement
        twin = drawn = None
        if null:
            unsaid = loaded.file is not None
            with _noted(later, "The untrained model could not be measured"):
                drawn = untrained_twin(network, NULL_SEED + seed, std=null_std, device=where, unsaid=unsaid)
                with scoring.on(drawn.model) if scoring is not None else nullcontext():
                    twin = run.measure(drawn.model)
        record = _record(network, loaded, run, measured, twin, later)
    mean = None if loss is None else loss.mean
    if loss is not None and loss.failed:
        later.append(f"The model's own loss could not be computed ({loss.failed}).")
    record.notes += filter(None, [loss_note(mean, predicted, len(pieces.ids)), drawn.note if drawn else "", *later])
    if drawn is not None:
        record.settings |= {"null_std": drawn.std, "null_std_from": drawn.source}
    record.settings |= {
        "length": min(most, max(map(len, pieces.ids)) + special),
        "long_documents": uncut.documents,
        "head": head is not None,
        "seed": seed,
    }
    if loss is not None and mean is not None and math.isfinite(mean):
        record.settings |= {"loss": round(mean, 4), "loss_tokens": int(loss.sums[1])}
    if uncut.about is not None:
        record.provenance["text"] = uncut.about
    record.provenance["seconds"] = round(time.perf_counter() - started, 3)
    return record


TYPES: dict[str, tuple[Any, str]] = {
    "targets": (Sequence, "names"),
    "words": (Sequence, "a list of words or token ids"),
    "blocks": (Sequence | None, "names of modules"),
    "null": (bool, "True or False"),
    "null_std": (Real | None, "a positive number"),
    "memory_gib": (Real, "a number of GiB"),
}


def _check_types(**given: Any) -> None:
    for name, value in given.items():
        kind, what = TYPES[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{name}: expected {what}, got {value!r}.")
    if isinstance(words := given["words"], str):
        raise InputError(f"words: expected a list of words, got the string {words!r}: words=[{words!r}].")


@contextmanager
def _noted(notes: list[str], what: str) -> Iterator[None]:
    """What fails in here becomes a note: a finished pass over a text is not lost for what comes after it."""
    try:
        yield
    except Exception as error:
        if world_size() > 1:  # the other processes would wait for this one
            raise
        told = " ".join(str(error).split())
        why = told if isinstance(error, LayerlawError) else f"{type(error).__name__}: {told}"
        notes.append(f"{what} ({why[:300].rstrip('.')}).")


def _record(
    model: nn.Module, loaded: Loaded, run: TextRun, measured: MomentPass, twin: MomentPass | None, later: list[str]
) -> Record:
    plan, pieces, words = run.plan, run.pieces, measured.words
    about = model_provenance(model)
    quantized = loaded.file.quantization if loaded.file is not None else quantization_of(model)
    if packed := any(packed_count(part) for part in model.modules()):  # its parameters are only some of its weights
        about |= {"parameters": weight_count(model), "parameters_sha256": None}
    if about["parameters_sha256"] is None and (packed or quantized):
        later.append("Of quantized weights no checksum was made.")
    n = int(measured.targets.counts.sum())
    return Record(
        name=loaded.name,
        kind=LANGUAGE_MODEL,
        classes=[],
        words=list(words.names) if words else [],
        plane_labels=list(words.sample.labels) if words else [],
        counts=[n],
        sites=_rows(plan, measured, twin, later),
        notes=_notes(run, measured, n),
        settings={
            "task": run.task.name,
            "targets": {target.name: target.about for target in plan.targets},
            "normalize": plan.normalize,
            "norm": plan.blocks.norm,
            "blocks": str(plan.blocks),
            "tokens": n,
            "tokens_per_feature": round(n / plan.blocks.width, 2),
            "pieces": len(pieces.ids),
            "documents": (pieces.given or 1) if pieces.packed else len(set(pieces.documents)),
            "groups": max(pieces.groups) + 1,
            "bos": pieces.bos,
            "batch_size": run.batch_size,
            "classes": 0 if plan.frequent is None else len(plan.frequent.ids),
        },
        provenance=provenance(
            *dict.fromkeys(site.device for site in measured.sites.values()),
            transformers=getattr(sys.modules.get("transformers"), "__version__", None),
            dtype=str(dtype_of(model)).removeprefix("torch."),
            quantization=quantized,
            processes=world_size(),
            **about,
            data_sha256=pieces.checksum,
            tokens_per_second=round(measured.tokens / max(measured.seconds, 1e-9), 1),
        ),
    )


def _rows(plan: TextPlan, measured: MomentPass, twin: MomentPass | None, later: list[str]) -> list[SiteRow]:
    planes: dict[object, list[list[float]]] = {}
    with _noted(later, "The words could not be pictured"):
        planes = measured.words.sample.planes() if measured.words else {}
    rows = []
    for site in plan.sites:
        row = SiteRow(site.name, site.type, site.shape, site.features, site.in_fit, site.at)
        row.plane = planes.get(site.name, [])
        for column, residual in _residuals(plan, measured, site.name).items():
            row.values |= {column: residual.in_sample, f"{column}_adjusted": residual.adjusted}
            if (
                residual.held_out is not None
                and residual.left_out is not None
                and residual.held_out_left_out is not None
            ):
                row.values |= {
                    f"{column}_log_se": residual.log_error,
                    f"{column}_held_out": residual.held_out,
                    f"{column}_held_out_log_se": residual.held_out_log_error,
                }
                row.left_out[column] = list(residual.left_out)
                row.left_out[f"{column}_held_out"] = list(residual.held_out_left_out)
            if column == "residual":
                row.values["rank"] = float(residual.rank)
        with _noted(later, f"The untrained model has no values at '{site.name}'"):
            null = _residuals(plan, twin, site.name, " (untrained)") if twin is not None else {}
            for column, residual in null.items():
                row.values[f"{column}_untrained"] = residual.in_sample
                if residual.held_out is not None:
                    row.values[f"{column}_held_out_untrained"] = residual.held_out
        with _noted(later, f"D of the frequent tokens could not be computed at '{site.name}'"):
            for found, suffix in ((measured, ""), (twin, "_untrained")):
                if found is not None and found.frequent is not None:
                    row.values[f"separation{suffix}"] = found.frequent.separation(site.name)
        rows.append(row)
    return rows


def _residuals(plan: TextPlan, measured: MomentPass, site: str, which: str = "") -> dict[str, Residual]:
    """By the name of their column."""
    moments, where = measured.sites[site], f"'{site}{which}'"
    found = prediction_residuals(
        moments, measured.targets, measured.columns, where=where, null_direction=plan.sums_to_zero
    )
    return {"residual" if target == "id" else f"residual_{target}": residual for target, residual in found.items()}


def _notes(run: TextRun, measured: MomentPass, n: int) -> list[str]:
    blocks, words, notes = run.plan.blocks, measured.words, list(run.pieces.notes)
    d = blocks.width
    if n < FEW * d:
        honest = "; the held-out values do not flatter" if max(run.pieces.groups) else ""
        notes.append(
            f"Only {n / d:.1f} tokens per feature ({n:,} for {d}): below {FEW} the residual in-sample is too low, and its "
            f"line along depth not to be trusted. Use more tokens{honest}."
        )
    if not blocks.linked and not blocks.named:
        odd = f"What one module of '{blocks.home}' gives is not what the next one takes: they may be parts of blocks. "
        notes.append(odd + "Look at the model, and name the modules whose outputs are to be measured (blocks).")
    if blocks.others:
        notes.append(f"Other lists of blocks were not measured: {', '.join(blocks.others)}.")
    missing = [f"'{name}'" for name, seen in zip(words.names, words.seen, strict=True) if seen == 0] if words else []
    if missing:
        come = "do not come" if len(missing) > 1 else "does not come"
        notes.append(f"Of the words, {', '.join(missing)} {come} among the tokens that were used.")
    return notes
