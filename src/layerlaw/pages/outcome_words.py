"""How an outcome is written, wherever it stands: the same digits, marks and sentences on page, terminal and ledger."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from layerlaw.outcome import Cell, Kind, Outcome, Row
from layerlaw.wording import ABSENT, beginning, clean, counted, finite, minus, number, p_value, sentence, setting

MARKS = {True: "✓", False: "✗", None: ABSENT}
KINDS: dict[Kind, tuple[str, str]] = {  # of claims, as they are counted: one, and several
    "number": ("number", "numbers"), "direction": ("direction", "directions"),
    "other model": ("claim on another model", "claims on another model"),
    "remark": ("test of a remark", "tests of remarks"), "self-check": ("self-check", "self-checks"),
}  # fmt: skip
QUICK = "a quick run: shortened, not the paper’s protocol"
UNJUDGED = "quick run: numbers shown, not judged"
KNOWN_PROVENANCE = {  # "code_version" and "when" are of older files
    "command": "command", "device": "device", "wall_s": "wall time", "seeds": "seeds", "epochs": "epochs",
    "quick": "quick run", "layerlaw": "layerlaw", "code_version": "layerlaw", "torch": "torch", "created": "run on",
    "when": "run on", "data": "data",
}  # fmt: skip
_FIGURE = re.compile(r"(?:fig(?:ure)?)?[\s._-]*(s?)[\s._-]*(\d+)[\s._-]*([a-z]?)", re.IGNORECASE)
_KINDS = re.compile(r"(?<![\w.])(?:(r|[Pp]earson|[Cc]orrelation)|(ρ|rho)|(p|p-value|[Gg]reenwood))(?![\w²])")
_RATE = re.compile(r"(?:^|/)\s*(?:lr|learning[ _-]rate)(?![a-z])", re.IGNORECASE)
R_DECIMALS, PAPER_R_DECIMALS, RHO_DECIMALS, MOST_DECIMALS = 4, 3, 3, 6
ROUNDING = 1e-12
CHECKSUM = 13
FACTS = ("device", "wall time", "seeds", "epochs")


class Written(NamedTuple):
    """A row in words; `range` is empty where there is none."""

    name: str
    paper: str
    ours: str
    range: str
    tolerance: str
    reason: str
    mark: str
    """In brackets where it is not counted: chance passes the limit too often."""
    kind: str = ""
    chance: str = ""

    @property
    def ours_and_range(self) -> str:
        """The mean, and the range over seeds in brackets."""
        return f"{self.ours} {self.range}".rstrip()


def figure_label(name: str) -> str:
    """A figure's short name as papers write it.

    >>> figure_label("fig1"), figure_label("fig_s12b"), figure_label("batch_norm"), figure_label("lm_law")
    ('Fig. 1', 'Fig. S12b', 'Batch norm', 'LM law')
    """
    name = clean(name).strip()
    if found := _FIGURE.fullmatch(name):
        return f"Fig. {found[1].upper()}{found[2]}{found[3].lower()}"
    words = name.replace("_", " ").strip()
    first, _, rest = words.partition(" ")
    return f"{first.upper()} {rest}" if first in ("lm", "svsl") else words[:1].upper() + words[1:]


def heading(outcome: Outcome) -> str:
    """Label and title in one line."""
    return " · ".join(part for part in (figure_label(outcome.name), sentence(clean(outcome.title))) if part)


def verdict_line(outcomes: Sequence[Outcome]) -> str:
    """One sentence without a full stop: how much came out, by the kind of claim, and how many rows chance would pass.

    Empty where nothing was judged, unless that is so because all runs were quick.

    >>> rows = [Row("r", -0.99, -1.0, reproduced=True, kind="number"), Row("ρ", "falls", 1.0, reproduced=False)]
    >>> verdict_line([Outcome("a", "", [*rows, Row("p", None, 1.0, reproduced=True, chance=0.4)], [])])
    '1 of 1 number and 0 of 1 direction reproduced (1 row not counted: chance passes it)'
    """
    rows = [row for outcome in outcomes for row in outcome.rows]
    judged = by_kind(rows)
    easy = sum(row.reproduced is not None and not row.counted for row in rows)
    if not judged and not easy:
        quick = [outcome.provenance.get("quick") for outcome in outcomes if outcome.rows]
        return UNJUDGED if quick and all(quick) else ""
    parts = [f"{sum(map(_came_out, some))} of {counted(len(some), *KINDS[kind])}" for kind, some in judged.items()]
    words = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts) or "nothing counted"
    left = f" ({counted(easy, 'row')} not counted: chance passes {'it' if easy == 1 else 'them'})" if easy else ""
    return f"{words} reproduced{left}" if parts else f"{words}{left}"


def by_kind(rows: Sequence[Row]) -> dict[Kind, list[Row]]:
    """The rows that are counted, by the kind of claim; of older records what the paper gives in digits is a number."""
    found: dict[Kind, list[Row]] = {kind: [] for kind in KINDS}
    for row in rows:
        if row.counted:
            found[row.kind or ("direction" if isinstance(row.paper, str) else "number")].append(row)
    return {kind: some for kind, some in found.items() if some}


def standing_open(outcome: Outcome) -> tuple[list[Row], list[Row], int]:
    """What is read first and what is folded: rows that stand open, further rows, and how many of the tables stand open.

    Open are rows that the paper says something about, or that are judged. Where there are none the first table is the
    result; without a table all rows are.
    """
    beside = [row for row in outcome.rows if row.paper is not None or row.reproduced is not None]
    if not beside and not outcome.tables:
        return list(outcome.rows), [], 0
    return beside, [row for row in outcome.rows if row not in beside], 0 if beside else 1


def _came_out(row: Row) -> bool:
    return row.reproduced is True


def quick_words(outcome: Outcome) -> str:
    """That a judged run was a quick one; empty where it was not, or where the verdict says so already."""
    said = outcome.provenance.get("quick") and verdict_line([outcome]) != UNJUDGED
    return f"This is {QUICK}." if said else ""


def written_row(row: Row) -> Written:
    """A row in words: mean and range to the same decimals, at least as many as the paper gives, nothing rounded to 0.

    One seed has no range.
    """
    all_three = (row.ours, row.low, row.high)
    decimals = next((_decimals(value, row.name) for value in all_three if value is not None), None)
    if decimals is not None:
        paper = _printed_decimals(row.paper) if isinstance(row.paper, float) else 0
        decimals = min(MOST_DECIMALS, max(decimals, paper, *map(_needed_decimals, all_three)))
    ours, low, high = (_with(v, row.name, decimals) for v in all_three)
    alone = (row.low is None and row.high is None) or row.low == row.high == row.ours
    return Written(
        name=sentence(clean(row.name)),
        paper=paper_text(row.paper, row.name),
        ours=ours,
        range="" if alone else f"[{low}, {high}]",
        tolerance=_words(row.tolerance),
        reason=_words(row.reason),
        mark=MARKS[row.reproduced] if row.counted or row.reproduced is None else f"({MARKS[row.reproduced]})",
        kind=row.kind or "",
        chance="" if row.chance is None else _chance(row.chance),
    )


def _chance(rate: float) -> str:
    return f"{rate:.0%}" if rate >= 0.095 else f"{rate:.1%}" if rate >= 0.0005 else "< 0.1%"


def written(value: Cell, name: str = "") -> str:
    """A number in the digits its name asks for: r four decimals, ρ three, else three significant digits.

    >>> written(-0.99812, "r, Adam"), written(0.5274, "ρ"), written(36.814, "D"), written(0.0003, "lr"), written(600)
    ('−0.9981', '0.527', '36.8', '0.0003', '600')
    """
    if isinstance(value, bool):
        return setting(value)
    if isinstance(value, str):
        return sentence(clean(value))
    if isinstance(value, int):
        return minus(f"{value:,}" if abs(value) >= 10_000 else str(value))
    return _with(value, name, None if finite(value) is None else _decimals(value or 0.0, name))


def paper_text(paper: float | str | None, name: str = "") -> str:
    """What the paper says, with the digits it gives; a correlation with three decimals, as papers write it.

    >>> paper_text(-0.997), paper_text("≈ -0.5"), paper_text(None), paper_text(-1.0, "sgd-4/pearson")
    ('−0.997', '≈ −0.5', '–', '−1.000')
    """
    if paper is None or isinstance(paper, str):
        return _words(paper or "") or ABSENT
    if _kind(paper, name) == "r" and _printed_decimals(paper) < PAPER_R_DECIMALS:
        return _with(paper, name, PAPER_R_DECIMALS)
    return _words(f"{paper:.10g}")


def duration(seconds: float | None) -> str:
    """A wall time in two units at most.

    >>> [duration(s) for s in (0.42, 8.1, 252, 7500, None)]
    ['0.4 s', '8 s', '4 min 12 s', '2 h 05 min', '–']
    """
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 1 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def provenance_items(outcome: Outcome) -> list[tuple[str, str]]:
    """How it was run, as (what, words), the command first; what is empty is left out."""
    given = {key: outcome.provenance[key] for key in KNOWN_PROVENANCE if key in outcome.provenance} | outcome.provenance
    if not given.get("quick"):
        given.pop("quick", None)
    wall, data = given.get("wall_s"), given.get("data")
    if isinstance(wall, (int, float)) and not isinstance(wall, bool):
        given["wall_s"] = duration(wall)
    if isinstance(data, dict):  # a checksum is recognized by its beginning; the file has it whole
        given["data"] = {name: beginning(str(digest), CHECKSUM) for name, digest in data.items()}
    items = [(KNOWN_PROVENANCE.get(key, clean(key).replace("_", " ")), setting(value)) for key, value in given.items()]
    return [(what, words) for what, words in items if words not in ("", ABSENT)]


def run_facts(outcome: Outcome) -> str:
    """Device, wall time, seeds and epochs in one line, as far as they are known."""
    known = dict(provenance_items(outcome))
    return " · ".join(known[what] if what == "device" else f"{what} {known[what]}" for what in FACTS if what in known)


def _kind(value: float, name: str) -> str:
    """What a number of this name is: a learning rate, r, ρ, p, or any other."""
    found = _KINDS.search(name)
    r, rho, p = found.groups() if found else ("", "", "")
    kinds = (("rate", _RATE.search(name)), ("r", r and abs(value) <= 1), ("ρ", rho and abs(value) < 10))
    return next((kind for kind, there in kinds if there), "p" if p and 0 <= value <= 1 else "")


def _decimals(value: float, name: str) -> int | None:
    """Decimals for a number of this name; `None` where powers of ten or a probability read better."""
    kind = _kind(value, name)
    if kind in ("rate", "p"):
        return None
    if kind:  # factors of prediction residuals lie close to 1
        return R_DECIMALS if kind == "r" else RHO_DECIMALS + (0.99 < value < 1.01)
    if value == 0:
        return 0
    exponent = math.floor(math.log10(abs(value)) + 1e-12)
    if not -4 < exponent < 6:
        return None
    short = f"{value:.3g}"
    is_round = float(short) == value and "e" not in short  # like a learning rate: no zeros added
    return _printed_decimals(value) if is_round else max(0, 2 - exponent)


def _printed_decimals(value: float) -> int:
    text = f"{value:.10g}"
    return len(text.partition(".")[2]) if "e" not in text else 0


def _needed_decimals(value: float | None) -> int:
    """How many decimals it takes not to write 0 for another number; rounding errors are 0."""
    value = finite(value)
    return 0 if value is None or abs(value) < ROUNDING else max(0, -math.floor(math.log10(abs(value)) + 1e-12))


def _with(value: float | None, name: str, decimals: int | None) -> str:
    value = finite(value)
    if value is None:
        return ABSENT
    if decimals is None:
        kind = _kind(value, name)
        return _words(f"{value:.3g}") if kind == "rate" else p_value(value) if kind == "p" else number(value)
    if _needed_decimals(value) > max(decimals, MOST_DECIMALS):
        return number(value)
    return minus(f"{value:,.{decimals}f}")


def _words(text: str) -> str:
    return sentence(" " + clean(text)).strip()
