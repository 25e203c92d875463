"""Ticks: site names along x (at most a dozen and a half), readable numbers along a log y axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from layerlaw.pages.html import for_plotly
from layerlaw.pages.record_view import RecordView
from layerlaw.record import INPUT, Kind
from layerlaw.wording import number, power


def site_axis(view: RecordView, *, most: int = 18) -> dict[str, Any]:
    """An x axis with site names; beyond `most` sites only some of them are named."""
    count = len(view.sites)
    shown = strided(count, most)
    return {
        "tickvals": shown,
        "ticktext": [for_plotly(view.sites[i].name, 17) for i in shown],
        "tickangle": -45,
        "range": [-0.5, count - 0.5],
    }


def index_axis(count: int, kind: Kind) -> dict[str, Any]:
    """An x axis that counts the points of a fit as their kind does: layers from 0, blocks from 1."""
    names = [str(kind.first + i) for i in range(count)]
    shown = block_ticks(names) if kind.first else strided(count, 13)
    return {
        "tickvals": [kind.first + i for i in shown],
        "tickangle": 0,
        "range": [kind.first - 0.5, kind.first + count - 0.5],
        "title": {"text": kind.site if kind.first else f"{kind.site}, counted along the fit"},
    }


def strided(count: int, most: int) -> list[int]:
    """Every so-many-th position, at most `most` of them, from the first.

    >>> strided(5, 8), strided(13, 12)
    ([0, 1, 2, 3, 4], [0, 2, 4, 6, 8, 10, 12])
    """
    return list(range(0, count, max(1, math.ceil((count - 1) / max(1, most - 1)))))


def block_axis(view: RecordView, *drawn: Sequence[float | None]) -> dict[str, Any]:
    """An x axis of blocks, counted 1 … L; the embedded input has a place where one of the series `drawn` has it."""
    names = view.numbers
    inputs = names[:1] == [INPUT]
    first = int(inputs and not any(series and (series[0] or 0) > 0 for series in drawn))
    shown = block_ticks(names[first:])
    return {
        "tickvals": [first + i for i in shown],
        "ticktext": [names[first + i] for i in shown],
        "range": [first - 0.5, len(names) - 0.5],
        "title": {"text": block_title(names[first:])},
    }


def block_ticks(names: Sequence[str], most: int = 12) -> list[int]:
    """Positions of the input and of every, every second, fifth, tenth … block.

    >>> block_ticks(["in", *map(str, range(1, 13))]), block_ticks(list(map(str, range(1, 31))))
    ([0, 2, 4, 6, 8, 10, 12], [4, 9, 14, 19, 24, 29])
    """
    blocks = [int(name) for name in names if name.isdecimal()]
    steps = (digit * 10**k for k in itertools.count() for digit in (1, 2, 5))
    step = next(step for step in steps if len(blocks) < most * step)
    return [i for i, name in enumerate(names) if name == INPUT or (name.isdecimal() and int(name) % step == 0)]


def block_title(names: Sequence[str]) -> str:
    """What the axis counts."""
    return "block (in: embedded input)" if INPUT in names else "block"


def log_axis(values: Iterable[float | None], title: str, *, margin: float = 0.08) -> dict[str, Any]:
    """A log axis that spans the positive values and at least a `margin` of decades about them, with round ticks."""
    positive = [v for v in values if v is not None and v > 0 and math.isfinite(v)]
    low, high = (min(positive), max(positive)) if positive else (0.1, 10.0)
    bottom, top = math.log10(low), math.log10(high)
    pad = max(0.06 * (top - bottom), margin)
    bottom, top = bottom - pad, top + pad
    ticks = log_ticks(bottom, top, even_parts(margin))
    return {
        "type": "log",
        "range": [round(bottom, 4), round(top, 4)],
        "tickvals": ticks,
        "ticktext": [tick_text(t) for t in ticks],
        "title": {"text": title},
    }


def even_parts(margin: float) -> int:
    """Steps between even ticks: more on an axis that keeps close to what hardly moves."""
    return 7 if margin < 0.01 else 4


def log_ticks(bottom: float, top: float, parts: int = 4) -> list[float]:
    """Tick positions between 10^bottom and 10^top.

    >>> log_ticks(-1.1, 1.2), log_ticks(-6, 2)
    ([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0], [1e-06, 0.0001, 0.01, 1.0, 100.0])
    """
    span = top - bottom
    if span < 0.35:  # within a factor of about two: even steps
        return _even_ticks(10**bottom, 10**top, parts)
    digits = (1, 2, 3, 5, 7) if span < 0.9 else (1, 2, 5) if span < 3.2 else (1,)
    every = max(1, math.ceil(span / 7)) if span >= 3.2 else 1
    first = math.floor(bottom / every) * every
    decades = range(first, math.ceil(top) + 1, every)
    candidates = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
    return [t for t in candidates if 10**bottom <= t <= 10**top]


def _even_ticks(low: float, high: float, parts: int) -> list[float]:
    raw = (high - low) / parts
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * s for s in (1, 2, 5, 10) if unit * s >= raw)
    first = math.ceil(low / step)
    return [float(f"{k * step:.6g}") for k in range(first, math.floor(high / step) + 1)]


def tick_text(value: float) -> str:
    """A tick of a log axis in as few characters as possible: 0.05, 200, 10⁻⁶."""
    exponent = math.floor(math.log10(value) + 1e-9)
    mantissa = value / 10.0**exponent
    if -4 < exponent < 4:
        return f"{value:,.10g}"
    return f"10{power(exponent)}" if abs(mantissa - 1) < 1e-9 else number(value, 2)
