"""What is said of a language model: facts, the columns of its table, key numbers, captions, definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from layerlaw.errors import InputError
from layerlaw.law import LawFit
from layerlaw.measures.columns import describe
from layerlaw.pages import classifier
from layerlaw.pages.html import Markup, definitions, paragraph
from layerlaw.pages.law_numbers import LAW_COLUMNS, ComparedColumn, Tile, of_fit, rule_formula
from layerlaw.pages.record_view import Parts, RecordView, TableColumn
from layerlaw.record import INPUT, SiteRow
from layerlaw.verdict.lens import lens_place
from layerlaw.verdict.steps import final_rise
from layerlaw.verdict.targets import column_of, is_shuffled, target_name, targets
from layerlaw.wording import ABSENT, clean, correlation, counted, finite, number, percent, residual, shortened, signed

AXIS, CROWDED = "prediction residual PR", 8
GAIN, UNTRAINED = "gain", "untrained"
LEAST_SCALE = 0.005  # a bar of full length is at least this gain, or noise would look like work
SHORT = {"onehot": "one-hot", "rank": "freq. rank", "next2": "next but 1"}  # heads of targets
TASKS = {"next": "next token", "masked": "masked tokens", "span": "masked spans"}
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
     "tell what other text of this length through this same model would change, not what another model would do, nor "
     "whether a line is the right curve; noise pulls r towards 0 and evenness down. Held out, the fits are taken as given."),
    ("Share of the drop",
     "p<sub>l</sub> = (ln PR<sub>l−1</sub> − ln PR<sub>l</sub>) / (ln PR<sub>1</sub> − ln PR<sub>L</sub>)",
     "Negative where PR rises."),
    rule_formula("PR", "L − 1", " r alone says little: a random split over 30 blocks has a median r of −0.99."),
)  # fmt: skip
LENS_FORMULAS = (
    ("Logit lens", "p<sub>l</sub> = softmax(head(norm(h<sub>l</sub>)))",
     "What the model would predict if it ended at block l: its own final norm and head read the state h<sub>l</sub>. Loss: "
     "mean of −ln p of the token that comes, in nats. Made: the most probable token is that of the last block; for good: at "
     "every later block, too. Early blocks may write in other directions than the head reads, so a high loss there does "
     "not mean that nothing is known."),
    ("Linear lens", "ĥ<sub>L</sub> = A<sub>l</sub> h<sub>l</sub> + b<sub>l</sub>, then norm and head",
     "The map to the last block’s (bare normalized) state is fitted by least squares on all documents but those that are "
     "read. The published tuned lens fits such a map to the last predictions by KL divergence instead, which reads better."),
)  # fmt: skip
LENS_CITATIONS = (
    "nostalgebraist, interpreting GPT: the logit lens, LessWrong, 2020.",
    "N. Belrose et al., Eliciting latent predictions from transformers with the tuned lens, arXiv:2303.08112, 2023.",
)
CITATIONS = ("H. He and W. J. Su, A law of next-token prediction in large language models, arXiv:2408.13442, 2024.",)


def facts(view: RecordView) -> list[str]:
    """Tokens, blocks, task: as far as they are known."""
    counts, known = view.record.counts, view.record.settings
    each, documents, loss = (known.get(name) for name in ("tokens_per_feature", "documents", "loss"))
    density = f" ({each:.0f} per feature)" if isinstance(each, (int, float)) else ""
    parts = [
        counted(sum(counts), "token") + density if counts else "",
        counted(len(view.fit_positions), "block"),
        counted(documents, "document") if isinstance(documents, int) else "",
        f"task: {_task(view)}" if _task(view) else "",
        f"its loss {loss:.2f} nats per token{_loss_of(view)}" if isinstance(loss, (int, float)) else "",
    ]
    return [part for part in parts if part]


def _loss_of(view: RecordView) -> str:
    """On which tokens, where a linear lens gives the loss on others beside it."""
    tokens = view.record.settings.get("loss_tokens")
    if not view.has("linear_lens_loss") or not isinstance(tokens, int):
        return ""
    return f" (at {counted(tokens, 'token')} of the whole text)"


def _task(view: RecordView) -> str:
    return TASKS.get(str(view.record.settings.get("task")), "")


def table_columns(view: RecordView) -> list[TableColumn]:
    """The residual first, then what is taken off it, then what it is to be compared with."""
    lead, how = view.column, measured_how(view)
    name = "PR" if lead == "residual" else "held-out PR"
    inside = TableColumn("in-sample", "PR of the very tokens it was fitted to", _of("residual"), yields=1)
    return [
        TableColumn(name, "prediction residual of the token’s id; lower is better", _of(lead), yields=0),
        TableColumn("±", "95% interval of PR by jackknife over documents", view.interval, yields=2),
        TableColumn(GAIN, "by how much of itself PR falls at this block", lambda s: ABSENT, yields=0),  # filled from parts
        *([] if lead == "residual" else [inside]),
        TableColumn(UNTRAINED, f"PR of the same model untrained, {how}", _of(f"{lead}_untrained"), yields=3),
        *_other_targets(view),
        TableColumn("lens loss", "loss in nats if the head reads this block", _number("lens_loss"), yields=7),
        TableColumn("made", "predictions that are those of the last block", _number("lens_agreement"), yields=8),
        TableColumn("linear lens", "loss after a linear map to the last block", _number("linear_lens_loss"), yields=9),
        TableColumn("D", "separation of the most frequent tokens", lambda s: number(s.values.get("separation")), yields=5),
        TableColumn("adjusted", "PR in-sample, less what features do", _of("residual_adjusted"), yields=31),
        TableColumn("spans", "directions the features span, where fewer than they could", _short_rank, yields=32),
    ]  # fmt: skip


def measured_how(view: RecordView) -> str:
    """How the leading column, its intervals and its untrained twin were measured."""
    return "held out" if view.column == "residual_held_out" else "in-sample"


def _number(column: str) -> Callable[[SiteRow], str]:
    """A column as it is written everywhere."""
    return lambda site: describe(column).text(finite(site.values.get(column)))


def _of(*columns: str) -> Callable[[SiteRow], str]:
    """How a residual is written, or the mean of several."""

    def cell(site: SiteRow) -> str:
        values = [v for column in columns if (v := finite(site.values.get(column))) is not None]
        return residual(fmean(values)) if values else ABSENT

    return cell


def _other_targets(view: RecordView) -> list[TableColumn]:
    out, shuffled, how = [], [], measured_how(view)
    for i, target in enumerate(targets(view.record)):
        name, column = target_name(target), column_of(view.record, target)
        if is_shuffled(target):
            shuffled.append(column)
            continue
        yields = 6 if target == "embedding" else 10 + i  # of the others the last named goes first
        meaning = f"PR of another target: {name}, {how}"
        out.append(TableColumn(name, meaning, _of(column), SHORT.get(target, target), yields))
    if shuffled:
        meaning = f"PR of the next token’s id in shuffled vocabularies, mean of {len(shuffled)}, {how}"
        out.append(TableColumn("shuffled ids", meaning, _of(*shuffled), "shuffled", 30))
    return out


def table_notes(view: RecordView) -> list[str]:
    """What every block is, said once; how the columns of other targets were measured."""
    block, others = view.sites[view.fit_positions[0]] if view.alike else None, targets(view.record)
    notes = [f"Every block: {clean(block.type)}, {block.features:,} features."] if block is not None else []
    shuffled = sum(map(is_shuffled, others))
    mean = f"; shuffled ids: the mean of {shuffled} vocabularies" if shuffled > 1 else ""
    return notes + [f"Columns of other targets are {measured_how(view)}{mean}."] * bool(others)


def legend(view: RecordView, shown: Sequence[str], hidden: Sequence[str]) -> str:
    """What the heads of a table in the terminal leave unsaid, and what had no place there."""
    known = ["±: 95% interval of PR"] * ("±" in shown)
    known += ["gain: by how much of itself PR falls, ▲ where it rises"] * (GAIN in shown)
    known += [f"untrained: {measured_how(view)}, as the first column"] * (UNTRAINED in shown)
    known += ["lens loss: in nats, where the head reads the block; made: predictions as the last block’s"] * (
        "made" in shown
    )
    known += [f"no room here, but on the page: {', '.join(hidden)}"] * bool(hidden)
    return "; ".join(known)


def _short_rank(site: SiteRow) -> str:
    rank = finite(site.values.get("rank"))
    return ABSENT if rank is None or rank >= site.features - 1 else f"{rank:,.0f}"  # LayerNorm always takes one


def parts(view: RecordView) -> Parts:
    """By how much of itself PR falls at each block; even, if all took the same."""
    fit = view.fit
    even = 0.0 if fit is None else 1 - math.exp(math.log(fit.values[-1] / fit.values[0]) / fit.layers)
    return Parts(GAIN, view.gains, even, digits=2, least=LEAST_SCALE)


def key_numbers(view: RecordView, fit: LawFit) -> list[Tile]:
    """The numbers of the law beside those that decide whether it holds, with what other text would change."""
    rho, r = (below and f"95% interval\n{below}" for below in _intervals(view, signed))
    noise = f"of what the line leaves; noise: {signed(fit.noise_autocorrelation, 2)}"
    short = _pearson(view, "residual", 1)
    inside = Tile("r in-sample", _pearson(view, "residual"), "" if short == ABSENT else f"{short} without the last")
    others = [
        Tile("ρ", f"{fit.rho:.4f}", rho or "factor per block"),
        Tile("r", signed(fit.pearson), r or "Pearson, of ln PR and depth"),
        Tile("r without last", _pearson(view, view.column, 1), "the last block left out"),
        *([] if view.column == "residual" else [inside]),  # which the paper takes
        Tile("lag-1 correlation", number(fit.autocorrelation, 2), noise),
        Tile("PR at the end", f"{fit.values[-1]:.3f}", f"from {fit.values[0]:.3f}, lowest {min(fit.values):.3f}"),
    ]
    return [tile for tile in others if tile.value != ABSENT]


def _intervals(view: RecordView, written: Callable[[float], str]) -> tuple[str, str]:
    """95% intervals of ρ and r in words; empty where there are none."""
    if view.errors is None:
        return "", ""
    ends = view.errors.pearson_interval
    return "{:.4f} … {:.4f}".format(*view.errors.rho_interval), " … ".join(map(written, ends)) if ends else ""


def _pearson(view: RecordView, column: str, drop_last: int = 0) -> str:
    try:
        return signed(view.record.law(column, drop_last=drop_last).pearson)
    except InputError:
        return ABSENT


def residual_caption(view: RecordView) -> str:
    """How to read the law's chart."""
    bars = (
        "Bars: 95% intervals by jackknife, for other text through this same model; they move together, so the shape is "
        "better known than the level."
    )
    return paragraph(
        "A straight line on this axis means that every block takes the same factor off the residual.",
        view.has(f"{view.column}_log_se") and bars,
        any(not site.in_fit for site in view.sites) and f"Hollow: {_hollow(view)}, not part of the fit.",
    )


