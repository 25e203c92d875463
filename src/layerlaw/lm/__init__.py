"""Language models: the prediction residual of every block, in one streaming pass.

    pieces     text → token ids, cut into pieces, dealt into groups of documents
    loading    MODEL → a model and its tokenizer
    quiet      a transformers that keeps quiet
    anatomy    what the model is: vocabulary, output embedding, which way it reads
    blocks     its blocks, found by structure, and hooks on them
    naming     its blocks, named by hand
    places     where the state of each token stands
    tasks      what it is asked: next token, masked tokens, masked spans
    targets    what is predicted: id, embedding, one-hot, shuffled ids, other tokens
    stream     the pass: hidden states → second moments
    classes    the most frequent next tokens as classes
    words      pictures of chosen words
    vocabulary a byte-pair vocabulary of one's own
    assembly   moments → record

The way of the data: pieces → task → blocks (hooks) → moments → residuals → record.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from layerlaw.capture.network import network_of, placed, probing_state, untrained
from layerlaw.errors import InputError
from layerlaw.lm import anatomy
from layerlaw.lm.assembly import assembled
from layerlaw.lm.blocks import Blocks, find_blocks
from layerlaw.lm.bos import missing_bos
from layerlaw.lm.checks import check_enough, check_ids, check_options, check_task
from layerlaw.lm.classes import FrequentTokens
from layerlaw.lm.loading import Loaded, load, load_tokenizer, untrained_twin
from layerlaw.lm.loss import own_loss
from layerlaw.lm.loss import remark as loss_remark
from layerlaw.lm.pieces import Documents, counted, pieces_of
from layerlaw.lm.places import places_of
from layerlaw.lm.quiet import quiet_transformers
from layerlaw.lm.stream import Normalize, Plan, Run, affordable, tokens_wanted
from layerlaw.lm.targets import targets_of
from layerlaw.lm.tasks import AGAINST_ITS_WAY, TaskName, places_around, task_for, unnamed_sentinels
from layerlaw.lm.words import Words
from layerlaw.progress import Progress
from layerlaw.record import Record

__all__ = ["Blocks", "Loaded", "find_blocks", "load", "load_tokenizer", "pieces_of", "probe_lm"]

NULL_SEED = 1_000_003  # apart from any seed that the user may have drawn the model with


def probe_lm(
    model: nn.Module | str | os.PathLike[str],
    text: Any,
    *,
    tokenizer: Any = None,
    targets: Sequence[str] | str = "id",
    tokens: int | None = None,
    length: int = 512,
    documents: Documents = "cut",
    blocks: str | Sequence[str] | None = None,
    normalize: Normalize = "fresh",
    task: TaskName | None = None,
    null: bool = False,
    classes: int = 0,
    words: Sequence[str | int] = (),
    groups: int | None = None,
    bos: bool | None = None,
    mask_id: int | None = None,
    batch_size: int = 8,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    memory_gib: float = 2.0,
    seed: int = 0,
    name: str | None = None,
    progress: bool | Progress = True,
) -> Record:
    """Measure how well each block of a language model predicts the next token linearly (prediction residual).

    model       a loaded model, a local folder, a Hugging Face name, or a GGUF file; afterwards it is exactly as it was
    text        a string, an iterable of documents, or token ids of shape (documents, length)
    targets     beside the token's id (always): embedding, onehot, shuffled, rank, previous, current, next2
    tokens      how many to read, spread over the text; default: so many that about 100 per feature are predicted (masked
                tasks predict about 15 % of the tokens they read)
    length      tokens the model reads at once; longer documents are cut
    documents   "cut" long ones into pieces, "truncate" them to one piece, or "pack" all into one stream
    blocks      names of the modules to measure, where they are not those found: "model.layers", "layers.*.mlp", or a list
    normalize   "fresh": a bare norm of the model's own kind, "none", or "standardized"
    task        "next", "masked" (encoders) or "span" (encoder-decoders); default: what fits the model
    null        also measure an untrained model of the same configuration
    classes     also measure the separation D of so many most frequent next tokens
    words       also keep pictures of these words (one token each) at every block
    groups      groups of documents for held-out values and standard errors; default: 8, or as many as memory_gib allows
    bos         put a BOS in front of every piece; default: where the tokenizer itself puts one
    mask_id     the token that stands for a masked one, where no tokenizer knows it
    batch_size  pieces per forward
    device, dtype, device_map   where and how the model is loaded and run; "auto" spreads it (accelerate)
    memory_gib  what the statistics may take
    seed        of what is drawn at random: masks, shuffled vocabularies, the sketch, the untrained model
    """
    started = time.perf_counter()
    check_options(
        normalize=normalize, task=task, targets=targets, words=words, bos=bos, batch_size=batch_size, classes=classes,
        tokens=tokens, length=length, groups=groups, mask_id=mask_id, memory_gib=memory_gib, blocks=blocks, null=null,
    )  # fmt: skip
    with quiet_transformers(bars=progress is not False):
        loaded = load(model, tokenizer=tokenizer, dtype=dtype, device_map=device_map)
    network = network_of(loaded.model)
    if device is not None and (device_map is not None or hasattr(network, "hf_device_map")):
        raise InputError("device: expected none beside device_map, which says where the parts of the model are.")
    names = [part.strip() for part in targets.split(",")] if isinstance(targets, str) else list(targets)
    text = getattr(text, "documents", text)  # what load_text gives
    with placed(network, device) as home, probing_state(network, "running"), quiet_transformers():
        where = home or torch.device("cpu")
        found = find_blocks(network, anatomy.dry_inputs(network, where), blocks)
        longest = anatomy.longest_piece(network)
        room = min(length, longest or length)
        places = places_of(network, found, where, room)
        fits = anatomy.task_of(network, found, where, places.shift)
        asked = task or fits
        check_task(asked, anatomy.is_encoder_decoder(network))
        wanted = tokens if tokens is not None else tokens_wanted(found.width, asked)
        around = places_around(loaded.tokenizer) if asked == "masked" else 0
        bos = bos if asked == "next" else False
        pieces = pieces_of(text, loaded.tokenizer, length=room - around, documents=documents, bos=bos, wanted=wanted)
        if room < length and max(map(len, pieces.ids)) >= room - around:
            pieces = pieces.noted(f"Pieces have {room} tokens instead of {length}: the model has no places for more.")
        limit = None
        if pieces.tokens > wanted:
            limit, pieces = tokens, pieces.spread(wanted)
            if tokens is None:
                pieces = pieces.noted(f"{wanted:,} tokens spread over the text were read.")
        pieces = pieces.noted(pieces.left_out)
        vocabulary = anatomy.vocabulary_of(network)
        check_ids(pieces, vocabulary, loaded.tokenizer, mask_id)
        counts = counted(pieces.ids, vocabulary)
        head = anatomy.output_embedding(network)
        chosen = targets_of(names, vocabulary, head, counts, seed, asked)
        told = [ids[1:] for ids in pieces.ids] if asked == "next" else pieces.ids  # nobody tells the first of a piece
        told_counts = counted(told, vocabulary)
        frequent = FrequentTokens.of(told_counts, classes) if classes else None
        shown = Words.of(words, loaded.tokenizer, vocabulary) if len(words) else None
        plan = Plan(found, tuple(chosen), normalize, found.whole, places, frequent, shown)
        pieces = pieces.dealt(*affordable(groups, plan, memory_gib))
        if asked == "next":
            pieces = pieces.noted(missing_bos(network, loaded.tokenizer, pieces, where))
        if asked == "span":
            pieces = pieces.noted(unnamed_sentinels(loaded.tokenizer))
        pieces = pieces.noted(AGAINST_ITS_WAY.get((asked, fits), ""))
        if head is None:
            what = type(network).__name__
            pieces = pieces.noted(
                f"No output layer was found in {what}: neither its loss nor the target 'embedding' is told."
            )
        config = getattr(network, "config", None)
        offsets = tuple(sorted({target.offset for target in chosen} | ({0} if words else set())))
        how = task_for(asked, offsets=offsets, tokenizer=loaded.tokenizer, config=config, mask_id=mask_id, seed=seed)
        run = Run(plan, how, pieces, batch_size, where, progress)
        measured = run.measure(network)
        check_enough(measured.targets.counts, found.width, asked, tokens=limit, length=room)
        twin = run.measure(_untrained(network, seed)) if null else None
        record = assembled(network, loaded, run, measured, twin)
        loss = own_loss(network, pieces, len(head), where) if head is not None and asked == fits == "next" else None
    record.notes += filter(None, [loss_remark(loss, told_counts, len(pieces.ids))])
    record.settings |= {
        "length": min(room, max(map(len, pieces.ids)) + around),
        "long_documents": documents,
        "head": head is not None,
        "seed": seed,
    }
    if loss is not None and math.isfinite(loss):
        record.settings["loss"] = round(loss, 4)
    record.name = name or record.name
    record.provenance["seconds"] = round(time.perf_counter() - started, 3)
    return record


def _untrained(network: nn.Module, seed: int) -> nn.Module:
    return untrained_twin(network, NULL_SEED + seed) or untrained(network, seed=NULL_SEED + seed)
