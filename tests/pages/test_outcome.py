"""Outcomes: plain data that survive a file, refuse nonsense, and are written the same everywhere."""

import io
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from pages_outcomes import bare_outcome, epoch_outcome, law_outcome, nasty_outcome
from pages_records import NASTY, minimal_record
from rich.console import Console

from layerlaw.errors import DataError, InputError
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import print_outcome
from layerlaw.pages.outcome_words import duration, figure_label, provenance_items, written, written_row
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet

ALL = [law_outcome, epoch_outcome, nasty_outcome, bare_outcome]


def printed(outcome, width=80, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    print_outcome(outcome, console)
    return console.file.getvalue()


# The file


@pytest.mark.parametrize("make", ALL)
def test_a_file_gives_back_exactly_what_was_saved(make, tmp_path):
    outcome = make()
    path = outcome.save(tmp_path / "fig1.json")
    again = Outcome.load(path)
    assert again == outcome
    assert hash(again.rows) == hash(outcome.rows)  # tuples, not lists
    assert again.to_dict() == outcome.to_dict()
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_says_what_it_is_and_holds_no_nan(tmp_path):
    series = Series([0, 1, 2], [1.0, math.nan, math.inf], low=[math.nan] * 3)
    rows = [Row("a", math.nan, math.inf), Row("b", 1, 2.0, -math.inf, math.nan)]
    table = Table("t", ["a", "b"], [[math.nan, math.inf]])
    outcome = Outcome("fig1", "x", rows, [Sheet("", [Panel("", [series])])], [table], provenance={"wall_s": math.nan})
    data = json.loads(outcome.save(tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert data["format"] == "layerlaw outcome"
    assert data["version"] == 1
    assert data["sheets"][0]["panels"][0]["series"][0]["y"] == [1.0, None, None]
    assert data["tables"][0]["rows"] == [[None, None]]
    assert data["provenance"] == {"wall_s": None}
    assert Outcome.load(tmp_path / "a.json") == outcome
    outcome.provenance["late"] = (math.inf,)
    assert Outcome.load(outcome.save(tmp_path / "a.json")).provenance["late"] == [None]


def test_numbers_of_numpy_become_plain(tmp_path):
    series = Series(np.arange(3), np.float32([1, 2, 3]), low=np.zeros(3), style="line")
    plane = PlanePanel("p", np.ones((2, 2)), np.array([0, 1]))
    row = Row("r", np.float64(-1), np.float32(0.5), reproduced=np.bool_(True))
    table = Table("t", ("a", "b"), ((np.int64(3), np.float32(0.5)),))
    more = {"seeds": (np.int64(1), 2), "at": np.array([1, 2]), "n": np.int64(7)}
    outcome = Outcome("fig1", "x", (row,), (Sheet("", (Panel("", (series,)), plane)),), (table,), (), more)
    assert Outcome.load(outcome.save(tmp_path / "a.json")) == outcome
    assert outcome.provenance == {"seeds": [1, 2], "at": [1, 2], "n": 7}
    assert outcome.tables[0].rows == ((3, 0.5),)
    assert type(outcome.tables[0].rows[0][0]) is int
    assert outcome.reproduced == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "ends or breaks early"),
        ("[1]", "expected a layerlaw outcome, got other JSON"),
        (json.dumps(minimal_record().to_dict()), "expected a layerlaw outcome, got other JSON"),
        ('{"format": "layerlaw outcome", "version": 2}', "written by a newer layerlaw"),
        ('{"format": "layerlaw outcome", "version": 1, "name": "a"}', "missing or wrong: title: expected this field"),
        (
            '{"format": "layerlaw outcome", "version": 1, "name": "a", "title": "", "rows": ["x"], "sheets": []}',
            "missing or wrong",
        ),
    ],
)
def test_a_file_that_is_no_outcome_is_answered(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        Outcome.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_answered(tmp_path):
    with pytest.raises(DataError, match="found nothing there"):
        Outcome.load(tmp_path / "nothing.json")


def test_unknown_fields_are_ignored(tmp_path):
    data = law_outcome().to_dict()
    data["later"] = data["rows"][0]["later"] = data["sheets"][0]["panels"][0]["later"] = 1
    assert Outcome.from_dict(json.loads(json.dumps(data))) == law_outcome()


# What is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Row("r, Adam", -0.997, None), "row 'r, Adam': expected a number or a reason"),
        (lambda: Series((0, 1), (1.0,), "a"), r"series 'a': expected as many y as x \(2\), got 1"),
        (lambda: Series((0, 1), (1.0, 2.0), high=(1.0,)), "as many high as x"),
        (lambda: Series((0, math.nan), (1.0, 2.0)), "expected finite x"),
        (lambda: Series((), (), style="dots"), "expected a style of .*'faint'.* got 'dots'"),
        (lambda: PlanePanel("p", ((0, 1),), ()), "expected a label per point, got 0 for 1"),
        (lambda: Sheet("s", (), columns=0), "at least 1 column, got 0"),
        (lambda: Table("t", ("a", "b"), (("x", 1), ("y",))), "table 't', row 1: expected 2 cells, got 1"),
        (lambda: Outcome("a", "b", (), (), notes="one"), "expected a list of notes, got one string"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_number_that_is_nan_loses_no_run():
    row = Row("r", -0.997, math.nan, reproduced=False)
    assert row.ours is None
    assert row.reason == "the number is not finite"


def test_points_that_are_not_finite_are_dropped_with_their_labels():
    plane = PlanePanel("p", ((0, 1), (math.nan, 1), (2, 3)), (5, 6, 7))
    assert plane.points == ((0, 1), (2, 3))
    assert plane.labels == (5, 7)


def test_only_rows_with_a_verdict_are_counted():
    assert law_outcome().reproduced == (2, 4)
    assert law_outcome().reproduced.judged == 4
    assert bare_outcome().reproduced == (0, 0)


# How it is written


def test_mean_and_range_have_the_digits_of_their_kind_and_of_the_paper():
    rows = [written_row(row) for row in law_outcome().rows]
    assert (rows[0].paper, rows[0].ours, rows[0].range) == ("−0.997", "−0.9981", "[−0.9987, −0.9972]")
    assert (rows[1].paper, rows[1].ours, rows[1].range) == ("≈ 0.53", "0.527", "[0.525, 0.530]")
    assert (rows[2].ours, rows[2].range, rows[2].mark) == ("–", "", "✗")
    assert rows[3].ours_and_range == "0.612 [0.600, 0.630]"
    assert (rows[4].paper, rows[4].ours, rows[4].mark) == ("–", "0.00026", "–")
    assert written_row(Row("accuracy", 99.875, 99.9)).ours == "99.900"  # the paper gives three decimals
    assert written_row(Row("layers", 6.7, 7.0, 6, 8)).ours_and_range == "7.0 [6.0, 8.0]"


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (-0.00001, "r", "0.0000"),
        (0.0, "D", "0"),
        (3.2e-7, "D", "3.20·10⁻⁷"),
        (123456.7, "steps", "123,457"),
        (50000, "samples", "50,000"),
        (666, "seed", "666"),
        (0.0001, "lr", "0.0001"),
        (3e-5, "learning rate", "3·10⁻⁵"),
        (0.03, "lr", "0.03"),
        (True, "ok", "yes"),
        (None, "D", "–"),
        (math.nan, "r", "–"),
        (12.3456, "r of something larger", "12.3"),
        ("lr = -0.5", "", "lr = −0.5"),
    ],
)
def test_numbers_of_tables(value, name, text):
    assert written(value, name) == text


