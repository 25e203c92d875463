"""Cases whose answer can be worked out on paper."""

import math

import numpy as np
import pytest
import torch

from layerlaw.measures import (
    cdnv,
    geometry,
    measure,
    ncc_accuracy,
    self_duality,
    separation_fuzziness,
)


def simplex(K: int, d: int) -> torch.Tensor:
    """K unit vectors (K, d) with cosines −1/(K−1), rotated."""
    frame = math.sqrt(K / (K - 1)) * (torch.eye(K, dtype=torch.float64) - 1 / K)
    rotation = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    return torch.nn.functional.pad(frame, (0, d - K)) @ rotation


def with_pairs(means: torch.Tensor, size: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Around each mean one ± pair along every axis: the class covariance is exactly size²/d · I."""
    K, d = means.shape
    pairs = torch.cat([torch.eye(d, dtype=means.dtype), -torch.eye(d, dtype=means.dtype)]) * size
    return (means.unsqueeze(1) + pairs).flatten(0, 1), torch.arange(K).repeat_interleave(2 * d)


@pytest.mark.parametrize(("K", "d"), [(2, 2), (3, 3), (5, 8), (10, 30)])
@pytest.mark.parametrize("offset", [0.0, 7.0])
def test_simplex_with_isotropic_noise(K: int, d: int, offset: float) -> None:
    """SS_b = R²/(K−1) on its span, SS_w = σ²·I with σ² = size²/d: D = (K−1)²σ²/R²."""
    size, radius = 0.3, 2.0
    x, y = with_pairs(radius * simplex(K, d) + offset, size)
    sigma2 = size**2 / d
    found = measure(x, y, classifier=5 * simplex(K, d))
    D = (K - 1) ** 2 * sigma2 / radius**2
    assert float(found["separation"]) == pytest.approx(D, rel=1e-10)
    assert found["separation_classes"].tolist() == pytest.approx([D] * K, rel=1e-10)
    assert float(found["nc1"]) == pytest.approx(D / K, rel=1e-10)
    assert float(found["nc2_norms"]) == pytest.approx(0, abs=1e-12)
    assert float(found["nc2_angles"]) == pytest.approx(0, abs=1e-12)
    assert float(found["nc3"]) == pytest.approx(0, abs=1e-20)
    assert float(found["nc2_norms_classifier"]) == pytest.approx(0, abs=1e-12)
    assert float(found["nc2_angles_classifier"]) == pytest.approx(0, abs=1e-12)
    assert float(found["ncc_accuracy"]) == 1.0
    distance2 = 2 * radius**2 * K / (K - 1)
    assert float(found["cdnv"]) == pytest.approx(size**2 / distance2, rel=1e-10)
    assert float(found["compression"]) == pytest.approx(size**2 / radius**2, rel=1e-10)
    if offset == 0:
        assert float(found["discrimination"]) == pytest.approx(1 + 1 / (K - 1), rel=1e-10)
    assert bool(found["full_rank"])


def test_orthogonal_means() -> None:
    """Means R·e_k: after centering a simplex of radius R√((K−1)/K), not centered at right angles."""
    K, d, radius, size = 4, 6, 3.0, 0.5
    x, y = with_pairs(radius * torch.eye(K, d, dtype=torch.float64), size)
    found = measure(x, y)
    assert float(found["separation"]) == pytest.approx((K - 1) * K * (size**2 / d) / radius**2, rel=1e-12)
    assert float(found["discrimination"]) == pytest.approx(1, abs=1e-14)
    assert float(found["nc2_angles"]) == pytest.approx(0, abs=1e-12)


def test_two_classes_on_a_line() -> None:
    """Means 1 and 11, variances 1 and 4, counts 3 : 1 in 8: SS_w = (6·1 + 2·4)/8, SS_b = 3/16 · 10²."""
    x = torch.tensor([0.0, 2.0, 0.0, 2.0, 0.0, 2.0, 9.0, 13.0]).double().unsqueeze(-1)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    within, between = 14 / 8, 3 / 16 * 100
    found = measure(x, y, decision=torch.tensor([0, 0, 0, 0, 1, 1, 1, 0]))
    assert float(found["separation"]) == pytest.approx(within / between, rel=1e-14)
    assert float(found["nc1"]) == pytest.approx((1 + 4) / 2 / 25 / 2, rel=1e-14)
    assert found["separation_classes"].tolist() == pytest.approx([1 / between, 4 / between], rel=1e-14)
    assert float(found["cdnv"]) == pytest.approx(5 / 200, rel=1e-14)
    assert float(found["compression"]) == pytest.approx(within / between, rel=1e-14)
    assert float(found["ncc_accuracy"]) == 1.0
    assert float(found["ncc_mismatch"]) == 3 / 8
    by_classes = separation_fuzziness(x, y, weighting="classes")
    assert float(by_classes) == pytest.approx(2.5 / 25, rel=1e-14)


def test_collapsed_features_have_no_fuzziness() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        y = torch.arange(3).repeat_interleave(7)
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)[y]
        found = measure(x, y)
        assert float(found["separation"]) == 0.0
        assert float(found["nc1"]) == 0.0
        assert float(found["cdnv"]) == 0.0
        assert float(found["compression"]) == 0.0
        assert float(found["ncc_accuracy"]) == 1.0
        assert bool(found["full_rank"])


def test_noise_across_the_span_of_the_means_does_not_count() -> None:
    y = torch.tensor([0, 0, 1, 1])
    x = torch.tensor([[1.0, 5.0], [1.0, -5.0], [-1.0, 3.0], [-1.0, -3.0]])
    assert float(separation_fuzziness(x, y)) == 0.0
    assert float(cdnv(x, y)) == pytest.approx((25 + 9) / 8)


def test_a_class_of_one_sample_has_no_fuzziness_of_its_own() -> None:
    found = measure(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
    assert found["separation_classes"].tolist() == [pytest.approx(1 / (2 / 9 * 64)), 0.0]


def test_ncc_accuracy_counts_the_samples_on_the_wrong_side() -> None:
    x = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0], [4.0], [12.0], [14.0]])
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])  # means 3 and 10: 9 is nearer to 10, 4 nearer to 3
    assert float(ncc_accuracy(x, y)) == 6 / 8


def test_ncc_does_not_weigh_the_classes_by_their_size() -> None:
    x = torch.tensor([[-1.0], [1.0], [-1.0], [1.0], [4.9], [10.0], [15.1]])
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1])  # means 0 and 10: 4.9 is nearer to 0
    assert float(ncc_accuracy(x, y)) == pytest.approx(6 / 7)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1])
def test_features_that_carry_nothing_do_not_find_their_class(value: float) -> None:
    """A dead layer, or the first token before the first block: all distances tie, and a tie is no hit for everybody."""
    y = torch.arange(40) % 4
    found = measure(torch.full((40, 5), value), y, decision=y)
    assert float(found["ncc_accuracy"]) <= 1 / 4 + 1e-12
    assert float(found["ncc_mismatch"]) >= 3 / 4 - 1e-12


def test_coinciding_means_share_their_hits() -> None:
    """Two of three classes at one place: at most half of their samples can be told."""
    x = torch.tensor([[0.0], [0.0], [0.0], [0.0], [9.0], [9.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    assert float(ncc_accuracy(x, y)) <= 4 / 6 + 1e-12


def test_self_duality_of_a_classifier_that_points_the_other_way_is_four() -> None:
    means = simplex(4, 6)
    assert float(self_duality(means - means.mean(0), -0.1 * means)) == pytest.approx(4, rel=1e-12)
    assert float(self_duality(means - means.mean(0), 0.1 * means)) == pytest.approx(0, abs=1e-20)


def test_geometry_of_an_orthogonal_classifier() -> None:
    """Not centered: cosines 0 instead of −1/(K−1); norms 1, 1, 1, 3 vary by √3/2 / 1.5."""
    rows = torch.diag(torch.tensor([1.0, 1.0, 1.0, 3.0], dtype=torch.float64))
    norms, angles, equal = geometry(rows)
    assert float(norms) == pytest.approx(math.sqrt(0.75) / 1.5, rel=1e-14)
    assert float(angles) == pytest.approx(1 / 3, rel=1e-14)
    assert float(equal) == 0


def test_geometry_of_means_on_a_line() -> None:
    """Means −1, −1, 2: norms 1, 1, 2 and cosines 1, −1, −1 against −1/2."""
    norms, angles, equal = geometry(torch.tensor([[-1.0], [-1.0], [2.0]], dtype=torch.float64))
    assert float(norms) == pytest.approx(np.std([1, 1, 2]) / np.mean([1, 1, 2]), rel=1e-14)
    assert float(angles) == pytest.approx((1.5 + 0.5 + 0.5) / 3, rel=1e-14)
    assert float(equal) == pytest.approx(np.std([1, -1, -1]), rel=1e-14)


def test_discrimination_of_nearly_parallel_means_keeps_its_digits() -> None:
    """1 − cos of a small angle t is 2 sin²(t/2); as a difference from 1 it would have four digits here."""
    t = 1e-6
    x = torch.tensor(
        [[1.0, 0.0], [1.0, 0.0], [math.cos(t), math.sin(t)], [math.cos(t), math.sin(t)]], dtype=torch.float64
    )
    found = measure(x, torch.tensor([0, 0, 1, 1]))
    assert float(found["discrimination"]) == pytest.approx(2 * math.sin(t / 2) ** 2, rel=1e-9)
