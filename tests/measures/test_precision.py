"""Hard cases in float32 against a longdouble oracle on the very same numbers: relative error at most 1e-6."""

import numpy as np
import pytest
import torch

import oracle
from layerlaw.measures import at_hand, cdnv, measure, separation_fuzziness

TOLERANCE = 1e-6


def exact(x: torch.Tensor, y: torch.Tensor, K: int, weighting: str = "samples") -> float:
    return oracle.separation(x, y, K, weighting=weighting, number=np.longdouble)


@pytest.mark.parametrize("weighting", ["samples", "classes"])
@pytest.mark.parametrize(
    ("spread", "offset"),
    [(1.0, 0.0), (1.0, 1e3), (1e-5, 0.0), (1e-5, 1.0), (1e-2, 1e3), (1e-3, 1e4), (1e2, 0.0)],
)
def test_offset_and_collapse(spread: float, offset: float, weighting: str) -> None:
    x, y = oracle.blobs([60, 40, 20, 30], 12, seed=1, spread=spread, offset=offset)
    x = x.float()
    assert float(separation_fuzziness(x, y, weighting=weighting)) == pytest.approx(
        exact(x, y, 4, weighting), rel=TOLERANCE
    )
    assert float(cdnv(x, y)) == pytest.approx(oracle.cdnv(x, y, 4, np.longdouble), rel=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_half_precision_features_lose_nothing_beyond_their_own_rounding(dtype: torch.dtype, offset: float) -> None:
    x, y = oracle.blobs([60, 40, 20, 30], 12, seed=1, spread=0.5, offset=offset)
    x = x.to(dtype)
    assert float(separation_fuzziness(x, y)) == pytest.approx(exact(x, y, 4), rel=TOLERANCE)


def ill_conditioned(ratio: float, noise: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Class means whose singular values fall from 1 to 1/ratio."""
    rng = np.random.default_rng(seed)
    K, d, n = 4, 12, 400
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0][: K - 1]
    scales = np.logspace(0, -np.log10(ratio), K - 1)
    y = np.arange(n) % K
    places = rng.normal(size=(K, K - 1)) * scales @ basis
    if noise == "isotropic":
        residual = 1e-2 / ratio * rng.normal(size=(n, d))
    else:  # as ill-conditioned as the means: columns in different units look like this
        residual = rng.normal(size=(n, K - 1)) * scales @ basis
    return torch.from_numpy(places[y] + residual).float(), torch.from_numpy(y)


@pytest.mark.parametrize("ratio", [1e1, 1e3, 1e5])
@pytest.mark.parametrize("noise", ["isotropic", "aligned"])
def test_ill_conditioned_means(ratio: float, noise: str) -> None:
    """Noise as ill-conditioned as the means costs float32 about eps·ratio; float64 features cost nothing (below)."""
    x, y = ill_conditioned(ratio, noise)
    found = measure(x, y)
    assert bool(found["full_rank"])
    tolerance = TOLERANCE if noise == "isotropic" else max(TOLERANCE, 6e-8 * ratio)
    assert float(found["separation"]) == pytest.approx(exact(x, y, 4), rel=tolerance)


@pytest.mark.parametrize("ratio", [1e3, 1e5])
def test_ill_conditioned_noise_costs_nothing_in_double_precision(ratio: float) -> None:
    x, y = ill_conditioned(ratio, "aligned")
    assert float(separation_fuzziness(x.double(), y)) == pytest.approx(exact(x, y, 4), rel=TOLERANCE)


def test_many_samples_per_class_lose_no_digits() -> None:
    """A float32 sum over 50 000 samples of a class would."""
    x, y = oracle.blobs([50_000, 50_000], 20, distance=0.1)
    x = x.float()
    expected = oracle.separation(x, y, 2)
    assert float(separation_fuzziness(x, y)) == pytest.approx(expected, rel=TOLERANCE)


def test_double_precision_features_keep_twelve_digits() -> None:
    for spread, offset in [(1.0, 0.0), (1.0, 1e3), (1e-5, 0.0)]:
        x, y = oracle.blobs([60, 40, 20, 30], 12, seed=1, spread=spread, offset=offset)
        assert float(separation_fuzziness(x, y)) == pytest.approx(exact(x, y, 4), rel=1e-10)


@pytest.mark.parametrize("factor", [1e-18, 1e18, 1e25])
def test_very_large_and_very_small_features_are_measured_like_any_other(factor: float) -> None:
    """Finite float32 numbers whose squares leave the range of float32."""
    x, y = oracle.blobs([20, 30, 10], 6)
    x = (x * factor).float()
    found = measure(x, y)
    assert int(found["rank"]) == 2
    assert float(found["separation"]) == pytest.approx(exact(x, y, 3), rel=TOLERANCE)
    assert float(found["compression"]) == pytest.approx(oracle.compression(x, y, 3), rel=TOLERANCE)
    assert float(found["cdnv"]) == pytest.approx(oracle.cdnv(x, y, 3), rel=TOLERANCE)


# --- coinciding class means: the rank must be found, else a rounding error is inverted -------------------------------


def copied(K: int, n: int, d: int, seed: int, *, offset: float = 0.0, distance: float = 1.0, dtype=torch.float32):
    """K classes of n samples, the last one a permuted copy of the first: the class means span K−2 dimensions."""
    x, y = oracle.blobs([n] * (K - 1), d, seed=seed, offset=offset, distance=distance)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    x, y = torch.cat([x, x[y == 0][order]]).to(dtype), torch.cat([y, torch.full((n,), K - 1)])
    shuffle = torch.from_numpy(np.random.default_rng(seed + 1).permutation(len(y)))
    return x[shuffle], y[shuffle]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize(("K", "n", "d"), [(5, 40, 20), (10, 20, 50)])
def test_coinciding_means_lower_the_rank_in_every_one_of_200_draws(
    dtype, offset: float, K: int, n: int, d: int
) -> None:
    wrong = 0
    for seed in range(200):
        x, y = copied(K, n, d, seed, offset=offset, dtype=dtype)
        found = measure(x, y)
        wrong += int(found["rank"]) != K - 2 or bool(found["full_rank"])
    assert wrong == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize(
    ("K", "n", "d", "distance"),
    [(2, 50, 20, 0.0), (3, 500, 5, 1.0), (3, 500, 20, 0.1), (5, 2000, 5, 0.1)],
    ids=["two equal classes", "500 samples", "500 samples, close means", "2000 samples, close means"],
)
def test_coinciding_means_are_found_with_few_classes_and_many_samples(
    dtype, offset: float, K: int, n: int, d: int, distance: float
) -> None:
    wrong = 0
    for seed in range(40):
        x, y = copied(K, n, d, seed, offset=offset, distance=distance, dtype=dtype)
        wrong += int(measure(x, y)["rank"]) != K - 2
    assert wrong == 0


def test_separation_over_coinciding_means_is_that_of_the_lower_rank() -> None:
    x, y = copied(5, 40, 20, 0)
    expected = oracle.separation(x, y, 5, rank=3)
    assert float(separation_fuzziness(x, y)) == pytest.approx(expected, rel=TOLERANCE)


def test_close_means_are_not_taken_for_equal() -> None:
    """Two means 1e-5 apart, spread 1e-6: a signal, far above the rounding of float32."""
    x, y = oracle.blobs([50, 50], 10, distance=1.0, spread=0.0)
    rng = np.random.default_rng(0)
    x = x + torch.from_numpy(1e-6 * rng.normal(size=x.shape))
    extra = x[y == 0] + 1e-5
    x, y = torch.cat([x, extra]).float(), torch.cat([y, torch.full((50,), 2)])
    found = measure(x, y)
    assert bool(found["full_rank"])
    assert float(found["separation"]) == pytest.approx(exact(x, y, 3), rel=TOLERANCE)


@pytest.mark.parametrize("far", [False, True])
def test_a_first_row_far_from_its_class_costs_no_digits(monkeypatch, far):
    """Sums are taken around it; on a GPU residuals of many classes are not added up, unless that would show."""
    generator = torch.Generator().manual_seed(0)
    K, n, small = 70, 7000, 1e-2
    y = torch.arange(n) % K
    means = torch.randn(K, 80, generator=generator, dtype=torch.float64)
    means[:, 40:] *= small
    x = means[y] + 1e-4 * small * torch.randn(n, 80, generator=generator, dtype=torch.float64)
    x[0] = means[1] if far else x[0]
    x = x.float()
    plain, known, found_by = separation_fuzziness(x, y), [], at_hand._known_residuals
    monkeypatch.setattr(at_hand, "SLOW_SUMS", {"cpu"})
    monkeypatch.setattr(at_hand, "_known_residuals", lambda *given: known.append(found_by(*given)) or known[-1])
    assert separation_fuzziness(x, y) == pytest.approx(plain, rel=1e-6)
    residuals, is_far = known[0]
    assert residuals is not None
    assert bool(is_far) == far
    assert plain == pytest.approx(separation_fuzziness(x.double(), y), rel=1e-4)


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_sums_that_a_gpu_leaves_out_change_nothing_of_very_large_or_small_features(monkeypatch, scale):
    """Squares of such features leave float32: their lengths are float64, and read twice."""
    generator = torch.Generator().manual_seed(0)
    K, n, d = 70, 1400, 90
    y = torch.arange(n) % K
    x = torch.randn(K, d, generator=generator)[y] + 0.1 * torch.randn(n, d, generator=generator)
    x = (x.double() * scale).float()
    expected, known, found_by = measure(x, y), [], at_hand._known_residuals
    monkeypatch.setattr(at_hand, "SLOW_SUMS", {"cpu"})
    monkeypatch.setattr(at_hand, "_known_residuals", lambda *given: known.append(found_by(*given)) or known[-1])
    found = measure(x, y)
    assert known[0][0] is not None
    assert found["cdnv"] == pytest.approx(oracle.cdnv(x, y, K, np.longdouble), rel=TOLERANCE)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
