"""How each kind of record is shown: a table with one entry per kind, so that no other file asks what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from layerlaw.pages import classifier, language_model
from layerlaw.pages.html import definitions
from layerlaw.pages.record_view import Parts, RecordView, TableColumn
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, Kind


@dataclass(frozen=True)
class Presentation:
    """The words of a kind: facts below the title, the table of its sites, its part of a comparison, its definitions."""

    axis: str
    """What the law is on, as an axis names it."""
    facts: Callable[[RecordView], list[str]]
    columns: Callable[[RecordView], list[TableColumn]]
    crowded: int
    """More columns on a page stand closer together, under shorter heads."""
    parts: Callable[[RecordView], Parts]
    notes: Callable[[RecordView], list[str]]
    """Footnotes of the table on the page, as HTML."""
    legend: Callable[[RecordView, Sequence[str], Sequence[str]], str]
    """What the heads of the table leave unsaid in the terminal: of those shown, and of those left out."""
    heads: tuple[str, ...]
    """Of the table that compares records; `compared` are the cells of one, as HTML."""
    compared: Callable[[RecordView], list[str]]
    caption: Callable[[Sequence[RecordView]], str]
    formulas: Callable[[Sequence[RecordView]], str]


PRESENTATIONS: dict[Kind, Presentation] = {
    CLASSIFIER: Presentation(
        axis="separation fuzziness D",
        facts=classifier.facts,
        columns=classifier.table_columns,
        crowded=10,
        parts=classifier.parts,
        notes=classifier.table_notes,
        legend=lambda view, shown, hidden: "",
        heads=classifier.HEADS,
        compared=classifier.compared,
        caption=lambda views: "D along the layers of each fit; dashed, the fitted law.",
        formulas=lambda views: definitions(classifier.FORMULAS, classifier.CITATIONS),
    ),
    LANGUAGE_MODEL: Presentation(
        axis="prediction residual PR",
        facts=language_model.facts,
        columns=language_model.table_columns,
        crowded=8,
        parts=language_model.parts,
        notes=language_model.table_notes,
        legend=language_model.legend,
        heads=language_model.HEADS,
        compared=language_model.compared,
        caption=language_model.compared_caption,
        formulas=language_model.formulas,
    ),
}


def presentation(view: RecordView) -> Presentation:
    """How this record is shown."""
    return PRESENTATIONS[view.record.kind]
