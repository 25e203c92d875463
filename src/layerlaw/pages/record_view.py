"""A record prepared to be shown: its fit, its verdict, and series in which every hole is a `None`."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from layerlaw.errors import InputError
from layerlaw.law import LawErrors, LawFit
from layerlaw.record import INPUT, Record, SiteRow
from layerlaw.verdict import IDLE_SHARE, Verdict, judge, law_holds, working_sites
from layerlaw.verdict.levels import ModuleFinding, finding_of
from layerlaw.verdict.shape import NO_INTERVALS, ShapeIntervals, shape_intervals
from layerlaw.wording import ABSENT, NOTHING, clean, factor_words, finite, interval_factor, shortened


@dataclass(frozen=True)
class RecordView:
    """What the panels ask of a record. Sites are counted by their position in the record, from 0."""

    record: Record
    label: str  # the record's name; numbered where several records bear the same
    fit: LawFit | None
    verdict: Verdict
    column: str = "separation"  # what the law is fitted to
    errors: LawErrors | None = None  # how far the fit would move with other documents; only language models know
    shape: ShapeIntervals = NO_INTERVALS  # the same of evenness and trend
    holds: bool | None = None  # whether the law holds, as the verdict has it
    points: int = 500  # the most dots that a drawing of a plane has on the page

    @property
    def sites(self) -> list[SiteRow]:
        """All sites, in depth order."""
        return self.record.sites

    @property
    def headline(self) -> tuple[str, str]:
        """The verdict's first sentence, and the numbers it carries in brackets."""
        headline = self.verdict.headline
        if self.fit is not None and headline.endswith(").") and " (" in headline:
            head, numbers = headline[:-2].rsplit(" (", 1)
            return head.rstrip(".") + ".", numbers
        return headline, ""

    @cached_property
    def fit_positions(self) -> list[int]:
        """Positions of the sites the law is fitted to."""
        return [i for i, site in enumerate(self.sites) if site.in_fit]

    @cached_property
    def beside(self) -> list[int]:
        """Positions of the sites on side branches, which are no points of the law."""
        return [i for i, site in enumerate(self.sites) if site.branch and not site.in_fit]

    @cached_property
    def along(self) -> list[int]:
        """Positions of all other sites."""
        beside = set(self.beside)
        return [i for i in range(len(self.sites)) if i not in beside]

    @cached_property
    def trunk(self) -> list[int]:
        """Positions of the sites that compare with each other: on no side branch, and not set aside for another reason."""
        return [i for i in self.along if not self.sites[i].aside]

    @cached_property
    def places(self) -> list[float]:
        """Where each site stands on a horizontal axis."""
        return site_places(self.sites)

    @cached_property
    def shares(self) -> dict[int, float]:
        """Share of the drop by the position of the site whose module did it; empty when hardly anything drops."""
        if self.fit is None or self.fit.shares is None or self.fit.little:
            return {}
        at = self.fit_positions
        return dict(zip([at[i] for i in working_sites([self.sites[p] for p in at])], self.fit.shares, strict=True))

    @cached_property
    def modules(self) -> ModuleFinding | None:
        """At which level the drop is shared evenly, where the record has several."""
        return finding_of(self.record)

    @cached_property
    def alike(self) -> bool:
        """Whether all blocks of a language model are of one type and width, so that it is enough to say it once."""
        types = {(self.sites[p].type, self.sites[p].features) for p in self.fit_positions}
        return self.record.kind.first > 0 and len(types) == 1

    @cached_property
    def gains(self) -> dict[int, float]:
        """By how much of itself the fitted column falls at each site of the fit, from the one before; negative: rises.

        Of nothing nothing can be taken: behind a residual that is zero but for rounding there is no gain.
        """
        values = self.series(self.column)
        at = self.fit_positions  # states inside a block are no ends of steps; the embedded input begins the first
        before = [0 if self.record.numbers[:1] == [INPUT] else None, *at[:-1]]
        pairs = {i: (values[b], values[i]) for b, i in zip(before, at, strict=False) if b is not None}
        return {i: 1 - b / a for i, (a, b) in pairs.items() if a is not None and b is not None and a > NOTHING}

    @property
    def t(self) -> float:
        """Standard errors to the end of a 95% interval: Student's t where documents were grouped."""
        return self.errors.t if self.errors is not None else 1.96

    @cached_property
    def ends(self) -> list[tuple[float, float] | None]:
        """Ends of the 95% interval of the fitted column at each site."""
        pairs = zip(self.series(self.column), self.series(f"{self.column}_log_se"), strict=True)
        known = [(v, interval_factor(e, self.t)) if v and v > 0 and e else None for v, e in pairs]
        return [(pair[0] / pair[1], pair[0] * pair[1]) if pair else None for pair in known]

    def interval(self, site: SiteRow) -> str:
        """The 95% interval of the fitted column at a site, relative to its value."""
        error = finite(site.values.get(f"{self.column}_log_se"))
        if error is None:
            return ABSENT
        return factor_words(interval_factor(error, self.t), int(error < 0.05 or self.record.kind.first > 0))

    def series(self, column: str) -> list[float | None]:
        """A column along depth; `None` where it was not measured or is not finite."""
        return [finite(site.values.get(column)) for site in self.sites]

    def has(self, column: str) -> bool:
        """Whether the column holds any finite number."""
        return any(value is not None for value in self.series(column))

    def last(self, column: str) -> float | None:
        """The deepest finite number of a column."""
        return next((value for value in reversed(self.series(column)) if value is not None), None)


