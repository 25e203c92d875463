"""What a language model's table says of a block, on the page and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from layerlaw.pages.record_view import RecordView
from layerlaw.record import SiteRow
from layerlaw.verdict.targets import column_of, is_shuffled, target_name, targets
from layerlaw.wording import ABSENT, finite, number, percent, residual

GAIN, UNTRAINED = "gain", "untrained"
LEAST_SCALE = 0.005  # a bar of full length is at least this gain, or noise would look like work
SHORT = {
    "embedding": "embedding",
    "onehot": "one-hot",
    "rank": "freq. rank",
    "current": "current",
    "next2": "next but 1",
}


@dataclass(frozen=True)
class LmColumn:
    """A heading (and a shorter one), what it means, how a site fills it; the higher `goes`, the sooner it goes for room."""

    head: str
    short: str
    meaning: str
    cell: Callable[[SiteRow], str]
    goes: int = 0


def lm_columns(view: RecordView) -> list[LmColumn]:
    """The residual first, then what is taken off it, then what it is to be compared with."""
    lead, held_out = view.column, view.column == "residual_held_out"
    t = view.errors.t if view.errors is not None else 1.96
    name = "held-out PR" if held_out else "PR"
    untrained = f"PR of the same model untrained, {kind(view)}"
    columns = [
        LmColumn(name, name, "prediction residual of the token’s id; lower is better", lambda s: of(s, lead)),
        LmColumn(
            "±", "±", "95% interval of PR by jackknife over documents, relative", lambda s: _interval(s, lead, t), 2
        ),
        LmColumn(
            GAIN, GAIN, "by how much of itself PR falls at this block", lambda s: ABSENT
        ),  # filled from the reading
    ]
    if held_out:
        columns.append(
            LmColumn("in-sample", "in-sample", "PR of the very tokens it was fitted to", lambda s: of(s, "residual"), 1)
        )
    columns += [
        LmColumn(UNTRAINED, UNTRAINED, untrained, lambda s: of(s, f"{lead}_untrained"), 3),
        *_other_targets(view),
        LmColumn("D", "D", "separation of the most frequent tokens", lambda s: number(s.values.get("separation")), 5),
        LmColumn("adjusted", "adjusted", "PR in-sample, less what features do", partial(of, column="residual_adjusted"), 31),
        LmColumn("spans", "spans", "directions the features span, where fewer than they could", _short_rank, 32),
    ]  # fmt: skip
    return columns


def kind(view: RecordView) -> str:
    """How the leading column, its intervals and its untrained twin were measured."""
    return "held out" if view.column == "residual_held_out" else "in-sample"


def even_gain(view: RecordView) -> float | None:
    """What every block would take if all took the same."""
    fit = view.fit
    return None if fit is None else 1 - math.exp(math.log(fit.values[-1] / fit.values[0]) / fit.layers)


def of(site: SiteRow, column: str) -> str:
    """A residual of a site, as words."""
    return residual(site.values.get(column))


def _other_targets(view: RecordView) -> list[LmColumn]:
    known = targets(view.record)
    out = [
        LmColumn(
            target_name(target),
            SHORT.get(target, target),
            f"PR of another target: {target_name(target)}, {kind(view)}",
            partial(of, column=column_of(view.record, target)),
            6 if target == "embedding" else 10 + i,  # of the others the last named goes first
        )
        for i, target in enumerate(known)
        if not is_shuffled(target)
    ]
    shuffled = [column_of(view.record, target) for target in known if is_shuffled(target)]
    if shuffled:
        meaning = f"PR of the next token’s id in shuffled vocabularies, mean of {len(shuffled)}, {kind(view)}"
        out.append(LmColumn("shuffled ids", "shuffled", meaning, lambda s: _mean(s, shuffled), 30))
    return out


def _mean(site: SiteRow, columns: list[str]) -> str:
    values = [v for column in columns if (v := finite(site.values.get(column))) is not None]
    return residual(fmean(values)) if values else ABSENT


def _interval(site: SiteRow, column: str, t: float) -> str:
    error = finite(site.values.get(f"{column}_log_se"))
    return ABSENT if error is None else f"±{percent(math.exp(min(t * error, 100.0)) - 1)}"


def _short_rank(site: SiteRow) -> str:
    rank = finite(site.values.get("rank"))
    return ABSENT if rank is None or rank >= site.features - 1 else f"{rank:,.0f}"  # LayerNorm always takes one
