"""A record that passed the check can be tabled, judged, drawn, printed and compared: numbers at the edge of what floats
hold, holes, and names of any kind end in a picture or in an error of ours."""

import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from lm_records import lm_record
from pages_outcomes import epoch_outcome
from pages_records import full_record, minimal_record
from rich.console import Console
from test_escaping import regression_record

from layerlaw.errors import LayerlawError
from layerlaw.outcome import Outcome
from layerlaw.pages import plot, plot_planes, print_comparison, print_record
from layerlaw.pages.html import plotly
from layerlaw.pages.html.outcomes import outcome_html
from layerlaw.pages.html.records import page_html
from layerlaw.record import Record
from layerlaw.verdict import judge

EDGES = (1e308, 5e-324, 1e-200, 1e200, 0, 1.0, None)
NAMES = ("", "$\\frac{", "\n\x1b", "%{x}", "a" * 500, "[/zz]", "é" * 40)
MAKE: dict[str, Callable[[], Record]] = {
    "classifier": lambda: thinned(full_record(separation=[9.0, 5.0, 3.0, 2.0])),
    "minimal": minimal_record,
    "language model": lambda: thinned(lm_record(blocks=5, shuffled=1)),
    "regression": lambda: thinned(regression_record()),
}


@pytest.fixture(autouse=True)
def _no_library_of_charts(monkeypatch) -> None:
    """Five megabytes of JavaScript in every page say nothing here."""
    monkeypatch.setattr(plotly.offline, "get_plotlyjs", lambda: "")


def thinned(record: Record) -> Record:
    record.plane_labels = record.plane_labels[:4]
    for site in record.sites:
        site.plane = site.plane[:4]
    return record


def near(edge: float | None) -> float | None:
    """The same as a coordinate, of which larger ones are refused."""
    return None if edge is None else min(edge, 1e150)


def uses(record: Record, drawn: bool) -> list[Callable[[], Any]]:
    console = Console(file=io.StringIO(), width=90)
    found: list[Callable[[], Any]] = [
        lambda: (str(record), repr(record), record._repr_html_(), record.to_pandas(), record.effective_depth()),
        lambda: judge(record),
        lambda: (record.law(), record.law_errors()),
        lambda: print_record(record, console),
        lambda: print_comparison([record, record], console),
        lambda: page_html([record, record]),
    ]
    return [*found, lambda: plot(record).savefig(io.BytesIO(), dpi=30), lambda: plot_planes(record)] if drawn else found


def check_uses(record: Record, drawn: bool = False) -> None:
    for use in uses(record, drawn):
        with suppress(LayerlawError):
            use()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKE)
def test_numbers_at_the_edge_in_any_column_end_in_no_foreign_error(kind: str) -> None:
    rng = random.Random(kind)
    for i, edge in enumerate(EDGES):
        data = MAKE[kind]().to_dict()
        for site in data["sites"] if i % 2 else rng.sample(data["sites"], 2):
            for name in site["values"]:
                if name.startswith(("separation", "residual", "target_separation", "nc1")) or edge in (0, 1.0, None):
                    site["values"][name] = edge
            site["left_out"] = {name: [edge] * len(values) for name, values in site["left_out"].items()}
            site["plane"] = [[near(edge), 1.0] for _ in site["plane"]]
        check_uses(Record.from_dict(data), drawn=i == 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKE)
def test_names_of_any_kind_end_in_no_foreign_error(kind: str) -> None:
    data = MAKE[kind]().to_dict()
    for i, site in enumerate(data["sites"]):
        site["name"], site["at"], site["type"] = NAMES[i % len(NAMES)], str(i), NAMES[-i % len(NAMES)]
        site["aside"] = NAMES[(i + 1) % len(NAMES)]
    data["name"], data["notes"] = NAMES[1], list(NAMES)
    data["classes"] = [NAMES[k % len(NAMES)] for k in range(len(data["classes"]))]
    check_uses(Record.from_dict(data), drawn=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "changes",
    [
        {"sites": []}, {"classes": [], "counts": [], "test_counts": [], "plane_labels": []}, {"plane_labels": []},
        {"settings": {}, "provenance": {}}, {"counts": [0] * 10, "test_counts": [0] * 10}, {"counts": [2**62] * 10},
        {"settings": {"in_front": {"x": []}, "blocks": ["", "a", "a"], "sites": "blocks"}},
        {"settings": {"sites": "layers", "blocks": ["layers"] * 9}}, {"provenance": {"text": {}, "recipe": {"seed": [1]}}},
        {"accuracy": 0, "test_accuracy": None}, {"kind": "regression"}, {"kind": "language model"},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_that_lacks_much_ends_in_no_foreign_error(changes: dict[str, Any]) -> None:
    data = MAKE["classifier"]().to_dict() | changes
    if not data["classes"]:
        for site in data["sites"]:
            site["by_class"] = {}
    check_uses(Record.from_dict(data))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("log", [True, False])
def test_an_outcome_with_numbers_at_the_edge_is_drawn(edge: float | None, log: bool) -> None:
    data = json.loads(json.dumps(epoch_outcome().to_dict()))
    panel = data["sheets"][0]["panels"][0]
    panel["log_y"] = panel["log_x"] = log
    for series in panel["series"]:
        series["x"], series["y"] = [1.0, 2.0, near(edge) or 3.0], [near(edge), -(near(edge) or 1.0), 2.0]
    data["rows"][0] |= {"ours": edge, "low": edge, "reason": "none"}
    outcome_html(Outcome.from_dict(data))
