"""How an outcome is written, wherever it stands: the same digits, marks and sentences on page, terminal and ledger."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerlaw.pages.numbers import ABSENT, beginning, clean, finite, number, p_value, sentence
from layerlaw.pages.outcome import Cell, Outcome, Row, Tally
from layerlaw.pages.words import written_value

MARKS = {True: "✓", False: "✗", None: ABSENT}
QUICK = "a quick run: shortened, not the paper’s protocol"
KNOWN_PROVENANCE = {
    "command": "command",
    "device": "device",
    "wall_s": "wall time",
    "seeds": "seeds",
    "epochs": "epochs",
    "quick": "quick run",
    "code_version": "layerlaw",
    "torch": "torch",
    "when": "run on",
    "data": "data",
}
_FIGURE = re.compile(r"(?:fig(?:ure)?)?[\s._-]*(s?)[\s._-]*(\d+)[\s._-]*([a-z]?)", re.IGNORECASE)
_KINDS = re.compile(r"(?<![\w.])(?:(r|[Pp]earson|[Cc]orrelation)|(ρ|rho)|(p|p-value|[Gg]reenwood))(?![\w²])")
R_DECIMALS = 4
RHO_DECIMALS = 3
MOST_DECIMALS = 6
CHECKSUM = 13
FACTS = ("device", "wall time", "seeds", "epochs")


@dataclass(frozen=True)
class Written:
    """A row in words; `range` is empty where there is none."""

    name: str
    paper: str
    ours: str
    range: str
    tolerance: str
    reason: str
    mark: str

    @property
    def ours_and_range(self) -> str:
        """The mean, and the range over seeds in brackets."""
        return f"{self.ours} {self.range}".rstrip()


def figure_label(name: str) -> str:
    """A figure's short name as papers write it.

    >>> figure_label("fig1"), figure_label("s4"), figure_label("fig_s12b"), figure_label("batch_norm")
    ('Fig. 1', 'Fig. S4', 'Fig. S12b', 'Batch norm')
    """
    name = clean(name).strip()
    if found := _FIGURE.fullmatch(name):
        return f"Fig. {found[1].upper()}{found[2]}{found[3].lower()}"
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def heading(outcome: Outcome) -> str:
    """Label and title in one line."""
    return " · ".join(part for part in (figure_label(outcome.name), sentence(clean(outcome.title))) if part)


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """The counts of several outcomes together."""
    return Tally(sum(o.reproduced.reproduced for o in outcomes), sum(o.reproduced.judged for o in outcomes))


def verdict_line(count: Tally) -> str:
    """One sentence without a full stop.

    >>> verdict_line(Tally(14, 18)), verdict_line(Tally(1, 1)), verdict_line(Tally(0, 0))
    ('14 of 18 numbers reproduced', '1 of 1 number reproduced', 'no number to compare with the paper')
    """
    if not count.judged:
        return "no number to compare with the paper"
    return f"{count.reproduced} of {count.judged} number{'s' if count.judged != 1 else ''} reproduced"


def written_row(row: Row) -> Written:
    """A row in words: mean and range to the same decimals, and at least as many as the paper gives."""
    value = row.ours if row.ours is not None else row.low if row.low is not None else row.high
    decimals = None if value is None else _decimals(value, row.name)
    if decimals is not None and isinstance(row.paper, float):
        decimals = min(MOST_DECIMALS, max(decimals, _printed_decimals(row.paper)))
    ours, low, high = (_with(v, row.name, decimals) for v in (row.ours, row.low, row.high))
    return Written(
        name=sentence(clean(row.name)),
        paper=paper_text(row.paper),
        ours=ours,
        range="" if row.low is None and row.high is None else f"[{low}, {high}]",
        tolerance=_words(row.tolerance),
        reason=_words(row.reason),
        mark=MARKS[row.reproduced],
    )


def written(value: Cell, name: str = "") -> str:
    """A number in the digits its name asks for: r four decimals, ρ three, else three significant digits.

    >>> written(-0.99812, "r, Adam"), written(0.5274, "ρ"), written(36.814, "D"), written(0.001, "lr"), written(600)
    ('−0.9981', '0.527', '36.8', '0.001', '600')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return sentence(clean(value))
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−") if abs(value) >= 10_000 else str(value).replace("-", "−")
    return _with(value, name, None if finite(value) is None else _decimals(value or 0.0, name))


def paper_text(paper: float | str | None) -> str:
    """What the paper says, with the digits it gives.

    >>> paper_text(-0.997), paper_text("≈ -0.5"), paper_text(None)
    ('−0.997', '≈ −0.5', '–')
    """
    if isinstance(paper, str):
        return _words(paper) or ABSENT
    return ABSENT if finite(paper) is None else sentence(f" {paper:.10g}").strip()


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
    known = [key for key in KNOWN_PROVENANCE if key in outcome.provenance]
    keys = [*known, *(key for key in outcome.provenance if key not in KNOWN_PROVENANCE)]
    items = [
        (KNOWN_PROVENANCE.get(key, clean(key).replace("_", " ")), _provenance_text(key, outcome.provenance[key]))
        for key in keys
        if key != "quick" or outcome.provenance[key]
    ]
    return [(what, words) for what, words in items if words not in ("", ABSENT)]


def run_facts(outcome: Outcome) -> str:
    """Device, wall time, seeds and epochs in one line, as far as they are known."""
    known = dict(provenance_items(outcome))
    return " · ".join(known[what] if what == "device" else f"{what} {known[what]}" for what in FACTS if what in known)


def _provenance_text(key: str, value: Any) -> str:
    if key == "wall_s" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return duration(value)
    if key == "data" and isinstance(value, dict):  # a checksum is recognised by its beginning; the file has it whole
        return written_value({name: beginning(str(digest), CHECKSUM) for name, digest in value.items()})
    return written_value(value)


def _decimals(value: float, name: str) -> int | None:
    """Decimals for a number of this name; `None` where powers of ten or a probability read better."""
    kind = _KINDS.search(name)
    if kind and kind[1] and abs(value) <= 1:
        return R_DECIMALS
    if kind and kind[2] and abs(value) < 10:
        return RHO_DECIMALS
    if kind and kind[3] and 0 <= value <= 1:
        return None
    if value == 0:
        return 0
    short = f"{value:.3g}"
    exponent = math.floor(math.log10(abs(value)) + 1e-12)
    if not -4 < exponent < 6:
        return None
    if float(short) == value and "e" not in short:  # a round number, like a learning rate: no zeros added
        return _printed_decimals(value)
    return max(0, 2 - exponent)


def _printed_decimals(value: float) -> int:
    text = f"{value:.10g}"
    return len(text.partition(".")[2]) if "e" not in text else 0


def _with(value: float | None, name: str, decimals: int | None) -> str:
    value = finite(value)
    if value is None:
        return ABSENT
    if decimals is None:
        kind = _KINDS.search(name)
        return p_value(value) if kind and kind[3] and 0 <= value <= 1 else number(value)
    text = f"{value:,.{decimals}f}"
    return (text if text.strip("-0.,") else text.lstrip("-")).replace("-", "−")  # no minus before a rounded zero


def _words(text: str) -> str:
    return sentence(" " + clean(text)).strip()
