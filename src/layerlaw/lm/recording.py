"""What passes over a text leave: a record, row by row, and what is to be said beside it, also how many they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from torch import nn

from layerlaw.errors import LayerlawError
from layerlaw.lm.lens import LensKind
from layerlaw.lm.loading import Loaded
from layerlaw.lm.stream import MomentPass, TextPlan, TextRun
from layerlaw.lm.text_budget import site_bytes
from layerlaw.lm.weights import dtype_of, packed_count, quantization_of, weight_count
from layerlaw.measures.residual import Residual
from layerlaw.provenance import model_provenance, provenance
from layerlaw.record import LANGUAGE_MODEL, PartRow, Record, SiteRow
from layerlaw.stats.ranks import world_size

FEW = 20  # tokens per feature below which the numbers are not to be trusted


@contextmanager
def noted(notes: list[str], what: str) -> Iterator[None]:
    """What fails in here becomes a note: a finished pass over a text is not lost for what comes after it."""
    try:
        yield
    except Exception as error:
        if world_size() > 1:  # the other processes would wait for this one
            raise
        told = " ".join(str(error).split())
        why = told if isinstance(error, LayerlawError) else f"{type(error).__name__}: {told}"
        notes.append(f"{what} ({why[:300].rstrip('.')}).")


def record_of_text(
    model: nn.Module, loaded: Loaded, run: TextRun, measured: MomentPass, twin: MomentPass | None, later: list[str]
) -> Record:
    """The record of a pass over a text; what fails after it becomes a note in `later`."""
    plan, pieces, words = run.plan, run.pieces, measured.words
    about = model_provenance(model)
    quantized = loaded.file.quantization if loaded.file is not None else quantization_of(model)
    if packed := any(packed_count(part) for part in model.modules()):  # its parameters are only some of its weights
        about |= {"parameters": weight_count(model), "parameters_sha256": None}
    if about["parameters_sha256"] is None and (packed or quantized):
        later.append("Of quantized weights no checksum was made.")
    n, rows = int(measured.targets.counts.sum()), _rows(plan, measured, twin, later)
    return Record(
        name=loaded.name,
        kind=LANGUAGE_MODEL,
        classes=[],
        words=list(words.names) if words else [],
        plane_labels=list(words.sample.labels) if words else [],
        counts=[n],
        sites=rows,
        parts=_parts(plan, rows),
        notes=_notes(run, measured, n),
        settings={
            "task": run.task.name,
            "targets": {target.name: target.about for target in plan.targets},
            "normalize": plan.normalize,
            "norm": plan.blocks.norm,
            "blocks": str(plan.blocks),
            **({"sites": "sub-blocks"} if plan.blocks.parts else {}),
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
            *measured.devices,
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
    planes: dict[object, list[tuple[float, ...]]] = {}
    with noted(later, "The words could not be pictured"):
        planes = measured.words.sample.planes() if measured.words else {}
    rows = []
    for site in plan.sites:
        row = SiteRow(site.name, site.type, site.shape, site.features, site.in_fit, site.at)
        row.plane = planes.get(site.name, [])
        for column, residual in _residuals(measured, site.name).items():
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
        with noted(later, f"The untrained model has no values at '{site.name}'"):
            null = _residuals(twin, site.name) if twin is not None else {}
            for column, residual in null.items():
                row.values[f"{column}_untrained"] = residual.in_sample
                if residual.held_out is not None:
                    row.values[f"{column}_held_out_untrained"] = residual.held_out
        row.values |= {} if measured.lens is None else measured.lens.columns.get(site.name, {})
        with noted(later, f"D of the frequent tokens could not be computed at '{site.name}'"):
            for found, suffix in ((measured, ""), (twin, "_untrained")):
                if found is not None and found.frequent is not None:
                    row.values[f"separation{suffix}"] = found.separation(site.name)
        rows.append(row)
    return rows


def _parts(plan: TextPlan, rows: list[SiteRow]) -> list[PartRow]:
    """What attention and the MLP of every block change, where the states between them were measured."""
    known = {row.name: {c: v for c, v in row.values.items() if c in LANGUAGE_MODEL.leading} for row in rows}
    return [
        PartRow(part.layer, part.kind, part.module, part.type, known[part.before.name], known[part.after.name])
        for part in plan.blocks.parts
    ]


def _residuals(measured: MomentPass, site: str) -> dict[str, Residual]:
    """By the name of their column."""
    found = measured.residuals(site)
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


def passes_over(plan: TextPlan, groups: int, memory_gib: float, lens: LensKind | None) -> tuple[tuple[str, ...], ...]:
    """Which sites each pass over the text measures, as few passes as the memory allows and one site at the least.

    A linear lens maps every site to the last one, for which all moments are needed at once: it has one pass.
    """
    names = [site.name for site in plan.sites]
    most = max(1, int(memory_gib * 2**30 // site_bytes(plan, groups)))
    count = 1 if lens == "linear" else -(-len(names) // most)
    edges = [len(names) * i // count for i in range(count + 1)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(edges))


def passes_note(plan: TextPlan, groups: int, memory_gib: float, passes: Sequence[Sequence[str]]) -> str:
    """How often the text is read, and why; empty where once is enough."""
    if len(passes) < 2:
        return ""
    each, most = site_bytes(plan, groups) / 2**30, max(map(len, passes))
    why = f"the second moments of a site take {each:.2g} GiB (memory_gib={memory_gib:g})"
    return f"Measured in {len(passes)} passes over the text, at most {most} of {len(plan.sites)} sites in each: {why}."
