"""From moments to a record: residuals, notes, settings, provenance."""

from __future__ import annotations

import sys

from torch import nn

from layerlaw.lm.loading import Loaded
from layerlaw.lm.stream import MomentPass, TextPlan, TextRun
from layerlaw.measures.residual import Residual, prediction_residuals
from layerlaw.provenance import model_provenance, provenance
from layerlaw.record import LANGUAGE_MODEL, Record, SiteRow
from layerlaw.stats.ranks import world_size

FEW = 20  # tokens per feature below which the numbers are not to be trusted


def assembled(model: nn.Module, loaded: Loaded, run: TextRun, measured: MomentPass, twin: MomentPass | None) -> Record:
    """The record of a language model."""
    plan, pieces, words = run.plan, run.pieces, measured.words
    n = int(measured.targets.counts.sum())
    return Record(
        name=loaded.name,
        kind=LANGUAGE_MODEL,
        classes=[],
        words=list(words.names) if words else [],
        plane_labels=list(words.sample.labels) if words else [],
        counts=[n],
        sites=_rows(plan, measured, twin),
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
            dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
            processes=world_size(),
            **model_provenance(model),
            data_sha256=pieces.checksum,
            tokens_per_second=round(measured.tokens / max(measured.seconds, 1e-9), 1),
        ),
    )


def _rows(plan: TextPlan, measured: MomentPass, twin: MomentPass | None) -> list[SiteRow]:
    planes = measured.words.sample.planes() if measured.words else {}
    rows = []
    for site in plan.sites:
        row = SiteRow(site.name, site.type, site.shape, site.features, site.in_fit, site.at)
        row.plane = planes.get(site.name, [])
        for column, residual in _residuals(plan, measured, site.name).items():
            _fill(row, column, residual)
        if twin is not None:
            for column, residual in _residuals(plan, twin, site.name, " (untrained)").items():
                row.values[f"{column}_untrained"] = residual.in_sample
                if residual.held_out is not None:
                    row.values[f"{column}_held_out_untrained"] = residual.held_out
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


def _fill(row: SiteRow, column: str, residual: Residual) -> None:
    row.values |= {column: residual.in_sample, f"{column}_adjusted": residual.adjusted}
    if residual.held_out is not None and residual.left_out is not None and residual.held_out_left_out is not None:
        row.values |= {
            f"{column}_log_se": residual.log_error,
            f"{column}_held_out": residual.held_out,
            f"{column}_held_out_log_se": residual.held_out_log_error,
        }
        row.left_out[column] = list(residual.left_out)
        row.left_out[f"{column}_held_out"] = list(residual.held_out_left_out)
    if column == "residual":
        row.values["rank"] = float(residual.rank)


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
        notes.append(
            f"What one module of '{blocks.home}' gives is not what the next one takes: they may be parts of blocks. "
            "Look at the model, and name the modules whose outputs are to be measured (blocks)."
        )
    if blocks.others:
        notes.append(f"Other lists of blocks were not measured: {', '.join(blocks.others)}.")
    missing = [f"'{name}'" for name, seen in zip(words.names, words.seen, strict=True) if seen == 0] if words else []
    if missing:
        come = "do not come" if len(missing) > 1 else "does not come"
        notes.append(f"Of the words, {', '.join(missing)} {come} among the tokens that were used.")
    return notes
