"""Scales: what an axis spans, where its ticks are, how they are written, and where a number falls on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from layerlaw.sheet import Panel, Series
from layerlaw.wording import minus, number, power

MOST_BEYOND = 0.3  # of the foreground's span is given to the background on either side
BELOW = 10**0.5  # so many times below the least number, zeros are drawn on a log axis
NOWHERE = 0.01  # where zeros are drawn if there is no other number
OUTERMOST = 300.0  # decades from 1: what lies beyond is at the end of an axis


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`; on a log axis zeros may have a place, at `zero`.

    `data` are the ends before it was stretched: an even axis has no ticks beyond (a share of −0.2, say).
    """

    low: float
    high: float
    log: bool
    zero: float | None = None
    data: tuple[float, float] | None = None

    def shown(self, value: float | None) -> float | None:
        """The number as it is drawn: a zero at its place; `None` where it cannot be drawn."""
        value = self.zero if self.log and value == 0 else value
        return None if value is None or (self.log and value <= 0) else value

    def place(self, value: float | None) -> float | None:
        """Where a number falls, as a fraction of the axis; `None` where it cannot be drawn."""
        if (value := self.shown(value)) is None:
            return None
        return (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))

    def stretched(self, below: float, above: float) -> Scale:
        """The scale with so much of its length added at its ends."""
        low, high = self._at(self.low), self._at(self.high)
        wider = _between(low - below * (high - low), high + above * (high - low), self.log)
        return replace(wider, zero=self.zero, data=self.data or (self.low, self.high))

    def ticks(self, most: int, *, whole: bool = False) -> list[float]:
        """At most about `most` round numbers; even steps where a log axis is too short for 1, 2, 5.

        >>> Scale(0.3, 50, True).ticks(5), Scale(4.2, 6.1, True).ticks(6)
        ([0.3, 1.0, 3.0, 10.0, 30.0], [4.5, 5.0, 5.5, 6.0])
        >>> Scale(0.0, 1.0, False).stretched(0.5, 0).ticks(5)
        [0.0, 0.5, 1.0]
        """
        if self.zero is not None:
            return [self.zero, *(t for t in replace(self, zero=None).ticks(most) if t > 0.999 * BELOW * self.zero)]
        if not self.log:
            low, high = self.data or (self.low, self.high)
            return [t for t in even_ticks(self.low, self.high, most, whole=whole) if low <= t <= high]
        found = log_ticks(math.log10(self.low), math.log10(self.high))
        if len(found) > most:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            threes = [float(f"{digit}e{k}") for k in decades for digit in (1, 3)]
            found = [t for t in threes if self.low <= t <= self.high]
        if len(found) > most:
            found = [float(f"1e{k}") for k in decades if self.low <= 10.0**k <= self.high]
            found = found[:: math.ceil(len(found) / most)]
        enough = len(found) > 2 or self.high > 20 * self.low
        return found if enough else even_ticks(self.low, self.high, most, whole=whole)

    def between_ticks(self) -> list[float]:
        """Of a log axis with a place for zeros: all digits of all decades, from the numbers that may be drawn on."""
        least = self.low if self.zero is None else 0.999 * BELOW * self.zero
        decades = range(math.floor(math.log10(least)), math.ceil(math.log10(self.high)) + 1)
        return [t for k in decades for digit in range(1, 10) if least < (t := float(f"{digit}e{k}")) <= self.high]

    def words(self, ticks: Sequence[float]) -> list[str]:
        """The ticks in as few characters as possible; on a long log axis all as powers of ten, not only the outer ones.

        >>> Scale(1e-4, 1, True).words([1e-4, 1e-2, 1.0]), Scale(-1, 1, False).words([-0.5, 0.0, 600.0])
        (['10⁻⁴', '10⁻²', '1'], ['−0.5', '0', '600'])
        """
        if ticks and ticks[0] == self.zero:
            return ["0", *replace(self, zero=None).words(ticks[1:])]
        exponents = [round(math.log10(t)) for t in ticks] if self.log else []
        powers = self.log and all(math.isclose(10.0**k, t) for k, t in zip(exponents, ticks, strict=True))
        if powers and max(map(abs, exponents), default=0) > 3:
            return [f"10{power(k)}" if k else "1" for k in exponents]
        plain = {t: t == 0 or 1e-4 < abs(t) < 1e6 for t in ticks}
        return [minus(f"{t:,.10g}") if plain[t] else "−" * (t < 0) + tick_text(abs(t)) for t in ticks]

    def _at(self, value: float) -> float:
        return math.log10(value) if self.log else value


def log_ticks(bottom: float, top: float, parts: int = 4) -> list[float]:
    """Tick positions between 10^bottom and 10^top; within a factor of about two about so many even `parts`.

    >>> log_ticks(-1.1, 1.2), log_ticks(-6, 2)
    ([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0], [1e-06, 0.0001, 0.01, 1.0, 100.0])
    """
    span = top - bottom
    if span < 0.35:
        return even_ticks(10**bottom, 10**top, parts)
    digits = (1, 2, 3, 5, 7) if span < 0.9 else (1, 2, 5) if span < 3.2 else (1,)
    every = max(1, math.ceil(span / 7)) if span >= 3.2 else 1
    decades = range(math.floor(bottom / every) * every, math.ceil(top) + 1, every)
    candidates = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
    return [t for t in candidates if 10**bottom <= t <= 10**top]


