"""The course of trainings of one's own: the pictures, the tables, the verdicts, and what bad input is answered with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw.advice import course_report
from layerlaw.advice.courses import MOST_CURVES, course_ends
from layerlaw.errors import InputError
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.verdict.conjectures import TrainingCourse, check_conjectures, training_course

EPOCHS, SITES = (1, 2, 4, 8, 16), ("a", "b", "c")
FALLING = ((0.6, 0.4, 0.2), (0.5, 0.3, 0.1), (0.4, 0.2, 0.05), (0.3, 0.1, 0.01), (0.2, 0.05, 0.0))
FITTED, TESTED = (0.5, 0.9, 0.996, 1.0, 1.0), (0.4, 0.6, 0.7, 0.8, 0.75)  # the threshold is epoch 4


def course(rows=FALLING, *, right=FITTED, tested=TESTED) -> TrainingCourse:
    mismatch, samples = {"train": rows, "test": rows}, {"train": 10_000, "test": 1_000}
    return TrainingCourse(EPOCHS, SITES, mismatch, {"train": right, "test": tested}, samples)


def lower(by: float) -> TrainingCourse:
    return course(tuple(tuple(max(0.0, value - by) for value in row) for row in FALLING))


def test_one_training_has_a_panel_per_split_with_the_terminal_phase_shaded() -> None:
    mismatch, accuracy = course_report(course()).sheets
    assert [panel.title for panel in mismatch.panels] == ["train samples", "test samples"]
    assert [series.label for series in mismatch.panels[0].series] == list(SITES)
    first = mismatch.panels[0].series[0]
    assert (first.x, first.y, first.low) == (EPOCHS, (0.6, 0.5, 0.4, 0.3, 0.2), None)
    assert all(panel.shaded == (4, 16) for panel in (*mismatch.panels, *accuracy.panels))
    (panel,) = accuracy.panels
    assert {series.label: series.y for series in panel.series} == {"train samples": FITTED, "test samples": TESTED}
    assert mismatch.caption.endswith("Shaded: the terminal phase, from 99.5% train accuracy on.")


def test_the_mismatch_has_a_log_axis_that_shows_zeros_and_small_numbers() -> None:
    rows = (*FALLING[:3], (0.3, 0.004, 0.0001), (0.2, 0.002, 0.0))
    mismatch, accuracy = course_report(course(rows)).sheets
    assert all(panel.log_y and panel.zeros for panel in mismatch.panels)
    assert not any(panel.log_y for panel in accuracy.panels)
    words = "The axis is logarithmic; zeros are drawn below all other numbers, at the mark 0."
    assert words in mismatch.caption
    figure = mismatch.plot()
    axis = figure.axes[0]
    low, high = axis.get_ylim()
    places = [math.log(v / low) / math.log(high / low) for v in (axis.get_yticks()[0], 0.0001, 0.002, 0.004)]
    assert all(b - a > 0.05 for a, b in pairwise(places))  # told apart by eye
    assert axis.get_yticklabels()[0].get_text() == "0"
    above = course_report(course(tuple(tuple(v + 0.1 for v in row) for row in FALLING))).sheets[0]
    assert words not in above.caption


def test_seeds_are_drawn_as_mean_and_range_and_shaded_where_all_are_terminal() -> None:
    late = course(right=(0.5, 0.6, 0.9, 0.996, 1.0))
    mismatch, _ = course_report([course(), replace(late, mismatch=lower(0.2).mismatch)]).sheets
    curve = mismatch.panels[0].series[0]
    assert (curve.low[0], curve.y[0], curve.high[0]) == pytest.approx((0.4, 0.5, 0.6))
    assert mismatch.panels[0].shaded == (8, 16)
    assert "Curves: the mean over the trainings, with their range." in mismatch.caption
    never = replace(late, accuracy={"train": (0.5,) * 5, "test": TESTED})
    for sheet in course_report([course(), never]).sheets:
        assert sheet.panels[0].shaded is None
        assert sheet.caption.endswith("train accuracy was measured in all trainings of a panel.")
    alone = course_report(never).sheets[0]
    assert alone.panels[0].shaded is None
    assert alone.caption.endswith("Nothing is shaded: no epoch after 99.5% train accuracy was measured.")


def test_plain_beside_svsl_has_the_verdicts_of_check_conjectures() -> None:
    plain, svsl = [course(), course()], [lower(0.1), lower(0.1)]
    report = course_report({"plain": plain, "SVSL": svsl}, plain="plain")
    assert list(report.verdicts["plain"]) == check_conjectures(plain)
    pairs = [v for v in check_conjectures(plain, svsl) if v.number > 8]
    assert list(report.verdicts["SVSL"]) == [*check_conjectures(svsl), *pairs]
    mismatch, accuracy = report.sheets
    assert [p.title for p in mismatch.panels] == ["plain, train", "plain, test", "SVSL, train", "SVSL, test"]
    assert [p.title for p in accuracy.panels] == ["train accuracy", "test accuracy"]
    assert [series.label for series in accuracy.panels[0].series] == ["plain", "SVSL"]
    assert {v.number for v in course_report({"a": plain, "b": svsl}).verdicts["b"]} == {7, 8}


def test_what_is_said() -> None:
    report = course_report({"plain": course(), "SVSL": lower(0.1)}, plain="plain")
    assert report.sentence == "10 of 11 checks of the conjectures hold, 1 is open."
    begun = "The interpolation threshold, 99.5% train accuracy, was reached at epoch 4 of 16."
    assert report.findings[0] == f"plain: {begun}"
    assert str(report).splitlines()[0] == report.sentence
    assert report.notes[0].startswith("A single training shows nothing of the noise of training itself")
    unfitted = course_report(course(right=(0.5,) * 5))
    assert unfitted.sentence == "0 of 4 checks of the conjectures hold, 4 are open."
    missed, open_ = unfitted.findings  # once, not for every conjecture and split
    assert missed == "The interpolation threshold, 99.5% train accuracy, was not reached at any measured epoch."
    assert open_.startswith("Open: conjectures 7 and 8, no epoch of the terminal phase was measured: train accuracy")
    some = course_report([course(), course(right=(0.5,) * 5)]).findings[0]
    assert some.endswith("was reached at epoch 4 of 16 in 1 training of 2.")


def test_tables_tell_every_training_every_layer_and_counter_examples() -> None:
    rise = (*FALLING[:3], (0.3, 0.4, 0.01), FALLING[4])
    every, layers, examples = course_report([course(), course(rise)][1:]).tables
    assert every.rows == (("training", 4, "70.0%", "80.0%", 8, "75.0%"),)
    assert layers.columns[1:3] == ("train, at the threshold", "train, at the end")
    assert layers.rows[0] == ("a", "40.0%", "20.0%", "40.0%", "20.0%")
    assert examples.rows[0][:5] == ("training", 7, "train", "b", 8)
    several, layers, *_ = course_report({"x": [course(), lower(0.2)], "y": course()}).tables
    assert [row[0] for row in several.rows] == ["x 1", "x 2", "y"]
    assert layers.rows[0][:4] == ("x", "a", "30.0%", "10.0%")
    assert course_ends(course()).best_epoch == 8


def test_of_many_layers_some_are_drawn_and_that_is_said() -> None:
    sites = tuple(f"encoder.layer.{i}.attention.output.dense" for i in range(24))
    rows = tuple(tuple(0.5 for _ in sites) for _ in EPOCHS)
    deep = TrainingCourse(EPOCHS, sites, {"train": rows}, {"train": FITTED}, {"train": 100})
    (panel,) = course_report(deep).sheets[0].panels
    labels = [series.label for series in panel.series]
    assert len(labels) == len(set(labels)) == MOST_CURVES
    assert ("0" in labels[0], "23" in labels[-1]) == (True, True)
    assert f"{MOST_CURVES} of 24 layers are drawn." in course_report(deep).sheets[0].caption
    assert len(course_report(deep).tables[1].rows) == 24


def test_it_is_drawn_shown_saved_and_written_as_a_page(tmp_path: Path) -> None:
    report = course_report({"plain": course(), "SVSL": lower(0.1)}, plain="plain")
    plain = json.loads(report.save(tmp_path / "course.json").read_text())
    assert plain["arms"]["SVSL"][0]["epochs"] == list(EPOCHS)
    assert plain["verdicts"]["plain"][0]["holds"] is True
    page = report.page(tmp_path / "course.html").read_text(encoding="utf-8")
    for words in (report.sentence, "Mismatch of every layer", "Accuracy over training", "SVSL, test"):
        assert words in page
    assert len(report.plot().axes) == 4
    assert len(report.plot(1).axes) == 2
    assert "at the threshold" in report._repr_html_()
    with pytest.raises(InputError, match=r"expected 0 \(the mismatch\) or 1 \(the accuracy\), got 2"):
        report.plot(2)


def test_a_monitor_and_a_sweep_are_drawn_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    y = torch.arange(60) % 3
    x = 3 * torch.randn(3, 8)[y] + torch.randn(60, 8)
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    monitor = ll.Monitor(net, (x, y), test=(x[::2], y[::2]), every=4)
    for epoch in range(13):
        monitor(epoch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    report = course_report(monitor.records)
    assert report.arms == {"training": (training_course(monitor.records),)}
    assert [series.x for series in report.sheets[1].panels[0].series] == [(0, 4, 8, 12)] * 2
    assert [s.label for s in report.sheets[0].panels[0].series] == ["site 2", "site 4"]  # the raw input is no layer
    by_epoch = {record.settings["step"]: record for record in monitor.records}
    assert course_report(by_epoch) == course_report([by_epoch]) == report
    assert course_report(monitor) == course_report([monitor]) == course_report({"training": monitor}) == report
    assert training_course(monitor) == training_course(monitor.records)
    assert course_report(monitor, threshold=0.9).arms["training"] == (training_course(monitor, threshold=0.9),)
    schedule = Schedule(epochs=(1, 3), batchnorm=("running",), collapse=True)
    recipes = Recipe(Shape(8, (12, 12), 3), epochs=3, batch_size=20).grid(seed=(0, 1))
    runs = sweep(recipes, Samples.of((x, y)), schedule=schedule, progress=False)
    assert len(course_report(runs).arms["training"]) == 2
    assert course_report({"runs": runs}).page(tmp_path / "runs.html").exists()


def test_bad_input_is_answered() -> None:
    with pytest.raises(InputError, match=r"plain: expected one of several named trainings, got 'c' of 'a', 'b'"):
        course_report({"a": course(), "b": course()}, plain="c")
    with pytest.raises(InputError, match=r"got 'plain' of one without a name"):
        course_report(course(), plain="plain")
    with pytest.raises(InputError, match="expected pairs of trainings, got 2 and 1 of them"):
        course_report({"a": [course()] * 2, "b": course()}, plain="a")
    with pytest.raises(InputError, match="expected courses with the same epochs and sites, got none"):
        course_report([])
    with pytest.raises(InputError, match=r"expected records by their epochs, \{1: record, …\}, got none"):
        course_report({})
    with pytest.raises(InputError, match=r"expected \{1: record, …\}, a Monitor or its records, or a lab\.Run"):
        course_report({"a": "b"})
    unused = ll.Monitor(nn.Sequential(nn.Linear(2, 2)), (torch.zeros(2, 2), torch.tensor([0, 1])))
    for wrong, came in ((3, "int"), (unused, "Monitor with none or others")):
        with pytest.raises(InputError, match=f"or its measurements, got {came}"):
            course_report(wrong)
    for wrong in (98, -1, "a"):
        with pytest.raises(InputError, match="threshold: expected a share above 0 and at most 1"):
            course_report(course(), threshold=wrong)
    assert course_report(course(), threshold=0.9) == course_report(course())  # a course has its own
    one = replace(course(), mismatch={"train": FALLING})
    with pytest.raises(InputError, match="got the splits train, test and train"):
        course_report([course(), one])