def _hollow(view: RecordView) -> str:
    inner = ["the states after attention"] * bool(view.record.parts)
    return " and ".join(["the embedded input"] * (view.record.numbers[:1] == [INPUT]) + inner)


def branches_caption(view: RecordView) -> str:
    """How to read what attention and MLPs do."""
    return paragraph(
        f"By how much each branch of a block changes ln PR, {measured_how(view)}: from what the block reads to the state "
        "after attention, and from there to what the block gives. Below zero the next token becomes more predictable.",
        view.errors is not None and "Thin lines: 95% intervals of the changes themselves (jackknife over documents).",
    )


def deviations_caption(view: RecordView) -> str:
    """How to read what the line leaves."""
    bars = " Bars: 95% intervals." * (view.errors is not None)
    return f"Noise would jump about zero; a bow or a wave means that the blocks do not gain equally.{bars}"


def gains_caption(view: RecordView) -> str:
    """How to read the gains."""
    gains = parts(view)
    return paragraph(
        "By how much of itself PR falls at each block.",
        gains.even > 0 and f"Dashed: the even share, {percent(gains.even, 2)}.",
        *gains.colors_explained("PR"),
        view.fit_positions[:1] == list(gains.values)[:1] != [] and "Hollow: from the embedded input.",
        view.errors is not None and "Thin lines: 95% intervals.",
    )


