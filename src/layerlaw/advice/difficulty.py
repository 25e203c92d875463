"""How hard are data sets for an architecture? By the first-layer mismatch of networks that were trained on them.

Ben-Shaul & Dekel: at the end of training the first layer's nearest class center disagrees with the network on few samples
of an easy data set (MNIST about 16 %) and on many of a hard one (CIFAR-10 about 60 %).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

from layerlaw.errors import InputError
from layerlaw.files import json_safe, write_json
from layerlaw.law import CHANCE
from layerlaw.notebook import Shown, View
from layerlaw.outcome import Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet
from layerlaw.verdict.conjectures import INTERPOLATED
from layerlaw.wording import joined, percent


@dataclass(frozen=True)
class DatasetMismatch:
    """One data set: mismatch along depth on training samples, that of the first layer with its error, and accuracies."""

    name: str
    mismatch: tuple[float | None, ...]
    first: float
    standard_error: float
    test_first: float | None
    accuracy: float | None
    test_accuracy: float | None

    @property
    def fitted(self) -> bool:
        """Whether the network has fitted its training samples: else the training had not come to its end."""
        return self.accuracy is not None and self.accuracy >= INTERPOLATED


@dataclass(frozen=True)
class Difficulty(Shown):
    """Data sets from the easiest to the hardest for one architecture, by the mismatch of its first layer."""

    architecture: str
    sites: tuple[str, ...]
    sets: tuple[DatasetMismatch, ...]

    @property
    def sentence(self) -> str:
        """The order; neighbors that differ by less than the noise count as equally hard."""
        limit = NormalDist().inv_cdf(1 - CHANCE / (2 * max(1, len(self.sets) - 1)))
        words = [f"{self.sets[0].name} ({percent(self.sets[0].first)})"]
        for easier, harder in pairwise(self.sets):
            error = math.hypot(easier.standard_error, harder.standard_error)
            beyond = harder.first - easier.first > limit * error
            words.append(f"{'<' if beyond else '≈'} {harder.name} ({percent(harder.first)})")
        return f"Difficulty by the mismatch at {self.sites[0]}, easiest first: {' '.join(words)}."

    @property
    def notes(self) -> list[str]:
        """What the comparison does not allow for."""
        unfitted = [f"{s.name} ({percent(s.accuracy)})" for s in self.sets if not s.fitted]
        open_ = f"Not fitted to {percent(INTERPOLATED)}: {joined(unfitted)}; there the mismatch may still fall."
        noise = "“≈”: inside the noise of so many samples. One network each: seeds and learning rates move it too."
        return [*([open_] if unfitted else []), noise]

    @property
    def rows(self) -> list[list[str]]:
        """The table with its heads."""
        heads = [
            "data set",
            "first-layer mismatch",
            "± standard error",
            "on test data",
            "train accuracy",
            "test accuracy",
        ]
        body = [
            [s.name, *map(percent, (s.first, s.standard_error, s.test_first, s.accuracy, s.test_accuracy))]
            for s in self.sets
        ]
        return [heads, *body]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(json_safe({"sentence": self.sentence, "notes": self.notes, **asdict(self)}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """Mismatch along depth, a curve per data set; and the first layer alone."""
        depth = range(1, len(self.sites) + 1)
        curves = [Series(depth, [None if v is None else 100 * v for v in s.mismatch], s.name) for s in self.sets]
        bars = [Series([i], [100 * s.first], s.name, style="bars") for i, s in enumerate(self.sets, 1)]
        first = Panel("First layer", bars, "data set, easiest first", "mismatch, %", log_y=False)
        along = Panel("Along depth", curves, "layer", "mismatch, %", log_y=False)
        return Sheet("Difficulty of data sets", [first, along], 2, self.sentence)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib."""
        return self.sheet().plot()

    def _view(self) -> View:
        return View(self.sentence, self.rows, self.notes)

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page: the sentence, the drawing, the table."""
        from layerlaw.pages.html.outcomes import finding_page  # needs matplotlib

        heads, *body = self.rows
        about = {"architecture": self.architecture, "sites": ", ".join(self.sites)}
        how: Any = {"sheets": [self.sheet()], "tables": [Table("Data sets", heads, body)], "notes": self.notes}
        return finding_page(path, "Difficulty of data sets", [self.sentence], provenance=about, **how)


def compare_difficulty(records: Mapping[str, Record]) -> Difficulty:
    """Order data sets by the first-layer mismatch of one architecture, trained on each: records by the data sets' names.

    Every record is that of a trained network on its own training data, with `ncc_mismatch` at the same sites.
    """
    if not isinstance(records, Mapping) or len(records) < 2:
        raise InputError(f"records: expected those of two or more data sets, {{name: record}}, got {len(records)}.")
    along = {name: _layers(name, record) for name, record in records.items()}
    sites = {name: tuple(site.name for site in rows) for name, rows in along.items()}
    (first, expected), *others = sites.items()
    for name, found in others:
        if found != expected:
            came = f"{', '.join(found)} of {name!r}"
            cure = "Train the same architecture on each, and probe the same sites"
            raise InputError(f"records: expected the sites of {first!r} ({', '.join(expected)}), got {came}. {cure}.")
    sets = []
    for name, record in records.items():
        values = tuple(site.values.get("ncc_mismatch") for site in along[name])
        n, start = sum(record.counts), values[0]
        if start is None:
            raise InputError(f"record {name!r}: expected ncc_mismatch at {expected[0]!r}, got none.")
        error = math.sqrt(max(start * (1 - start), 1 / n) / n)
        test = along[name][0].values.get("test_ncc_mismatch")
        sets.append(DatasetMismatch(name, values, start, error, test, record.accuracy, record.test_accuracy))
    architecture = str(next(iter(records.values())).name)
    return Difficulty(architecture, expected, tuple(sorted(sets, key=lambda one: one.first)))


def _layers(name: str, record: Record) -> list[Any]:
    """The sites behind a layer: not the raw input, which no network has touched."""
    rows = [site for site in record.sites if not site.branch and site.name != "input"]
    if not record.counts or not any(site.values.get("ncc_mismatch") is not None for site in rows):
        why = "was the network's decision looked at, of a classifier?"
        raise InputError(f"record {name!r}: expected ncc_mismatch of labeled samples, got none: {why}")
    return rows
