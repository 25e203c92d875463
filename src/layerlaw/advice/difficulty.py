"""How hard are data sets for an architecture? By the first-layer mismatch of networks that were trained on them.

Ben-Shaul & Dekel: at the end of training the first layer's nearest class center disagrees with the network on few samples
of an easy data set (MNIST about 16 %) and on many of a hard one (CIFAR-10 about 60 %).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
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
from layerlaw.record import Record, SiteRow
from layerlaw.sheet import Panel, Series, Sheet, along_sites
from layerlaw.verdict.checks import check_settings
from layerlaw.verdict.conjectures import INTERPOLATED
from layerlaw.wording import joined, percent

MISMATCH = "Mismatch: the share of samples whose nearest class center is not what the network decides."
AGAIN = "Probe a classifier with its class labels; with scores=None its decisions are not looked at"


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
    classes: tuple[int, ...] = ()
    """How many classes each data set has."""

    @property
    def sentence(self) -> str:
        """The order; "≈" between neighbors that differ by less than the noise, which count as equally hard."""
        limit = NormalDist().inv_cdf(1 - CHANCE / (2 * max(1, len(self.sets) - 1)))
        words = [f"{self.sets[0].name} ({percent(self.sets[0].first)})"]
        for easier, harder in pairwise(self.sets):
            error = math.hypot(easier.standard_error, harder.standard_error)
            beyond = harder.first - easier.first > limit * error
            words.append(f"{'<' if beyond else '≈'} {harder.name} ({percent(harder.first)})")
        return f"Difficulty by the mismatch at '{self.sites[0]}', easiest first: {' '.join(words)}."

    @property
    def notes(self) -> list[str]:
        """What the comparison does not allow for."""
        unfitted = [f"{s.name} ({percent(s.accuracy)})" for s in self.sets if not s.fitted]
        open_ = f"Not fitted to {percent(INTERPOLATED)}: {joined(unfitted)}; there the mismatch may still fall."
        by_chance = "among more of them a center agrees with the network less often by chance"
        each = ", ".join(f"{s.name} {k}" for s, k in zip(self.sets, self.classes, strict=False))
        many = f"Classes differ in number ({each}): {by_chance}."
        noise = "“≈”: the two differ by less than the noise of so many samples."
        alone = "There is one network per data set: other seeds and learning rates move the mismatch too."
        shown = {open_: unfitted, many: len(set(self.classes)) > 1, noise: "≈" in self.sentence, alone: True}
        return [note for note, holds in shown.items() if holds]

    @property
    def rows(self) -> list[list[str]]:
        """The table with its heads."""
        heads = ["data set", "mismatch", "± error", "test mismatch", "train acc.", "test acc."]
        shares = [(s.first, s.standard_error, s.test_first, s.accuracy, s.test_accuracy) for s in self.sets]
        return [heads, *([s.name, *map(percent, row)] for s, row in zip(self.sets, shares, strict=True))]

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.notes])

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
        bars = []
        for i, s in enumerate(self.sets, 1):
            low, mid, high = (100 * (s.first + k * s.standard_error) for k in (-1, 0, 1))
            bars.append(Series([i], [mid], s.name, [low], [high], style="bars"))
        first = Panel("At the first site", bars, "data set, easiest first", "mismatch, %", log_y=False)
        along = Panel("Along depth", curves, along_sites(self.sites, 1), "mismatch, %", log_y=False)
        below = (
            f"{MISMATCH} Of training samples. The first site is '{self.sites[0]}'; its bars have ± 1 standard error."
        )
        return Sheet("Difficulty of data sets", [first, along], 2, below)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib."""
        return self.sheet().plot()

    def _view(self) -> View:
        return View(self.sentence, self.rows, [MISMATCH, *self.notes])

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page: the sentence, the drawing, the table."""
        from layerlaw.pages.html.outcomes import finding_page  # needs matplotlib

        heads, *body = self.rows
        about = {"architecture": self.architecture, "sites": ", ".join(self.sites)}
        how: Any = {"sheets": [self.sheet()], "tables": [Table("Data sets", heads, body)], "notes": self.notes}
        return finding_page(path, "Difficulty of data sets", [self.sentence], provenance=about, **how)


def compare_difficulty(records: Mapping[str, Record]) -> Difficulty:
    """Order data sets by the first-layer mismatch of one architecture, trained on each: records by the data sets' names.

    Each is of a trained network on its training data: `ncc_mismatch` at the same sites, by one `reduce` and `batchnorm`.
    """
    if not isinstance(records, Mapping) or len(records) < 2:
        came = f"{len(records)} of them" if isinstance(records, Mapping) else f"a {type(records).__name__}"
        raise InputError(f"records: expected those of two or more data sets, {{name: record}}, got {came}.")
    along = {name: _layers(name, record) for name, record in records.items()}
    check_settings(records)
    sites = {name: tuple(site.name for site in rows) for name, rows in along.items()}
    (first, expected), *others = sites.items()
    cure = "Train the same architecture on each, and probe the same sites"
    for name, found in others:
        if found != expected:
            came = f"{_listed(found)} of {name!r}"
            raise InputError(f"records: expected the sites of {first!r} ({_listed(expected)}), got {came}. {cure}.")
        if why := _differs((first, name), (records[first], records[name]), (along[first], along[name])):
            raise InputError(f"records: expected one architecture, got {why}. {cure}.")
    sets = []
    for name, record in records.items():
        values = tuple(site.values.get("ncc_mismatch") for site in along[name])
        n, start = sum(record.counts), values[0]
        if start is None:
            raise InputError(f"record {name!r}: expected ncc_mismatch at {expected[0]!r}, got none. {AGAIN}.")
        error = math.sqrt(max(start * (1 - start), 1 / n) / n)
        test = along[name][0].values.get("test_ncc_mismatch")
        sets.append(DatasetMismatch(name, values, start, error, test, record.accuracy, record.test_accuracy))
    architecture = str(_architecture(records[first]) or records[first].name)
    ordered = tuple(sorted(sets, key=lambda one: one.first))
    return Difficulty(architecture, expected, ordered, tuple(len(records[s.name].counts) for s in ordered))


def _listed(names: Sequence[str]) -> str:
    """Names, of many of them the first ones and the last."""
    return ", ".join(names if len(names) <= 6 else [*names[:3], "…", f"{names[-1]} ({len(names)} sites)"])


def _architecture(record: Record) -> str | None:
    """The class of the network, where the record knows it."""
    name = record.provenance.get("model")
    return None if name is None else str(name)


def _differs(names: Sequence[str], records: Sequence[Record], rows: Sequence[Sequence[SiteRow]]) -> str:
    """In what two networks differ whose sites have the same names; "": in nothing that other images would not explain.

    Images of other sizes and channels change the sides of maps, what is flattened from them and the parameters of the layers
    that read these; they change no module's class, no number of axes, and not both the channels and the rest of a map.
    """
    kinds = [_architecture(record) for record in records]
    counts = [f" of {n:,} parameters" if (n := record.provenance.get("parameters")) else "" for record in records]
    if None not in kinds and kinds[0] != kinds[1]:
        return " and ".join(f"{kind}{n} ({name!r})" for kind, n, name in zip(kinds, counts, names, strict=True))
    raw = _raw(records[0])  # where a layer reads maps, the next may read them flattened, and the first one tokens
    flattened = raw.type.lower() != "input" and len(raw.shape) > 1 if raw is not None else rows[0][0].at == "input"
    for here, there in zip(*rows, strict=True):
        pairs = zip((here, there), names, strict=True)
        both = [f"{row.type} {'×'.join(map(str, row.shape))} ({name!r})" for row, name in pairs]
        a, b = here.shape, there.shape
        same = a == b or (len(a) == len(b) > 1 and (a[0] == b[0] or a[-1] == b[-1]))
        same = same or (len(a) == len(b) == 1 and flattened)
        if here.type != there.type or not same:
            return f"at '{here.name}' " + " and ".join(both)
        flattened = len(a) > 1
    return ""


def _raw(record: Record) -> SiteRow | None:
    """The raw input, where it was measured: by its name, or as what enters the first of the layers.

    Sites that are named in a probe are measured at the output, and so are blocks: the first row is an input only where the
    inputs of all layers were measured, and then it is that of the layer that the data enter, unless they are embedded.
    """
    named = next((site for site in record.sites if site.name == "input"), None)
    first = next((site for site in record.sites[:1] if site.at == "input" and site.name != "embedded input"), None)
    return named or (None if record.settings.get("embedded") else first)


def _layers(name: str, record: Record) -> list[SiteRow]:
    """The sites behind a layer or an embedding: not the raw input, which no network has touched."""
    raw = _raw(record)
    rows = [site for site in record.sites if not site.branch and site is not raw]
    if not record.counts or not any(site.values.get("ncc_mismatch") is not None for site in rows):
        raise InputError(f"record {name!r}: expected ncc_mismatch of labeled samples, got none. {AGAIN}.")
    return rows