def lens_caption(view: RecordView) -> str:
    """How to read the losses."""
    about = view.record.settings.get("lens")
    known = about if isinstance(about, dict) else {}
    tokens, alone = known.get("tokens"), known.get("frequency_loss")
    linear = "Linear lens: after a least-squares map to the last block, fitted on other documents."
    return paragraph(
        "Loss if the model ended at this block and its final norm and head read the state.",
        view.has("linear_lens_loss") and linear,
        isinstance(alone, (int, float)) and f"Dashed: how often each token comes, alone ({number(alone)}).",
        isinstance(tokens, int) and f"Read at {counted(tokens, 'token')}{lens_place(view.record)}.",
    )


def _rho_interval(view: RecordView) -> str:
    return _intervals(view, correlation)[0]


def _pearson_interval(view: RecordView) -> str:
    return _intervals(view, correlation)[1]


def _first(view: RecordView) -> str:
    return "" if view.fit is None else f"from {view.fit.values[0]:.3f}"


def _lowest(view: RecordView) -> str:
    """Said where it is not the last."""
    return "" if view.fit is None or final_rise(view.fit) is None else f"lowest: {min(view.fit.values):.3f}"


def _per_feature(view: RecordView) -> str:
    each = view.record.settings.get("tokens_per_feature")
    return f"{each:.0f} per feature" if isinstance(each, (int, float)) else ""


