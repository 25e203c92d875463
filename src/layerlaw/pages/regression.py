"""What is said of a regression or of several labels at once: as of a classifier, but for targets in the place of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerlaw.measures.columns import REGISTRY, describe
from layerlaw.pages import theme
from layerlaw.pages.classifier import (
    CITATIONS,
    COMPARED_LAW,
    FACTOR_WORDS,
    RANK_MARK,
    SHARE,
    against_floor,
    final_column,
    key_numbers,
    law_caption,
    legend,
    measured_column,
    parts,
    samples_counted,
    shares_caption,
)
from layerlaw.pages.classifier import FORMULAS as OF_CLASSES
from layerlaw.pages.html import Markup, definitions, paragraph
from layerlaw.pages.law_numbers import ComparedColumn
from layerlaw.pages.record_view import RecordView, TableColumn
from layerlaw.record import SiteRow
from layerlaw.wording import ABSENT, counted, finite, number, percent, shortened, signed

__all__ = [
    "AXIS", "COMPARED", "CROWDED", "compared_caption", "facts", "formulas", "key_numbers", "law_caption", "legend",
    "parts", "residual_caption", "residual_figure", "shares_caption", "table_columns", "table_notes",
]  # fmt: skip

AXIS, CROWDED = "separation fuzziness D_reg", 10
OF_ANY_LAW = ("The law", "Share of the work", "When it holds", "Intervals")
FORMULAS = (
    ("Separation fuzziness", "D<sub>reg</sub> = Tr(SS<sub>w</sub> SS<sub>b</sub><sup>+</sup>)",
     "The features of a layer are regressed on the targets: SS<sub>b</sub> is the scatter of the fitted features, "
     "SS<sub>w</sub> that of what is left, <sup>+</sup> the pseudo-inverse. Of one-hot targets the fitted features are the "
     "class means, and D<sub>reg</sub> is D. Lower: the features say the targets and little else."),
    ("Residual", "1 − R² = Σ (y − ŷ)² / Σ (y − ȳ)²",
     "Vice versa: ŷ is the least-squares prediction of a target from the features, linear with an intercept; a mean "
     "over the targets, each in units of its deviation. Held out: fitted on nine of ten groups of samples, tested on the "
     "tenth; it can exceed 1. On test data: fitted on the training data. The network itself may have seen all of them."),
    *(one for one in OF_CLASSES if one[0] in OF_ANY_LAW),
)  # fmt: skip

RESIDUALS = (  # of targets: name, column, color, dash and symbol
    ("held out", "residual_held_out", theme.TRAIN, "solid", "circle"),
    ("in-sample", "residual", theme.TRAIN, "dot", "circle-open"),
    ("test data", "test_residual", theme.TEST, "solid", "diamond"),
    ("untrained, held out", "residual_held_out_untrained", theme.NULL, "dash", "square-open"),
)
MOST_TARGETS = 8  # lines of single targets in one chart


def facts(view: RecordView) -> list[str]:
    """Samples, targets, sites, and what the network itself makes of the targets."""
    record = view.record
    found = samples_counted(record)
    found.append(counted(len(record.classes), "label" if record.several_labels else "target"))
    found.append(counted(len(record.sites), "site"))
    if record.several_labels:
        shares = {"train": record.accuracy, "test": record.test_accuracy}
        return found + [
            f"{which} {percent(share)} of labels right" for which, share in shares.items() if share is not None
        ]
    scores = {"train": record.r_squared, "test": record.test_r_squared}
    return found + [f"{which} R² {_r_squared(score)}" for which, score in scores.items() if score is not None]


def _r_squared(score: float | None) -> str:
    """Three decimals; far below 0 only how far."""
    return ABSENT if score is None else number(score) if score < -1 else signed(score).removeprefix("+")


def table_columns(view: RecordView) -> list[TableColumn]:
    """D_reg first, then residuals, then test data."""
    lead, held = REGISTRY["target_separation"], "1 − R² of the targets read linearly from the features"
    return [
        TableColumn("features", "numbers per sample at this site", lambda s: f"{s.features:,}", yields=5, on_page=False),
        measured_column(lead),
        TableColumn("±", f"95% interval of D_reg by jackknife, relative; {FACTOR_WORDS}", view.interval),
        TableColumn("D / D_perm", "D_reg over that of permuted targets; near 1: noise", against_floor(lead.name)),
        TableColumn(SHARE, "share of the total drop of ln D_reg", lambda s: ABSENT, "share of drop", 0),  # filled from parts
        _residual("1 − R²", f"{held}, held out", "residual_held_out", 1),
        _residual("in-sample", f"{held}, of the samples it was fitted to", "residual", 4),
        measured_column(describe("test_target_separation")),
        _residual("test 1 − R²", f"{held} of the test data, fitted to the training data", "test_residual", 3),
    ]  # fmt: skip


def _residual(head: str, meaning: str, column: str, yields: int) -> TableColumn:
    def cell(site: SiteRow) -> str:
        return number(site.values.get(column))

    return TableColumn(head, f"{meaning}; lower is better", cell, yields=yields)


def table_notes(view: RecordView) -> list[str]:
    """What a mark in the table means."""
    marked = any(site.values.get("full_rank") == 0.0 for site in view.sites)
    return [
        f"{RANK_MARK} what is fitted to the targets spans fewer dimensions than they do; D_reg jumps there."
    ] * marked


def residual_figure(view: RecordView) -> Any:
    """1 − R² of the targets, read linearly, against depth; thin lines are single targets, held out."""
    from layerlaw.pages.html import plotly  # the terminal has no need of Plotly

    traces = []
    for name, column, color, dash, symbol in RESIDUALS:
        if view.has(column):
            y = view.series(column)
            traces.append(plotly.line(name, y, color, dash=dash, symbol=symbol, written=[number(v) for v in y]))
    if not traces:
        return "No residual was measured: a linear regression on the features needs more samples than features."
    targets = view.record.classes
    for j, name in enumerate(targets if 1 < len(targets) <= MOST_TARGETS else ()):
        rows = [site.by_class.get("residual_held_out", []) for site in view.sites]
        y = [finite(row[j]) if j < len(row) else None for row in rows]
        color = theme.QUALITATIVE[j % len(theme.QUALITATIVE)]
        traces.append(plotly.line(shortened(name, 24), y, color, symbol=None, width=1, written=[number(v) for v in y]))
    yaxis = {"title": {"text": "1 − R² of the targets"}, "rangemode": "tozero", "nticks": 7}
    return plotly.new_figure(traces, view, height=400, xaxis=plotly.site_axis(view), yaxis=yaxis)


def residual_caption(view: RecordView) -> str:
    """How to read the chart of residuals."""
    return paragraph(
        "What a linear regression on the features of a layer leaves of the targets’ variance. 1: no better than their mean.",
        len(view.record.classes) > 1 and "Thin: single targets, held out.",
    )


def _own(r_squared: float | None, accuracy: float | None) -> str:
    """What the network itself makes of the targets, in a cell."""
    return f"{percent(accuracy)} right" if accuracy is not None else _r_squared(r_squared)


COMPARED = (
    *COMPARED_LAW,
    final_column("D_reg"),
    ComparedColumn("final 1 − R²", lambda view: number(view.last("residual_held_out")), yields=3),
    ComparedColumn("train R²", lambda view: _own(view.record.r_squared, view.record.accuracy), yields=5),
    ComparedColumn("test R²", lambda view: _own(view.record.test_r_squared, view.record.test_accuracy), yields=4),
)


def compared_caption(views: Sequence[RecordView]) -> str:
    """How to read the comparison."""
    return "D_reg at the points of each fit; dashed, the fitted law."


def formulas(views: Sequence[RecordView]) -> Markup:
    """Definitions and citations."""
    return definitions(FORMULAS, CITATIONS[:1])
