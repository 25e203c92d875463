"""A forecast in sentences: what is predicted, what is measured, and what the model does not know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from layerlaw.advice.outlook import Outlook
from layerlaw.pages.numbers import counted, number, power

if TYPE_CHECKING:
    from layerlaw.advice.imbalance import Forecast

CLOSER = 0.1  # cosine by which measured rows must exceed the prediction to be worth a sentence


def headline(found: Forecast) -> str:
    """Collapse or not, and how far it is."""
    worse, K = found.closest, sum(len(g.classes) for g in found.groups)
    if not any(g.rare for g in found.groups):
        same = "have the same size" if found.groups[-1].low == found.groups[0].high else "are of nearly one size"
        return f"No collapse: all {K:,} classes {same}, so each keeps a direction of its own."
    if not worse.collapses:
        return f"No collapse predicted: {_place(found, worse)}."
    what = _lost(found, worse)
    often = f" Show the rarest samples {number(worse.repeats)} times as often to leave it." if worse.repeats > 1 else ""
    if found.by_norms.collapses:
        return f"Minority collapse predicted: {what}; {_place(found, worse)}.{often}"
    return (
        f"Minority collapse within reach: {what} for the norm that the class means use, though not if all of it counted; "
        f"{_place(found, worse)}.{often}"
    )


def findings(found: Forecast) -> tuple[str, ...]:
    """Distance, angle and what the trained classifier shows."""
    return (*_distance(found), *_angle(found), *_binned(found))


def caveats(found: Forecast) -> tuple[str, ...]:
    """What speaks against trusting the forecast."""
    return (*_unsafe(found), *_norms(found), *_oversampling(found))


def ratio_words(log_ratio: float) -> str:
    """A ratio from its logarithm, at any size.

    >>> ratio_words(2.5), ratio_words(12.0), ratio_words(1000.0), ratio_words(math.inf)
    ('12.2', '1.6·10⁵', '10⁴³⁴', '∞')
    """
    if math.isinf(log_ratio):
        return "∞"
    digits = log_ratio / math.log(10)
    if digits < 4:
        return number(math.exp(log_ratio))
    return f"10{power(round(digits))}" if digits >= 15 else f"{10 ** (digits % 1):.1f}·10{power(int(digits))}"


def signed(value: float | None) -> str:
    """A cosine to two decimals with a real minus sign."""
    return "none" if value is None else f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def _place(found: Forecast, at: Outlook) -> str:
    R = found.ratio
    if len(found.groups) > 2:
        return f"the slack n/(Nλ) of the smallest classes is {number(min(at.slack))}, and collapse begins at 1"
    if math.isinf(at.log_collapse):
        one = "a single rare class has no other to coincide with"
        return one if math.isinf(at.log_vanish) else f"{one}, and its row becomes 0 at R = {ratio_words(at.log_vanish)}"
    share = math.exp(min(0.0, math.log(R) - at.log_collapse))
    where = "above" if math.log(R) >= at.log_collapse else "right below" if share > 0.9 else "below"
    part = f" ({number(share, 2)} of it)" if where == "below" and share > 1e-4 else ""
    return f"R = {number(R)} lies {where} the threshold R0 = {ratio_words(at.log_collapse)}{part}"


def _lost(found: Forecast, at: Outlook) -> str:
    parts = []
    for phase, what in (("collapsed", "one common row for"), ("vanished", "rows of 0 for")):
        n = sum(len(g.classes) for g, p in zip(found.groups, at.phases, strict=True) if p == phase)
        if n:
            parts.append(f"{what} {counted(n, 'class', 'classes')}")
    return " and ".join(parts)


def _distance(found: Forecast) -> Iterator[str]:
    if not any(g.rare for g in found.groups):
        return
    c = found.by_norms.c
    said = f"E_W = {number(found.E_W)} and E_H = {number(found.E_H)} give c = √(E_W E_H) = {number(c)}, R0 = "
    said += ratio_words(found.by_norms.log_collapse)
    if found.by_use is not None:
        said += (
            f"; the class means use c = {number(found.by_use.c)} of it (spread, common offset and misalignment aside), R0 = "
            f"{ratio_words(found.by_use.log_collapse)}"
        )
    yield said + "."


def _angle(found: Forecast) -> Iterator[str]:
    if not any(g.rare for g in found.groups):
        return
    told = [signed(o.cosine) for o in found.outlooks]
    rare, frequent = found.rare, found.frequent
    if rare is None or rare.cosine is None:
        if told[0] != "none":
            yield f"Predicted mean cosine between rows of rare classes: {' or '.join(dict.fromkeys(told))}."
        return
    against = ""
    if frequent is not None:
        norms = f"norms {number(rare.norm)} and {number(frequent.norm)}"
        against = f" (frequent: {signed(frequent.cosine)}; {norms})"
    yield (
        f"Rows of rare classes have a mean cosine of {signed(rare.cosine)}{against}; predicted "
        f"{' or '.join(dict.fromkeys(told))}."
    )
    known = [o.cosine for o in found.outlooks if o.cosine is not None]
    if known and rare.cosine > max(known) + CLOSER:
        yield "They are closer together than the model says: this network is nearer to collapse than its norms tell."


def _binned(found: Forecast) -> Iterator[str]:
    if any(g.low != g.high for g in found.groups):
        yield (
            f"Classes of like sizes were put together in {counted(len(found.groups), 'group')} (equal steps of the "
            "logarithm, each taken as its mean)."
        )
    if len(found.groups) > 2:
        yield "R and R0 take the classes as two sizes, below and above the geometric middle; phases are of all groups."


def _unsafe(found: Forecast) -> Iterator[str]:
    if not any(g.rare for g in found.groups):
        return
    yield (
        "One free layer is no safe bound for deep networks: with two, collapse came at R = 18 … 20 where one layer says 67 "
        "(docs/peeled.md), and trained networks were past what their norms predict (docs/minority_collapse.md)."
    )


def _norms(found: Forecast) -> Iterator[str]:
    yield (
        "Weight decay is no norm budget, and the norms are those of this training: with other counts, a longer training or "
        "another decay they change. This is no test of significance."
    )


def _oversampling(found: Forecast) -> Iterator[str]:
    if found.closest.collapses:
        yield (
            "Repeating samples restores angles, not the variety that is missing: held-out accuracy on rare classes came "
            "back only in part (docs/minority_collapse.md)."
        )
