"""By how much ln PR changes, with its error: at attention and the MLP of a block, and between two models on the same tokens.

Both sides see the same tokens, so their errors move together: the error of a change comes from the change itself with one
group of documents left out, and is far smaller than those of its two ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from layerlaw.errors import InputError, visible
from layerlaw.law import jackknife_error, t_quantile
from layerlaw.measures.columns import describe
from layerlaw.plain import log_ratio
from layerlaw.record import LANGUAGE_MODEL, PartRow, Record, SiteRow
from layerlaw.wording import counted, joined, percent, signed

BRANCHES = {"attention": "attention", "mlp": "the MLPs", "other": "other branches"}
LIKE = ("task", "normalize", "norm", "groups", "tokens", "pieces", "bos", "documents")  # settings that must agree
MASKS = ("masked", "span")  # tasks that draw what is predicted


@dataclass(frozen=True)
class LogChange:
    """ln(after / before), its standard error by the delete-group jackknife, and of how many groups; `None`: no groups.

    >>> LogChange(-0.1, 0.02, 8).clear, LogChange(-0.1, 0.2, 8).clear
    (True, False)
    """

    change: float
    error: float | None = None
    groups: int = 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval (Student's t with g − 1)."""
        if self.error is None:
            return None
        wide = t_quantile(self.groups - 1) * self.error
        return self.change - wide, self.change + wide

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval leaves 0 out."""
        return (ends := self.interval) is not None and (ends[0] > 0 or ends[1] < 0)

    def __str__(self) -> str:
        """± as everywhere in words: half of the 95 % interval, so that what is written tells whether the change is clear."""
        ends = self.interval
        return signed(self.change, 3) + ("" if ends is None else f" ± {(ends[1] - ends[0]) / 2:.3f}")


def log_change(pairs: Sequence[tuple[SiteRow, SiteRow]], column: str, *, mean: bool = False) -> LogChange | None:
    """The sum (or mean) of ln(after / before) over pairs of rows of the same tokens; `None` where there is no logarithm."""
    values = [[row.values.get(column) for row in pair] for pair in pairs]
    without = [[row.left_out.get(column, []) for row in pair] for pair in pairs]
    unit = len(pairs) if mean else 1
    total = _summed([(b, a) for b, a in values])
    if not pairs or total is None:
        return None
    sizes = {len(side) for pair in without for side in pair}
    g = sizes.pop() if len(sizes) == 1 else 0
    left = [_summed([(before[i], after[i]) for before, after in without]) for i in range(g)]
    known = [value / unit for value in left if value is not None]
    return LogChange(total / unit, jackknife_error(known), g) if g > 1 and len(known) == g else LogChange(total / unit)


def _summed(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    found = 0.0
    for before, after in pairs:
        if before is None or after is None or not (before > 0 and after > 0):
            return None
        found += log_ratio(after, before)
    return found


def branch_rows(record: Record) -> list[tuple[PartRow, SiteRow, SiteRow]]:
    """The branches of the blocks of a language model, each with the rows before and after it."""
    found, parts = [], iter(record.parts if record.kind == LANGUAGE_MODEL else ())
    part = next(parts, None)
    for before, after in pairwise(record.sites):
        if part is not None and (after.name == part.layer or after.name.startswith(f"{part.layer} after ")):
            found.append((part, before, after))
            part = next(parts, None)
    return found


def branch_changes(record: Record) -> dict[str, LogChange]:
    """By kind of branch, how much all of them together change ln PR."""
    rows, column = branch_rows(record), record.leading
    found = {kind: log_change([(a, b) for part, a, b in rows if part.kind == kind], column) for kind in BRANCHES}
    return {kind: change for kind, change in found.items() if change is not None}


def branch_words(record: Record) -> list[str]:
    """What attention and the MLPs do, in a sentence; nothing where the states between them were not measured."""
    changes = branch_changes(record)
    if len(changes) < 2:
        return []
    column, layers = record.leading, {part.layer for part in record.parts}
    symbol = "held-out PR" if column == "residual_held_out" else describe(column).symbol
    listed = joined([f"{change} at {BRANCHES[kind]}" for kind, change in changes.items()])
    errors = " (±: 95% intervals over documents)" * all(change.error is not None for change in changes.values())
    start = (
        f"Over {counted(len(layers), 'block')}, from the embedded input on, ln of {symbol} changes by {listed}{errors}"
    )
    falls = {kind: -change.change for kind, change in changes.items() if change.change < 0}
    most, total = max(falls, key=falls.__getitem__, default=""), sum(change.change for change in changes.values())
    if total >= 0:
        return [f"{start}: in all it does not fall."]
    if _undecided(record, list(changes)):
        return [f"{start}: no clear difference between them."]
    if len(falls) < len(changes):
        return [f"{start}: the fall is at {joined([BRANCHES[kind] for kind in falls])}."]
    return [f"{start}: {falls[most] / -total:.0%} of the fall at {BRANCHES[most]}."]


def _undecided(record: Record, kinds: Sequence[str]) -> bool:
    """Whether other text might turn round which of two kinds of branches does more."""
    rows = branch_rows(record)
    own, other = ([(a, b) for part, a, b in rows if part.kind == kind] for kind in kinds[:2])
    between = log_change([*own, *((b, a) for a, b in other)], record.leading)  # ln of the one change less the other
    return len(kinds) == 2 and between is not None and between.error is not None and not between.clear


@dataclass(frozen=True)
class PairedDifference:
    """ln PR of one model over that of another at each block, measured on the same token ids; negative: the other is lower.

    `mean` is over all blocks.
    """

    base: str
    other: str
    column: str
    blocks: tuple[LogChange | None, ...]
    mean: LogChange | None

    @property
    def clear(self) -> list[int]:
        """Blocks (1 … L) whose 95 % interval leaves 0 out."""
        return [i for i, change in enumerate(self.blocks, 1) if change is not None and change.clear]

    def sentence(self) -> str:
        """What differs, and where that is beyond its error."""
        if self.mean is None:
            return visible(f"'{self.other}' and '{self.base}' have no values to compare.")
        known = [change for change in self.blocks if change is not None]
        if all(abs(change.change) < 1e-9 for change in known):
            return visible(f"'{self.other}' has the same PR as '{self.base}' at every block.")
        far = max(range(len(self.blocks)), key=lambda i: abs(c.change) if (c := self.blocks[i]) else 0.0)
        most = self.blocks[far]
        assert most is not None
        size = abs(math.expm1(self.mean.change))
        way = "lower" if self.mean.change < 0 else "higher"
        error = (
            ""
            if self.mean.error is None
            else f" (ln: {self.mean}, 95% interval; {'clear' if self.mean.clear else 'not clear, it includes 0'})"
        )
        beyond = f"; beyond its 95% interval at {len(self.clear)} of {counted(len(known), 'block')}" * (
            most.error is not None
        )
        return visible(
            f"On the same tokens PR of '{self.other}' is {percent(size, 2)} {way} than of '{self.base}', averaged over "
            f"blocks{error}; most at block {far + 1} (ln: {most}){beyond}."
        )


def why_not_paired(base: Record, other: Record) -> str:
    """Why two records cannot be compared token by token; "" where they can."""
    if base.kind != LANGUAGE_MODEL or other.kind != LANGUAGE_MODEL:
        return "both must be of language models"
    sums = [record.provenance.get("data_sha256") for record in (base, other)]
    if None in sums or sums[0] != sums[1]:
        return "they were not measured on the same token ids"
    keys = (*LIKE, "seed") if base.settings.get("task") in MASKS else LIKE
    if unlike := [key for key in keys if base.settings.get(key) != other.settings.get(key)]:
        return f"they were measured with another {unlike[0]}"
    here, there = (sum(site.in_fit for site in record.sites) for record in (base, other))
    return "" if here == there else f"they have {here} and {there} blocks"


def paired_difference(base: Record, other: Record, column: str | None = None) -> PairedDifference:
    """Two models (base and instruct, an adapter and its merged weights) block by block, on the same token ids."""
    if why := why_not_paired(base, other):
        raise InputError(
            f"paired_difference: expected records of the same tokens; '{base.name}', '{other.name}': {why}."
        )
    column = column or base.leading
    pairs = list(zip(base.points(), other.points(), strict=True))
    blocks = tuple(log_change([pair], column) for pair in pairs)
    return PairedDifference(base.name, other.name, column, blocks, log_change(pairs, column, mean=True))


def paired_differences(records: Sequence[Record]) -> list[PairedDifference]:
    """Every record beside the first one of the same tokens; more than two steps of a run are compared along them instead."""
    steps = {step for record in records if (step := record.settings.get("step")) is not None}
    alone = [record for record in records if len(steps) <= 2 or "step" not in record.settings]
    found = []
    for i, record in enumerate(alone):
        base = next((other for other in alone[:i] if not why_not_paired(other, record)), None)
        if base is not None and base.leading == record.leading:
            found.append(paired_difference(base, record))
    return found
