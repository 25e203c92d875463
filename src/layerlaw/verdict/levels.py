"""Which module obeys the law: at which level of the network, layers, blocks or stages, is the drop of log D shared evenly?

The answer is the finest level whose modules share the drop more evenly than a random split would (Greenwood's p < .05). The
candidates are the levels that the trunk of the network itself has: free segmentations fit anything, and rows of side
branches are no sequence. How often the answer is right, on trained networks and on random splits, is in docs/modules.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from layerlaw.errors import InputError, visible
from layerlaw.files import json_safe, write_json
from layerlaw.law import CHANCE, FEWEST_POINTS, pooled_greenwood_p, shuffled_p
from layerlaw.measures.columns import describe
from layerlaw.notebook import Shown, View
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet
from layerlaw.verdict.level_rows import LEVELS, LevelCurve, level_curves
from layerlaw.verdict.steps import samples_needed
from layerlaw.wording import joined, number, p_value

FEWEST = FEWEST_POINTS - 1  # modules of a level that is tested
FEW, HOPELESS = 6, 0.5  # so few modules of one network have little power; with such a p more networks would not help


@dataclass(frozen=True)
class ModuleLevel:
    """One level of the networks: how evenly its modules share the drop. Tuples have an entry per network."""

    name: str
    modules: tuple[int, ...]
    """How many steps the drop is divided into: blocks (or stages), and the layers outside of them, each for itself."""
    outside: tuple[int, ...]
    """How many of them are such layers: a stem, a layer between two stages, a head."""
    p: float
    """Chance that random splits are as even: Greenwood's p, of several networks that of the sum of their statistics."""
    median_p: float
    permutation_p: float | None
    """Chance that the finest steps, shuffled and grouped by the same sizes, are as even; `None` at the finest level."""
    evenness: float | None
    """Median of effective modules ÷ modules; 1 when all do equal work."""
    rises: int
    """Modules at which the value rises, over all networks."""
    holds: int
    """Networks in which `LawFit.holds`: beside p it asks for an evenness of .8 and no trend."""
    shares: tuple[tuple[float, ...] | None, ...]
    led: tuple[int, ...] = ()
    """How many blocks have a step that begins with a layer in no block: of records by blocks, which have no row there."""
    cut: tuple[bool, ...] = ()
    """Whether the last point lies inside the last block: the row behind it was set aside."""

    @property
    def passes(self) -> bool:
        """Whether random splits are seldom as even."""
        return self.p < CHANCE

    @property
    def counted(self) -> str:
        """How many modules: "4 blocks", "4 blocks and 1 other layer", "4 blocks, 1 of them with the layers in front"."""
        others = f" and {_counted(self.outside, 'other layer')}" if any(self.outside) else ""
        return f"{_counted(self._inside, self.name[:-1])}{self._limits}{',' * bool(self._limits and others)}{others}"

    @property
    def subject(self) -> str:
        """The same in front of a verb."""
        return f"The {self.counted}{',' * (bool(self._limits) and not any(self.outside))}"

    @property
    def _inside(self) -> list[int]:
        return [all_ - out for all_, out in zip(self.modules, self.outside, strict=True)]

    @property
    def _limits(self) -> str:
        many = "each" if list(self.led) == self._inside else f"{_span(self.led)} of them" if any(self.led) else ""
        return f", {many} with the layers in front" * bool(many) + ", the last without its end" * any(self.cut)


def _span(counts: Sequence[int]) -> str:
    return "–".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def _counted(counts: Sequence[int], one: str) -> str:
    return f"{_span(counts)} {one if set(counts) == {1} else f'{one}s'}"