def even_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about `most` of them."""
    raw = (high - low) / max(1, most)
    if not 0 < raw < math.inf:  # numbers so large that nothing lies between them
        return [low]
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * s for s in (1, 2, 5, 10) if unit * s >= raw * 0.999)
    step = max(1.0, round(step)) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A tick of a log axis in as few characters as possible: 0.05, 200, 10⁻⁶."""
    exponent = math.floor(math.log10(value) + 1e-9)
    if -4 < exponent < 4:
        return f"{value:,.10g}"
    return f"10{power(exponent)}" if abs(value / 10.0**exponent - 1) < 1e-9 else number(value, 2)


def close_scale(values: Iterable[float], margin: float, behind: Sequence[float] = ()) -> tuple[Scale, list[float]]:
    """A log scale with at least a `margin` of decades about the values, and its ticks: more where the margin is small.

    What is `behind` moves its ends where it is near enough not to press the values flat.
    """
    scale = padded(list(values), True, 0.06, margin)
    reach = scale.stretched(MOST_BEYOND, MOST_BEYOND)
    scale = before(scale, [v for v in behind if reach.low <= v <= reach.high])
    return scale, log_ticks(math.log10(scale.low), math.log10(scale.high), 7 if margin < 0.01 else 4)


def x_scale(panel: Panel) -> Scale | None:
    """The horizontal scale; `None` where nothing can be drawn."""
    drawn = [x for series in panel.series for x, y in zip(series.x, series.y, strict=True) if y is not None]
    values = _drawable([*drawn, *([panel.marked] if panel.marked is not None and drawn else [])], panel.log_x)
    if not values:
        return None
    if panel.log_x:
        return padded(values, True, 0.04, 0.06)
    span = max(values) - min(values)
    bars = [x for series in panel.series if series.style == "bars" for x in series.x]
    least = 0.6 * smallest_gap(bars) if bars else 0.35 if 0 < span <= 12 else 0.5 if span == 0 else 0.0
    return Scale(min(values) - max(0.035 * span, least), max(values) + max(0.035 * span, least), False)


def y_scale(panel: Panel) -> Scale | None:
    """The vertical scale: the foreground whole; faint series as far as they do not press the rest flat."""
    front = _drawable(_heights(s for s in panel.series if s.style != "faint"), panel.log_y)
    back = _drawable(_heights(s for s in panel.series if s.style == "faint"), panel.log_y)
    if not panel.log_y and any(series.style == "bars" for series in panel.series):
        front.append(0.0)
    if panel.log_y and panel.zeros and 0 in _heights(panel.series):
        zero = min(front or back) / BELOW if front or back else NOWHERE
        return replace(padded([zero, *front, *back], True, 0.06, 0.08), zero=zero)
    if not front and not back:
        return None
    scale = padded(front or back, panel.log_y, 0.06, 0.004 if panel.tight else 0.08)
    return before(scale, back) if front else scale


def together(scales: Sequence[Scale]) -> Scale:
    """One scale for several axes, all of them log or none; zeros are below the numbers of all."""
    low, high = min(scale.low for scale in scales), max(scale.high for scale in scales)
    if all(scale.zero is None for scale in scales):
        return Scale(low, high, scales[0].log)
    zero = min(scale.low / BELOW if scale.zero is None else scale.zero for scale in scales)
    return replace(padded([zero, high], True, 0.06, 0.08), high=high, zero=zero)


def before(scale: Scale, background: Sequence[float]) -> Scale:
    """The scale, longer for what is in the background, but by no more than a share of its length at either end."""
    if not background:
        return scale
    reach = scale.stretched(MOST_BEYOND, MOST_BEYOND)
    behind = padded([min(max(v, reach.low), reach.high) for v in background], scale.log, 0.03, 0.0)
    return Scale(min(scale.low, behind.low), max(scale.high, behind.high), scale.log)


def smallest_gap(values: Sequence[float]) -> float:
    """The least distance between two different values, 1 where there are no two."""
    return min((b - a for a, b in pairwise(sorted(set(values)))), default=1.0)


def padded(values: Sequence[float], log: bool, share: float, least: float) -> Scale:
    """The scale of the values and a share of their span, or the `least` of decades, on either side."""
    low, high = (math.log10(min(values)), math.log10(max(values))) if log else (min(values), max(values))
    if not log:
        least = 0.0 if high > low else abs(high) * 0.1 or 1.0
    pad = max(share * (high - low), least)
    return _between(low - pad, high + pad, log)


def _between(low: float, high: float, log: bool) -> Scale:
    if not log:
        return Scale(low, high, False)
    low, high = (min(max(end, -OUTERMOST), OUTERMOST) for end in (low, high))  # decades that floats can count
    out = float(low == high and abs(low) == OUTERMOST)  # all of it lies beyond: a decade on either side
    return Scale(10 ** (low - out), 10 ** (high + out), True)


def _heights(series: Iterable[Series]) -> list[float]:
    return [v for s in series for values in (s.y, s.low or (), s.high or ()) for v in values if v is not None]


def _drawable(values: Iterable[float], log: bool) -> list[float]:
    return [v for v in values if (v > 0 or not log) and abs(v) <= 10.0**OUTERMOST]