MOST_FOLDERS = 2  # before the name of a text, where names alone do not tell texts apart
BRANCH = "╰ "  # before the name of a site on a side branch, where there is no color to tell


class TableColumn(NamedTuple):
    """A column of the table of sites: its heading, what it means, and how a site fills it."""

    head: str
    meaning: str
    cell: Callable[[SiteRow], str]
    short: str = ""  # its heading in the terminal, or where many columns stand on a page
    yields: int | None = None  # the higher, the sooner it gives way in a narrow terminal; `None`: on the page only
    on_page: bool = True


class Parts(NamedTuple):
    """What each site contributes, by its position; a bar of full length is the largest, and at least `least`."""

    head: str
    values: dict[int, float]
    even: float
    digits: int
    least: float = 0.0

    def kinds(self) -> list[str]:
        """Of each part whether it is a rise, idle (less than a quarter of an even part) or work."""
        idle = IDLE_SHARE * self.even
        return ["rise" if part < 0 else "idle" if part < idle else "work" for part in self.values.values()]

    def colors_explained(self, symbol: str) -> list[str]:
        """What the colors of its bars mean, as far as they are there."""
        pale, red = ["Pale: less than a quarter of it."], [f"Red: {symbol} rises."]
        return pale * ("idle" in self.kinds()) + red * ("rise" in self.kinds())


def read(record: Record, label: str | None = None, column: str | None = None) -> RecordView:
    """Fit (the leading column, unless another is named) and judge one record; never raises because a number is missing."""
    column, name = column or record.leading, clean(label or record.name) or "unnamed"
    verdict = judge(record)
    try:
        fit, errors = record.law(column), record.law_errors(column)
    except InputError:  # the verdict says why
        return RecordView(record, name, None, verdict, column)
    shape, holds = shape_intervals(record, column), law_holds(record, fit, errors)
    return RecordView(record, name, fit, verdict, column, errors, shape, holds)


def read_all(records: Sequence[Record]) -> list[RecordView]:
    """Readings with labels that tell records of the same name apart: by their texts, or by numbers."""
    alike = len({record.leading for record in records}) == 1
    column = None if alike else records[0].kind.leading[-1]  # not everywhere held out: compare like with like
    seen: Counter[str] = Counter()
    out = []
    for record in records:
        seen[record.name] += 1
        same = [other for other in records if other.name == record.name]
        for folders in range(MOST_FOLDERS + 1):  # texts of one name are told apart by the folders they are in
            texts = [_text(other, folders) for other in same]
            if told_apart := "" not in texts and len(set(texts)) == len(texts):
                break
        number = f"· {_text(record, folders)}" if told_apart else f"({seen[record.name]})"
        out.append(read(record, f"{record.name} {number}" if len(texts) > 1 else None, column))
    return out


