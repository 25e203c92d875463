"""At which levels the steps of a record lie: which rows are borders of layers, of blocks, of stages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from layerlaw.errors import InputError
from layerlaw.law import LawFit, fit_law
from layerlaw.measures.columns import describe
from layerlaw.plain import log_ratio
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.steps import working_sites

LEVELS = ("layers", "blocks", "stages")  # from fine to coarse
_CALL = re.compile(r"#\d+$| \((input|output)\)$")  # what a site's name has beside that of its module
_NUMBERED = re.compile(r"\d+$")


@dataclass(frozen=True)
class LevelCurve:
    """One level of one network: its law, how many of the finest steps each of its modules holds, how many are no blocks.

    `led` counts blocks whose step begins with a layer in no block, since a record by blocks has no row between the two;
    `cut`: the last point lies inside the last block, since the row behind that block is no point.
    """

    fit: LawFit
    fine: tuple[float, ...]
    sizes: tuple[int, ...]
    outside: int
    led: int = 0
    cut: bool = False


def level_curves(record: Record, column: str, *, branches: bool) -> dict[str, LevelCurve]:
    """The levels of one record, from fine to coarse: the finest has the points of `record.law()`, all share its drop."""
    rows = record.points(branches=branches)
    blocks = record.settings.get("blocks") or _numbered_blocks(_workers(record.points(branches=True)))
    if record.by_blocks:
        blocks = [_CALL.sub("", row.name) for row in rows if row.at != "input" and row.type != "output"]
    if len(rows) < 2:
        raise InputError(f"find_modules: expected at least 2 points of a law, record '{record.name}' has {len(rows)}.")
    values = []
    for row in rows:
        value = row.values.get(column)
        if value is None or not (math.isfinite(value) and value > 0):
            raise InputError(f"record '{record.name}': expected a positive {column} at '{row.name}', got {value}.")
        values.append(value)
    fine = tuple(log_ratio(a, b) for a, b in pairwise(values))
    homes = _homes(rows, blocks)
    marks = row_levels(rows, blocks)
    in_front = record.settings.get("in_front", {})
    led = {i for i, at in enumerate(working_sites(rows)) if record.by_blocks and rows[at].name in in_front}
    inside = homes[-1] is not None and rows[-1].at == "input" and _inside(_CALL.sub("", rows[-1].name), homes[-1])
    out: dict[str, LevelCurve] = {}
    for k, (level, following) in enumerate(zip(LEVELS, [*LEVELS[1:], None], strict=True)):
        at, coarser = ([i for i, mark in enumerate(marks) if LEVELS.index(mark) >= j] for j in (k, k + 1))
        if len(at) < 2 or (following is not None and at == coarser):
            continue  # no such modules, or the same as those of the coarser level
        fit = fit_law([values[i] for i in at], quantity=describe(column).quantity)
        outside = 0 if level == "layers" else sum(homes[i] is None for i in at[:-1])
        sizes = tuple(b - a for a, b in pairwise(at))
        out[level] = LevelCurve(fit, fine, sizes, outside, len(led.intersection(at)), inside and level != "layers")
    return out


def row_levels(rows: Sequence[SiteRow], blocks: Sequence[str] = ()) -> list[str]:
    """Of each row the coarsest level at whose modules' border it lies.

    A step from one row to the next belongs to the block that holds the module which does its work; steps in no block (a
    stem, a layer between two stages, a head) are modules of their own at every level, so that all levels share the drop of
    the law. Rows at blocks alone have no step between a stem and the first block: there the step is that of the block.
    `blocks` are names of modules; without them the module tree tells: the innermost numbered modules that hold most layers,
    in twos or more. The blocks of one parent are a stage.

    >>> rows = [SiteRow(name, "Conv2d", (4,), 4, at="input") for name in ("conv", "1.0.a", "1.0.b", "1.1.a", "1.1.b", "fc")]
    >>> row_levels(rows)
    ['blocks', 'blocks', 'layers', 'blocks', 'layers', 'blocks']
    """
    homes = _homes(rows, blocks)
    if not any(homes):
        return ["layers"] * len(rows)
    workers = _workers(rows)
    parents = {block: block.rpartition(".")[0] for block in dict.fromkeys(filter(None, homes))}
    stages = Counter(filter(None, parents.values()))
    staged = len(set(parents.values())) > 1 and max(stages.values(), default=0) > 1
    units = [
        (home or f"step {i}", next((p for p in stages if staged and _inside(name, p)), home or f"step {i}"))
        for i, (name, home) in enumerate(zip(workers, homes, strict=True))
    ]  # of each step its block and its stage, or the step itself
    out = ["stages" if staged else "blocks"]
    for before, after in pairwise(units):
        new_block, new_stage = (a != b for a, b in zip(before, after, strict=True))
        out.append("stages" if staged and new_stage else "blocks" if new_block else "layers")
    return [*out, out[0]]


def _workers(rows: Sequence[SiteRow]) -> list[str]:
    return [_CALL.sub("", rows[i].name) for i in working_sites(list(rows))]


def _homes(rows: Sequence[SiteRow], blocks: Sequence[str]) -> list[str | None]:
    """Of each step its block; of none where there are fewer than two, or most steps lie outside of them."""
    workers = _workers(rows)
    blocks = list(blocks) or _numbered_blocks(workers)
    homes = [max((b for b in blocks if _inside(name, b)), key=len, default=None) for name in workers]
    held = [home for home in homes if home is not None]
    few = len(set(held)) < 2 or len(held) < len(workers) / 2
    return [None] * len(workers) if few else homes


def _inside(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _numbered_blocks(names: Sequence[str]) -> list[str]:
    """Blocks by names alone: of the numbered modules of one place in the tree (layer1.0, layer1.1 …) those that hold most.

    At least half of them hold two layers or more; among places that hold as many layers the innermost.
    """
    places: dict[str, Counter[str]] = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            if _NUMBERED.search(parts[depth - 1]):
                place = ".".join(_NUMBERED.sub("*", part) for part in parts[:depth])
                places.setdefault(place, Counter())[".".join(parts[:depth])] += 1
    repeated = {
        place: units
        for place, units in places.items()
        if len(units) > 1 and sum(count > 1 for count in units.values()) >= len(units) / 2
    }
    best = max(repeated, key=lambda place: (repeated[place].total(), place.count(".")), default=None)
    return [] if best is None else list(repeated[best])