def _length(view: RecordView) -> str:
    length = view.record.settings.get("length")
    return f"pieces of {length:,}" if isinstance(length, int) else ""


def _text_name(view: RecordView) -> str:
    text = view.record.provenance.get("text")
    return str(text.get("name") or "") if isinstance(text, dict) else ""


def _correlation(view: RecordView, column: str) -> str:
    try:
        return correlation(view.record.law(column).pearson)
    except InputError:
        return ABSENT


def _in_sample(view: RecordView) -> str:
    return _correlation(view, "residual")


def _held_out(view: RecordView) -> str:
    """Said where it does not lead: another record has none."""
    r = ABSENT if view.column == "residual_held_out" else _correlation(view, "residual_held_out")
    return "" if r == ABSENT else f"held out {r}"


def _untrained(view: RecordView) -> str:
    return _correlation(view, f"{view.column}_untrained")


def _drawn(view: RecordView) -> str:
    std = view.record.settings.get("null_std")
    return f"std {std:.3g}" if isinstance(std, (int, float)) else ""


def _loss(view: RecordView) -> str:
    loss = view.record.settings.get("loss")
    return f"{loss:.2f}" if isinstance(loss, (int, float)) else ABSENT


def _bos(view: RecordView) -> str:
    """Below the loss, which depends on it more than on much else."""
    known, unit = view.record.settings, "" if _loss(view) == ABSENT else "nats, "
    if "bos" not in known or known.get("task") != "next":
        return unit.removesuffix(", ")
    return unit + ("no BOS" if known["bos"] is None else "with BOS")


COMPARED = (  # of the numbers of a law; then what tells two records of one model apart
    ComparedColumn("blocks", of_fit(lambda fit: str(fit.points)), yields=6),
    ComparedColumn("ρ", of_fit(lambda fit: f"{fit.rho:.4f}"), _rho_interval),
    ComparedColumn("r", of_fit(lambda fit: correlation(fit.pearson)), _pearson_interval, yields=2),
    ComparedColumn("r in-sample", _in_sample, _held_out, yields=10),
    ComparedColumn("r untrained", _untrained, _drawn, yields=11),
    *LAW_COLUMNS,
    ComparedColumn("final PR", of_fit(lambda fit: f"{fit.values[-1]:.3f}"), _first, _lowest, yields=4),
    ComparedColumn("loss", _loss, _bos, yields=8),
    ComparedColumn("tokens", lambda view: f"{sum(view.record.counts):,}", _per_feature, _length, yields=7),
    ComparedColumn("text", lambda v: shortened(_text_name(v), 20) or ABSENT, _task, _text_name, yields=None),
)


def compared_caption(views: Sequence[RecordView]) -> str:
    """How to read the comparison."""
    bars = "Bars: 95% intervals by jackknife; those of one record move together."
    return paragraph(
        f"PR {measured_how(views[0])} along the blocks of each fit; dashed, the fitted law.",
        "Models with different tokenizers predict different ids: compare their shapes rather than their heights.",
        any(view.has(f"{view.column}_log_se") for view in views) and bars,
        len({len(view.fit_positions) for view in views}) > 1 and "Below, the same along relative depth.",
    )


def formulas(views: Sequence[RecordView]) -> Markup:
    """Definitions and citations; of the separation too where it was measured."""
    both = any(view.has("separation") for view in views)
    separation = (classifier.FORMULAS[:1], classifier.CITATIONS[:1]) if both else ((), ())
    read = (
        1 + any(view.has("linear_lens_loss") for view in views) if any(view.has("lens_loss") for view in views) else 0
    )
    lens = LENS_FORMULAS[:read], LENS_CITATIONS[:read]
    return definitions((*FORMULAS, *separation[0], *lens[0]), (*CITATIONS, *separation[1], *lens[1]))
