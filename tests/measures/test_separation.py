"""D of many classes by an inverse, where that has the digits of singular values; elsewhere it says nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import layerlaw as ll
import oracle
from layerlaw.measures import at_hand
from layerlaw.measures.separation import _norm_at_most, separation_by_inverse
from layerlaw.stats import ClassSums

K, D, N = 70, 90, 1400


def clouds(spread: float = 1.0, *, classes: int = K, features: int = D, even: bool = False) -> tuple[Tensor, Tensor]:
    """float32 features around class means of size 1."""
    generator = torch.Generator().manual_seed(classes)
    drawn = torch.cat([torch.arange(classes), torch.randint(0, classes, (N - classes,), generator=generator)])
    y = torch.arange(N) % classes if even else drawn
    means = torch.randn(classes, features, generator=generator)
    return means[y] + spread * torch.randn(N, features, generator=generator), y


def found(x: Tensor, y: Tensor, weighting: Any = "samples") -> float | None:
    return separation_by_inverse(x, y, ClassSums.of(x, y, int(y.max()) + 1), weighting)


@pytest.mark.parametrize("weighting", ["samples", "classes"])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_it_is_what_the_oracle_says(spread: float, even: bool, weighting: str) -> None:
    x, y = clouds(spread, even=even)
    expected = oracle.separation(x, y, K, weighting=weighting)
    assert found(x, y, weighting) == pytest.approx(expected, rel=1e-7)
    assert ll.separation_fuzziness(x, y, weighting=weighting) == found(x, y, weighting)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_taken_as_it_is(dtype: torch.dtype) -> None:
    x, y = clouds()
    x = x.to(dtype)
    assert found(x, y) == pytest.approx(oracle.separation(x, y, K), rel=1e-7)


def test_neither_place_nor_scale_nor_rotation_matters() -> None:
    x, y = clouds()
    Q = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(1)))[0]
    for other in (x + 30, 1e4 * x, 1e-4 * x, x @ Q, x[torch.randperm(D)] if len(x) == D else x.flip(1)):
        assert found(other, y) == pytest.approx(found(x, y), rel=1e-5)


def scaled(decades: float) -> Tensor:
    return clouds()[0] * torch.logspace(0, -decades, D)


@pytest.mark.parametrize("decades", [0.0, 1.0, 2.0, 3.0, 4.0, 6.0])
def test_means_of_very_different_scales_are_left_to_singular_values(decades: float) -> None:
    """Where something is said, it has its digits."""
    x, (_, y) = scaled(decades), clouds()
    said = found(x, y)
    if said is not None:
        assert said == pytest.approx(oracle.separation(x, y, K), rel=1e-6)
    assert (said is None) == (decades >= 3)


@pytest.mark.parametrize("spread", [1.0, 1e-4])
@pytest.mark.parametrize("decades", [1.0, 2.0])
def test_residuals_along_the_largest_scale_alone_keep_their_digits(decades: float, spread: float) -> None:
    """Rows of the inverse are longest along the smallest scales: what float32 rounds of them must not show."""
    generator = torch.Generator().manual_seed(1)
    Q = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]
    y = torch.arange(N) % K
    means = torch.randn(K, D, generator=generator, dtype=torch.float64) * torch.logspace(0, -decades, D) @ Q
    x = (means[y] + spread * torch.randn(N, 1, generator=generator, dtype=torch.float64) * Q[:1]).float()
    assert found(x, y) == pytest.approx(oracle.separation(x.double(), y, K), rel=1e-6)


def flat() -> Tensor:
    """Class means in fewer dimensions than there could be."""
    return clouds()[0] @ torch.diag((torch.arange(D) < K - 2).float())


def with_a_copy() -> Tensor:
    """Class 1 has the samples of class 0."""
    x, y = clouds(even=True)
    x[y == 1] = x[y == 0]
    return x


def one_hot_with_a_copy() -> Tensor:
    """Collapsed onto axes: the factor of their products breaks off at a zero."""
    y = clouds(even=True)[1]
    return torch.eye(D)[torch.where(y == 1, 0, y)]


def first_far() -> Tensor:
    """The row around which a class is added up."""
    x, _ = clouds(1e-3, even=True)
    x[0] += 100
    return x


EVEN = {"coinciding means", "coinciding means on axes", "the first row far away"}
ELSEWHERE = {
    "fewer features than classes": lambda: clouds()[0][:, : K - 1],
    "few dimensions": flat,
    "coinciding means": with_a_copy,
    "coinciding means on axes": one_hot_with_a_copy,
    "all the same": lambda: torch.zeros(N, D),
    "float64": lambda: clouds()[0].double(),
    "tiny": lambda: clouds()[0] * 1e-25,
    "huge": lambda: clouds()[0] * 1e25,
    "far away": lambda: clouds()[0] + 1e4,
    "the first row far away": first_far,
    "not a number": lambda: clouds()[0].index_fill(0, torch.tensor([5]), torch.nan),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_elsewhere_nothing_is_said(case: str) -> None:
    y = clouds(even=case in EVEN)[1]
    assert found(ELSEWHERE[case](), y) is None


def test_few_classes_and_several_sets_of_features_are_left_to_singular_values() -> None:
    x, y = clouds(classes=60)
    assert found(x, y) is None
    x, y = clouds()
    assert found(torch.stack([x, 2 * x]), y.expand(2, -1)) is None


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_users_see_does_not_depend_on_the_way(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = ELSEWHERE[case](), clouds(even=case in EVEN)[1]

    def seen() -> Any:
        try:
            return ll.separation_fuzziness(x, y)
        except ll.LayerlawError as error:
            return str(error)

    here = seen()
    monkeypatch.setattr(at_hand, "separation_by_inverse", lambda *_: None)
    assert here == seen()


def test_a_class_without_samples_is_told_with_advice_that_can_be_followed() -> None:
    x, y = clouds()
    with pytest.raises(
        ll.LayerlawError, match=r"or number the classes from 0 .*: np.unique\(labels, return_inverse=True\)"
    ):
        ll.separation_fuzziness(x, torch.where(y == 3, 4, y))
    with pytest.raises(
        ll.LayerlawError, match=r"Number the classes from 0 .*: np.unique\(labels, return_inverse=True\)"
    ):
        ll.separation_fuzziness(x, y + 2000)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_bound_of_a_norm_is_above_it_and_close(scale: float) -> None:
    rng = np.random.default_rng(0)
    for n, power in ((1, 0), (3, 1), (70, 0), (70, 2), (70, 6)):
        Q, values = np.linalg.qr(rng.normal(size=(n, n)))[0], np.logspace(0, -power, n)
        M = torch.from_numpy(scale * (Q * values) @ Q.T)
        assert scale * (1 - 1e-12) <= float(_norm_at_most(M)) <= scale * n ** (1 / 16) * (1 + 1e-12)
