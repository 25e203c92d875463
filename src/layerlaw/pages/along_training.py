"""Records of one training run in the order of their steps: which they are, and what is said of them together.

A series is records of one kind whose settings tell a `step` (and what it counts, `step_unit`), measured at the same sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from layerlaw.measures.columns import describe
from layerlaw.pages.record_view import RecordView
from layerlaw.wording import counted, joined


class TrainingSeries(NamedTuple):
    """Records of one run in the order of their steps."""

    views: tuple[RecordView, ...]
    steps: tuple[float, ...]
    unit: str

    @property
    def blocks(self) -> int:
        """Points of the law."""
        return len(self.views[0].fit_positions)


def training_series(views: Sequence[RecordView]) -> list[TrainingSeries]:
    """The runs among the records: at least two different steps, of the same data and sites; of several texts, one each."""
    groups: dict[Any, list[RecordView]] = {}
    for view in views:
        if isinstance(view.record.settings.get("step"), (int, float)):
            sites = tuple(view.sites[p].name for p in view.fit_positions)
            data = view.record.provenance.get("data_fingerprint") or view.record.provenance.get("data_sha256")
            groups.setdefault((sites, data, view.record.settings.get("step_unit")), []).append(view)
    found = []
    for (_, _, unit), members in groups.items():
        steps = [float(view.record.settings["step"]) for view in members]
        if len(set(steps)) == len(steps) > 1 and members[0].fit_positions:
            order = sorted(range(len(steps)), key=steps.__getitem__)
            found.append(
                TrainingSeries(tuple(members[i] for i in order), tuple(steps[i] for i in order), unit or "step")
            )
    return found


def training_words(series: TrainingSeries) -> str:
    """How the last value goes from the first to the last checkpoint, and where the law holds."""
    first, last = (series.views[i] for i in (0, -1))
    text, symbol = describe(first.column).text, describe(first.column).symbol
    held = [step for view, step in zip(series.views, series.steps, strict=True) if view.holds]
    unsaid = sum(view.holds is None for view in series.views)
    law = f"the law holds at {len(held)} of {counted(len(series.views), 'checkpoint')}"
    law += f" ({series.unit} {joined([step_text(s) for s in held[:6]])}{' …' * (len(held) > 6)})" if held else ""
    law += f"; of {unsaid} it cannot be said" if unsaid else ""
    if unsaid == len(series.views):
        law = f"whether the law holds cannot be said at any of {counted(unsaid, 'checkpoint')}"
    ends = [view.series(view.column)[view.fit_positions[-1]] for view in (first, last)]
    span = f"From {series.unit} {step_text(series.steps[0])} to {step_text(series.steps[-1])}"
    if None in ends:
        return f"{span} {law}."
    return f"{span} {symbol} of the last {first.record.kind.site} goes from {text(ends[0])} to {text(ends[1])}; {law}."


def step_text(step: float) -> str:
    """1000 → 1k, 143000 → 143k, 512 → 512.

    >>> step_text(143000.0), step_text(512.0), step_text(2_500_000.0), step_text(1500.0)
    ('143k', '512', '2.5M', '1.5k')
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if step >= size and step % (size / 10) == 0:
            return f"{step / size:g}{unit}"
    return f"{step:,.10g}"
