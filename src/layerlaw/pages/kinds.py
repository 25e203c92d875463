"""How each kind of record is shown: by a module of its own, so that no other file asks what it shows.

Such a module says what the law is on (`AXIS`), gives facts below the title, the columns of the
table of sites (closer together if more than `CROWDED`), what each site contributes (`parts`), notes below the table and a
legend of its heads, the key numbers of the law, the columns (`COMPARED`) and caption of a comparison, and definitions with
their sources (`formulas`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType

from layerlaw.pages import classifier, language_model, regression
from layerlaw.pages.record_view import Parts, RecordView, TableColumn
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, REGRESSION, Kind
from layerlaw.wording import ABSENT


def presentation(view: RecordView) -> ModuleType:
    """How this record is shown."""
    kinds: dict[Kind, ModuleType] = {
        CLASSIFIER: classifier,
        LANGUAGE_MODEL: language_model,
        REGRESSION: regression,
    }
    return kinds[view.record.kind]


def filled(
    view: RecordView, columns: Iterable[TableColumn], parts: Parts, bars: Sequence[str]
) -> dict[TableColumn, list[str]]:
    """The cells of the table of sites, `bars` in the column of the parts; columns that are empty are left out."""
    cells = {c: [bars[i] if c.head == parts.head else c.cell(s) for i, s in enumerate(view.sites)] for c in columns}
    return {column: texts for column, texts in cells.items() if any(text != ABSENT for text in texts)}
