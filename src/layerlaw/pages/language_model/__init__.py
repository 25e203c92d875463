"""What is said of a language model: facts, the columns of its table, key numbers, captions, definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from layerlaw.errors import InputError
from layerlaw.pages.classifier import FORMULAS as CLASSIFIER_FORMULAS
from layerlaw.pages.html import cards, definitions, empty, escaped
from layerlaw.pages.record_view import Parts, RecordView, TableColumn
from layerlaw.record import SiteRow
from layerlaw.verdict import IDLE_SHARE
from layerlaw.verdict.targets import column_of, is_shuffled, target_name, targets
from layerlaw.wording import ABSENT, correlation, counted, finite, number, p_value, percent, residual, shortened, signed

GAIN, UNTRAINED = "gain", "untrained"
LEAST_SCALE = 0.005  # a bar of full length is at least this gain, or noise would look like work
SHORT = {
    "embedding": "embedding",
    "onehot": "one-hot",
    "rank": "freq. rank",
    "current": "current",
    "next2": "next but 1",
}
HEADS = (
    "record", "blocks", "ρ", "r", "r without last", "eff. layers", "p", "first PR", "lowest", "final", "task", "tokens",
    "length", "text",
)  # fmt: skip
FORMULAS = (
    ("Prediction residual", "PR<sub>l</sub> = Σ (y − ŷ)² / Σ (y − ȳ)² = 1 − R²",
     "y is the id of the token to be predicted (the next one, or the masked one), taken as a number; ŷ is its least-squares "
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
CITATIONS = ("H. He and W. J. Su, A law of next-token prediction in large language models, arXiv:2408.13442, 2024.",)
SEPARATION_CITATION = "H. He and W. J. Su, A law of data separation in deep learning, PNAS 120 (36), e2221704120, 2023."


def facts(view: RecordView) -> list[str]:
    """Tokens, blocks, task: as far as they are known."""
    record, known = view.record, view.record.settings
    parts = [counted(sum(record.counts), "token")] if record.counts else []
    each = known.get("tokens_per_feature")
    if parts and isinstance(each, (int, float)):
        parts[0] += f" ({each:.0f} per feature)"
    parts.append(counted(len(view.fit_positions), "block"))
    documents = known.get("documents")
    if isinstance(documents, int):
        parts.append(counted(documents, "document"))
    task, loss = task_name(view), known.get("loss")
    parts += [f"task: {task}"] if task else []
    return [*parts, f"its loss {loss:.2f} nats per token"] if isinstance(loss, (int, float)) else parts


def task_name(view: RecordView) -> str:
    """What a language model was to tell, in words; nothing where that is not known."""
    names = {"next": "next token", "masked": "masked tokens", "span": "masked spans"}
    return names.get(str(view.record.settings.get("task")), "")


def table_columns(view: RecordView) -> list[TableColumn]:
    """The residual first, then what is taken off it, then what it is to be compared with."""
    lead, how = view.column, measured_how(view)
    t = view.errors.t if view.errors is not None else 1.96
    name = "PR" if lead == "residual" else "held-out PR"
    inside = TableColumn(
        "in-sample", "PR of the very tokens it was fitted to", partial(of, column="residual"), yields=1
    )
    return [
        TableColumn(name, "prediction residual of the token’s id; lower is better", partial(of, column=lead), yields=0),
        TableColumn("±", "95% interval of PR by jackknife over documents", lambda s: _interval(s, lead, t), yields=2),
        TableColumn(GAIN, "by how much of itself PR falls at this block", lambda s: ABSENT, yields=0),  # filled from parts
        *([] if lead == "residual" else [inside]),
        TableColumn(UNTRAINED, f"PR of the same model untrained, {how}", partial(of, column=f"{lead}_untrained"), yields=3),
        *_other_targets(view),
        TableColumn("D", "separation of the most frequent tokens", lambda s: number(s.values.get("separation")), yields=5),
        TableColumn("adjusted", "PR in-sample, less what features do", partial(of, column="residual_adjusted"), yields=31),
        TableColumn("spans", "directions the features span, where fewer than they could", _short_rank, yields=32),
    ]  # fmt: skip


def measured_how(view: RecordView) -> str:
    """How the leading column, its intervals and its untrained twin were measured."""
    return "held out" if view.column == "residual_held_out" else "in-sample"


def even_gain(view: RecordView) -> float | None:
    """What every block would take if all took the same."""
    fit = view.fit
    return None if fit is None else 1 - math.exp(math.log(fit.values[-1] / fit.values[0]) / fit.layers)


def of(site: SiteRow, column: str) -> str:
    """A residual of a site, as words."""
    return residual(site.values.get(column))


def _other_targets(view: RecordView) -> list[TableColumn]:
    known, how = targets(view.record), measured_how(view)
    out = [
        TableColumn(
            target_name(target),
            f"PR of another target: {target_name(target)}, {how}",
            partial(of, column=column_of(view.record, target)),
            SHORT.get(target, target),
            6 if target == "embedding" else 10 + i,  # of the others the last named goes first
        )
        for i, target in enumerate(known)
        if not is_shuffled(target)
    ]
    shuffled = [column_of(view.record, target) for target in known if is_shuffled(target)]
    if shuffled:
        meaning = f"PR of the next token’s id in shuffled vocabularies, mean of {len(shuffled)}, {how}"
        out.append(TableColumn("shuffled ids", meaning, lambda s: _mean(s, shuffled), "shuffled", 30))
    return out


def table_notes(view: RecordView) -> list[str]:
    """What every block is, said once; how the columns of other targets were measured."""
    notes = []
    if view.alike:
        block = view.sites[view.fit_positions[0]]
        notes.append(f"Every block: {escaped(block.type)}, {block.features:,} features.")
    if others := targets(view.record):
        shuffled = sum(map(is_shuffled, others))
        mean = f"; shuffled ids: the mean of {shuffled} vocabularies" if shuffled > 1 else ""
        notes.append(f"Columns of other targets are {measured_how(view)}{mean}.")
    return notes


def legend(view: RecordView, shown: Sequence[str], hidden: Sequence[str]) -> str:
    """What the heads of a table in the terminal leave unsaid, and what had no place there."""
    known = ["±: 95% interval of PR"] * ("±" in shown)
    known += ["gain: by how much of itself PR falls, ▲ where it rises"] * (GAIN in shown)
    known += [f"untrained: {measured_how(view)}, as the first column"] * (UNTRAINED in shown)
    known += [f"no room here, but on the page: {', '.join(hidden)}"] * bool(hidden)
    return "; ".join(known)


def _mean(site: SiteRow, columns: list[str]) -> str:
    values = [v for column in columns if (v := finite(site.values.get(column))) is not None]
    return residual(fmean(values)) if values else ABSENT


def _interval(site: SiteRow, column: str, t: float) -> str:
    error = finite(site.values.get(f"{column}_log_se"))
    return ABSENT if error is None else f"±{percent(math.exp(min(t * error, 100.0)) - 1)}"


def _short_rank(site: SiteRow) -> str:
    rank = finite(site.values.get("rank"))
    return ABSENT if rank is None or rank >= site.features - 1 else f"{rank:,.0f}"  # LayerNorm always takes one


def parts(view: RecordView) -> Parts:
    """By how much of itself PR falls at each block."""
    return Parts(GAIN, view.gains, even_gain(view) or 0.0, digits=2, least=LEAST_SCALE)


def residual_cards(view: RecordView) -> str:
    """The key numbers of the fit, with what other text would change."""
    fit, errors = view.fit, view.errors
    if fit is None:
        return empty("No law could be fitted, for the reason given above.")
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
            ("r", signed(fit.pearson), r),
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


def _pearson(view: RecordView, column: str, drop_last: int = 0) -> str:
    try:
        return signed(view.record.law(column, drop_last=drop_last).pearson)
    except InputError:
        return ABSENT


def compared(view: RecordView) -> list[str]:
    """Its cells in the table that compares records; intervals stand small below their numbers."""
    fit, errors, record = view.fit, view.errors, view.record
    if fit is None:
        return [ABSENT] * 9 + _measured_on(view)
    rho = None if errors is None else "{:.4f} … {:.4f}".format(*errors.rho_interval)
    interval = None if errors is None else errors.pearson_interval
    r = None if interval is None else f"{correlation(interval[0])} … {correlation(interval[1])}"
    short = record.law(view.column, drop_last=1).pearson if fit.points > 2 else None
    return [
        str(fit.points),
        _over(f"{fit.rho:.4f}", rho),
        _over(correlation(fit.pearson), r),
        correlation(short),
        number(fit.effective_layers, 2),
        escaped(p_value(fit.greenwood_p)),
        *(f"{value:.3f}" for value in (fit.values[0], min(fit.values), fit.values[-1])),
        *_measured_on(view),
    ]


def _measured_on(view: RecordView) -> list[str]:
    """What tells two records of one model apart: task, tokens, length of a piece, text."""
    settings, text = view.record.settings, view.record.provenance.get("text")
    each, length = settings.get("tokens_per_feature"), settings.get("length")
    name = str(text.get("name") or "") if isinstance(text, dict) else ""
    return [
        task_name(view) or ABSENT,
        _over(f"{sum(view.record.counts):,}", f"{each:.0f} per feature" if isinstance(each, (int, float)) else None),
        f"{length:,}" if isinstance(length, int) else ABSENT,
        f'<span title="{escaped(name)}">{escaped(shortened(name, 20))}</span>' if name else ABSENT,
    ]


def _over(value: str, below: str | None) -> str:
    """A number with a small line below it."""
    return value if below is None else f'{value}<span class="below">{below}</span>'


def compared_caption(views: Sequence[RecordView]) -> str:
    """How to read the comparison."""
    bars = " Bars: 95% intervals by jackknife; those of one record move together."
    return (
        f"PR {measured_how(views[0])} along the blocks of each fit; dashed, the fitted law. Models with different "
        "tokenizers predict different ids: compare their shapes rather than their heights."
        + bars
        * any(view.has(f"{view.column}_log_se") for view in views)
    )


def formulas(views: Sequence[RecordView]) -> str:
    """Definitions and citations; of the separation too where it was measured."""
    if not any(view.has("separation") for view in views):
        return definitions(FORMULAS, CITATIONS)
    return definitions((*FORMULAS, CLASSIFIER_FORMULAS[0]), (*CITATIONS, SEPARATION_CITATION))
