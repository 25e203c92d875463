"""What is said of a classifier: facts, the columns of its table, key numbers, captions, definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from layerlaw.law import LawFit
from layerlaw.measures.collapse import rare_classes
from layerlaw.measures.columns import REGISTRY, Column, describe
from layerlaw.pages.html import Markup, cards, definitions, fill, paragraph, symbols, table
from layerlaw.pages.law_numbers import LAW_COLUMNS, ComparedColumn, Tile, of_fit, rule_formula
from layerlaw.pages.record_view import BRANCH, Parts, RecordView, TableColumn
from layerlaw.pages.sheets.scales import close_scale
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.parts import part_sums
from layerlaw.wording import ABSENT, clean, correlation, counted, finite, number, percent, signed

AXIS, CROWDED = "separation fuzziness D", 10
PART_NAMES = {
    "map": "linear map",
    "normalization": "normalization",
    "nonlinearity": "nonlinearity",
    "branches": "side branches",
    "other": "the rest",
}
SHARE, RANK_MARK = "share", "†"
FACTOR_WORDS = "×/÷ 3: from a third of it to three times"
COMPARED_LAW = (
    ComparedColumn("steps", of_fit(lambda fit: str(fit.layers)), yields=6),
    ComparedColumn("ρ", of_fit(lambda fit: number(fit.rho))),
    ComparedColumn("half-life", of_fit(lambda fit: number(fit.half_life)), yields=7),
    ComparedColumn("r", of_fit(lambda fit: correlation(fit.pearson)), yields=2),
    *LAW_COLUMNS,
)


def final_column(symbol: str) -> ComparedColumn:
    """Where the law ends: at its last point, which need not be the last row."""

    def last(view: RecordView) -> SiteRow | None:
        return view.sites[view.fit_positions[-1]] if view.fit_positions else None

    return ComparedColumn(
        f"final {symbol}",
        lambda view: ABSENT if (site := last(view)) is None else number(finite(site.values.get(view.column))),
        title=lambda view: "" if (site := last(view)) is None else f"at {site.name}, the last point of the law",
        yields=4,
    )


COMPARED = (
    *COMPARED_LAW,
    final_column("D"),
    ComparedColumn("train acc.", lambda view: percent(view.record.accuracy), yields=5),
    ComparedColumn("test acc.", lambda view: percent(view.record.test_accuracy), yields=4),
)
FORMULAS = (
    ("Separation fuzziness", "D = Tr(SS<sub>w</sub> SS<sub>b</sub><sup>+</sup>)",
     "SS<sub>w</sub> and SS<sub>b</sub> are the within- and between-class scatter of the features, <sup>+</sup> the "
     "pseudo-inverse. Lower is better separated."),
    ("The law", "D<sub>l</sub> ≐ ρ<sup>l</sup> D<sub>0</sub>",
     "ρ is the exponential of the least-squares slope of ln D<sub>l</sub> on l; the half-life is ln 2 / ln(1/ρ) layers (or "
     "blocks)."),
    ("Best linear map", "D<sub>lin</sub> = Σ 1 / λ<sub>i</sub>(SS<sub>w</sub><sup>−1</sup> SS<sub>b</sub>)",
     "The least D that a linear map of the features reaches, where it was requested. Biased low unless samples far "
     "outnumber features."),
    ("Share of the work", "p<sub>l</sub> = (ln D<sub>l−1</sub> − ln D<sub>l</sub>) / (ln D<sub>0</sub> − ln D<sub>m</sub>)",
     "Effective layers (or blocks) are 1 / Σ p<sub>l</sub><sup>2</sup>; no count of them where D rises."),
    rule_formula("D", "m", " D must fall by more than a tenth, over 4 points or more."),
    ("Intervals", "se² = (g − 1)/g · Σ (θ<sub>i</sub> − mean θ<sub>i</sub>)²",
     "θ<sub>i</sub> is ln D without group i of the samples (delete-group jackknife). They tell what other samples through "
     "this same network would change; how much other networks differ only several training runs can say."),
    ("Nearest class center", "argmin<sub>c</sub> ‖x − μ<sub>c</sub>‖",
     "μ<sub>c</sub> are class means of the data, for test data those of the training data. Error: it is wrong. Mismatch: it "
     "disagrees with the network."),
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
    record, parts = view.record, samples_counted(view.record)
    alone = not record.test_counts or bool(record.settings.get("data_name"))
    parts += [counted(len(record.classes), "class", "classes")] if record.classes else []
    parts.append(counted(len(record.sites), "site"))
    shares = {
        "accuracy" if alone else "train accuracy": record.accuracy,
        "test accuracy": record.test_accuracy,
    }
    return parts + [f"{what} {percent(share)}" for what, share in shares.items() if share is not None]


def samples_counted(record: Record) -> list[str]:
    """How many samples of which data."""
    named, n, tests = str(record.settings.get("data_name") or ""), sum(record.counts), sum(record.test_counts)
    plain = counted(n, "training sample" if tests and not named else "sample") + f" of {clean(named)}" * bool(named)
    return [plain] * bool(n) + [counted(tests, "test sample")] * bool(tests)


def table_columns(view: RecordView) -> list[TableColumn]:
    """D first, then what the registry shows of every measure, then test data."""
    shown = [column for column in REGISTRY.values() if column.head and column.needs not in ("tokens", "targets")]
    tests = [describe(f"test_{column.name}") for column in shown if column.test_yields is not None]
    first, *others = map(measured_column, [*shown, *tests])
    return [
        TableColumn("features", "numbers per sample at this site", lambda s: f"{s.features:,}", yields=5, on_page=False),
        first,
        TableColumn("±", f"95% interval of D by jackknife, relative; {FACTOR_WORDS}", view.interval),
        TableColumn("D / D_perm", "D over what permuted labels give; near 1 is noise", against_floor(view.column)),
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
    """The heads of the table leave nothing unsaid but what marks a side branch."""
    return f"{BRANCH.strip()} on a side branch: no point of the law" if view.beside else ""


def key_numbers(view: RecordView, fit: LawFit) -> list[Tile]:
    """The numbers of the law beside those that decide whether it holds."""
    symbol = describe(view.column).symbol
    step, ends = view.record.step_name, [clean(view.sites[i].name) for i in view.fit_positions]
    half_life = "" if fit.half_life is None else f"\nhalf-life {number(fit.half_life)} {step}s"
    others = [
        Tile("ρ", number(fit.rho), f"factor per {step}{half_life}"),
        Tile("r", correlation(fit.pearson), f"Pearson, of ln {symbol} and depth"),
        Tile("chord deviation", percent(fit.chord_deviation), "of the drop, at most"),
        Tile("inefficiency", number(fit.inefficiency, 4), "1 when all ratios are equal"),
        Tile(
            f"final {symbol}",
            number(fit.values[-1]),
            f"at {ends[-1]}, the last point of the law; from {number(fit.values[0])} at {ends[0]}",
        ),
    ]
    return [tile for tile in others if tile.value != ABSENT]


def collapse_cards(view: RecordView) -> Markup:
    """Numbers that exist only at the classifier."""
    balanced = bool(view.record.counts) and rare_classes(view.record.counts) is None  # then there are no rare classes
    shown = (c for c in REGISTRY.values() if c.card and not (balanced and c.needs == "imbalance"))
    tiles = (Tile(c.label, c.text(view.last(c.name)), c.card) for c in shown)
    return cards(tile for tile in tiles if tile.value != ABSENT)


def chance_is_far(view: RecordView) -> bool:
    """Whether what permuted labels give lies so far above the rest that it would press the chart of the law flat."""
    floor = [v for v in view.series(f"{view.column}_permuted") if v is not None]
    own = view.series(view.column)
    rest = [v for v in (*(own[i] for i in view.fit_positions), *_compared_values(view)) if v is not None]
    return bool(floor and rest) and min(floor) > 3 * max(rest)


def law_span(view: RecordView) -> tuple[list[float | None], list[float | None]]:
    """What the chart of the law has to show whole, and what as far as there is room: rows that are no points of the law."""
    own, inside = view.series(view.column), set(view.fit_positions)
    front = [*(own[i] for i in inside), *(end for i in inside for end in view.ends[i] or ()), *_compared_values(view)]
    floor = view.series(f"{view.column}_permuted")
    front += [] if chance_is_far(view) else [floor[i] for i in view.trunk]
    front += [] if view.fit is None else view.fit.line
    behind = [v for i, v in enumerate(own) if i not in inside]
    bars = [end for i in view.along if i not in inside for end in view.ends[i] or ()]  # side branches are drawn without
    return front, [*behind, *bars]


def _compared_values(view: RecordView) -> list[float | None]:
    """Of the untrained network, of test data and of the best linear map, along the trunk."""
    names = (f"{view.column}_untrained", f"test_{view.column}", "separation_linear")
    return [series[i] for series in map(view.series, names) for i in view.trunk]


def law_caption(view: RecordView) -> str:
    """How to read the chart of the law."""
    return paragraph(
        f"A straight line on this axis means that every {view.record.step_name} improves {describe(view.column).symbol} by "
        "the same factor.",
        all(view.sites[p].at == "input" for p in view.fit_positions) and "Each point is what enters the named layer.",
        view.has(f"{view.column}_log_se")
        and "Bars: 95% intervals by jackknife, for other samples through this same network.",
        any(not view.sites[i].in_fit for i in view.along) and "Hollow points are not part of the fit.",
        bool(view.beside) and "Small gray points lie on side branches, which are not part of it; lines pass them by.",
        _beyond(view) and "Triangles at the edge: beyond the axis, which is that of the law.",
    )


def _beyond(view: RecordView) -> bool:
    """Whether a value lies beyond the axis of the chart of the law."""
    front, behind = ([v for v in some if v is not None and v > 0] for some in law_span(view))
    if not front or not behind:
        return False
    scale, _ = close_scale(front, view.record.kind.margin, behind)
    return min(behind) < scale.low or max(behind) > scale.high


def shares_caption(view: RecordView) -> str:
    """How to read the shares."""
    shares, symbol = parts(view), describe(view.column).symbol
    of = f"Each {view.record.step_name}’s share of the whole drop of ln {symbol}"
    what = f"{of}. Dashed: an even share, {percent(shares.even)}."
    return paragraph(what, *shares.colors_explained(symbol)) if shares.values else ""


def parts_table(view: RecordView) -> Markup:
    """What all parts of one kind change together."""
    sums = {branch: part_sums(view.record, branch=branch) for branch in (False, True)}
    linear = any(one.linear is not None for some in sums.values() for one in some)
    change = f"change of ln {describe(view.column).symbol}"
    heads = [("part", "site"), ("count", ""), (change, ""), ("per part", "")]
    heads += [("change of ln D_lin", ""), ("at most, per part", "")] if linear else []
    head = [fill('<th scope="col" class="{}">{}</th>', kind, symbols(text)) for text, kind in heads]
    rows = []
    for branch, one in ((branch, one) for branch, some in sums.items() for one in some):
        cells = [f"{one.count}", _change(one.total, 2), _change(one.total / one.count, 3)]
        cells += [_change(one.linear, 2), number(one.linear_most, 2)] if linear else []
        name = PART_NAMES[one.kind] + ", inside side branches" * branch
        first = fill('<th scope="row" class="site">{}</th>', name)
        rows.append([first, *(fill("<td>{}</td>", cell) for cell in cells)])
    return table("what each kind of part changes", head, rows) if rows else fill("")


def _change(value: float | None, digits: int) -> str:
    """With its sign, unless it is zero but for rounding."""
    return "0" if value is not None and round(value, digits) == 0 else signed(value, digits)


def parts_caption(view: RecordView) -> str:
    """How to read the parts."""
    trunk = [part for part in view.record.parts if not part.branch]
    kinds = {part.kind for part in trunk}
    by_functions = any(part.kind == "nonlinearity" and not part.module for part in trunk)
    return paragraph(
        f"By how much each part of a layer changes ln {describe(view.column).symbol}; below zero it separates better.",
        by_functions and "Nonlinearities that are no modules: all that happens up to the next layer.",
        "other" in kinds
        and "The rest: skip connections, pooling, attention, and functional activations that come with them.",
        len(trunk) < len(view.record.parts)
        and "The chart is of the trunk, which all data pass; side branches (residual blocks, gates) are one part of it, "
        "from where they leave it to where they rejoin. What happens inside them stands apart in the table.",
        any("separation_linear" in part.values for part in view.record.parts)
        and "D_lin is the least D of a linear map; invertible maps leave it as it is.",
    )


def compared_caption(views: Sequence[RecordView]) -> str:
    """How to read the comparison."""
    return "D at the points of each fit; dashed, the fitted law."


def formulas(views: Sequence[RecordView]) -> Markup:
    """Definitions and citations."""
    return definitions(FORMULAS, CITATIONS)
