"""The movie of training: what it is made of, that nothing jumps, that it stays small, and what it refuses."""

import base64
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from lm_records import lm_record
from movie_records import training_run, view_of, wild_run
from pages_records import NASTIER, full_record, minimal_record
from test_escaping import check_page, poisoned_record

from layerlaw.errors import InputError
from layerlaw.pages import movie
from layerlaw.pages.html.frames import LARGEST, MISSING, coordinates, frames, quantized, rotation, turn_back
from layerlaw.pages.html.movies import movie_html, run_of
from layerlaw.record import Record
from layerlaw.wording import beginning


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="movie">(.*?)</script>', page, flags=re.S)[1])


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<i2")


def test_fifty_epochs_of_twenty_sites_take_less_than_six_megabytes(tmp_path: Path) -> None:
    records = training_run(50, 20)
    assert len(records[0].plane_labels) == 500
    page = movie(records, tmp_path / "movie.html")
    assert page.stat().st_size < 4_000_000
    data = data_of(page.read_text(encoding="utf-8"))
    assert len(data["steps"]) == 50
    assert numbers(data["planes"]["data"]).size == 50 * 20 * 500 * 2


def test_of_a_long_run_fewer_samples_are_drawn(tmp_path: Path) -> None:
    views = run_of(training_run(30, 24))
    long = type(views)(views.views * 12, views.steps * 12, views.unit)
    counts = frames(long)["planes"]["counts"]
    assert len(counts) == 24
    assert sum(counts) * 360 * 5.4 < 5e6


def test_records_are_played_in_the_order_of_their_steps() -> None:
    data = data_of(movie_html(training_run()[::-1]))
    assert data["steps"] == ["0", "10", "20", "30", "40", "50"]
    finals = [row[-1] for row in data["curve"]["values"]]
    assert finals == sorted(finals, reverse=True)


def test_the_axis_of_shares_shows_the_last_step_and_its_end_is_sane() -> None:
    wild, tame = wild_run(), training_run(10)
    shares = data_of(page := movie_html(wild))["shares"]
    assert max(shares["values"][-1][1:]) > 2.5  # one layer's fall is undone by others
    assert (shares["axis"]["low"], shares["axis"]["high"]) == (-1.0, pytest.approx(2.08))
    assert shares["cut"]
    assert "A triangle: the bar goes on beyond the axis" in page
    tame[0] = wild[0]  # one wild step at the start does not press the others flat
    tame[0].settings["step"] = 0
    shares = data_of(movie_html(tame))["shares"]
    assert shares["axis"]["high"] < 0.6
    assert shares["cut"]


def test_the_numbers_of_every_step_are_those_of_its_law() -> None:
    records = training_run()
    data = data_of(movie_html(records))
    for record, law in zip(records, data["laws"], strict=True):
        fit = record.law()
        assert law["holds"] == fit.holds
        assert float(law["numbers"][3]) == pytest.approx(fit.rho, rel=1e-2)
        assert law["asked"][0] == (fit.evenness >= 0.8)
        assert law["line"][1] == pytest.approx(fit.line[0], rel=1e-4)
    shares = [v for v in data["shares"]["values"][-1] if v is not None]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    mismatch = [site.values["ncc_mismatch"] for site in records[2].sites]
    assert data["mismatch"]["values"][2] == pytest.approx(mismatch, rel=1e-4)