def test_names_of_figures():
    assert [figure_label(n) for n in ("fig1", "Fig2", "figure_10", "s4", "S12", "fig-s3", "batchnorm", "", "4")] == [
        "Fig. 1", "Fig. 2", "Fig. 10", "Fig. S4", "Fig. S12", "Fig. S3", "Batchnorm", "", "Fig. 4",
    ]  # fmt: skip


def test_wall_times_carry_over():
    assert [duration(s) for s in (0.04, 59.6, 60, 3599.7, 86400)] == [
        "0.0 s", "1 min 00 s", "1 min 00 s", "1 h 00 min", "24 h 00 min",
    ]  # fmt: skip


def test_provenance_is_told_in_order_and_in_words():
    items = provenance_items(law_outcome())
    assert [what for what, _ in items] == [
        "command", "device", "wall time", "seeds", "epochs", "layerlaw", "torch", "data",
    ]  # fmt: skip
    assert dict(items)["wall time"] == "21 min 24 s"
    assert dict(items)["seeds"] == "666, 1, 2"
    assert dict(items)["data"] == "fashion: 9f2c9f2c9f2c…"


# The terminal


def test_every_row_stands_beside_the_papers_at_eighty_columns():
    lines = [line.split() for line in printed(law_outcome()).splitlines()]
    assert ["what", "paper", "ours", "range", "reproduced?"] in lines
    assert ["Adam,", "8", "layers:", "Pearson", "r", "−0.997", "−0.9981", "[−0.9987,", "−0.9972]", "✓"] in lines
    assert ["SGD,", "20", "layers:", "ρ", "0.85", "–", "✗"] in lines
    assert ["Greenwood", "p", "(a", "control)", "–", "0.00026", "[<", "0.0001,", "0.00046]", "–"] in lines
    text = printed(law_outcome())
    assert "1 of 3 numbers and 1 of 1 direction reproduced" in text
    assert text.index("diverged in epoch 12") < text.index("Batch statistics") < text.index("$ layerlaw reproduce fig1")
    assert "r = −0.985" in text
    assert "NVIDIA H200 · wall time 21 min 24 s · seeds 666, 1, 2 · epochs 600" in text
    assert "quick" not in text


def test_a_quick_run_is_called_one():
    assert "This is a quick run" in printed(law_outcome(quick=True))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("make", ALL)
