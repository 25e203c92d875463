"""What early exits cost and save, in words, as a table, a drawing and a page."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from layerlaw.advice.readouts import ExitKind
from layerlaw.files import json_safe, write_json
from layerlaw.law import CHANCE, binomial_p
from layerlaw.notebook import Shown, View
from layerlaw.outcome import Table
from layerlaw.sheet import Panel, Series, Sheet, along_sites
from layerlaw.stats.labels import near_chance
from layerlaw.wording import counted, joined, minus, p_value, percent, points

KINDS: dict[ExitKind, str] = {"centers": "nearest class center", "linear": "linear read-out"}
HEADS: dict[ExitKind, str] = {"centers": "nearest center", "linear": "linear read-out"}  # short: tables are narrow
MEANS: dict[ExitKind, str] = {"centers": "class means", "linear": "a linear read-out"}
WORTH_IT = 1.05  # times faster: less is nothing to gain
STEADY = 1.3  # times: where the middle half of the rounds lies further apart, it is told
NO_TEST = (
    "Judged without test data, on samples held back from the same data, which the network may have been trained on."
)
PASS_TEST = "Pass test= to judge on samples that the network has not seen."
OTHER_HALF = "The table is of the half that judges; what is chosen is chosen on the other half."
TIMES = "Time: up to the decision at the site, as a share of the whole network's."
COLUMNS = "Layers: how many have run at the site. Agreement: the share of samples that the network decides alike."


@dataclass(frozen=True)
class ExitSite:
    """One site: what is decided there, on the half that chooses and on the half that judges; layers up to it; time."""

    name: str
    layers: int
    choosing: Mapping[ExitKind, float]
    """Accuracy by kind, on the half of the held-out samples that chooses."""
    judged: Mapping[ExitKind, float]
    """The same on the other half."""
    agreement: Mapping[ExitKind, float]
    """Share of the judging half on which the network decides the same."""
    time: Mapping[int, float] = field(default_factory=dict)
    """Time up to here with the nearest center, as a share of the whole network's, by batch size."""
    at: str = "output"
    """Whether it is the "input" or the "output" of the module that gives it its name."""
    agreement_choosing: Mapping[ExitKind, float] = field(default_factory=dict)
    """As `agreement`, on the half that chooses."""


