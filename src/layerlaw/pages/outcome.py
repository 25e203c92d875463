"""What a reproduction leaves behind: numbers beside the paper's, and its figures as plain data, in one JSON file.

Everything is checked and made plain when it is built (tuples, floats, `None` for what is not finite), so what is drawn
right after a run and what is drawn from its file a year later are the same.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from layerlaw.errors import DataError, InputError
from layerlaw.record import finite, write_whole

FORMAT = "layerlaw outcome"
VERSION = 1

Style = Literal["points", "line", "fit", "faint", "null", "bars"]
Cell = str | float | int | None
Made = TypeVar("Made")


class Tally(NamedTuple):
    """How many numbers were reproduced, of those that the paper lets us judge."""

    reproduced: int
    judged: int


@dataclass(frozen=True)
class Series:
    """One curve of a panel; a `None` in y is a gap, `low` and `high` are a range over seeds.

    points: markers joined by a thin line; line: no markers; fit: a dashed straight line; faint: one of many runs in the
    background; null: a floor (permuted labels, an untrained network); bars: from the axis up. `colour` counts colours
    of the palette; series of one label share a colour, so it is rarely needed.
    """

    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    style: Style = "points"
    colour: int | None = None

    def __post_init__(self) -> None:
        x = tuple(float(v) for v in self.x)
        if not all(map(math.isfinite, x)):
            raise InputError(f"series '{self.label}': expected finite x, got {x}. Holes belong in y, as None.")
        if self.style not in get_args(Style):
            raise InputError(f"series '{self.label}': expected a style of {get_args(Style)}, got {self.style!r}.")
        ends = {name: values for name in ("low", "high") if (values := getattr(self, name)) is not None}
        holed = {name: tuple(map(_number, values)) for name, values in {"y": self.y, **ends}.items()}
        for name, values in holed.items():
            if len(values) != len(x):
                raise InputError(f"series '{self.label}': expected as many {name} as x ({len(x)}), got {len(values)}.")
        _set(self, x=x, **holed)


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `note` is a short text inside, `marked` an x with a vertical line through it.

    `tight`: a log axis keeps close to numbers that move little; otherwise a nearly flat curve is drawn flat.
    """

    title: str
    series: Sequence[Series]
    xlabel: str = "layer"
    ylabel: str = "D"
    log_y: bool = True
    log_x: bool = False
    note: str = ""
    marked: float | None = None
    tight: bool = False
    kind: Literal["axes"] = field(default="axes", init=False, repr=False)

    def __post_init__(self) -> None:
        _set(self, series=tuple(self.series), marked=_number(self.marked))


@dataclass(frozen=True)
class PlanePanel:
    """The samples of one layer in the plane (principal components), coloured by class. Only finite points are kept.

    `classes` are the names of the classes, in the order of the labels; a sheet explains its colours once.
    """

    title: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[int]
    classes: Sequence[str] = ()
    kind: Literal["plane"] = field(default="plane", init=False, repr=False)

    def __post_init__(self) -> None:
        points = [(float(x), float(y)) for x, y in self.points]
        labels = [int(k) for k in self.labels]
        if len(points) != len(labels):
            raise InputError(f"panel '{self.title}': expected a label per point, got {len(labels)} for {len(points)}.")
        kept = [i for i, point in enumerate(points) if all(map(math.isfinite, point))]
        _set(self, points=tuple(points[i] for i in kept), labels=tuple(labels[i] for i in kept))
        _set(self, classes=tuple(map(str, self.classes)))


@dataclass(frozen=True)
class Sheet:
    """One figure in the paper's arrangement: panels row by row, so many columns."""

    title: str
    panels: Sequence[Panel | PlanePanel]
    columns: int = 3
    caption: str = ""
    share_y: bool = False

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise InputError(f"sheet '{self.title}': expected at least 1 column, got {self.columns}.")
        _set(self, panels=tuple(self.panels), columns=int(self.columns))


@dataclass(frozen=True)
class Row:
    """One number beside the paper's.

    `ours` is the mean over seeds, `low` and `high` their range. `paper` is a number as printed there, words, or `None`.
    `reproduced` is `None` where there is nothing to compare with. A missing `ours` needs a `reason`; a NaN gives its own.

    >>> Row("r, Adam", -0.997, float("nan")).reason
    'the number is not finite'
    """

    name: str
    paper: float | str | None
    ours: float | None
    low: float | None = None
    high: float | None = None
    reproduced: bool | None = None
    tolerance: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        ours, reason = _number(self.ours), self.reason
        if ours is None and not reason:
            if self.ours is None:
                raise InputError(
                    f"row '{self.name}': expected a number or a reason why there is none, got neither. "
                    "Give for example reason='diverged in epoch 12'."
                )
            reason = "the number is not finite"
        paper = self.paper if isinstance(self.paper, str) else _number(self.paper)
        verdict = None if self.reproduced is None else bool(self.reproduced)  # a bool of NumPy is no bool for JSON
        _set(self, paper=paper, ours=ours, low=_number(self.low), high=_number(self.high))
        _set(self, reproduced=verdict, reason=reason)


