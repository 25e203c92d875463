"""What a judgment is made of: a headline, findings, advice; how the law is claimed in it, and how names are listed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layerlaw.law import CHANCE, LawFit
from layerlaw.law.fit import BENT, EVEN
from layerlaw.wording import ABSENT, minus, p_value


@dataclass(frozen=True)
class Verdict:
    """A headline (does the law hold?), findings (what the numbers say) and advice (what to do about it)."""

    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in (*self.findings, *self.advice))])


def law_claim(
    fit: LawFit, what: str, *, points: str, layer: str, on: str = "", rises: str = "", clear: bool = True
) -> str:
    """What the points allow to say, from nothing to the law, as `LawFit.holds` and its objections have it.

    `rises` says in words where the value rises, `clear` whether that is more than error. The numbers follow in brackets.
    """
    falls = fit.rho < 1 and fit.shares is not None
    if fit.holds is None:
        return f"Too few {points} to call it a law: {what} {'falls' if falls else 'does not fall'} over {fit.points} of them"
    if fit.rho >= 1:
        return f"No law: {what} does not fall with depth"
    if fit.steps is None or fit.greenwood_p is None:
        return f"No law: {what} ends no lower than it begins"
    if fit.little:
        return f"No law to speak of: {fit.objections[0]} over {fit.layers} {layer}s"
    if fit.holds and fit.equal_steps and not rises:
        return f"The law holds{on}: every {layer} takes about the same share of log {what}"
    if fit.holds:
        span = f"single steps are {steps_words(fit)} of the even one"
        but = ", and ".join(filter(None, (rises, "" if fit.equal_steps else span)))
        return f"The law holds{on} as a whole: log {what} falls on a line, but {but}"
    # the numbers behind the claim say how uneven the steps are
    against = [reason.split(" (")[0].replace("layers", f"{layer}s") for reason in fit.objections]
    if rises and clear:  # rises within their errors are no evidence against equal steps
        against.insert(0, rises)
    verdict = "does not hold" if len(against) > 1 or fit.greenwood_p < CHANCE else "is not established"
    tail = f"; {rises}" if rises and not clear else ""
    return f"The law {verdict}{on}: {what} falls with depth as a whole, but {'; '.join(against)}{tail}"


def law_numbers(fit: LawFit) -> list[str]:
    """The three numbers that say whether the law holds; none where there is no drop to share, or a single step.

    >>> from layerlaw.law import fit_law
    >>> law_numbers(fit_law([8.0, 4.0, 2.0, 1.0])), law_numbers(fit_law([1.0, 2.0, 4.0]))
    (['evenness 1.00', 'trend 1.00', 'Greenwood p < 0.0001'], [])
    """
    even, trend, p = law_numbers_written(fit)
    if even == ABSENT or p == ABSENT:
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


def listed(names: list[str]) -> str:
    """The first four names in quotes, and how many more there are."""
    shown = [f"'{name}'" for name in names[:4]]
    return ", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def blocks(numbers: list[int]) -> str:
    """Up to six blocks by their numbers; of more the first four, and how many more there are.

    >>> blocks([3]), blocks([1, 2, 5]), blocks([1, 2, 3, 4, 6, 7, 8])
    ('block 3', 'blocks 1, 2, 5', 'blocks 1, 2, 3, 4 and 3 more')
    """
    few = len(numbers) <= 6
    shown = ", ".join(map(str, numbers if few else numbers[:4])) + ("" if few else f" and {len(numbers) - 4} more")
    return f"block{'s' * (len(numbers) > 1)} {shown}"
