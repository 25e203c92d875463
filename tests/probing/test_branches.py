"""Rows of side branches: measured, kept, drawn apart, and no points of a law unless asked."""

from pathlib import Path

import pytest
import torch
from capture_networks import FNN, InPlaceResNet, clouds, seeded

import layerlaw as ll
from layerlaw.law import fit_law
from layerlaw.record import Record, SiteRow

X, Y = clouds(90, 3, 8, 8)
TRUNK = ["conv1", *(f"layer{i}.{j}.conv1" for i in (1, 2) for j in (0, 1)), "fc"]


@pytest.fixture(scope="module")
def record() -> Record:
    return ll.probe(seeded(InPlaceResNet), (X, Y), sites="layers", uncertainty=False, progress=False)


def test_rows_of_branches_are_measured_and_marked(record: Record) -> None:
    assert [site.name for site in record.sites if not site.branch] == TRUNK
    assert [site.name for site in record.sites if site.branch] == [name for name in names(record) if "conv2" in name]
    assert all(site.in_fit is not site.branch for site in record.sites)
    network = seeded(InPlaceResNet).eval()
    with torch.no_grad():
        x = network.relu(network.bn1(network.conv1(X)))
        inner = network.layer1[0].relu(network.layer1[0].bn1(network.layer1[0].conv1(x)))
    expected = float(ll.separation_fuzziness(inner.flatten(1), Y))
    row = next(site for site in record.sites if site.name == "layer1.0.conv2")
    assert row.values["separation"] == pytest.approx(expected, rel=1e-5)


def names(record: Record) -> list[str]:
    return [site.name for site in record.sites]


def test_the_law_is_that_of_the_trunk_unless_branches_are_asked_for(record: Record) -> None:
    every = [site.values["separation"] for site in record.sites]
    trunk = [value for site, value in zip(record.sites, every, strict=True) if not site.branch]
    assert record.law().rho == fit_law(trunk).rho
    assert record.law(branches=True).rho == fit_law(every).rho
    assert record.law(branches=True, drop_last=1).points == len(every) - 1


def test_marks_survive_a_file_and_old_records_have_none(record: Record, tmp_path: Path) -> None:
    again = Record.load(record.save(tmp_path / "record.json"))
    assert again == record
    assert [site.branch for site in again.sites] == [site.branch for site in record.sites]
    old = Record.load(Path(__file__).parents[1] / "fixtures" / "record_v1.json")
    assert not any(site.branch for site in old.sites)


def test_branches_are_drawn_hollow_and_named_in_the_notes(record: Record) -> None:
    pytest.importorskip("matplotlib")
    axes = record.plot().axes[0]
    faces = {line.get_markerfacecolor(): len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"}
    assert faces.pop("white") == 4
    assert list(faces.values()) == [6]
    assert record.notes[0].startswith("4 of 10 rows lie on side branches and are no points of the law: record.law(br")


def test_networks_without_branches_have_no_marks_and_no_note() -> None:
    x, y = clouds(60, 12)
    record = ll.probe(FNN(), (x, y), progress=False)
    assert not any(site.branch for site in record.sites)
    assert record.notes == []
    assert record.law().points == record.law(branches=True).points == 4


def test_the_first_site_that_decides_is_not_looked_for_on_a_branch() -> None:
    rows = [("a", 0.5, False), ("b", 1.0, True), ("c", 1.0, False)]
    sites = [SiteRow(n, "Linear", (2,), 2, values={"ncc_accuracy": v}, branch=b, in_fit=not b) for n, v, b in rows]
    assert Record("toy", sites, ["0", "1"]).effective_depth() == 2


def test_rises_between_trunk_and_branch_are_no_rises_of_the_law() -> None:
    values = [8.0, 9.0, 4.0, 5.0, 2.0, 3.0, 1.0]  # every branch is worse than the trunk around it
    sites = [
        SiteRow(str(i), "Conv2d", (2,), 2, values={"separation": v}, in_fit=i % 2 == 0, branch=i % 2 == 1)
        for i, v in enumerate(values)
    ]
    record = Record("toy", sites, ["0", "1"])
    assert not record.law().rising
    assert record.law().rho == pytest.approx(0.5)
    assert len(record.law(branches=True).rising) == 3