def test_nothing_is_wider_than_the_console_and_no_verdict_is_lost(make, width):
    text = printed(make(), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for row in make().rows:
        assert written_row(row).mark in text


def test_names_fold_between_their_parts_and_reasons_take_the_whole_width():
    name = "frozen-minus-standard/pearson-eval-at-3e-4-standard-error"
    reason = "lr 0.003, seed 666: D is not defined at layer 7: the class means coincide"
    row = Row(name, -0.5, None, reproduced=False, tolerance="mean > 0 by more than two standard errors", reason=reason)
    lines = printed(Outcome("fig1", "x", (row, Row("r", 0.5, 0.49, 0.48, 0.5, True)), ()), 80).splitlines()
    assert f"  {reason}" in lines
    assert "  accepted: mean > 0 by more than two standard errors" in lines
    first = next(i for i, line in enumerate(lines) if line.startswith("frozen"))
    parts = [
        line.split()[0] for line in lines[first : lines.index("  accepted: mean > 0 by more than two standard errors")]
    ]
    assert "".join(parts) == name
    assert all(part.endswith(("/", "-")) for part in parts[:-1])
    assert not any(part.endswith("3e-") for part in parts)


def test_small_ends_of_a_range_are_not_written_as_nothing():
    rate = Row("adam-4/learning-rate-best-of-grid", 0.003, 0.001, 3e-5, 0.003)
    assert written_row(rate).ours_and_range == "0.001 [3·10⁻⁵, 0.003]"
    assert written_row(Row("a/learning-rate", 0.0001, 0.0003, 0.0001, 0.0003)).ours == "0.0003"
    assert written_row(Row("share", None, 0.5, 0.003, 0.9)).ours_and_range == "0.500 [0.003, 0.900]"
    assert written_row(Row("share", None, 0.5, 2e-9, 0.9)).range.startswith("[2.00·10⁻⁹,")
    assert written_row(Row("sgd-9-lr-0.01/pearson", None, -0.5)).ours == "−0.5000"


def test_one_seed_has_no_range_and_a_correlation_three_decimals():
    assert written_row(Row("D", 0.4, 0.408, 0.408, 0.408)).range == ""
    assert written_row(Row("D", 0.4, 0.408, 0.408, 0.409)).range == "[0.408, 0.409]"
    assert written_row(Row("sgd-4/pearson", -1.0, -0.99)).paper == "−1.000"
    assert written_row(Row("accuracy", 1.0, 0.99)).paper == "1"


def test_a_quick_run_is_not_judged():
    rows = [replace(row, reproduced=None) for row in law_outcome().rows]
    text = printed(replace(law_outcome(quick=True), rows=rows))
    assert "quick run: numbers shown, not judged" in text
    assert "reproduced" not in text.partition("$ layerlaw")[0]
    assert "not judged" not in printed(replace(law_outcome(), rows=rows))


def test_long_names_are_folded_not_cropped():
    name = "effective layers of the network trained with the smallest learning rate of the whole grid"
    text = printed(Outcome("fig1", "x", (Row(name, 6.7, 6.71),), ()), 80)
    words = [word for line in text.splitlines()[4:] for word in line.split()]
    assert "…" not in text
    assert [word for word in words if word in name.split()] == name.split()


def test_what_was_accepted_has_a_column_where_there_is_room():
    assert "accepted" in printed(law_outcome(), 120).splitlines()[3]
    assert "accepted: ± 0.01" in printed(law_outcome(), 80)  # only where it was missed
    assert "accepted: ± 0.005" not in printed(law_outcome(), 80)


def test_text_is_neither_markup_nor_escape_codes():
    text = printed(nasty_outcome(), 200)
    assert NASTY in text
    assert "[bold]" in text
    assert "\x1b" not in text


def test_importing_pages_brings_no_ink():
    code = (
        "import sys, layerlaw.pages as p; p.ledger_index, p.outcome_page, p.draw_sheet;"
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'plotly', 'rich', 'PIL')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functions_are_not_hidden_by_modules_of_their_name():
    import layerlaw.pages as pages
    from layerlaw.pages.html.outcomes import outcome_page

    assert pages.outcome_page is outcome_page
    assert pages.__all__ == sorted(pages.__all__)


def test_many_numbers_of_ours_are_left_to_the_page():
    claim, ours = Row("r", -0.99, -0.98, reproduced=True), [Row(f"step {i}", None, float(i)) for i in range(30)]
    text = printed(Outcome("fig1", "x", [claim, *ours], ()))
    assert "✓" in text
    assert "… 30 more numbers of ours: in the page and in the record" in text
    assert "step 7" not in text
    assert "step 7" in printed(Outcome("fig1", "x", [claim, *ours[:20]], ()))
    table = Table("laws", ("network", "r", "largest step", "a long head"), (("two blocks", -0.9, 1.5, 1.0),))
    result = Outcome("fig1", "x", ours, (), (table,))  # then the first table is the result
    lines = [line.rstrip() for line in printed(result, 30).splitlines()]
    at = lines.index("laws")
    assert [lines[at + 2], *lines[at + 4 : at + 6]] == [
        "network           r     step", "two blocks  −0.9000      1.5", "1 more column: in the page",
    ]  # fmt: skip
    assert "\n30 numbers of ours: in the page and in the record" in printed(result)
    assert "step 7" in printed(Outcome("fig1", "x", ours, ()))  # there is nothing else to show
