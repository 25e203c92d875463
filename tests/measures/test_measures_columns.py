"""The numbers of a site as columns of a record."""

import math

import pytest
import torch

import oracle
from layerlaw.measures import measure
from layerlaw.measures.columns import site_columns
from layerlaw.measures.site import number
from layerlaw.stats import ClassSums, Frame, Scatter, find_centers, project
from layerlaw.stats.passes import Around


def at_one_site(x: torch.Tensor, y: torch.Tensor, K: int, decision: torch.Tensor | None = None):
    centers = find_centers(ClassSums.of(x, y, K))
    scatter = Scatter.of(*project(x, y, Frame.of(centers)), y, centers, decision)
    return Around(centers), scatter


def test_columns_say_what_measure_says() -> None:
    x, y = oracle.blobs([30, 20, 10], 7)
    decision = torch.flip(y, [0])
    columns, by_class = site_columns(*at_one_site(x, y, 3, decision))
    expected = measure(x, y, decision=decision)
    for name, value in expected.items():
        if name == "separation_classes":
            assert by_class["separation"] == pytest.approx(value.tolist())
        else:
            assert columns[name] == pytest.approx(float(value)), name
    assert len(by_class["ncc_accuracy"]) == 3


def test_without_decisions_there_is_no_mismatch() -> None:
    x, y = oracle.blobs([30, 20, 10], 7)
    assert site_columns(*at_one_site(x, y, 3))[0]["ncc_mismatch"] is None


def test_where_all_means_coincide_there_is_no_separation() -> None:
    x, y = torch.ones(30, 4), torch.arange(30) % 3
    columns, by_class = site_columns(*at_one_site(x, y, 3))
    assert columns["separation"] is None
    assert columns["nc1"] is None
    assert columns["full_rank"] == 0.0
    assert by_class["separation"] == [None] * 3
    assert all(v is None or math.isfinite(v) for v in columns.values())


def test_classifier_columns_agree_with_the_oracle() -> None:
    x, y = oracle.blobs([30, 20, 10], 7)
    weight = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decision = torch.where(torch.arange(60) % 4 == 0, (y + 1) % 3, y)
    columns, _ = site_columns(*at_one_site(x, y, 3, decision), weight=weight)
    norms, angles = oracle.norms_and_angles(weight.numpy())
    assert columns["nc2_norms_classifier"] == pytest.approx(norms)
    assert columns["nc2_angles_classifier"] == pytest.approx(angles)
    assert columns["nc3"] == pytest.approx(oracle.self_duality(x, y, 3, weight))
    assert columns["nc4"] == columns["ncc_mismatch"] == measure(x, y, decision=decision)["ncc_mismatch"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_number(value: float) -> None:
    assert number(torch.tensor(value)) is None
    assert number(torch.tensor(2.5)) == 2.5