def _text(record: Record, folders: int = 0) -> str:
    """The name of the text that a language model was measured on, where it is known, with so many folders before it."""
    text, command = (record.provenance.get(name) for name in ("text", "command"))
    known = text.get("name") if isinstance(text, dict) else None
    if folders and isinstance(command, dict):
        known = command.get("text") or known  # as it was given, with its folders
    return shortened("/".join(Path(str(known or "")).parts[-1 - folders :]), 24)


def site_places(sites: Sequence[SiteRow]) -> list[float]:
    """Where each site stands on a horizontal axis: points of the law at equal distances, as its line counts them.

    Rows between two points share the room there; before the first and behind the last each takes as much as a point.

    >>> rows = [SiteRow(str(i), "Linear", (4,), 4, in_fit=i in (1, 2, 4)) for i in range(6)]
    >>> site_places(rows)
    [0.0, 1.0, 2.0, 2.5, 3.0, 4.0]
    """
    at = [i for i, site in enumerate(sites) if site.in_fit]
    if not at:
        return [float(i) for i in range(len(sites))]
    place = {i: at[0] + k for k, i in enumerate(at)}
    out = []
    for i in range(len(sites)):
        behind, ahead = (
            bisect_right(at, i),
            bisect_left(at, i),
        )  # how many points are up to here, and how many before it
        before = at[behind - 1] if behind else None
        after = at[ahead] if ahead < len(at) else None
        if before is None or after is None:
            out.append(float(i if before is None else place[before] + i - before))
        else:
            out.append(round(place[before] + (i - before) / max(1, after - before), 4))
    return out


def site_ticks(record: Record, *, with_input: bool) -> tuple[list[float], list[str], str, int]:
    """Places and names of the ticks along the sites, what they count, and the first position drawn.

    Sites between two points of the law have none. The embedded input of a language model has a place only if asked for.
    """
    names, places = record.numbers, site_places(record.sites)
    first = int(names[:1] == [INPUT] and not with_input)
    whole = [i for i, place in enumerate(places) if place.is_integer()]
    shown = [whole[i] for i in strided(len(whole), 12)]
    if record.kind.first:
        shown = [first + i for i in block_ticks(names[first:])]
    blocks = "block (in: embedded input)" if INPUT in names[first:] else "block"
    title = blocks if record.kind.first else f"{record.step_name} index"
    return [places[i] for i in shown], [names[i] for i in shown], title, first


def strided(count: int, most: int) -> list[int]:
    """Every so-many-th position, at most `most` of them, from the first, and always the last.

    >>> strided(5, 8), strided(13, 12), strided(56, 12)
    ([0, 1, 2, 3, 4], [0, 2, 4, 6, 8, 10, 12], [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55])
    >>> strided(56, 18), strided(12, 8)  # the last one takes the place of a near one
    ([0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 55], [0, 2, 4, 6, 8, 11])
    """
    step, last = max(1, math.ceil((count - 1) / max(1, most - 1))), count - 1
    return [i for i in range(0, count, step) if i in (0, last) or 2 * (last - i) > step] + [last] * (last % step > 0)


def block_ticks(names: Sequence[str], most: int = 12) -> list[int]:
    """Positions of the input and of every, every second, fifth, tenth … block.

    >>> block_ticks(["in", *map(str, range(1, 13))]), block_ticks(list(map(str, range(1, 31))))
    ([0, 2, 4, 6, 8, 10, 12], [4, 9, 14, 19, 24, 29])
    """
    blocks = [int(name) for name in names if name.isdecimal()]
    steps = (digit * 10**k for k in itertools.count() for digit in (1, 2, 5))
    step = next(step for step in steps if len(blocks) < most * step)
    return [i for i, name in enumerate(names) if name == INPUT or (name.isdecimal() and int(name) % step == 0)]
