"""What is said of a classifier: facts, the columns of its table, key numbers, captions, definitions."""

from __future__ import annotations

from layerlaw.measures.columns import REGISTRY, Column, describe
from layerlaw.pages.html import cards, empty
from layerlaw.pages.record_view import Parts, RecordView, TableColumn
from layerlaw.record import SiteRow
from layerlaw.verdict import IDLE_SHARE
from layerlaw.wording import ABSENT, correlation, counted, finite, interval_factor, number, p_value, percent

SHARE, RANK_MARK = "share", "†"
HEADS = ("record", "layers", "ρ", "half-life", "r", "effective layers", "p", "final D", "train acc.", "test acc.")
FORMULAS = (
    ("Separation fuzziness", "D = Tr(SS<sub>w</sub> SS<sub>b</sub><sup>+</sup>)",
     "SS<sub>w</sub> and SS<sub>b</sub> are the within- and between-class scatter of the features, <sup>+</sup> the "
     "pseudo-inverse. Lower is better separated."),
    ("The law", "D<sub>l</sub> ≐ ρ<sup>l</sup> D<sub>0</sub>",
     "ρ is the exponential of the least-squares slope of ln D<sub>l</sub> on l; the half-life is ln 2 / ln(1/ρ) layers."),
    ("Share of the work", "p<sub>l</sub> = (ln D<sub>l−1</sub> − ln D<sub>l</sub>) / (ln D<sub>0</sub> − ln D<sub>m</sub>)",
     "Effective layers are 1 / Σ p<sub>l</sub><sup>2</sup>; Greenwood’s p is the chance that a random split of the same "
     "drop is at least as even."),
    ("Nearest class center", "argmin<sub>c</sub> ‖x − μ<sub>c</sub>‖",
     "μ<sub>c</sub> are class means of the training data. Error: it is wrong. Mismatch: it disagrees with the network."),
    ("Neural collapse", "NC1 = Tr(Σ<sub>W</sub> Σ<sub>B</sub><sup>+</sup>) / K",
     "Classes weighted equally. NC2: equal norms and angles of the class means; NC3: classifier and class means align. "
     "CDNV: (Var<sub>c</sub> + Var<sub>c′</sub>) / 2‖μ<sub>c</sub> − μ<sub>c′</sub>‖², averaged over pairs. "
     "Compression: Tr SS<sub>w</sub> / Tr SS<sub>b</sub>."),
)  # fmt: skip

CITATIONS = (
    "H. He and W. J. Su, A law of data separation in deep learning, PNAS 120 (36), e2221704120, 2023.",
    "V. Papyan, X. Y. Han and D. L. Donoho, Prevalence of neural collapse during the terminal phase of deep learning "
    "training, PNAS 117, 24652–24663, 2020.",
    "I. Ben-Shaul and S. Dekel, Nearest class-center simplification through intermediate layers, Topological, Algebraic "
    "and Geometric Learning Workshops (PMLR), 37–47, 2022.",
    "T. Galanti, A. György and M. Hutter, On the role of neural collapse in transfer learning, ICLR 2022.",
    "T. Galanti, On the implicit bias towards minimal depth of deep neural networks, arXiv:2202.09028, 2022.",
)


def facts(view: RecordView) -> list[str]:
    """Samples, classes, sites and accuracies, as far as they are known."""
    record = view.record
    parts = [counted(sum(record.counts), "training sample")] if record.counts else []
    if record.test_counts:
        parts.append(counted(sum(record.test_counts), "test sample"))
    if record.classes:
        parts.append(counted(len(record.classes), "class", "classes"))
    parts.append(counted(len(record.sites), "site"))
    if record.accuracy is not None:
        parts.append(f"train accuracy {percent(record.accuracy)}")
    if record.test_accuracy is not None:
        parts.append(f"test accuracy {percent(record.test_accuracy)}")
    return parts


def table_columns(view: RecordView) -> list[TableColumn]:
    """D first, then what the registry shows of every measure, then test data."""
    shown = [column for column in REGISTRY.values() if column.head and column.needs != "tokens"]
    tests = [describe(f"test_{column.name}") for column in shown if column.test_yields is not None]
    first, *others = map(_measured, [*shown, *tests])
    return [
        TableColumn(
            "features", "numbers per sample at this site", lambda s: f"{s.features:,}", yields=5, on_page=False
        ),
        first,
        TableColumn("±", "95% interval of D by jackknife, relative", _interval),
        TableColumn("D / D<sub>perm</sub>", "D over what permuted labels give; near 1 is noise", _against_floor),
        TableColumn(
            SHARE, "share of the total drop of ln D", lambda s: ABSENT, "share of drop", 0
        ),  # filled from the fit
        *others,
    ]


