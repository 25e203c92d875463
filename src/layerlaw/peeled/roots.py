"""The zero of a monotone function between two points: Chandrupatla's method, bisection that may take larger steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from layerlaw.errors import InputError

MOST_STEPS = 300
CLOSE = 4 * 2.0**-52


def root(f: Callable[[float], float], low: float, high: float, *, close: float = CLOSE) -> float:
    """The x in [low, high] with f(x) = 0, to a relative `close`; f must have opposite signs at the ends.

    Each step is an inverse quadratic interpolation through the last three points where that is safe, a bisection
    elsewhere (Chandrupatla, Advances in Engineering Software 28, 1997).

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0), 15)
    1.414213562373095
    """
    a, b = high, low
    fa, fb = f(a), f(b)
    if fa == 0 or fb == 0:
        return a if fa == 0 else b
    if (fa > 0) == (fb > 0) or math.isnan(fa) or math.isnan(fb):
        raise InputError(f"root: expected opposite signs at {low} and {high}, got {fb} and {fa}.")
    c, fc = a, fa
    t = 0.5
    for _ in range(MOST_STEPS):
        x = a + t * (b - a)
        fx = f(x)
        if (fx > 0) == (fa > 0):
            c, fc = a, fa
        else:
            c, b, fc, fb = b, a, fb, fa
        a, fa = x, fx
        best = a if abs(fa) < abs(fb) else b
        width = abs(b - a)
        least = (close * abs(best) + 1e-300) / width if width else 1.0
        if least > 0.5 or fa == 0:
            return best
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        if phi**2 < xi and (1 - phi) ** 2 < 1 - xi:
            t = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        else:
            t = 0.5
        t = min(1 - least, max(least, t))
    return best


def root_above(f: Callable[[float], float], low: float, step: float = 1.0) -> float:
    """The zero of an increasing function above `low`, where it is negative; the far end is found by doubling.

    >>> root_above(lambda x: x - 1000, 0.0)
    1000.0
    """
    high = low + step
    for _ in range(1100):
        if f(high) >= 0:
            return root(f, low, high)
        low, step = high, 2 * step
        high = low + step
    raise InputError(f"root_above: expected a sign change above {low}, got {f(high)} at {high}.")


def root_near(
    f: Callable[[float], float], guess: float, low: float, high: float, *, step: float, close: float = CLOSE
) -> float:
    """The zero of a function that rises through it in [low, high], looked for from a guess in steps that double.

    For functions that take long: with a good guess about six values suffice. An end of the interval is returned where
    there is no zero up to it.

    >>> round(root_near(lambda x: x - 3, 2.9, 0.0, 100.0, step=0.02), 9)
    3.0
    """
    f = cache(f)
    at = min(max(guess, low), high)
    up = f(at) < 0  # the way to the zero
    end = high if up else low
    while at != end:
        before, at = at, (min(at + step, end) if up else max(at - step, end))
        if (f(at) < 0) != up:
            return root(f, min(before, at), max(before, at), close=close)
        step *= 2
    return end
