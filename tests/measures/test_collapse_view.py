"""Three classes in three dimensions: collapse lies on the corners, nothing depends on where the features are turned to."""

import numpy as np
import pytest
import torch

from layerlaw.measures.collapse import collapse_view

CORNERS = torch.tensor([[0.0, 1.0, 0.0], [-(0.75**0.5), -0.5, 0.0], [0.75**0.5, -0.5, 0.0]], dtype=torch.float64)


def turned(d: int, seed: int) -> torch.Tensor:
    """Three orthonormal directions among d."""
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed)).double())[0][:3]


@pytest.mark.parametrize("d", [3, 10, 300])
def test_at_collapse_features_means_and_rows_lie_on_the_corners(d: int) -> None:
    means = 7 * CORNERS @ turned(d, 1) + 100  # any size, any place
    view = collapse_view(means, 0.2 * (means - means.mean(0)) + 3, means, [0, 1, 2])
    for name in ("means", "rows", "features"):
        assert torch.allclose(torch.tensor(view[name]).double(), CORNERS, atol=1e-3), name


def test_three_of_ten_corners_are_a_regular_triangle_too() -> None:
    simplex = torch.eye(10).double() - 0.1
    view = collapse_view(simplex[:3], simplex[:3], simplex[:3], [0, 1, 2])
    assert torch.allclose(torch.tensor(view["means"]).double(), CORNERS, atol=1e-3)


def test_turning_and_moving_all_features_changes_nothing_but_signs() -> None:
    g = torch.Generator().manual_seed(0)
    labels = [k for k in range(3) for _ in range(30)]
    features = torch.randn(3, 20, generator=g)[labels] * 2 + torch.randn(90, 20, generator=g)
    means = torch.stack([features[30 * k : 30 * k + 30].mean(0) for k in range(3)])
    rows = torch.randn(3, 20, generator=g)
    rotation = torch.linalg.qr(torch.randn(20, 20, generator=g))[0]
    one = collapse_view(means, rows, features, labels)
    other = collapse_view(means @ rotation + 5, rows @ rotation, features @ rotation + 5, labels)
    for name in ("means", "rows", "features"):
        a, b = np.array(one[name]), np.array(other[name])
        assert np.allclose(a[:, :2], b[:, :2], atol=2e-3)
        assert np.allclose(np.abs(a[:, 2]), np.abs(b[:, 2]), atol=2e-3)


def test_class_means_of_the_pictured_features_are_the_pictured_means() -> None:
    g = torch.Generator().manual_seed(3)
    labels = [k for k in range(3) for _ in range(20)]
    features = torch.randn(3, 12, generator=g)[labels] + torch.randn(60, 12, generator=g)
    means = torch.stack([features[20 * k : 20 * k + 20].mean(0) for k in range(3)])
    view = collapse_view(means, None, features, labels)
    found = np.array(view["features"]).reshape(3, 20, 3).mean(1)
    assert np.allclose(found, view["means"], atol=1e-3)
    assert view["rows"] == []
    assert np.square(view["means"]).sum(1).mean() == pytest.approx(1, abs=1e-3)
    assert np.std(np.array(view["features"])[:, 2]) > 0.1  # the third direction is where samples spread


def test_means_that_coincide_or_features_that_overflow_have_no_view() -> None:
    assert collapse_view(torch.ones(3, 5), None, torch.randn(3, 5), [0, 1, 2]) == {}
    assert collapse_view(torch.eye(3), None, torch.full((3, 3), float("inf")), [0, 1, 2]) == {}
    assert collapse_view(torch.randn(3, 1), None, torch.randn(3, 1), [0, 1, 2]) == {}
    assert collapse_view(torch.eye(3), torch.zeros(3, 3), torch.eye(3), [0, 1, 2])["rows"] == []
