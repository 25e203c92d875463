"""What a reproduction leaves behind: numbers beside the paper's, and its figures as plain data, in one JSON file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from layerlaw.errors import InputError
from layerlaw.files import Saved, from_plain
from layerlaw.notebook import Shown, View
from layerlaw.plain import (
    anything,
    check_number,
    check_text,
    check_truth,
    either,
    fields,
    named,
    nothing_or,
    number_from,
    one_of,
    several,
)
from layerlaw.sheet import SHEET, Sheet, number_or_none, set_fields, sheet_from_dict
from layerlaw.wording import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | int | None
Kind = Literal["number", "direction", "other model", "remark", "self-check"]
"""Of a claim: a number of the paper; what it says in words; the same on another model than its own; what it says in passing,
by a test of our own; a check of our own."""
NUMBER = nothing_or(check_number)
ROW = fields({"name": check_text, "paper": nothing_or(either(check_text, check_number)), "ours": NUMBER}, {
    "low": NUMBER, "high": NUMBER, "reproduced": nothing_or(check_truth), "tolerance": check_text, "reason": check_text,
    "kind": nothing_or(one_of(*get_args(Kind))), "chance": nothing_or(number_from(0, 1)),
})  # fmt: skip
TABLE = fields(
    {"title": check_text, "columns": several(check_text),
     "rows": several(several(nothing_or(either(check_text, check_truth, check_number))))}, {"note": check_text}
)  # fmt: skip
OUTCOME = fields({"name": check_text, "title": check_text, "rows": several(ROW), "sheets": several(SHEET)}, {
    "tables": several(TABLE), "notes": several(check_text), "provenance": named(anything),
})  # fmt: skip
TOO_EASY = 0.2  # a limit that chance passes more often than this is not counted


class Tally(NamedTuple):
    """How many rows were reproduced, of those that are counted."""

    reproduced: int
    judged: int


@dataclass(frozen=True)
class Row:
    """One number beside the paper's.

    `ours` is the mean over seeds, `low` and `high` their range. `paper` is a number as printed there, words, or `None`.
    `reproduced` is `None` where there is nothing to compare with, else `kind` says what kind of claim it is and `chance` how
    often something without the claimed property would pass. A missing `ours` needs a `reason`; a NaN gives its own.

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
    kind: Kind | None = None
    chance: float | None = None

    @property
    def counted(self) -> bool:
        """Whether it enters a tally: judged, and by a limit that chance does not pass more than once in five."""
        return self.reproduced is not None and (self.chance is None or self.chance <= TOO_EASY)

    def __post_init__(self) -> None:
        ours, reason = number_or_none(self.ours), self.reason
        if ours is None and not reason:
            if self.ours is None:
                raise InputError(
                    f"row '{self.name}': expected a number or a reason why there is none, got neither. "
                    "Give for example reason='diverged in epoch 12'."
                )
            reason = "the number is not finite"
        paper = self.paper if isinstance(self.paper, str) else number_or_none(self.paper)
        verdict = None if self.reproduced is None else bool(self.reproduced)  # a bool of NumPy is no bool for JSON
        set_fields(self, paper=paper, ours=ours, low=number_or_none(self.low), high=number_or_none(self.high))
        set_fields(self, reproduced=verdict, reason=reason)


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
        set_fields(self, columns=columns, rows=rows)


@dataclass(frozen=True)
class Outcome(Saved, Shown):
    """A reproduced figure: rows beside the paper's, sheets, supporting tables, notes, and how it was run.

    `name` is the figure's short name (fig1, s4). Provenance: command, device, wall_s, seeds, quick, epochs, code_version,
    when, torch, data (name → checksum); whatever else is there is shown too.

    >>> Outcome("fig1", "The law", [Row("r", -0.997, -0.998, reproduced=True), Row("p", None, 0.0003)], []).reproduced
    Tally(reproduced=1, judged=1)
    """

    _what, _version, _again = "outcome", 1, "repeat the experiment"

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
        set_fields(self, rows=tuple(self.rows), sheets=tuple(self.sheets), tables=tuple(self.tables))
        set_fields(self, notes=tuple(notes), provenance=_plain(self.provenance))

    @property
    def reproduced(self) -> Tally:
        """How many rows are reproduced, of those that are counted."""
        return self.tally()

    def tally(self, *kinds: Kind) -> Tally:
        """The same of some kinds alone."""
        verdicts = [row.reproduced for row in self.rows if row.counted and (not kinds or row.kind in kinds)]
        return Tally(sum(map(bool, verdicts)), len(verdicts))

    def plot(self, which: int = 0) -> Figure:
        """Draw one of its sheets, the first unless another is named: a matplotlib figure."""
        if not -len(self.sheets) <= which < len(self.sheets):
            raise InputError(f"outcome '{self.name}': expected one of its {len(self.sheets)} sheets, got {which}.")
        return self.sheets[which].plot()

    def _view(self) -> View:
        """What a notebook shows of it: its rows beside the paper's."""
        words = {None: "–", True: "yes", False: "no"}
        paper = [row.paper if isinstance(row.paper, str) else number(row.paper) for row in self.rows]
        ends = [f"{number(r.low)} … {number(r.high)}" if r.low is not None else "" for r in self.rows]
        rows = [
            [row.name, said, number(row.ours) if row.ours is not None else row.reason, span, words[row.reproduced]]
            for row, said, span in zip(self.rows, paper, ends, strict=True)
        ]
        came_out = f"{self.reproduced.reproduced} of {self.reproduced.judged} judged rows came out."
        heads = ["", "paper", "ours", "over seeds", "reproduced"]
        return View(f"{self.name}: {self.title}", [heads, *rows] if rows else (), [came_out])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"format": "layerlaw outcome", "version": self._version, **asdict(self)}

    @classmethod
    def _check(cls, data: dict[str, Any]) -> None:
        OUTCOME(data, "")

    @classmethod
    def _made(cls, data: dict[str, Any], version: int) -> Outcome:
        rows = [from_plain(Row, row) for row in data["rows"]]
        sheets = [sheet_from_dict(sheet) for sheet in data["sheets"]]
        tables = [from_plain(Table, table) for table in data.get("tables", ())]
        return from_plain(cls, data, rows=rows, sheets=sheets, tables=tables)


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
        return number_or_none(value)
    except TypeError:  # a path, a device, a date
        return str(value)
