"""What is said of a classifier: facts, the columns of its table, key numbers, captions, definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from layerlaw.law import LawFit
from layerlaw.measures.columns import REGISTRY, Column, describe
from layerlaw.pages.html import cards, definitions, paragraph
from layerlaw.pages.record_view import Parts, RecordView, TableColumn
from layerlaw.record import SiteRow
from layerlaw.wording import ABSENT, correlation, counted, finite, number, p_value, percent

AXIS, CROWDED = "separation fuzziness D", 10
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
    counts = {"training sample": sum(record.counts), "test sample": sum(record.test_counts)}
    parts = [counted(n, what) for what, n in counts.items() if n]
    parts += [counted(len(record.classes), "class", "classes")] if record.classes else []
    parts.append(counted(len(record.sites), "site"))
    shares = {"train": record.accuracy, "test": record.test_accuracy}
    return parts + [f"{what} accuracy {percent(share)}" for what, share in shares.items() if share is not None]


def table_columns(view: RecordView) -> list[TableColumn]:
    """D first, then what the registry shows of every measure, then test data."""
    shown = [column for column in REGISTRY.values() if column.head and column.needs not in ("tokens", "targets")]
    tests = [describe(f"test_{column.name}") for column in shown if column.test_yields is not None]
    first, *others = map(measured_column, [*shown, *tests])
    return [
        TableColumn("features", "numbers per sample at this site", lambda s: f"{s.features:,}", yields=5, on_page=False),
        first,
        TableColumn("±", "95% interval of D by jackknife, relative", view.interval),
        TableColumn("D / D<sub>perm</sub>", "D over what permuted labels give; near 1 is noise", against_floor(view.column)),
        TableColumn(SHARE, "share of the total drop of ln D", lambda s: ABSENT, "share of drop", 0),  # filled from parts
        *others,
    ]  # fmt: skip


def measured_column(column: Column) -> TableColumn:
    """A measure of the registry as a column of the table."""
    meaning = column.meaning + (f"; {column.better} is better" if column.better else "")
    return TableColumn(column.head, meaning, lambda s: column.text(s.values.get(column.name)), yields=column.yields)


def against_floor(column: str) -> Callable[[SiteRow], str]:
    """A cell: a separation over what permuted labels or targets give."""

    def cell(site: SiteRow) -> str:
        value, floor = finite(site.values.get(column)), finite(site.values.get(f"{column}_permuted"))
        return number(value / floor, 2) if value is not None and floor else ABSENT

    return cell


def parts(view: RecordView) -> Parts:
    """Each layer's share of the drop."""
    shares = view.shares
    return Parts(SHARE, shares, 1 / len(shares) if shares else 0.0, digits=1)


def table_notes(view: RecordView) -> list[str]:
    """What a mark in the table means."""
    marked = any(site.values.get("full_rank") == 0.0 for site in view.sites)
    return [f"{RANK_MARK} the class means span fewer than K−1 dimensions here; D jumps at such sites."] * marked


def legend(view: RecordView, shown: Sequence[str], hidden: Sequence[str]) -> str:
    """The heads of the table leave nothing unsaid."""
    return ""


def key_numbers(view: RecordView, fit: LawFit) -> list[tuple[str, str, str]]:
    """The numbers of the law."""
    symbol = describe(view.column).symbol
    even = "" if fit.effective_layers is None else f" of {fit.layers}"
    return [
        ("ρ", number(fit.rho), "factor per layer"),
        ("half-life", number(fit.half_life), f"layers to halve {symbol}"),
        ("r", correlation(fit.pearson), f"Pearson, of ln {symbol} and depth"),
        ("effective layers", number(fit.effective_layers, 2) + even, "doing even work"),
        ("Greenwood p", p_value(fit.greenwood_p), "a random split is as even"),
        ("chord deviation", percent(fit.chord_deviation), "of the drop, at most"),
        ("inefficiency", number(fit.inefficiency, 4), "1 when all ratios are equal"),
        (f"final {symbol}", number(fit.values[-1]), f"from {number(fit.values[0])}"),
    ]


def collapse_cards(view: RecordView) -> str:
    """Numbers that exist only at the classifier."""
    return cards((c.label, c.text(view.last(c.name)), c.card) for c in REGISTRY.values() if c.card)


def law_caption(view: RecordView) -> str:
    """How to read the chart of the law."""
    return paragraph(
        f"A straight line on this axis means that every layer improves {describe(view.column).symbol} by the same factor.",
        all(view.sites[p].at == "input" for p in view.fit_positions) and "Each point is what enters the named layer.",
        view.has(f"{view.column}_log_se") and "Bars: 95% intervals by jackknife.",
        any(not site.in_fit for site in view.sites) and "Hollow points are not part of the fit.",
    )


def shares_caption(view: RecordView) -> str:
    """How to read the shares."""
    shares, symbol = parts(view), describe(view.column).symbol
    what = f"Each layer’s share of the whole drop of ln {symbol}. Dashed: an even share, {percent(shares.even)}."
    return paragraph(what, *shares.colors_explained(symbol)) if shares.values else ""


def compared(view: RecordView) -> list[str]:
    """Its cells in the table that compares records."""
    return [*compared_law(view), percent(view.record.accuracy), percent(view.record.test_accuracy)]


def compared_law(view: RecordView) -> list[str]:
    """The numbers of its law in that table."""
    fit = view.fit
    if fit is None:
        return [*[ABSENT] * 6, number(view.last(view.column))]
    line = [str(fit.layers), number(fit.rho), number(fit.half_life), correlation(fit.pearson)]
    even = [number(fit.effective_layers, 2), p_value(fit.greenwood_p).replace("<", "&lt;")]
    return [*line, *even, number(fit.values[-1])]


def compared_caption(views: Sequence[RecordView]) -> str:
    """How to read the comparison."""
    return "D along the layers of each fit; dashed, the fitted law."


def formulas(views: Sequence[RecordView]) -> str:
    """Definitions and citations."""
    return definitions(FORMULAS, CITATIONS)