@dataclass(frozen=True)
class Realized:
    """A chosen exit on samples that did not choose it: accuracy, its drop and that drop's standard error, and time."""

    kind: ExitKind
    site: str | None
    accuracy: float
    drop: float
    error: float
    layers: float
    faster: Mapping[int, float]
    """Times faster than the whole network, by batch size."""
    shares: tuple[float, ...] = ()
    """Of samples that leave at each exit, and at the end; of per-sample exits only."""
    between: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Of `faster`: where the middle half of the rounds lies."""
    agreement: float | None = None
    """Share of the same samples on which the network decides the same."""


@dataclass(frozen=True)
class CurvePoint:
    """Per-sample exits under one budget, on the judging half: accuracy against expected time (share of the network's)."""

    kind: ExitKind
    budget: float
    accuracy: float
    cost: float


@dataclass(frozen=True)
class ExitReport(Shown):
    """What early exits cost and save, in numbers that did not choose them."""

    tolerance: float
    within: str
    layers: int
    accuracy: float
    samples: tuple[int, int, int]
    """That made the class means, that chose, that judged."""
    sites: tuple[ExitSite, ...]
    static: Mapping[ExitKind, Realized]
    """By kind, the first site within the tolerance; those without one are absent."""
    per_sample: Mapping[ExitKind, Realized]
    curve: tuple[CurvePoint, ...]
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]
    tested: bool = True
    """Whether test data chose and judged; else samples of the same data did, held back from the class means."""
    kind: ExitKind = "centers"
    """What decides at the exit that was returned."""
    classes: int | None = None
    largest: float | None = None
    """Share of the largest class among the samples that judged: the accuracy of one answer for all of them."""
    embedded: bool = False
    """Whether an embedding comes before the first layer: what enters that is no raw input."""

    @property
    def sentence(self) -> str:
        """The answer for the exit that was chosen; before it, if so, that the network is near chance or not tested."""
        return " ".join([*self._near_chance(), *[NO_TEST] * (not self.tested), self._answer()])

    def _near_chance(self) -> list[str]:
        """That there is nothing to preserve: the network is right hardly more often than one answer for all samples."""
        n, right = self.samples[2], self.accuracy
        if self.largest is None or self.classes is None:
            return []
        p, near = binomial_p(round(n * right), n, self.largest), near_chance(right, self.classes)
        if p < CHANCE and not near:
            return []
        what, left = "near chance", f"there is {'nothing' if p >= CHANCE else 'little'} to preserve"
        if not near:
            more = right > self.largest
            what = f"{'not clearly' if more else 'no'} more accurate than one answer for all samples"
            left = f"there {'may be' if more else 'is'} no accuracy to preserve"
        always = f"that of always naming the largest class {percent(self.largest)}"
        own = f"its accuracy on {counted(n, 'sample')} is {percent(right)}"
        return [f"The network itself is {what}: {own}, {always} (binomial p {p_value(p, relation=True)}); {left}."]

    def gains(self, one: Realized) -> bool:
        """Whether an exit saves time at one of the batch sizes at least; where none was timed, whether it saves layers."""
        return one.layers < self.layers and max(one.faster.values(), default=WORTH_IT) >= WORTH_IT

    def _answer(self) -> str:
        found, own = self.static.get(self.kind), KINDS[self.kind]
        if found is None or not self.gains(found):
            return f"{self._instead()} The result is the whole network."
        gone = self.layers - int(found.layers)
        raw = "embedded" if self.embedded or str(found.site).startswith("embedded") else "raw"
        most = f"the last of the {self.layers} layers" if gone == 1 else f"the last {gone} of {self.layers} layers"
        what = f"{most} can go" if found.layers else f"the {raw} input decides, without any of the {self.layers} layers"
        where = f"exit {self._place(found)} by the {own}"
        return f"{what[0].upper()}{what[1:]} ({where}): {self._result(found)}."

    def _place(self, one: Realized) -> str:
        """Where it leaves: in front of a layer whose input it is."""
        inside = any(site.name == one.site != "input" and site.at == "input" for site in self.sites)
        return f"{'before' if inside else 'at'} '{one.site}'"

    def _instead(self) -> str:
        """Where the exit that was asked for saves nothing: the best of the others first, then why it does not."""
        others = [one for one in (*self.static.values(), *self.per_sample.values()) if self.gains(one)]
        if not others:
            if self.kind not in self.sites[0].choosing:
                return f"Nothing to gain here: {self._why_not()}."
            return f"Nothing to gain here ({KINDS[self.kind]}): {self._why_not()}."
        best = max(others, key=lambda one: (not self._broken(one), self._saved(one)))
        what = f"The {KINDS[best.kind]} can decide for all samples {self._place(best)}"
        if best.site is None:
            what = f"Each sample on its own can leave early by the {KINDS[best.kind]} ({_leaving(best)} do)"
        none = f"By one exit for all samples there is nothing to gain with {MEANS[self.kind]}: {self._why_not()}"
        return f"{what}: {self._result(best)}. {none}."

    def _saved(self, one: Realized) -> float:
        """The larger, the more an exit saves: times faster over the batch sizes, else layers."""
        return statistics.geometric_mean(one.faster.values()) if one.faster else self.layers - one.layers

    def _why_not(self) -> str:
        """Why one exit for all samples, of the kind that was asked for, saves nothing."""
        if self.kind not in self.sites[0].choosing:
            return f"no {KINDS[self.kind]} was trained"
        if (found := self.static.get(self.kind)) is None:
            return self._nearest(self.kind)
        near = f"within {points(self.tolerance)} of the network"
        alike = f"that decides like the network on all but {percent(self.tolerance)} of the samples"
        first = f"the first site {near if self.within == 'accuracy' else alike} is '{found.site}'"
        return ", ".join([first, f"{counted(self.layers - int(found.layers), 'layer')} less", *_speeds(found)])

    def _result(self, one: Realized) -> str:
        """What a chosen exit costs and saves, and whether it keeps the tolerance that it was chosen for."""
        parts = [f"{'test ' * self.tested}accuracy {minus(f'{-100 * one.drop:+.1f}')} points (± {100 * one.error:.1f})"]
        if self.within == "agreement" and one.agreement is not None:
            parts.append(f"decides like the network on {percent(one.agreement)}")
        return ", ".join([*parts, *_speeds(one)]) + self._broken(one)

    def _broken(self, one: Realized) -> str:
        """Words where the loss on the half that judges is beyond the tolerance by more than its standard error; else ""."""
        if self.within == "accuracy":
            beyond = one.drop - one.error > self.tolerance
            return f"; more than the {points(self.tolerance)} it was chosen for" * beyond
        if one.agreement is None:
            return ""
        error = math.sqrt(one.agreement * (1 - one.agreement) / self.samples[2])
        beyond = one.agreement + error < 1 - self.tolerance
        return f"; less than the {percent(1 - self.tolerance)} it was chosen for" * beyond

    def _nearest(self, kind: ExitKind) -> str:
        """Which sites come nearest to the network, on the half that chooses."""
        if self.within == "agreement":
            near = max(site.agreement_choosing[kind] for site in self.sites)
            names = joined([f"'{site.name}'" for site in self.sites if site.agreement_choosing[kind] == near])
            none = f"on the half that chooses no site decides like the network on all but {percent(self.tolerance)}"
            digits = 1
            while digits < 6 and float(f"{100 * near:.{digits}f}") >= 100 * (1 - self.tolerance):
                digits += 1
            return f"{none}; nearest: {names}, the same on {percent(near, digits)}"
        near = max(site.choosing[kind] for site in self.sites)
        names = joined([f"'{site.name}'" for site in self.sites if site.choosing[kind] == near])
        gap, whole = self.accuracy_choosing - near, percent(self.accuracy_choosing)
        none = f"on the half that chooses no site is within {points(self.tolerance)} of the network ({whole})"
        return f"{none}; nearest: {names} with {percent(near)}, {points(gap, beyond=self.tolerance)} below"

    def least_time(self, kind: ExitKind) -> str:
        """In words, the least time that exits of single samples would take within the tolerance."""
        near = [
            point.cost
            for point in self.curve
            if point.kind == kind and point.accuracy >= self.accuracy - self.tolerance
        ]
        what = "time" if self.sites[0].time else "layers"
        least = f"take {percent(min(near), 0)} of the network's {what} at least" if near else "lose more"
        return f"within {points(self.tolerance)} they {least}"

    @property
    def accuracy_choosing(self) -> float:
        """Of the whole network, on the half that chooses."""
        return float(self.provenance["accuracy_choosing"])

    @property
    def findings(self) -> list[str]:
        """The rival, and exits of single samples."""
        out = []
        for other in (kind for kind in self.sites[0].choosing if kind != self.kind):
            rival = self.static.get(other)
            exit_at = "there is no exit" if rival is None else f"the first exit is {self._place(rival)}"
            said = f": {self._nearest(other)}" if rival is None else f", {self._result(rival)}"
            out.append(f"With {MEANS[other]} instead of {MEANS[self.kind]} {exit_at}{said}.")
        for kind in self.sites[0].choosing:
            words = f"nothing to gain; {self.least_time(kind)}"
            if (own := self.per_sample.get(kind)) is not None:
                words = f"{_leaving(own)} leave early, {self._result(own)}"
            out.append(f"Each sample on its own ({KINDS[kind]}): {words}.")
        return out

    @property
    def rows(self) -> list[list[str]]:
        """The table with its heads: a row per site."""
        kinds = list(self.sites[0].judged)
        sizes = sorted(self.sites[0].time)
        agreeing = self.kind if self.kind in kinds else "centers"
        agree = {"centers": "agreement, center", "linear": "agreement, linear"}[agreeing]
        heads = ["site", "layers", *(HEADS[kind] for kind in kinds), agree]
        out = [[*heads, *(f"time, batch {size}" for size in sizes)]]
        for site in self.sites:
            accuracies = [percent(site.judged[kind]) for kind in kinds]
            times = [percent(site.time[size], 0) for size in sizes]
            out.append([site.name, str(site.layers), *accuracies, percent(site.agreement[agreeing]), *times])
        whole = [percent(self.accuracy)] * len(kinds)
        return [*out, ["whole network", str(self.layers), *whole, "100%", *["100%"] * len(sizes)]]

    @property
    def legend(self) -> str:
        """What to know of the table."""
        layers = [site for site in self.sites if site.at == "input" and site.name != "input"]
        named = "A site has the name of the layer whose input it is."
        if len(layers) < sum(site.name != "input" for site in self.sites):
            some = joined([f"'{site.name}'" for site in layers[:5]])
            named = f"{some}: the input of the layer of that name."
        return " ".join([OTHER_HALF, *[TIMES] * bool(self.sites[0].time), *[named] * bool(layers)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(json_safe({"sentence": self.sentence, "findings": self.findings, **asdict(self)}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """Accuracy along the sites beside the network's, and accuracy against time for exits of single samples."""
        at = range(len(self.sites))
        lines = [Series(at, [100 * site.judged[k] for site in self.sites], KINDS[k]) for k in KINDS if k in self.sites[0].judged]  # noqa: E501  # fmt: skip
        whole = Series([0, len(self.sites) - 1], [100 * self.accuracy] * 2, "whole network", style="fit", color=2)
        below = along_sites([site.name for site in self.sites])
        one = self.static.get(self.kind)
        exit_at = None
        if one is not None and self.gains(one):
            exit_at = next((i for i, site in enumerate(self.sites) if site.name == one.site), None)
        first = Panel("Decided at a site", [*lines, whole], below, "accuracy, %", log_y=False, marked=exit_at)
        curves = []
        for kind in KINDS:
            mine = sorted((p for p in self.curve if p.kind == kind), key=lambda point: point.cost)
            curves += [Series([p.cost for p in mine], [100 * p.accuracy for p in mine], KINDS[kind])] if mine else []
        costs = [1.0, *(p.cost for p in self.curve)]
        level = Series([min(costs), max(costs)], [100 * self.accuracy] * 2, "whole network", style="fit", color=2)
        timed = min(self.sites[0].time, default=None)  # else layers stand in for time
        cost = "expected layers" if timed is None else f"expected time (batch {timed})"
        second = Panel(
            "Each sample on its own", [*curves, level], f"{cost}, share of the network's", "accuracy, %", log_y=False
        )
        said = [f"Accuracy on the {counted(self.samples[2], 'sample')} of the half that judges."]
        said += ["The vertical line is the exit that was chosen."] * (exit_at is not None)
        what = "accuracy" if self.within == "accuracy" else "agreement with the network"
        most = points(max((p.budget for p in self.curve), default=0.0))
        each = f"Each sample on its own: a point per limit, 0 to {most}, on the {what} lost by those who leave at one exit."
        said += [each] * bool(curves)
        return Sheet("Early exit", [first, second] if curves else [first], columns=2, caption=" ".join(said))

    def plot(self) -> Any:
        """That figure, drawn by matplotlib."""
        return self.sheet().plot()

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page: the sentences, the drawing, the table of sites."""
        from layerlaw.pages.html.outcomes import finding_page  # needs matplotlib

        heads, *body = self.rows
        table = Table("Sites", heads, body, f"{self.legend} {COLUMNS}")
        fitted, chose, judged = (f"{n:,}" for n in self.samples)
        about = {
            "tolerance": f"{points(self.tolerance)} of {self.within}",
            "samples": f"{fitted} made the class means, {chose} chose, {judged} judged",
            **self.provenance,
            "accuracy_choosing": f"{percent(self.accuracy_choosing)} (the network, on the half that chooses)",
        }
        lines = [self.sentence, *self.findings]
        how: Any = {"sheets": [self.sheet()], "tables": [table], "notes": self.notes, "provenance": about}
        return finding_page(path, "Early exit", lines, **how)

    def _view(self) -> View:
        return View(self.sentence, self.rows, [*self.findings, self.legend, *self.notes])

    def __str__(self) -> str:
        wide = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in self.rows]
        return "\n".join([self.sentence, *self.findings, self.legend, *lines, *self.notes])


def _leaving(one: Realized) -> str:
    return f"{percent(1 - one.shares[-1], 0)} of the samples"


def _speeds(one: Realized) -> list[str]:
    """By batch size how much faster; where rounds differ, about how much, and where their middle half lies."""
    said = []
    for size, speed in sorted(one.faster.items()):
        low, high = one.between.get(size, (speed, speed))
        if 1 / WORTH_IT < speed < WORTH_IT:
            said.append(f"no faster (batch {size})")
            continue
        word, ends = ("faster", (low, high)) if speed > 1 else ("slower", (1 / high, 1 / low))
        rough = high > STEADY * low
        range_ = f"; {_times(ends[0])} to {_times(ends[1])}× in half of the rounds" * rough
        said.append(f"{'about ' * rough}{_times(max(speed, 1 / speed))}× {word} (batch {size}{range_})")
    return said


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"
