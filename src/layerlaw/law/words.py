"""A law in words: what its points allow to say, and the numbers that say so. Fits, verdicts and pages use these words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from layerlaw.law.fit import BENT, CHANCE, EVEN, RESIDUAL, LawFit
from layerlaw.wording import ABSENT, correlation, minus, number, p_value

FOLD = 2.0  # a value that falls or rises by this factor is said to do so so-many-fold


def law_sentence(fit: LawFit) -> str:
    """What the points allow to say, and in brackets the numbers; a record's verdict knows the names of its steps too."""
    claim = law_claim(fit, fit.quantity, rises=rises_counted(fit), clear=not fit.rises_within_errors)
    return f"{claim} ({', '.join(fit_numbers(fit))})."


def law_claim(
    fit: LawFit,
    what: str,
    *,
    points: str = "points",
    on: str = "",
    rises: str = "",
    clear: bool = True,
    places: Sequence[str] = (),
) -> str:
    """What the points allow to say, from nothing to the law, as `LawFit.holds` and its objections have it.

    `rises` says in words where the value rises, `clear` whether that is more than error, `places` where each step is ("at
    'fc1'"). The numbers follow in brackets.
    """
    layer = fit.step
    falls = "falls" if fit.rho < 1 and fit.shares is not None else "does not fall"
    if fit.points == 2:
        return f"Two {points} make no law: {what} {falls}, from {fit.values[0]:.3g} to {fit.values[1]:.3g}"
    if fit.holds is None:
        but = f" as a whole, but {rises}" if rises and falls == "falls" else ""
        return f"Too few {points} to call it a law: {what} {falls} over {fit.points} of them{but}"
    if fit.rho >= 1 or fit.steps is None or fit.greenwood_p is None:
        ends = "does not fall with depth" if fit.rho >= 1 else "ends no lower than it begins"
        return f"No law: {_fall_and_jump(fit, what, places) or f'{what} {ends}'}"
    if fit.little:
        little = f"{fit.objections[0]} over {fit.layers} {layer}s"
        return f"No law to speak of: {_fall_and_jump(fit, what, places) or little}"
    if fit.holds and fit.equal_steps and not rises:
        return f"The law holds{on}: every {layer} takes about the same share of log {what}"
    if fit.holds:
        span = f"single steps are {steps_words(fit)} of the even one"
        but = ", and ".join(filter(None, (rises, "" if fit.equal_steps else span)))
        return f"The law holds{on} as a whole: log {what} falls on a line, but {but}"
    # the numbers behind the claim say how uneven the steps are
    against = [reason.split(" (")[0] for reason in fit.objections]
    if rises and clear:  # rises within their errors are no evidence against equal steps
        against.insert(0, rises)
    verdict = "does not hold" if len(against) > 1 or fit.greenwood_p < CHANCE else "is not established"
    tail = f"; {rises}" if rises and not clear else ""
    return f"The law {verdict}{on}: {what} falls with depth as a whole, but {'; '.join(against)}{tail}"


def _fall_and_jump(fit: LawFit, what: str, places: Sequence[str]) -> str:
    """Where a fall is undone by a jump behind it: how far, and where; "" where there is no such thing.

    >>> from layerlaw.law import fit_law
    >>> _fall_and_jump(fit_law([37.0, 6.0, 1.0, 41.0]), "D", ["at 'a'", "at 'b'", "at 'c'"])
    "D falls 37-fold over 2 layers, then rises 41-fold at 'c'"
    """
    lowest = min(range(fit.points), key=lambda i: fit.values[i])
    rises = {i: b / a for i, (a, b) in enumerate(pairwise(fit.values)) if i >= lowest}
    jump = max(rises, key=lambda i: rises[i], default=0)
    fall = fit.values[0] / fit.values[lowest]
    if fall < FOLD or rises.get(jump, 0.0) < FOLD:
        return ""
    over = f"{lowest} {fit.step}{'s' * (lowest > 1)}"
    where = places[jump] if places else f"at {fit.step} {jump + 1} of {fit.layers}"
    return f"{what} falls {number(fall, 2)}-fold over {over}, then rises {number(rises[jump], 2)}-fold {where}"


class Location(Protocol):
    """A place in a network, as `step_called` looks at it."""

    @property
    def at(self) -> str:
        """Whether what is looked at is the input or the output of a module."""

    @property
    def branch(self) -> bool:
        """Whether some path through the network does not pass it."""


