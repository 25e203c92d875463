"""Language models: the prediction residual of every block, in one streaming pass.

The way of the data: pieces → task → capture (hooks) → moments → residuals → record.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Never, get_args

import torch
from torch import nn

from layerlaw.capture.network import network_of, placed, probing_state
from layerlaw.errors import InputError, check_choice, check_whole, renamed
from layerlaw.lm import anatomy, text_budget
from layerlaw.lm.blocks import BlockStack, find_blocks
from layerlaw.lm.chosen_tokens import FrequentTokens, PicturedWords
from layerlaw.lm.lens import Lens, LensKind, StateReader, bytes_beside, check_lens, check_measured, tokens_read
from layerlaw.lm.loading import Loaded, load, quiet_transformers, refuse_images, step_of
from layerlaw.lm.loss import Head, LossSample, bos_note, frequency_loss, loss_note
from layerlaw.lm.pieces import UncutText, check_ids, counted, pieces_of
from layerlaw.lm.recording import noted, passes_note, passes_over, record_of_text
from layerlaw.lm.stream import Normalize, TextPlan, TextRun
from layerlaw.lm.sub_blocks import SubSites, one_branch_note, with_sub_blocks
from layerlaw.lm.tasks import (
    AGAINST_ITS_WAY,
    TaskName,
    around,
    check_task,
    decides_classes,
    predicted_share,
    targets_of,
    task_for,
    unnamed_sentinels,
)
from layerlaw.lm.tokenizer import load_tokenizer
from layerlaw.lm.twins import check_std, untrained_twin
from layerlaw.lm.weights import (
    is_spread,
    output_embedding,
    vocabulary_of,
)
from layerlaw.module_tree import class_of
from layerlaw.probing.shards import check_same_text, same_network
from layerlaw.progress import Progress
from layerlaw.record import Record
from layerlaw.stats.ranks import Ranks, measured_together
from layerlaw.threads import WhenBusy, claimed, on_cpu, users_device

__all__ = ["BlockStack", "Loaded", "find_blocks", "load", "load_tokenizer", "pieces_of", "probe_lm"]

NO_HEAD = "No output layer was found in {}: neither its loss nor the target 'embedding' is measured."
CONFIRMED = 32  # tokens of the text whose scores are compared with what the head gives
NULL_SEED = 1_000_003  # apart from any seed that the user may have drawn the model with
OF_LOAD = ("tokenizer", "dtype", "device_map", "mask_id", "name", "revision", "trust_remote_code")
MOVED = {
    **{name: f"{name} of lm.load(model, {name}=…)" for name in OF_LOAD},
    **{
        name: f"{name} of lm.pieces_of(text, {name}=…)"
        for name in ("length", "documents", "tokens", "bos", "groups", "chat")
    },
}


@on_cpu
@measured_together
def probe_lm(
    model: nn.Module | str | os.PathLike[str] | Loaded,
    text: Any,
    *,
    targets: Sequence[str] | str = "id",
    task: TaskName | None = None,
    blocks: str | Sequence[str] | None = None,
    sites: SubSites = "blocks",
    normalize: Normalize = "fresh",
    null: bool = False,
    null_std: float | None = None,
    classes: int = 0,
    words: Sequence[str | int] = (),
    lens: LensKind | None = None,
    lens_tokens: int | None = None,
    batch_size: int = 8,
    device: str | torch.device | None = None,
    memory_gib: float = 2.0,
    seed: int = 0,
    ranks: Ranks = None,
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
    sites       "blocks", or "sub-blocks": also the states between attention and the MLP, which tells what each of them does
    normalize   "fresh": a bare norm of the model's own kind, "none", or "standardized"
    null        also measure an untrained model of the same configuration
    null_std    standard deviation of its weights; default: what the configuration says (a GGUF file says nothing)
    classes     also measure the separation D of so many most frequent next tokens
    words       also keep pictures of these words (one token each) at every block
    lens        "logit": also what the model's final norm and head predict from every block; "linear": also what they predict
                after a linear map to the last block, fitted on other documents
    lens_tokens about how many tokens the lens reads, every n-th one of each piece; default: as many as cost what the head
                costs on the whole text
    batch_size  pieces per forward
    device      where to run; the model comes back to where it was
    memory_gib  what the statistics may take: fewer groups of documents, then several passes over the text, some of the
                sites in each (the progress and a note say how many)
    seed        of what is drawn at random: masks, shuffled vocabularies, the sketch, the untrained model
    ranks       under torchrun, the process group that shares the text; default: all ranks
    busy        where another thread is measuring the model: "wait" until it is free, or "raise"
    progress    a bar or none, or a function (items, label, total) that yields the items and tells how far it is
    """
    renamed("probe_lm", old, MOVED)
    started = time.perf_counter()
    check_choice("normalize", normalize, get_args(Normalize))
    check_choice("sites", sites, get_args(SubSites))
    check_choice("task", "next" if task is None else task, get_args(TaskName))
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
        with quiet_transformers(bars=progress is not False), users_device():
            loaded = load(model)
    uncut = text if isinstance(text, UncutText) else pieces_of(text)
    check_lens(lens, lens_tokens, normalize, uncut.groups)
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
        same_network(network, null=null) as told_of_ranks,
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
        found = with_sub_blocks(network, found, dry) if sites == "sub-blocks" else found
        # The text: pieces of token ids.
        if uncut.chat is not None and task != "next":
            raise InputError(f"chat: expected next-token prediction, which chats are made for, got the task '{task}'.")
        wanted = text_budget.tokens_wanted(found.width, task) if uncut.tokens is None else uncut.tokens
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
        check_same_text(pieces.checksum)
        vocabulary = vocabulary_of(network)
        check_ids(pieces, vocabulary, tokenizer, loaded.mask_id)
        # What is predicted, and what is measured beside it.
        head = output_embedding(network)
        chosen = targets_of(names, vocabulary, head, counted(pieces.ids, vocabulary), seed, task)
        # Nothing predicts the first token of a piece.
        first = max(1, pieces.front) if task == "next" else 0
        predicted = counted([ids[first:] for ids in pieces.ids], vocabulary)
        frequent = FrequentTokens.of(predicted, classes) if classes else None
        shown = PicturedWords.of(words, tokenizer, vocabulary) if len(words) else None
        plan = TextPlan(found, tuple(chosen), normalize, places, frequent, shown)
        beside = 0
        if lens == "linear":
            read = lens_tokens or tokens_read(pieces.tokens, len(plan.sites))
            beside = bytes_beside(plan, read, batch_size * max(map(len, pieces.ids)))
        pieces = pieces.noted(pieces.left_out).dealt(*text_budget.affordable(uncut.groups, plan, memory_gib, beside))
        groups = max(pieces.groups) + 1
        passes = passes_over(plan, groups, memory_gib, lens)
        pieces = pieces.noted(
            passes_note(plan, groups, memory_gib, passes),
            unnamed_sentinels(tokenizer) if task == "span" else "",
            AGAINST_ITS_WAY[task] if task != fits else "",
            NO_HEAD.format(class_of(network).__name__) if head is None else "",
            one_branch_note(found),
        )
        offsets = tuple(sorted({target.offset for target in chosen} | ({0} if words else set())))
        config = getattr(network, "config", None)
        special_ids: Any = {"tokenizer": tokenizer, "mask_id": loaded.mask_id, "front": pieces.front}
        how = task_for(task, offsets=offsets, config=config, seed=seed, **special_ids)
        trial = how.batch([pieces.ids[0][:CONFIRMED]], [0]).to(where)
        if scoring is not None:
            scoring.confirm(network, trial.inputs_of(network))
        said = ""
        if task == "next":
            said = bos_note(network, scoring, loaded.bos(tokenizer), pieces, where, at_once=batch_size)
        # First of all: what every number that follows depends on.
        pieces = replace(pieces, notes=(*filter(None, [decides_classes(network), said]), *pieces.notes))
        # The pass over the text, and the same for an untrained model.
        run = TextRun(plan, how, pieces, batch_size, where, progress, passes)
        loss = None
        if scoring is not None and task == fits:
            loss = LossSample.of(scoring, network, pieces.tokens, places, share=predicted_share(task))
        reading = None
        if lens is not None:
            check_measured(lens, task, fits, pieces)
            readout = StateReader.of(network, found, scoring, dry)
            readout.confirm(network, found, places, trial, plan.normalized if lens == "linear" else None)
            reading = Lens.of(lens, readout, plan, pieces, task, lens_tokens)
            if loss is not None and lens == "logit":
                loss.step = reading.step  # of the same tokens: the last block's loss is the model's own
        measured = run.measure(network, loss, reading)
        text_budget.check_enough(measured.targets.counts, found.width, task, tokens=limit, length=most)
        later: list[str] = []  # what went wrong after the measurement
        twin = drawn = None
        if null:
            unsaid = loaded.file is not None
            with noted(later, "The untrained model could not be measured"):
                drawn = untrained_twin(network, NULL_SEED + seed, std=null_std, device=where, unsaid=unsaid)
                with scoring.on(drawn.model) if scoring is not None else nullcontext():
                    twin = run.measure(drawn.model, which=" (untrained)")
        record = record_of_text(network, loaded, run, measured, twin, later)
        record.notes += told_of_ranks
    mean = None if loss is None else loss.mean
    if loss is not None and loss.failed:
        later.append(f"The model's own loss could not be computed ({loss.failed}).")
    if reading is not None:
        record.settings |= {"lens": {**reading.about, "frequency_loss": round(frequency_loss(predicted), 4)}}
        later += reading.notes
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
    record.settings |= step_of(loaded.name) | ({} if uncut.chat is None else {"chat": uncut.chat})
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
