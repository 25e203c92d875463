"""A forecast in sentences: what is predicted, what is measured, and what the model does not know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from layerlaw.advice.outlook import Outlook
from layerlaw.wording import counted, number, power

if TYPE_CHECKING:
    from layerlaw.advice.imbalance import Forecast

CLOSER = 0.1  # cosine by which measured rows must exceed the prediction to be worth a sentence
MOST_COPIES = 50  # beyond, nobody copies samples


def headline(found: Forecast) -> str:
    """What is lost already, what will be, and how far it is."""
    lost = _already(found)
    if not lost:
        return _forecast(found)
    missed = "" if found.closest.collapses else " The network is further than the model says: trust what was measured."
    return f"{lost} Forecast: {_forecast(found)}{missed}"


def _already(found: Forecast) -> str:
    """What the measured network has lost, whatever the model says."""
    said = []
    if found.already_lost and found.accuracy is not None:
        rest = f"{found.accuracy[0]:.2f}"
        many = counted(found.already_lost, "class", "classes")
        said.append(f"training accuracy of {many} below half of the {rest} of the most frequent")
    if found.coincide:
        said.append(f"rows of {counted(found.coincide, 'class', 'classes')} coincide")
    return f"Already lost in this network: {' and '.join(said)}." if said else ""


def _forecast(found: Forecast) -> str:
    worse = found.closest
    if found.sizes == 1:
        return f"No collapse: all {found.K:,} classes have the same size, so each keeps a direction of its own."
    place = _place(found, worse)
    if found.by_use is not None and worse is found.by_use:
        place = f"by the norm in use {place if found.ratio is None else f'(c = {number(worse.c)}) {place}'}"
    if not worse.collapses:
        return f"{'No collapse predicted' if found.sizes == 2 else 'No class is predicted to be lost'}: {place}."
    confused = any(size.phase == "confused" for size in worse.sizes)
    if found.by_norms.collapses:
        begin = "Some classes are predicted to be lost" if confused else "Minority collapse predicted"
    else:
        begin = "Loss of classes" if confused else "Minority collapse"
        begin += " within reach, though not if all of the norm counted"
    if worse.binned:
        begin = f"Some classes {'may' if found.bounded else 'are predicted to'} be lost ({_bins(found, worse)})"
    return f"{begin}: {_lost(found, worse)}; {place}. {_remedy(found, worse)}"


def findings(found: Forecast) -> tuple[str, ...]:
    """Distance, angle and what the trained classifier shows."""
    return (*_distance(found), *_angle(found), *_binned(found), *_unused(found))


def caveats(found: Forecast) -> tuple[str, ...]:
    """What speaks against trusting the forecast."""
    return (*_unsafe(found), *_norms(found), *_oversampling(found))


def ratio_words(log_ratio: float) -> str:
    """A ratio from its logarithm, at any size.

    >>> ratio_words(2.5), ratio_words(12.0), ratio_words(1000.0), ratio_words(math.inf)
    ('12.2', '1.6·10⁵', '10⁴³⁴', '∞')
    >>> ratio_words(math.log(1e9)), ratio_words(math.log(99960))  # rounding carries over to the power
    ('1.0·10⁹', '1.0·10⁵')
    """
    if math.isinf(log_ratio):
        return "∞"
    digits = log_ratio / math.log(10)
    if digits < 4:
        return number(math.exp(log_ratio))
    if digits >= 15:
        return f"10{power(round(digits))}"
    mantissa, exponent = f"{math.exp(log_ratio):.1e}".split("e")
    return f"{mantissa}·10{power(int(exponent))}"


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
    if found.ratio is None or at.log_collapse is None or at.log_lost is None:
        return _budget(found, at)
    log_R = math.log(found.ratio)
    if math.isinf(at.log_collapse):
        one = "a single rare class has no other to coincide with"
        if math.isinf(at.log_lost):
            return one if found.bias else f"{one}; with a bias it may be lost all the same (bias=True, --bias)"
        R, end = told_apart(log_R, at.log_lost)
        how = "its samples go to frequent ones" if found.bias else "its row becomes 0"
        return f"{one}, but {how} from R = {end} on, and here R = {R}"
    R, R0 = told_apart(log_R, at.log_collapse)
    share = math.exp(min(0.0, log_R - at.log_collapse))
    where = "above" if at.collapses else "right below" if share > 0.9 else "below"
    part = f" ({number(share, 2)} of it)" if where == "below" and share > 1e-4 else ""
    return f"R = {R} lies {where} the threshold R0 = {R0}{part}"


def _budget(found: Forecast, at: Outlook) -> str:
    """The place by the critical budget, for more than two sizes."""
    if found.critical <= 0:
        return "any budget tells these sizes apart"
    c, critical = told_apart(math.log(at.c), math.log(found.critical))
    where = f"c = {c} lies {'below' if at.collapses else 'above'}"
    if not found.bounded:
        return f"{where} the critical budget {critical}, from which on every class is told apart"
    taken = "" if at.collapses else f"; {_bins(found, at)}"
    return f"{where} {critical}, an upper bound of the budget that tells all apart{taken}"


def _bins(found: Forecast, at: Outlook) -> str:
    return f"{found.sizes:,} sizes taken as {len(at.sizes)}, each bin at its largest"


def _lost(found: Forecast, at: Outlook) -> str:
    """What becomes of the classes that are not separated, by what it is."""
    of = {phase: [s for s in at.sizes if s.phase == phase] for phase in ("collapsed", "confused", "vanished")}
    if at.binned:  # which of them coincide depends on the bins
        lost = sum(at.lost)
        return f"about {lost:,} of {found.K:,} classes"

    def classes(phase: str) -> str:
        return counted(sum(size.classes for size in of[phase]), "class", "classes")

    parts = []
    if of["collapsed"]:
        parts.append(f"one common row{' per size' if len(of['collapsed']) > 1 else ''} for {classes('collapsed')}")
    if of["confused"]:
        ends = sorted({signed(s.beside) for s in of["confused"] if s.beside is not None}, key=_signed_value)
        own = "its row and the one" if sum(s.classes for s in of["confused"]) == 1 else "their rows and those"
        takes = "takes its samples" if own.startswith("its") else "take them"
        cosine = "" if not ends else f"cosine {ends[0]}" if len(ends) == 1 else f"cosines {ends[0]} to {ends[-1]}"
        between = f" ({cosine} between {own} that {takes})" if cosine else ""
        parts.append(f"samples of {classes('confused')} given to others{between}")
    if of["vanished"]:
        parts.append(f"rows of 0 for {classes('vanished')}")
    return " and ".join(parts)


def _signed_value(text: str) -> float:
    return float(text.replace("−", "-"))


def _remedy(found: Forecast, at: Outlook) -> str:
    rarest = f"the rarest {number(at.repeats, 4)} times"
    level = number(found.groups[-1].low * at.repeats, 4)
    filled = f"the loss as if no class had fewer than {level} samples ({rarest})"
    weigh = (
        f"Weighting {f'the loss of the rarest samples {number(at.repeats, 4)} times' if found.sizes == 2 else filled}"
    )
    if at.binned:
        return f"{weigh} should be about enough."
    if at.copies is None:
        return f"{weigh}, rather a little more, separates all classes; no whole copies do."
    most, least = max(at.copies), min(at.copies)
    if most > MOST_COPIES or least > 1:
        copies = f"{least:,} to {most:,} of all samples" if least > 1 else f"{most:,}"
        return f"{weigh}, rather a little more, separates all classes; as copies it would take {copies}."
    others = "" if found.sizes == 2 else ", others fewer times,"
    return f"Showing the rarest samples {most:,} times{others} separates all classes."


def _distance(found: Forecast) -> Iterator[str]:
    if found.sizes == 1:
        return
    c = found.by_norms.c
    said = f"E_W = {number(found.E_W)} and E_H = {number(found.E_H)} give c = √(E_W E_H) = {number(c)}"
    said += _threshold(found.by_norms)
    if found.by_use is not None:
        said += f"; the class means use c = {number(found.by_use.c)} of it (no spread, no common offset)"
        said += _threshold(found.by_use)
    yield said + "."


def _threshold(at: Outlook) -> str:
    """R0, which a single rare class and more than two sizes do not have."""
    return "" if at.log_collapse is None or math.isinf(at.log_collapse) else f", R0 = {ratio_words(at.log_collapse)}"


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
    if any(at.binned for at in found.outlooks):
        yield (
            "More sizes than can be solved in seconds were put into bins, each taken as its largest size, the smallest size "
            "as it is: whether any class is lost errs on the pessimistic side, how many and the factors are about right."
        )
    if found.sizes > len(found.groups):
        yield "Groups hold several sizes: phase and margin are of the worst in each, cosine and norm are means."


def _unused(found: Forecast) -> Iterator[str]:
    if found.unused:
        yield "Norms were given, so the norm in use, which belongs to the measured ones, is left out."


def _unsafe(found: Forecast) -> Iterator[str]:
    if found.sizes > 1:
        yield "One layer is no safe bound for deep networks: they collapsed earlier (docs/minority_collapse.md)."


def _norms(found: Forecast) -> Iterator[str]:
    yield "Weight decay is no norm budget: norms change with counts and training. This is no test of significance."


def _oversampling(found: Forecast) -> Iterator[str]:
    if found.closest.collapses:
        yield "Repeated samples restore angles, not variety: held-out accuracy came back in part only."