def step_called(by_blocks: bool, points: Sequence[Location], places: Sequence[Location]) -> str:
    """What the steps between points of a law are called, some of all places: "layer", "block", or "step".

    That where blocks have others among them, which are looked at elsewhere, and where layers on side branches lie between
    the points: such a step is longer than a layer.
    """
    if by_blocks:
        return "step" if len({point.at for point in points[1:]}) > 1 else "block"
    counted = {id(point) for point in points}
    found = [i for i, place in enumerate(places) if id(place) in counted]
    between = places[found[0] : found[-1]] if found else ()
    return "step" if any(place.branch and id(place) not in counted for place in between) else "layer"


def rises_counted(fit: LawFit) -> str:
    """At how many steps the value rises, and whether that is error; "" where it does nowhere."""
    within = ", within its errors" * fit.rises_within_errors
    return f"it rises at {len(fit.rising)} of {fit.layers} {fit.step}s{within}" if fit.rising else ""


def fit_numbers(fit: LawFit) -> list[str]:
    """The numbers of the line, then those that say whether the law holds."""
    return line_numbers(fit) + law_numbers(fit)


def line_numbers(fit: LawFit) -> list[str]:
    """The numbers of the line alone.

    ρ has the same digits on both sides of 1; of a residual 1 − ρ is a few thousandths, so with one more, and no network is
    so deep that its residual is halved.

    >>> from layerlaw.law import fit_law
    >>> line_numbers(fit_law([8.0, 4.0, 2.0]))
    ['ρ = 0.500 per layer', 'half-life 1.00 layers', 'r = −1.000']
    """
    rho = f"{fit.rho:.{4 if fit.quantity == RESIDUAL else 3}f}" if fit.rho < 1000 else f"{fit.rho:.3g}"
    found = [f"ρ = {rho} per {fit.step}"]
    if fit.half_life is not None and fit.quantity != RESIDUAL:
        found.append(f"half-life {f'{fit.half_life:.2f}' if fit.half_life < 100 else 'over 100'} {fit.step}s")
    if fit.pearson is not None:
        found.append(f"r = {correlation(fit.pearson)}")
    return found


def law_numbers(fit: LawFit) -> list[str]:
    """The three numbers that say whether the law holds; none where there is no drop to share, or too few points.

    >>> from layerlaw.law import fit_law
    >>> law_numbers(fit_law([8.0, 4.0, 2.0, 1.0])), law_numbers(fit_law([8.0, 4.0, 2.0]))
    (['evenness 1.00', 'trend 1.00', 'Greenwood p < 0.0001'], [])
    """
    even, trend, p = law_numbers_written(fit)
    if even == ABSENT or p == ABSENT or fit.holds is None:
        return []
    best = f" as the best of {fit.chosen_from}" if fit.chosen_from > 1 else ""
    relation = "" if p.startswith("<") else "= "
    return [f"evenness {even}", *([] if trend == ABSENT else [f"trend {trend}"]), f"Greenwood p {relation}{p}{best}"]


def law_numbers_written(fit: LawFit) -> tuple[str, str, str]:
    """Evenness, trend and Greenwood's p, each on that side of what is asked of it on which it really is.

    >>> from layerlaw.law import fit_law
    >>> law_numbers_written(fit_law([8.0, 4.0, 2.0, 1.0])), law_numbers_written(fit_law([1.0, 2.0, 4.0]))
    (('1.00', '1.00', '< 0.0001'), ('–', '–', '–'))
    """
    p = fit.greenwood_p
    if fit.evenness is None or p is None:
        return ABSENT, ABSENT, ABSENT
    trend = (
        ABSENT if fit.trend is None else "∞" if fit.trend == math.inf else _rounded(fit.trend, ".{}f", 1 / BENT, BENT)
    )
    return _rounded(fit.evenness, ".{}f", EVEN), trend, p_value(p) if p < 1e-4 else _rounded(p, ".{}g", CHANCE)


def _rounded(value: float, form: str, *limits: float) -> str:
    """Two digits, or as many as it takes not to be rounded across a limit.

    >>> _rounded(0.9512, ".{}f", 0.8), _rounded(0.7996, ".{}f", 0.8), _rounded(0.0497, ".{}g", 0.05)
    ('0.95', '0.7996', '0.0497')
    """

    def sides(x: float) -> list[tuple[bool, bool]]:
        return [(x < limit, x > limit) for limit in limits]

    written = (format(value, form.format(digits)) for digits in range(2, 16))
    return next((text for text in written if sides(float(text)) == sides(value)), repr(value))


def steps_words(fit: LawFit, to: str = "to") -> str:
    """The smallest and the largest step, in units of the even one.

    >>> from layerlaw.law import fit_law
    >>> steps_words(fit_law([8.0, 2.0, 3.0, 1.0]), "…")
    '−0.58 … 2.00'
    """
    low, high = (minus(f"{step:.2f}") for step in fit.steps or (0.0, 0.0))
    return f"{low} {to} {high}"
