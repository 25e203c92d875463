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
    place = _place(found, worse)
    if found.by_use is not None and worse is found.by_use:
        place = f"by the norm in use (c = {number(worse.c)}) {place}"
    if not worse.collapses:
        return f"No collapse predicted: {place}."
    what = _lost(found, worse)
    if found.by_norms.collapses:
        return f"Minority collapse predicted: {what}; {place}. {_remedy(found, worse)}"
    return f"Minority collapse within reach, though not if all of the norm counted: {what}; {place}. {_remedy(found, worse)}"


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


def told_apart(log_a: float, log_b: float) -> tuple[str, str]:
    """Two ratios from their logarithms, with as many digits as it takes to see which is larger.

    >>> told_apart(math.log(100), math.log(12.2)), told_apart(math.log(12.1925), math.log(12.192447))
    (('100', '12.2'), ('12.193', '12.192'))
    """
    a, b = ratio_words(log_a), ratio_words(log_b)
    for digits in range(4, 13):
        if a != b or max(log_a, log_b) > math.log(1e15):
            break
        a, b = number(math.exp(log_a), digits), number(math.exp(log_b), digits)
    return a, b


def _place(found: Forecast, at: Outlook) -> str:
    log_R = math.log(found.ratio)
    if len(found.groups) > 2 and found.critical > 0:
        c, critical = told_apart(math.log(at.c), math.log(found.critical))
        where = "below" if at.collapses else "above"
        return f"c = {c} lies {where} the critical budget {critical}, from which on every class is told apart"
    if math.isinf(at.log_collapse):
        one = "a single rare class has no other to coincide with"
        if math.isinf(at.log_lost):
            return one
        R, end = told_apart(log_R, at.log_lost)
        how = "its samples go to frequent ones" if found.bias else "its row becomes 0"
        return f"{one}, but {how} from R = {end} on, and here R = {R}"
    R, R0 = told_apart(log_R, at.log_collapse)
    share = math.exp(min(0.0, log_R - at.log_collapse))
    where = "above" if at.collapses else "right below" if share > 0.9 else "below"
    part = f" ({number(share, 2)} of it)" if where == "below" and share > 1e-4 else ""
    return f"R = {R} lies {where} the threshold R0 = {R0}{part}"


def _lost(found: Forecast, at: Outlook) -> str:
    """What becomes of the classes that are not separated, by what it is."""
    of = {phase: [i for i, p in enumerate(at.phases) if p == phase] for phase in ("collapsed", "confused", "vanished")}

    def classes(phase: str) -> str:
        return counted(sum(len(found.groups[i].classes) for i in of[phase]), "class", "classes")

    parts = []
    if of["collapsed"]:
        alike = all(found.groups[i].low == found.groups[i].high for i in of["collapsed"])
        row = "one common row" if alike else "nearly one row"  # sizes that differ a little were put together
        parts.append(f"{row}{' per group' if len(of['collapsed']) > 1 else ''} for {classes('collapsed')}")
    if of["confused"]:
        ends = sorted({signed(v) for v in (at.beside[i] for i in of["confused"]) if v is not None}, key=_signed_value)
        cosine = f"cosine {ends[0]}" if len(ends) == 1 else f"cosines {ends[0]} to {ends[-1]}"
        parts.append(f"samples of {classes('confused')} given to others ({cosine} between the rows)")
    if of["vanished"]:
        parts.append(f"rows of 0 for {classes('vanished')}")
    return " and ".join(parts)


def _signed_value(text: str) -> float:
    return float(text.replace("−", "-"))


def _remedy(found: Forecast, at: Outlook) -> str:
    if at.copies is None:
        return (
            f"Weighing the rarest samples {number(at.repeats, 4)} times would separate all classes; no whole copies do."
        )
    most, least = max(at.copies), min(at.copies)
    others = "" if least == 1 else f" and the most frequent {least:,} times"
    if any(g.low != g.high for g in found.groups):  # solved for the groups, not for each size in them
        return f"Showing the rarest samples about {most:,} times{others} separates the groups."
    return f"Showing the rarest samples {most:,} times{others} separates all classes."


def _distance(found: Forecast) -> Iterator[str]:
    if not any(g.rare for g in found.groups):
        return
    c = found.by_norms.c
    said = f"E_W = {number(found.E_W)} and E_H = {number(found.E_H)} give c = √(E_W E_H) = {number(c)}"
    said += _threshold(found.by_norms)
    if found.by_use is not None:
        said += f"; the class means use c = {number(found.by_use.c)} of it (no spread, no common offset)"
        said += _threshold(found.by_use)
    yield said + "."


def _threshold(at: Outlook) -> str:
    """R0, which a single rare class does not have."""
    return "" if math.isinf(at.log_collapse) else f", R0 = {ratio_words(at.log_collapse)}"


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
    if any(g.rare for g in found.groups):
        yield "One layer is no safe bound for deep networks: they collapsed earlier (docs/minority_collapse.md)."


def _norms(found: Forecast) -> Iterator[str]:
    yield "Weight decay is no norm budget: norms change with counts and training. This is no test of significance."


def _oversampling(found: Forecast) -> Iterator[str]:
    if found.closest.collapses:
        yield "Repeated samples restore angles, not variety: held-out accuracy came back in part only."