@dataclass(frozen=True)
class ModuleFinding(Shown):
    """At which level the drop is shared evenly, with the numbers of every level, the finest first."""

    networks: tuple[str, ...]
    quantity: str
    levels: tuple[ModuleLevel, ...]
    too_few: Mapping[str, int]
    """Levels of fewer than three modules, which say nothing, and how many they have."""

    @property
    def level(self) -> str | None:
        """The finest level that passes; `None`: none is established."""
        return next((level.name for level in self.levels if level.passes), None)

    @property
    def most_even(self) -> str | None:
        """The level of the least Greenwood p, which allows for the number of modules; `None` where nothing falls."""
        known = [level for level in self.levels if level.evenness is not None]
        return (
            min(known, key=lambda level: (level.p, level.median_p, -(level.evenness or 0)), default=_NONE).name or None
        )

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        several = len(self.networks) > 1
        if self.level is not None:
            *finer, found = self.levels[: 1 + [level.name for level in self.levels].index(self.level)]
            others = [
                f"{level.subject.replace('The', 'the', 1)} do not (p {p_value(level.p, relation=True)})"
                for level in finer
            ]
            share = f"{found.subject} share the drop of log {self.quantity} more evenly than a random split would"
            against = f"; {joined(others)}" if others else ""
            any_groups = found.permutation_p is not None and found.permutation_p >= CHANCE
            doubt = f" Any groups of so many {self.levels[0].name} would be as even: these are not shown to be special."
            end = doubt * any_groups + self._more_asked(found)
            return f"Modules: {self.level}. {share} ({'; '.join(self._numbers(found))}){against}.{end}"
        if self.most_even is None:
            return f"Modules: none established; {self.quantity} hardly falls from the first site to the last, or not at all."
        best = next(level for level in self.levels if level.name == self.most_even)
        rest = [f"p {p_value(level.p, relation=True)} of the {level.counted}" for level in self.levels if level != best]
        numbers = "; ".join([*self._numbers(best), *rest])
        alone = not several and best.p < HOPELESS and best.modules[0] <= FEW
        tell = " Few modules of one network seldom tell: pass the records of several seeds." * alone
        return f"Modules: none established; most even (least p): {self.most_even} ({best.counted}: {numbers}).{tell}"

    def _more_asked(self, found: ModuleLevel) -> str:
        """The law asks for more than p: where it does not hold of modules that pass, that is said too."""
        networks = len(self.networks)
        if found.holds == networks:
            return ""
        where = f"holds in {found.holds} of {networks} networks" if networks > 1 else "does not hold of them"
        return f" The law, which also asks for evenness and no trend, {where}."

    def _numbers(self, level: ModuleLevel) -> list[str]:
        p = f"Greenwood p {p_value(level.p, relation=True)}"
        if (n := len(self.networks)) > 1:
            p += f" pooled over {n} networks, median {p_value(level.median_p)}"
        out = [p]
        if level.permutation_p is not None:
            finest = self.levels[0].name
            out.append(
                f"shuffled {finest} in such groups are as even with p {p_value(level.permutation_p, relation=True)}"
            )
        if level.rises:
            out.append(f"{self.quantity} rises at {level.rises} of {sum(level.modules)}")
        return out

    @property
    def rows(self) -> list[list[str]]:
        """The table with its heads."""
        heads = ["level", "modules", "Greenwood p", "median p", "permutation p", "evenness", "rises", "law holds"]
        n, out = len(self.networks), [heads]
        for level in self.levels:
            ps = [p_value(p) for p in (level.p, level.median_p, level.permutation_p)]
            rises = f"{level.rises} of {sum(level.modules)}"
            even = number(level.evenness, 2)
            out.append([level.name, _span(level.modules), *ps, even, rises, f"{level.holds} of {n}"])
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        answer = {"level": self.level, "most_even": self.most_even, "sentence": self.sentence}
        return dict(json_safe({**answer, **asdict(self)}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """A panel per level: the step of each module in units of the even one, a curve per network; dashed, the even one."""
        panels = []
        for level in self.levels:
            known = [shares for shares in level.shares if shares is not None]
            curves = [
                Series(range(1, len(shares) + 1), [s * len(shares) for s in shares], style="points", color=0)
                for shares in known
            ]
            even = Series([1, max(level.modules)], [1, 1], "even step", style="fit", color=1)
            p = f"p {p_value(level.p, relation=True)}"
            words = {"xlabel": level.name[:-1], "ylabel": f"step of ln {self.quantity} / even step", "log_y": False}
            panels.append(Panel(f"{level.counted}, {p}", [*curves, even], **words))  # type: ignore[arg-type]
        return Sheet("Which module obeys the law", panels, columns=len(panels), caption=self.sentence, share_y=True)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib: `finding.plot().savefig("modules.png")`."""
        return self.sheet().plot()

    def __str__(self) -> str:
        wide = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in self.rows]
        return visible("\n".join([self.sentence, *lines]))

    def _view(self) -> View:
        return View(self.sentence, self.rows)


_NONE = ModuleLevel("", (), (), 1.0, 1.0, None, None, 0, 0, ())


def find_modules(*records: Record, branches: bool = False) -> ModuleFinding:
    """At which level, layers, blocks or stages, do the modules share the drop of log D evenly?

    The finest level with Greenwood's p < .05; if there is none, "none established" and the level with the least p. A record
    measured at layers holds all levels (`row_levels`) that its points have; the finest has the points of `record.law()`.
    `branches`: rows of side branches are points too, as in `record.law(branches=True)`, so that the layers inside of
    residual blocks are a level. Records of one network (equal checksums of parameters) that were
    measured at different sites complement each other; those of several networks, seeds of one architecture, are pooled:
    their statistics are added up and compared with sums of independent random splits.
    """
    for given in records:
        if not isinstance(given, Record):
            got = type(given).__name__  # type: ignore[unreachable]
            raise InputError(f"find_modules: expected records, find_modules(record, record, …), got {got}.")
    if not records:
        raise InputError("find_modules: expected at least one record, got none.")
    first = records[0]
    for record in records:
        if record.kind != first.kind:
            kinds = f"a {first.kind.name} ('{first.name}') and a {record.kind.name} ('{record.name}')"
            raise InputError(f"find_modules: expected records of one kind, got {kinds}.")
    column = first.leading if len({record.leading for record in records}) == 1 else first.kind.leading[-1]
    networks: dict[str, list[Record]] = {}
    for i, record in enumerate(records):
        networks.setdefault(record.provenance.get("parameters_sha256") or f"record {i}", []).append(record)
    found = [_of_network(group, column, branches=branches) for group in networks.values()]
    names = tuple(group[0].name for group in networks.values())
    for name, curves in zip(names, found, strict=True):
        if list(curves) != list(found[0]):
            both = f"'{names[0]}' has {joined(list(found[0]))}, '{name}' has {joined(list(curves))}"
            raise InputError(f"find_modules: expected networks with the same levels, got others: {both}.")
    levels = {level: [curves[level] for curves in found] for level in found[0]}
    few = {level: min(c.fit.layers for c in curves) for level, curves in levels.items()}
    few = {level: count for level, count in few.items() if count < FEWEST}
    tested = tuple(_level(level, curves) for level, curves in levels.items() if level not in few)
    if not tested:
        have = joined([f"{count} {level}" for level, count in few.items()])
        raise InputError(f"find_modules: expected a level of at least {FEWEST} modules, '{names[0]}' has {have}.")
    return ModuleFinding(names, describe(column).quantity, tested, few)


def finding_of(*records: Record) -> ModuleFinding | None:
    """What can be said of these records, where they have several levels to choose among; else `None`."""
    try:
        found = find_modules(*records)
    except InputError:
        return None
    return found if len(found.levels) + len(found.too_few) > 1 else None


def pooled_finding(*records: Record) -> ModuleFinding | None:
    """The same of records that nobody said are seeds of one architecture: of none that are not.

    Seeds have rows of the same names and types, and are of one class of models.
    """
    seeds: dict[Any, set[Any]] = {}
    for record in records:
        rows = tuple((site.name, site.type) for site in record.sites)
        seeds.setdefault(record.provenance.get("parameters_sha256") or id(record), set()).add(
            (record.provenance.get("model"), rows)
        )
    first, *others = seeds.values()
    return finding_of(*records) if all(other == first for other in others) else None


def module_sentence(record: Record) -> list[str]:
    """The answer for a verdict, where there is one: not where the samples are too few to tell of any law."""
    found = finding_of(record) if samples_needed(record) is None else None
    return [] if found is None else [found.sentence]


def _of_network(records: Sequence[Record], column: str, *, branches: bool) -> dict[str, LevelCurve]:
    """The levels of one network, from fine to coarse; where records share one, from that with the most levels."""
    several = sorted((level_curves(r, column, branches=branches) for r in records), key=len, reverse=True)
    for i, curves in enumerate(several):
        if any(set(curves) == set(other) for other in several[:i]):
            same = f"two records of the same network ('{records[0].name}') with {joined(list(curves))}"
            raise InputError(f"find_modules: expected records of different networks (seeds) or sites, got {same}.")
    out = {level: curve for curves in reversed(several) for level, curve in curves.items()}
    return {level: out[level] for level in LEVELS if level in out}


def _level(name: str, curves: Sequence[LevelCurve]) -> ModuleLevel:
    fits = [curve.fit for curve in curves]
    falling = [fit.effective_layers is not None and not fit.little for fit in fits]  # else there is no drop to share
    statistics = [
        1 / (fit.effective_layers or 1) if falls else math.inf for fit, falls in zip(fits, falling, strict=True)
    ]
    modules = tuple(fit.layers for fit in fits)
    single = [pooled_greenwood_p([G], [m]) for G, m in zip(statistics, modules, strict=True)]
    grouped = [curve for curve in curves if max(curve.sizes) > 1]
    even = [fit.evenness or 0.0 for fit, falls in zip(fits, falling, strict=True) if falls]
    return ModuleLevel(
        name=name,
        modules=modules,
        outside=tuple(curve.outside for curve in curves),
        p=pooled_greenwood_p(statistics, modules),
        median_p=median(single),
        permutation_p=shuffled_p([c.fine for c in curves], [c.sizes for c in curves]) if grouped else None,
        evenness=median(even) if even else None,
        rises=sum(len(fit.rising) for fit in fits),
        holds=sum(fit.holds is True for fit in fits),
        shares=tuple(fit.shares if falls else None for fit, falls in zip(fits, falling, strict=True)),
        led=tuple(curve.led for curve in curves),
        cut=tuple(curve.cut for curve in curves),
    )
