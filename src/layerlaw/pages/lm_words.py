"""The written sections of a language model's page: key numbers, captions, definitions, sources."""

from __future__ import annotations

from collections.abc import Sequence

from layerlaw.errors import InputError
from layerlaw.pages.lm_columns import even_gain
from layerlaw.pages.record_view import RecordView
from layerlaw.pages.words import FORMULAS, cards, definitions_html
from layerlaw.verdict import IDLE_SHARE
from layerlaw.wording import ABSENT, number, p_value, percent, signed

LM_FORMULAS = (
    ("Prediction residual", "PR<sub>l</sub> = Σ (y − ŷ)² / Σ (y − ȳ)² = 1 − R²",
     "y is the id of the token to be told (the next one, or the masked one), taken as a number; ŷ is its least-squares "
     "prediction, linear with an intercept, from "
     "the features that block l puts out, each row normalized. 0: predicted exactly; 1: no better than the mean. A target "
     "of many numbers (an embedding, one-hot) adds up the squares of all."),
    ("The law", "PR<sub>l</sub> ≐ ρ<sup> l−1</sup> PR<sub>1</sub>",
     "Every block takes the same factor off the residual. ρ is the exponential of the least-squares slope of ln PR on l, "
     "over the blocks; the embedded input is no point of it. r is the Pearson correlation of ln PR and l."),
    ("Held out", "fitted on g − 1 groups, tested on the other",
     "Documents are dealt into g groups; each is predicted from a fit to the others. Unlike PR in-sample it does not fall "
     "just because there are many features, and it can exceed 1. Adjusted: PR in-sample times (n − 1) / (n − k − 1), k "
     "the directions that the features span."),
    ("Intervals", "se² = (g − 1)/g · Σ (θ<sub>i</sub> − mean θ<sub>i</sub>)²",
     "θ<sub>i</sub> is the number in question with group i left out (delete-group jackknife; r by way of artanh r). They "
     "tell what other text of this length would change, not whether a line is the right curve; noise pulls r towards 0. "
     "Held out, the fits are taken as given."),
    ("Evenness", "p<sub>l</sub> = (ln PR<sub>l−1</sub> − ln PR<sub>l</sub>) / (ln PR<sub>1</sub> − ln PR<sub>L</sub>)",
     "Effective layers are 1 / Σ p<sub>l</sub><sup>2</sup>, and steps up count against them; Greenwood’s p is the chance "
     "that a random split of the same drop is at least as even. r alone says little: a random split over 30 blocks has a "
     "median r of −0.99."),
)  # fmt: skip
LM_CITATIONS = ("H. He and W. J. Su, A law of next-token prediction in large language models, arXiv:2408.13442, 2024.",)
SEPARATION_CITATION = "H. He and W. J. Su, A law of data separation in deep learning, PNAS 120 (36), e2221704120, 2023."


def residual_cards(view: RecordView) -> str:
    """The key numbers of the fit, with what other text would change."""
    fit, errors = view.fit, view.errors
    if fit is None:
        return '<p class="empty">No law could be fitted, for the reason given above.</p>'
    rho = "factor per block" if errors is None else "95% interval<br>{:.4f} … {:.4f}".format(*errors.rho_interval)
    interval = None if errors is None else errors.pearson_interval
    r = (
        "Pearson, of ln PR and depth"
        if interval is None
        else f"95% interval<br>{signed(interval[0])} … {signed(interval[1])}"
    )
    work = "doing even work" if not fit.rising else "doing even work; rises count against it"
    of = "" if fit.effective_layers is None else f" of {fit.layers}"
    return cards(
        [
            ("ρ", f"{fit.rho:.4f}", rho),
            ("r", _signed(fit.pearson), r),
            ("r without last", _pearson(view, view.column, 1), "the last block left out"),
            *_in_sample_card(view),
            ("effective layers", number(fit.effective_layers, 2) + of, work),
            ("Greenwood p", p_value(fit.greenwood_p), "a random split is as even"),
            (
                "lag-1 correlation",
                number(fit.autocorrelation, 2),
                f"of what the line leaves; noise: {signed(fit.noise_autocorrelation, 2)}",
            ),
            ("PR at the end", f"{fit.values[-1]:.3f}", f"from {fit.values[0]:.3f}, lowest {min(fit.values):.3f}"),
        ]
    )


def _in_sample_card(view: RecordView) -> list[tuple[str, str, str]]:
    """r of the residual the paper takes, unless it is the leading one and said already."""
    if view.column == "residual":
        return []
    short = _pearson(view, "residual", 1)
    return [("r in-sample", _pearson(view, "residual"), "" if short == ABSENT else f"{short} without the last")]


def residual_caption(view: RecordView) -> str:
    """How to read the law's chart."""
    parts = ["A straight line on this axis means that every block takes the same factor off the residual."]
    if view.has(f"{view.column}_log_se"):
        parts.append(
            "Bars: 95% intervals by jackknife; they move together, so the shape is better known than the level."
        )
    if any(not site.in_fit for site in view.sites):
        parts.append("Hollow: the embedded input, not part of the fit.")
    return " ".join(parts)


def deviations_caption(view: RecordView) -> str:
    """How to read what the line leaves."""
    bars = " Bars: 95% intervals." if view.errors is not None else ""
    return f"Noise would jump about zero; a bow or a wave means that the blocks do not gain equally.{bars}"


def gains_caption(view: RecordView) -> str:
    """How to read the gains."""
    even, gains = even_gain(view), view.gains
    parts = ["By how much of itself PR falls at each block."]
    if even is not None and even > 0:
        parts.append(f"Dashed: the even share, {percent(even, 2)}.")
        if any(0 <= gain < IDLE_SHARE * even for gain in gains.values()):
            parts.append("Pale: less than a quarter of it.")
    if any(gain < 0 for gain in gains.values()):
        parts.append("Red: PR rises.")
    if gains and view.fit_positions[0] in gains:
        parts.append("Hollow: from the embedded input.")
    if view.errors is not None:
        parts.append("Thin lines: 95% intervals.")
    return " ".join(parts)


def lm_formulas_html(views: Sequence[RecordView]) -> str:
    """Definitions and citations; of the separation too where it was measured."""
    with_separation = any(view.has("separation") for view in views)
    formulas = (*LM_FORMULAS, *FORMULAS[:1]) if with_separation else LM_FORMULAS
    return definitions_html(formulas, (*LM_CITATIONS, SEPARATION_CITATION) if with_separation else LM_CITATIONS)


def _pearson(view: RecordView, column: str, drop_last: int = 0) -> str:
    try:
        return _signed(view.record.law(column, drop_last=drop_last).pearson)
    except InputError:
        return ABSENT


def _signed(r: float | None) -> str:
    return ABSENT if r is None else signed(r)
