"""The two scales of a panel: what they span, where their ticks are, and where a number falls on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from layerlaw.pages.axes import log_ticks, tick_text
from layerlaw.sheet import Panel, Series
from layerlaw.wording import minus, power

BACKGROUND = ("faint",)  # may leave the panel: one run that diverged must not press all others flat
MOST_BEYOND = 0.3  # of the foreground's span is given to the background on either side


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float
    log: bool

    def place(self, value: float | None) -> float | None:
        """Where a number falls, as a fraction of the axis; `None` where it cannot be drawn."""
        if value is None or (self.log and value <= 0):
            return None
        return (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))

    def stretched(self, below: float, above: float) -> Scale:
        """The scale with so much of its length added at its ends."""
        low, high = self._at(self.low), self._at(self.high)
        low, high = low - below * (high - low), high + above * (high - low)
        return replace(self, low=10**low, high=10**high) if self.log else replace(self, low=low, high=high)

    def joined(self, other: Scale) -> Scale:
        """The scale that spans both."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def ticks(self, most: int, *, whole: bool = False) -> list[float]:
        """At most about `most` round numbers; even steps where a log axis is too short for 1, 2, 5.

        >>> Scale(0.3, 50, True).ticks(5), Scale(4.2, 6.1, True).ticks(6)
        ([0.3, 1.0, 3.0, 10.0, 30.0], [4.5, 5.0, 5.5, 6.0])
        """
        if not self.log:
            return self._even(most, whole)
        found = log_ticks(math.log10(self.low), math.log10(self.high))
        if len(found) > most:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            threes = [float(f"{digit}e{k}") for k in decades for digit in (1, 3)]
            found = [t for t in threes if self.low <= t <= self.high]
        if len(found) > most:
            found = [float(f"1e{k}") for k in decades if self.low <= 10.0**k <= self.high]
            found = found[:: math.ceil(len(found) / most)]
        return found if len(found) > 2 or self.high > 20 * self.low else self._even(most, whole)

    def words(self, ticks: Sequence[float]) -> list[str]:
        """The ticks in as few characters as possible; on a long log axis all as powers of ten, not only the outer ones.

        >>> Scale(1e-4, 1, True).words([1e-4, 1e-2, 1.0]), Scale(-1, 1, False).words([-0.5, 0.0, 600.0])
        (['10⁻⁴', '10⁻²', '1'], ['−0.5', '0', '600'])
        """
        exponents = [round(math.log10(t)) for t in ticks] if self.log else []
        powers = all(math.isclose(10.0**k, t) for k, t in zip(exponents, ticks, strict=True)) if self.log else False
        if powers and max(map(abs, exponents), default=0) > 3:
            return [f"10{power(k)}" if k else "1" for k in exponents]
        return [_tick(t) for t in ticks]

    def _even(self, most: int, whole: bool) -> list[float]:
        raw = (self.high - self.low) / max(1, most)
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * s for s in (1, 2, 5, 10) if unit * s >= raw * 0.999)
        if whole:
            step = max(1.0, round(step))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.10g}") for k in range(first, last + 1)]

    def _at(self, value: float) -> float:
        return math.log10(value) if self.log else value


def x_scale(panel: Panel) -> Scale | None:
    """The horizontal scale; `None` where nothing can be drawn."""
    drawn = [x for series in panel.series for x, y in zip(series.x, series.y, strict=True) if y is not None]
    values = _drawable([*drawn, *([panel.marked] if panel.marked is not None and drawn else [])], panel.log_x)
    if not values:
        return None
    if panel.log_x:
        return _padded(values, True, 0.04, 0.06)
    span = max(values) - min(values)
    bars = [x for series in panel.series if series.style == "bars" for x in series.x]
    least = 0.6 * smallest_gap(bars) if bars else 0.35 if 0 < span <= 12 else 0.5 if span == 0 else 0.0
    return Scale(min(values) - max(0.035 * span, least), max(values) + max(0.035 * span, least), False)


def y_scale(panel: Panel) -> Scale | None:
    """The vertical scale: the foreground whole, the background as far as it does not press the rest flat."""
    front = _drawable(_heights(s for s in panel.series if s.style not in BACKGROUND), panel.log_y)
    back = _drawable(_heights(s for s in panel.series if s.style in BACKGROUND), panel.log_y)
    if not panel.log_y and any(series.style == "bars" for series in panel.series):
        front.append(0.0)
    least = 0.004 if panel.tight else 0.08
    if not front:
        return _padded(back, panel.log_y, 0.06, least) if back else None
    scale = _padded(front, panel.log_y, 0.06, least)
    if not back:
        return scale
    reach = scale.stretched(MOST_BEYOND, MOST_BEYOND)
    return scale.joined(_padded([min(max(v, reach.low), reach.high) for v in back], panel.log_y, 0.03, 0.0))


def smallest_gap(values: Sequence[float]) -> float:
    """The least distance between two different values, 1 where there are no two."""
    ordered = sorted(set(values))
    return min((b - a for a, b in pairwise(ordered)), default=1.0)


def _tick(value: float) -> str:
    plain = value == 0 or 1e-4 < abs(value) < 1e6
    return minus(f"{value:,.10g}") if plain else ("−" if value < 0 else "") + tick_text(abs(value))


def _padded(values: Sequence[float], log: bool, share: float, least: float) -> Scale:
    low, high = (math.log10(min(values)), math.log10(max(values))) if log else (min(values), max(values))
    if not log:
        least = 0.0 if high > low else abs(high) * 0.1 or 1.0
    pad = max(share * (high - low), least)
    return Scale(10 ** (low - pad), 10 ** (high + pad), True) if log else Scale(low - pad, high + pad, False)


def _heights(series: Iterable[Series]) -> list[float]:
    return [v for s in series for values in (s.y, s.low or (), s.high or ()) for v in values if v is not None]


def _drawable(values: Iterable[float], log: bool) -> list[float]:
    return [v for v in values if v > 0 or not log]
