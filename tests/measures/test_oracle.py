"""Every measure against the NumPy oracle, over shapes and dtypes."""

import numpy as np
import pytest
import torch

import oracle
from layerlaw.measures import cdnv, measure, nc1, ncc_accuracy, separation_fuzziness
from layerlaw.stats import scatter

SHAPES = {
    "balanced": ([40, 40, 40, 40], 10),
    "imbalanced": ([80, 40, 9, 3], 10),
    "fewer features than classes": ([30, 20, 25, 30, 22, 28], 3),
    "one feature": ([20, 30, 15], 1),
    "far more features than samples": ([5, 6, 4], 120),
    "two classes": ([30, 50], 7),
    "two classes, one feature": ([30, 50], 1),
    "a class of one sample": ([1, 30, 20], 6),
}
DTYPES = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 1e-6, torch.bfloat16: 1e-6}


def agree(found: dict, expected: dict, tolerance: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            np.asarray(found[name]), value, rtol=tolerance, atol=tolerance * 1e-3, err_msg=f"measure {name}"
        )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighting", ["samples", "classes"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_measure_agrees_with_the_oracle(shape: str, weighting: str, dtype: torch.dtype) -> None:
    counts, d = SHAPES[shape]
    K = len(counts)
    x, y = oracle.blobs(counts, d, seed=3, offset=0.5)
    x = x.to(dtype)
    rng = np.random.default_rng(1)
    decision, classifier = torch.from_numpy(rng.integers(0, K, len(y))), torch.from_numpy(rng.normal(size=(K, d)))
    found = measure(x, y, weighting=weighting, decision=decision, classifier=classifier)
    expected = oracle.everything(x, y, K, weighting=weighting, decision=decision, classifier=classifier)
    agree(found, expected, DTYPES[dtype])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_single_functions_say_what_measure_says(shape: str) -> None:
    counts, d = SHAPES[shape]
    x, y = oracle.blobs(counts, d, seed=4)
    everything = measure(x, y)
    assert separation_fuzziness(x, y) == everything["separation"]
    assert nc1(x, y) == everything["nc1"]
    assert ncc_accuracy(x, y) == everything["ncc_accuracy"]
    assert cdnv(x, y) == everything["cdnv"]
    by_classes = measure(x, y, weighting="classes")
    assert separation_fuzziness(x, y, weighting="classes") == by_classes["separation"]


def test_the_nearest_centers_are_looked_for_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = oracle.blobs([20, 30, 10], 6, seed=4)
    everything = measure(x, y)
    monkeypatch.setattr(scatter, "agreement", None)
    assert separation_fuzziness(x, y) == everything["separation"]
    assert (nc1(x, y), cdnv(x, y)) == (everything["nc1"], everything["cdnv"])
    with pytest.raises(TypeError):
        ncc_accuracy(x, y)


def test_nc1_is_the_equally_weighted_separation_over_the_number_of_classes() -> None:
    x, y = oracle.blobs([50, 20, 10], 8)
    K = 3
    assert float(nc1(x, y)) == pytest.approx(float(separation_fuzziness(x, y, weighting="classes")) / K, rel=1e-12)
    assert abs(float(nc1(x, y)) - float(separation_fuzziness(x, y)) / K) > 0.01 * float(nc1(x, y))


def test_nc1_is_separation_over_the_number_of_classes_when_balanced() -> None:
    x, y = oracle.blobs([20, 20, 20], 8)
    assert float(nc1(x, y)) == pytest.approx(float(separation_fuzziness(x, y)) / 3, rel=1e-12)


def test_separation_is_the_weighted_mean_of_the_class_wise_values() -> None:
    counts = [50, 20, 10]
    x, y = oracle.blobs(counts, 8)
    found = measure(x, y)
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    assert float(found["separation"]) == pytest.approx(float(weights @ found["separation_classes"]), rel=1e-12)


def test_leading_dimensions_equal_a_loop() -> None:
    parts = [oracle.blobs(counts, 6, seed=i) for i, counts in enumerate([[20, 20, 20], [30, 20, 10], [58, 1, 1]])]
    x, y = torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])
    decision = torch.flip(y, [-1])
    classifier = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3, 6)))
    for weighting in ("samples", "classes"):
        together = measure(x, y, weighting=weighting, decision=decision, classifier=classifier)
        for i in range(3):
            alone = measure(x[i], y[i], weighting=weighting, decision=decision[i], classifier=classifier[i])
            for name, value in alone.items():
                np.testing.assert_allclose(np.asarray(together[name][i]), np.asarray(value), rtol=1e-10, err_msg=name)


def test_leading_dimensions_with_different_ranks_equal_a_loop() -> None:
    x, y = oracle.blobs([20, 30, 10], 6)
    flat = x.clone()
    flat[:, 1:] = 0.0  # all class means on a line: rank 1
    both = measure(torch.stack([x, flat]), torch.stack([y, y]))
    assert both["rank"].tolist() == [2, 1]
    assert both["full_rank"].tolist() == [True, False]
    for name, value in measure(flat, y).items():
        np.testing.assert_allclose(np.asarray(both[name][1]), np.asarray(value), rtol=1e-10, err_msg=name)


def test_two_leading_dimensions_equal_a_loop() -> None:
    """The doc-string says features (…, n, d) and labels (…, n)."""
    x, y = oracle.blobs([20, 20, 20], 6)
    x = torch.stack([x * (i + 1) + i * x[0] for i in range(6)]).reshape(2, 3, 60, 6) + x.square()
    found = separation_fuzziness(x, y.expand(2, 3, 60))
    assert found.shape == (2, 3)
    assert float(found[1, 2]) == pytest.approx(float(separation_fuzziness(x[1, 2], y)), rel=1e-10)


def test_labels_without_leading_dimensions_serve_every_leading_index() -> None:
    x, y = oracle.blobs([20, 25, 15], 6)
    x = torch.stack([x, x.square()])
    found = separation_fuzziness(x, y)
    assert found.shape == (2,)
    assert float(found[1]) == pytest.approx(float(separation_fuzziness(x[1], y)), rel=1e-10)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_lower_rank_agrees_with_the_oracle_of_that_rank(rank: int, weighting: str) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), [30, 10, 20, 5])
    noise = rng.normal(size=(len(y), 6))
    for k in range(4):
        noise[y == k] -= noise[y == k].mean(0)
    places = rng.normal(size=(4, rank)) @ rng.normal(size=(rank, 6))
    x = places[y] + noise
    found = measure(x, y, weighting=weighting)
    assert int(found["rank"]) == rank
    assert not bool(found["full_rank"])
    assert float(found["separation"]) == pytest.approx(
        oracle.separation(x, y, 4, weighting=weighting, rank=rank), rel=1e-9
    )
    assert float(found["nc1"]) == pytest.approx(
        oracle.separation(x, y, 4, weighting="classes", rank=rank) / 4, rel=1e-9
    )
    np.testing.assert_allclose(
        found["separation_classes"], oracle.class_separation(x, y, 4, weighting=weighting, rank=rank), rtol=1e-9
    )