def test_planes_that_were_turned_and_mirrored_at_random_do_not_jump() -> None:
    """What a principal plane may do from epoch to epoch: the same points, turned by any angle, mirrored or not."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 2)) * [3.0, 1.0]
    stack = []
    for t in range(8):
        a = rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) @ np.diag([1, rng.choice([-1, 1])])
        stack.append((points + 0.02 * t) @ turn)
    before = max(np.abs(a - b).max() for a, b in pairwise(stack))
    turned = turn_back(stack, [[0] * 60] * 8, [True] * 7, None)
    after = max(np.abs(a - b).max() for a, b in pairwise(turned))
    assert before > 2
    assert after < 0.1
    assert np.allclose(turned[-1], stack[-1])


def test_where_samples_differ_class_means_are_aligned() -> None:
    rng = np.random.default_rng(1)
    centers = np.array([[4.0, 0.0], [0.0, 2.0], [-4.0, -1.0]])
    labels = [sorted(rng.integers(0, 3, 90).tolist()) for _ in range(2)]
    a, b = (centers[k] + rng.normal(0, 0.1, (90, 2)) for k in labels)
    turned, kept = turn_back([a @ np.array([[0.0, 1.0], [-1.0, 0.0]]), b], labels, [False], None)
    assert np.allclose(kept, b)
    assert np.abs(turned - a).max() < 0.3


def test_a_plane_without_points_turns_nothing() -> None:
    empty = coordinates([], 4)
    assert np.array_equal(rotation(empty, empty), np.eye(2))
    assert (quantized(empty, 1.0) == MISSING).all()
    assert quantized(np.array([[1.0, -9.0]]), 1.0).tolist() == [[LARGEST, -LARGEST]]
    assert np.isnan(coordinates([[1.0, None], [2.0, 3.0]], 3)).tolist() == [[False, True], [False, False], [True, True]]


def test_the_third_direction_keeps_its_sign() -> None:
    records = training_run(4)
    for t, record in enumerate(records):
        record.collapse_view = view_of(0.5)
        sign = (-1) ** t
        points = record.collapse_view["features"]
        record.collapse_view["features"] = [[x, y, sign * z] for x, y, z in points]
    view = data_of(movie_html(records))["view"]
    frames_ = numbers(view["data"]).reshape(4, -1, 3)
    assert view["names"] == [beginning(name, 24) for name in records[0].classes[:3]]
    assert (frames_[0] == frames_[1]).all()
    assert (frames_[0] == frames_[3]).all()


def test_a_step_without_the_view_of_three_classes_is_a_hole() -> None:
    records = training_run(3)
    records[1].collapse_view = {}
    view = data_of(movie_html(records))["view"]
    held = (numbers(view["data"]).reshape(3, -1) != MISSING).any(1)
    assert held.tolist() == [True, False, True]
    for record in records:
        record.collapse_view = {}
    page = movie_html(records)
    assert data_of(page)["view"] is None
    assert 'id="collapse"' not in page


def test_test_data_are_drawn_where_every_step_has_them() -> None:
    records = training_run(3)
    assert data_of(movie_html(records))["curve"]["test"] is not None
    for site in records[0].sites:
        site.values = {name: v for name, v in site.values.items() if not name.startswith("test_")}
    records[0].test_accuracy = None
    page = movie_html(records)
    assert data_of(page)["curve"]["test"] is None
    assert data_of(page)["mismatch"]["test"] is None
    assert "Orange" not in page
    assert "test-accuracy" not in page.split("<script>")[0]


def test_any_kind_of_record_makes_a_movie() -> None:
    texts = [lm_record(f"m step{t}", blocks=5) for t in (0, 1000)]
    for t, record in zip((0, 1000), texts, strict=True):
        record.settings |= {"step": t}
    data = data_of(movie_html(texts))
    assert data["steps"] == ["0", "1k"]
    assert data["unit"] == "step"
    assert data["mismatch"] is None
    alone = minimal_record()
    alone.settings["step"] = 3
    assert data_of(movie_html(alone))["steps"] == ["3"]


def test_no_text_of_a_record_becomes_markup() -> None:
    records = []
    for kind in ("classifier", "regression"):
        one = poisoned_record(kind, keys=True)[0]
        one.settings = {"step": 1, "step_unit": NASTIER}
        other = Record.from_dict({**one.to_dict(), "settings": {"step": 2, "step_unit": NASTIER}})
        records.append([one, other])
    for run in records:
        page = movie_html(run, title=NASTIER)
        check_page(page)
        shown = re.search(r'id="movie">(.*?)</script>', page, flags=re.S)[1]
        assert "<" not in shown
        assert "\x1b" not in page


def test_the_page_needs_no_plotly_and_asks_for_nothing() -> None:
    page = movie_html(training_run(2))
    assert "Plotly" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 1


def changed(**settings: object) -> list[Record]:
    records = training_run(2)
    records[1].settings |= settings
    return records


def other_sites() -> list[Record]:
    records = training_run(2)
    records[1].sites[2].name = "head"
    return records


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "movie: expected at least one record, got an empty list"),
        ([full_record("plain")], "expected the training step of each record, 'plain' tells none. Set record.settings"),
        (changed(step="ten"), "expected the training step of each record, 'epoch 10' tells none"),
        (changed(step=float("nan")), "expected the training step of each record"),
        (changed(step=0), "expected one record of each step, got two of step 0: 'epoch 0' and 'epoch 10'"),
        (changed(step_unit="step"), "whose steps count the same, got epoch and step in 'epoch 0' and 'epoch 10'"),
        (other_sites(), "expected records of the same sites, got 'layers.2.relu' and 'head' in 'epoch 0' and"),
    ],
)
def test_records_that_are_no_run_are_refused(records: list[Record], words: str) -> None:
    with pytest.raises(InputError) as caught:
        movie_html(records)
    assert words in str(caught.value)