def _measured(column: Column) -> TableColumn:
    better = f"; {column.better} is better" if column.better else ""
    return TableColumn(
        column.head, column.meaning + better, lambda s: column.text(s.values.get(column.name)), yields=column.yields
    )


def parts(view: RecordView) -> Parts:
    """Each layer's share of the drop."""
    shares = view.shares
    return Parts(SHARE, shares, 1 / len(shares) if shares else 0.0, digits=1)


def table_notes(view: RecordView) -> list[str]:
    """What a mark in the table means."""
    marked = any(site.values.get("full_rank") == 0.0 for site in view.sites)
    return [f"{RANK_MARK} the class means span fewer than K−1 dimensions here; D jumps at such sites."] * marked


def _interval(site: SiteRow) -> str:
    error = finite(site.values.get("separation_log_se"))
    return ABSENT if error is None else f"±{percent(interval_factor(error) - 1, 1 if error < 0.05 else 0)}"


def _against_floor(site: SiteRow) -> str:
    value, floor = finite(site.values.get("separation")), finite(site.values.get("separation_permuted"))
    return number(value / floor, 2) if value is not None and floor else ABSENT


def law_cards(view: RecordView) -> str:
    """The key numbers of the fit."""
    fit = view.fit
    if fit is None:
        return empty("No law could be fitted, for the reason given above.")
    even = "" if fit.effective_layers is None else f" of {fit.layers}"
    return cards(
        [
            ("ρ", number(fit.rho), "factor per layer"),
            ("half-life", number(fit.half_life), "layers to halve D"),
            ("r", correlation(fit.pearson), "Pearson, of ln D and depth"),
            ("effective layers", number(fit.effective_layers, 2) + even, "doing even work"),
            ("Greenwood p", p_value(fit.greenwood_p), "a random split is as even"),
            ("chord deviation", percent(fit.chord_deviation), "of the drop, at most"),
            ("inefficiency", number(fit.inefficiency, 4), "1 when all ratios are equal"),
            ("final D", number(fit.values[-1]), f"from {number(fit.values[0])}"),
        ]
    )


def collapse_cards(view: RecordView) -> str:
    """Numbers that exist only at the classifier."""
    known = [(c.label, c.text(view.last(c.name)), c.card) for c in REGISTRY.values() if c.card]
    return cards((label, text, card) for label, text, card in known if text != ABSENT)


def law_caption(view: RecordView) -> str:
    """How to read the chart of the law."""
    parts = ["A straight line on this axis means that every layer improves D by the same factor."]
    if view.of_inputs:
        parts.append("Each point is what enters the named layer.")
    if view.has("separation_log_se"):
        parts.append("Bars: 95% intervals by jackknife.")
    if any(not site.in_fit for site in view.sites):
        parts.append("Hollow points are not part of the fit.")
    return " ".join(parts)


def shares_caption(view: RecordView) -> str:
    """How to read the shares."""
    if not view.shares:
        return ""
    even = 1 / len(view.shares)
    parts = [f"Each layer’s share of the whole drop of ln D. Dashed: an even share, {percent(even)}."]
    if any(0 <= share < IDLE_SHARE * even for share in view.shares.values()):
        parts.append("Pale: less than a quarter of it.")
    if any(share < 0 for share in view.shares.values()):
        parts.append("Red: D rises.")
    return " ".join(parts)


def compared(view: RecordView) -> list[str]:
    """Its cells in the table that compares records."""
    fit, record = view.fit, view.record
    numbers = [ABSENT] * 6
    if fit is not None:
        p = p_value(fit.greenwood_p).replace("<", "&lt;")
        numbers = [str(fit.layers), number(fit.rho), number(fit.half_life), correlation(fit.pearson)]
        numbers += [number(fit.effective_layers, 2), p]
    final = fit.values[-1] if fit else view.last("separation")
    return [*numbers, number(final), percent(record.accuracy), percent(record.test_accuracy)]
