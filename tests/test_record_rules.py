"""What the file of a record may hold: one change to a whole record at a time, each with its answer."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from layerlaw.errors import DataError
from layerlaw.measures.columns import Column, registered
from layerlaw.record import KINDS, Record, SiteRow
from layerlaw.record_rules import PART_KINDS, check_totals
from layerlaw.verdict.parts import PLURALS

ROOT = Path(__file__).resolve().parents[1]


def whole() -> dict[str, Any]:
    """A record of two classes and three sites, every field filled."""
    sites = [
        SiteRow(
            f"fc{i}", "Linear", (4,), 4, True, "output", {"separation": 4.0 / 2**i, "ncc_accuracy": 0.9, "rank": 1.0,
            "full_rank": 1.0, "separation_log_se": 0.1}, {"separation": [1.0, None]}, [[0.0, 1.0], [None, 2.0]],
            {"separation": [1.0, 2.0]},
        )
        for i in range(3)
    ]  # fmt: skip
    settings = {"data_name": "toy", "blocks": ["fc"], "in_front": {"fc1": ["fc0"]}, "tokens": 5}
    provenance = {"text": {"name": "a", "sha256": None}, "parameters_sha256": "0", "recipe": {"seed": 1}}
    record = Record(
        "toy", sites, ["a", "b"], counts=[3, 4], test_counts=[1, 1], accuracy=1.0, test_accuracy=0.5, r_squared=-3.0,
        plane_labels=[0, 1], settings=settings, provenance=provenance, notes=["n"],
        collapse_view={
            "classes": [0, 1, 1], "labels": [0, 2], "features": [[0.0, 1.0, 2.0]] * 2, "means": [[0.0, 1.0, 0.0]] * 3,
            "rows": [],
        },
    )  # fmt: skip
    part = {
        "layer": "fc0",
        "kind": "map",
        "module": "fc0",
        "type": "Linear",
        "before": {},
        "values": {},
        "branch": False,
    }
    return json.loads(json.dumps(record.to_dict() | {"parts": [part]}))


WRONG: list[tuple[str, Any, str]] = [
    ("collapse_view.classes", [0, 1], "expected a list of 3"),
    ("collapse_view.classes", [0, 1, 2], "expected numbers below 2, the number of classes"),
    ("collapse_view.labels", [0, 3], "expected a whole number from 0 to 2, got 3"),
    ("collapse_view.labels", [0], "expected a label for each of the 2 features"),
    ("collapse_view.features", [[0.0, 1.0]], "expected a list of 3"),
    ("collapse_view.means", [], "expected a list of 3"),
    ("collapse_view.rows", [[0.0, 1.0, 2.0]], "expected a row for each of the three classes, or none"),
    ("collapse_view", {"classes": [0, 1, 1]}, "expected this field, which is missing"),
    ("collapse_view", [], "expected an object"),
    ("sites.0.values.separation", "2.28", "expected a number, got '2.28'"),
    ("sites.0.values.separation", True, "expected a number, got true"),
    ("sites.0.values.separation", -2.0, "expected a number of at least 0, got -2.0"),
    ("sites.0.values.separation", 10**400, "expected a finite number"),
    ("sites.0.values.separation", [1.0], "expected a number, got a list of 1"),
    ("sites.0.values.ncc_accuracy", 17.5, "expected a number from 0 to 1, got 17.5"),
    ("sites.0.values.test_ncc_mismatch", -0.2, "expected a number from 0 to 1"),
    ("sites.0.values.separation_log_se", -0.1, "expected a number of at least 0"),
    ("sites.0.values.rank", -1, "expected a number from 0 to 9"),
    ("sites.0.values.rank", 1e30, "expected a number from 0 to 9"),
    ("sites.0.values.full_rank", 2, "expected a number from 0 to 1"),
    ("sites.0.values.residual_<b>", 1.0, "expected names of at most 100 letters, digits and underscores"),
    ("sites.0.values." + "test_" * 400, 1.0, "expected names of at most 100 letters"),
    ("sites.0.values", [1], "expected an object, got a list of 1"),
    ("sites.0.in_fit", "false", "expected true or false, got 'false'"),
    ("sites.0.in_fit", 1, "expected true or false, got 1"),
    ("sites.0.branch", None, "expected true or false, got null"),
    ("sites.0.name", 5, "expected text, got 5"),
    ("sites.0.shape", 4, "expected a list, got 4"),
    ("sites.0.shape", [-4], "expected a whole number of at least 0, got -4"),
    ("sites.0.shape", [4.0], "expected a whole number"),
    ("sites.0.features", "4", "expected a whole number of at least 0, got '4'"),
    ("sites.0.by_class.separation", [1.0], "a number for each of the 2 classes, got a list of 1"),
    ("sites.0.by_class.ncc_accuracy", [0.5, 3.0], r"ncc_accuracy\[1\]: expected a number from 0 to 1"),
    ("sites.0.left_out.separation", [1.0, 2.0, 3.0], r"sites\[1\].left_out.separation: expected 3 numbers"),
    ("sites.0.plane", [[0.0, 1.0]] * 3, "at most a point for each of the 2 plane_labels, got a list of 3"),
    ("sites.0.plane", [[0.0, 1.0, 2.0], [0.0, 1.0]], "expected a list of 2 entries, got a list of 3"),
    ("sites.1.name", "fc0", "expected every site once, got 'fc0'"),
    ("sites", {}, "sites: expected a list"),
    ("classes", ["a", 3], r"classes\[1\]: expected text, got 3"),
    ("counts", [3, -5], r"counts\[1\]: expected a whole number of at least 0, got -5"),
    ("counts", [3], "a count for each of the 2 classes"),
    ("test_counts", [1, 1, 1], "a count for each of the 2 classes"),
    ("accuracy", 17.5, "accuracy: expected a number from 0 to 1, got 17.5"),
    ("test_accuracy", "0.5", "test_accuracy: expected a number"),
    ("r_squared", 1.5, "r_squared: expected a number of at most 1"),
    ("plane_labels", [0, 7], "labels below 2, the number of names for them, got 7"),
    ("plane_labels", [0, 2**40], "labels below 2"),
    ("plane_labels", [0, -1], "expected a whole number of at least 0, got -1"),
    ("notes", "one", "notes: expected a list"),
    ("notes", [None], r"notes\[0\]: expected text, got null"),
    ("kind", "poem", "expected a record of a classifier"),
    ("kind", ["classifier"], "kind: expected text"),
    ("settings", [], "settings: expected an object"),
    ("settings.in_front", {"fc1": "fc0"}, "settings.in_front.fc1: expected a list"),
    ("settings.blocks", [1], r"expected text, got a list of 1"),
    ("settings.data_name", {"a": 1}, "settings.data_name: expected text"),
    ("settings.tokens", 5.5, "settings.tokens: expected a whole number"),
    ("settings.mode", [], "settings.mode: expected text, got a list of 0"),
    ("settings.batchnorm", {}, "settings.batchnorm: expected text, got an object of 0"),
    ("settings.normalise", [1], "settings.normalise: expected text, got a list of 1"),
    ("settings.normalize", 3, "settings.normalize: expected text, got 3"),
    ("notes", ["x"] * 1001, "notes: expected a list of 0 to 1,000 entries, got a list of 1001"),
    ("notes.0", "x" * 10_001, r"notes\[0\]: expected text of at most 10,000 characters, got 10,001"),
    ("sites.0.name", "x" * 1001, r"sites\[0\].name: expected text of at most 1,000 characters"),
    ("classes.0", "x" * 1001, r"classes\[0\]: expected text of at most 1,000 characters"),
    ("settings.data_name", "x" * 10_001, "settings.data_name: expected text of at most 10,000 characters"),
    ("sites.0.left_out.separation", [1.0] * 1001, "left_out.separation: expected a list of 0 to 1,000 entries"),
    ("sites.0.plane", [[0.0, 1.0]] * 5001, "plane: expected a list of 0 to 5,000 entries"),
    ("plane_labels", [0] * 5001, "plane_labels: expected a list of 0 to 5,000 entries"),
    ("sites", [{}] * 5001, "sites: expected a list of 0 to 5,000 entries"),
    ("provenance.text", "a", "provenance.text: expected an object"),
    ("provenance.parameters_sha256", [1], "parameters_sha256: expected text"),
    ("parts.0.kind", "poem", r"parts\[0\].kind: expected one of 'map'"),
    ("parts.0.values", {"separation": "1"}, "expected a number"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG, ids=[f"{p[:40]}={v!r:.20}" for p, v, _ in WRONG])
def test_a_wrong_field_is_answered_with_its_place(place: str, value: Any, message: str) -> None:
    data = whole()
    inner: Any = data
    *way, last = place.split(".")
    for step in way:
        inner = inner[int(step) if isinstance(inner, list) else step]
    inner[int(last) if isinstance(inner, list) else last] = value
    with pytest.raises(DataError, match=message) as caught:
        Record.from_dict(data, where="r.json")
    assert str(caught.value).startswith("r.json: ")


def test_the_whole_record_itself_is_read() -> None:
    assert Record.from_dict(copy.deepcopy(whole())).to_dict()["sites"][0]["values"]["separation"] == 4.0


def test_rounding_may_pass_the_ends_of_a_share_by_a_little() -> None:
    data = whole() | {"accuracy": 1.0 + 1e-12}
    assert Record.from_dict(data).accuracy == 1.0 + 1e-12


def test_a_measure_of_the_user_is_read_back_by_its_plain_name(tmp_path: Path) -> None:
    record = Record.from_dict(whole())
    for site in record.sites:
        site.values["my_share"], site.values["my_number_2"] = -3.0, 1e200
    path = record.save(tmp_path / "r.json")
    assert Record.load(path).column("my_share") == [-3.0] * 3
    with (
        registered(Column("my_share", format="percent")),
        pytest.raises(DataError, match="expected a number from 0 to 1"),
    ):
        Record.load(path)
    assert Record.load(path).column("my_share") == [-3.0] * 3


def test_kinds_of_parts_and_records_are_those_that_are_known() -> None:
    assert tuple(PLURALS) == PART_KINDS
    for kind in KINDS:
        Record.from_dict(whole() | {"kind": kind})


def test_every_recorded_figure_is_read() -> None:
    from layerlaw.outcome import Outcome

    for path in sorted((ROOT / "docs" / "reproduction").glob("*.json"))[::4]:
        assert Outcome.load(path).rows


def test_settings_of_the_first_version_that_are_no_text_are_named() -> None:
    with pytest.raises(DataError, match=r"settings\.mode: expected text, got a list of 0"):
        Record.from_dict(whole() | {"version": 1, "settings": {"mode": []}})


def test_what_all_sites_hold_together_is_limited() -> None:
    data = whole() | {"plane_labels": []}
    points: list[Any] = [[0.0, 1.0]] * 5000
    data["sites"] = [{**data["sites"][0], "name": str(i), "plane": points} for i in range(201)]
    with pytest.raises(DataError, match=r"sites\.plane: expected at most 1,000,000 entries of all sites together"):
        check_totals(data["sites"])