@dataclass(frozen=True)
class Table:
    """A supporting table: the whole grid behind a figure, say."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        columns, rows = tuple(self.columns), tuple(tuple(map(_plain, row)) for row in self.rows)
        for i, row in enumerate(rows):
            if len(row) != len(columns):
                raise InputError(f"table '{self.title}', row {i}: expected {len(columns)} cells, got {len(row)}.")
        _set(self, columns=columns, rows=rows)


@dataclass(frozen=True)
class Outcome:
    """A reproduced figure: rows beside the paper's, sheets, supporting tables, notes, and how it was run.

    `name` is the figure's short name (fig1, s4). Provenance: command, device, wall_s, seeds, quick, epochs, code_version,
    when, torch, data (name → checksum); whatever else is there is shown too.

    >>> Outcome("fig1", "The law", [Row("r", -0.997, -0.998, reproduced=True), Row("p", None, 0.0003)], []).reproduced
    Tally(reproduced=1, judged=1)
    """

    name: str
    title: str
    rows: Sequence[Row]
    sheets: Sequence[Sheet]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        notes: Any = self.notes
        if isinstance(notes, str):
            raise InputError(f"outcome '{self.name}': expected a list of notes, got one string. Write notes=[…].")
        _set(self, rows=tuple(self.rows), sheets=tuple(self.sheets), tables=tuple(self.tables))
        _set(self, notes=tuple(notes), provenance=_plain(self.provenance))

    @property
    def reproduced(self) -> Tally:
        """How many rows are reproduced, of those with a verdict."""
        verdicts = [row.reproduced for row in self.rows if row.reproduced is not None]
        return Tally(sum(verdicts), len(verdicts))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_whole(path, json.dumps(finite(self.to_dict()), ensure_ascii=False, allow_nan=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Outcome:
        """Read an outcome of this or an older version."""
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(
                f"{path}: expected an outcome file that can be read ({error.strerror}). Was the experiment run?"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise DataError(
                f"{path}: expected a layerlaw outcome (JSON), got a file that is none or breaks early ({error}). "
                "Copy it again or repeat the experiment."
            ) from None
        return cls.from_dict(data, where=str(path))

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "outcome") -> Outcome:
        """An outcome from plain data; unknown fields are ignored."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            kind = data.get("format", "other JSON") if isinstance(data, dict) else "other JSON"
            raise DataError(f"{where}: expected a '{FORMAT}', got {kind!r}. Was it written by Outcome.save?")
        version = data.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise DataError(
                f"{where}: expected an outcome of version ≤ {VERSION}, got version {version}. "
                "It was written by a newer layerlaw: pip install --upgrade layerlaw"
            )
        try:
            return _made(
                cls,
                data,
                rows=[_made(Row, row) for row in data["rows"]],
                sheets=[_sheet(sheet) for sheet in data["sheets"]],
                tables=[_made(Table, table) for table in data.get("tables", ())],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{where}: expected a layerlaw outcome of version {version}, but a field is missing or wrong: {error}"
            ) from None


def _sheet(data: Mapping[str, Any]) -> Sheet:
    panels = [
        _made(PlanePanel, panel)
        if panel["kind"] == "plane"
        else _made(Panel, panel, series=[_made(Series, series) for series in panel["series"]])
        for panel in data["panels"]
    ]
    return _made(Sheet, data, panels=panels)


def _made(cls: type[Made], data: Mapping[str, Any], **parts: Any) -> Made:
    known = {f.name for f in fields(cls) if f.init}  # type: ignore[arg-type]  # all of them are dataclasses
    return cls(**{key: value for key, value in data.items() if key in known} | parts)


def _set(frozen: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def _number(value: float | None) -> float | None:
    """A float of Python's, from anything that can be one; `None` for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def _plain(value: Any) -> Any:
    """What JSON can hold and give back as it was: scalars of NumPy and torch become Python's, tuples lists."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0:
        return [_plain(v) for v in value]
    try:
        return _number(value)
    except TypeError:  # a path, a device, a date
        return str(value)
