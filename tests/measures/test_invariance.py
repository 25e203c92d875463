"""What must not change the measures, and what must."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from layerlaw.measures import measure, separation_fuzziness

settings.register_profile("core", deadline=None, derandomize=True, max_examples=25)
CORE = settings.get_profile("core")

seeds = st.integers(0, 2**31 - 1)
problems = st.builds(
    oracle.blobs,
    st.lists(st.integers(2, 20), min_size=2, max_size=5),
    st.integers(1, 12),
    seed=seeds,
    offset=st.floats(-5, 5),
)
SAME_UNDER_MOTION = ("separation", "nc1", "ncc_accuracy", "cdnv", "compression", "nc2_norms", "nc2_angles", "rank")


def same(a: dict, b: dict, names: tuple[str, ...], rel: float = 1e-6) -> None:
    for name in names:
        np.testing.assert_allclose(np.asarray(a[name]), np.asarray(b[name]), rtol=rel, atol=1e-9, err_msg=name)


@CORE
@given(problems, seeds)
def test_translation_changes_nothing(problem, seed: int) -> None:
    x, y = problem
    shift = torch.from_numpy(np.random.default_rng(seed).normal(size=x.shape[1]) * 10)
    same(measure(x, y), measure(x + shift, y), (*SAME_UNDER_MOTION, "separation_classes"))


@CORE
@given(problems, seeds)
def test_rotation_changes_nothing(problem, seed: int) -> None:
    x, y = problem
    d = x.shape[1]
    rotation = torch.from_numpy(np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0])
    same(measure(x, y), measure(x @ rotation, y), (*SAME_UNDER_MOTION, "separation_classes", "discrimination"))


@CORE
@given(problems, st.floats(1e-6, 1e6), st.booleans())
def test_scaling_changes_nothing(problem, factor: float, flipped: bool) -> None:
    x, y = problem
    scaled = x * (-factor if flipped else factor)
    same(measure(x, y), measure(scaled, y), (*SAME_UNDER_MOTION, "separation_classes", "discrimination"))


@CORE
@given(problems, seeds)
def test_the_order_of_the_samples_changes_nothing(problem, seed: int) -> None:
    x, y = problem
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    same(measure(x, y), measure(x[order], y[order]), (*SAME_UNDER_MOTION, "separation_classes", "discrimination"))


@CORE
@given(problems, seeds, st.sampled_from(["samples", "classes"]))
def test_the_names_of_the_classes_change_nothing(problem, seed: int, weighting: str) -> None:
    x, y = problem
    K = int(y.max()) + 1
    name = torch.from_numpy(np.random.default_rng(seed).permutation(K))
    before, after = measure(x, y, weighting=weighting), measure(x, name[y], weighting=weighting)
    same(before, after, (*SAME_UNDER_MOTION, "discrimination"))
    np.testing.assert_allclose(before["separation_classes"], after["separation_classes"][name], rtol=1e-6, atol=1e-9)


@CORE
@given(problems)
def test_doubling_every_sample_changes_nothing(problem) -> None:
    x, y = problem
    same(measure(x, y), measure(x.repeat(2, 1), y.repeat(2)), (*SAME_UNDER_MOTION, "separation_classes"))


@CORE
@given(problems)
def test_empty_features_beside_the_others_change_nothing(problem) -> None:
    x, y = problem
    if x.shape[1] < int(y.max()):  # fewer features than K−1: a new one raises min(K−1, d), not the rank
        return
    padded = torch.nn.functional.pad(x, (0, 3))
    same(measure(x, y), measure(padded, y), (*SAME_UNDER_MOTION, "separation_classes", "discrimination"))


@CORE
@given(problems)
def test_measures_stay_in_their_ranges(problem) -> None:
    x, y = problem
    found = measure(x, y, decision=y, classifier=x[: int(y.max()) + 1])
    assert float(found["separation"]) >= 0
    assert bool((found["separation_classes"] >= 0).all())
    assert 0 <= float(found["ncc_accuracy"]) <= 1
    assert float(found["ncc_mismatch"]) == pytest.approx(1 - float(found["ncc_accuracy"]))
    assert 0 <= float(found["nc3"]) <= 4
    assert -1e-9 <= float(found["discrimination"]) <= 2 + 1e-9


def test_a_diagonal_map_does_change_separation() -> None:
    x, y = oracle.blobs([30] * 4, 40, seed=1)
    stretch = torch.logspace(-0.5, 0.5, 40, dtype=torch.float64)
    before, after = float(separation_fuzziness(x, y)), float(separation_fuzziness(x * stretch, y))
    assert abs(after / before - 1) > 0.05
    assert after == pytest.approx(oracle.separation(x * stretch, y, 4), rel=1e-9)


def test_any_invertible_map_leaves_separation_when_the_means_span_the_whole_space() -> None:
    """Rank SS_b = d: there the pseudo-inverse is an inverse, and the trace is equivariant."""
    x, y = oracle.blobs([30, 20, 25, 15], 3, seed=1)
    stretch = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
    assert float(separation_fuzziness(x * stretch, y)) == pytest.approx(float(separation_fuzziness(x, y)), rel=1e-9)
