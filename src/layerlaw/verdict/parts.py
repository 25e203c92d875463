"""What layers are made of: how much linear maps, normalizations and nonlinearities change ln D, by layer and in all."""

from __future__ import annotations

from dataclasses import dataclass

from layerlaw.measures.columns import describe
from layerlaw.record import Record
from layerlaw.wording import counted, joined, number, signed

PLURALS = {
    "map": "linear maps",
    "normalization": "normalizations",
    "nonlinearity": "nonlinearities",
    "branches": "side branches where they rejoin (residual blocks, gates)",
    "other": "the rest (skip connections, pooling, attention)",
}
NEARLY_ALL, MOST = 0.9, 0.5  # of what lowers D
HARDLY = 0.05  # of ln D: by less it neither falls nor rises
LINEAR = "separation_linear"


@dataclass(frozen=True)
class PartSum:
    """All parts of one kind: how many, the sum of their changes of ln D and of ln D_lin, the largest of the latter."""

    kind: str
    count: int
    total: float
    linear: float | None
    linear_most: float | None


def layer_changes(record: Record) -> dict[str, dict[str, float]]:
    """By layer and kind of part on the trunk, how much ln D changes; parts at which D is missing or 0 are left out."""
    found: dict[str, dict[str, float]] = {}
    for part in record.parts:
        if part.branch:
            continue
        layer = found.setdefault(part.layer, {})
        if (change := part.change(record.leading)) is not None:
            layer[part.kind] = layer.get(part.kind, 0.0) + change
    return found


def part_sums(record: Record, *, branch: bool = False) -> list[PartSum]:
    """The sums over all parts of the trunk (or inside side branches), in the order in which those of a layer follow."""
    sums = []
    for kind in PLURALS:
        parts = [part for part in record.parts if part.kind == kind and part.branch == branch]
        changes = [change for part in parts if (change := part.change(record.leading)) is not None]
        linear = [change for part in parts if (change := part.change(LINEAR)) is not None]
        if changes:
            most = max(map(abs, linear)) if linear else None
            sums.append(PartSum(kind, len(changes), sum(changes), sum(linear) if linear else None, most))
    return sums


def made_of(record: Record) -> list[str]:
    """Which part of a layer does the work; nothing where parts were not measured."""
    sums = part_sums(record)
    if not sums:
        return []
    aside = sum(part.branch for part in record.parts)
    where = "Along the trunk" if aside else f"Over {counted(len(layer_changes(record)), 'layer')}"
    symbol = describe(record.leading).symbol
    listed = joined([f"{signed(one.total, 2)} in {PLURALS[one.kind]}" for one in sums])
    missing = len(record.parts) - aside - sum(one.count for one in sums)
    notes = [f"{counted(missing, 'part')} without {symbol} left out"] * bool(missing)
    notes += [f"{counted(aside, 'part')} inside side branches not counted"] * bool(aside)
    lost = f" ({', '.join(notes)})" if notes else ""
    return [f"{where} ln {symbol} changes by {listed}{_who(sums, symbol)}{lost}."]


def _who(sums: list[PartSum], symbol: str) -> str:
    """Which kind of part lowers D, where it falls at all; else what comes of all of them together."""
    total = sum(one.total for one in sums)
    if total > -HARDLY:
        what = "hardly changes" if total < HARDLY else "does not fall"
        return f": {signed(total, 2)} in all, so {symbol} {what}" if len(sums) > 1 else f": {symbol} {what}"
    best = min(sums, key=lambda one: one.total)
    share = best.total / sum(min(0.0, one.total) for one in sums)
    if best.kind == "other" or share < MOST:
        return ""
    who = PLURALS[best.kind].split(" (")[0].removesuffix(" where they rejoin")
    return f": the {who} do {'all' if share >= NEARLY_ALL else 'most'} of it"


def linear_floor_words(record: Record) -> list[str]:
    """What a linear map could still do at the first and at the last site of the fit that know it."""
    rows = [site for site in record.sites if site.in_fit and site.values.get(LINEAR) is not None]
    if not rows:
        return []
    ends = dict.fromkeys(site.name for site in (rows[0], rows[-1]))
    by_name = {site.name: site.values for site in rows}
    parts = [f"{number(by_name[e][LINEAR])} at '{e}' (there D = {number(by_name[e].get('separation'))})" for e in ends]
    return [f"The best linear map of the features would bring D to {joined(parts)}."]
