"""What lenses say of tokens, against NumPy; parts of a text added up say what the whole does."""

import numpy as np
import pytest
import torch

from layerlaw.measures.columns import REGISTRY, describe
from layerlaw.measures.lens import LensSums, lens_columns
from layerlaw.measures.residual import linear_map
from layerlaw.stats.moments import Columns, CrossMoments, Moments, TargetMoments

SITES = ["a", "b", "c", "d"]


def tokens(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(len(SITES), n, generator=generator, dtype=torch.float64) * 3
    predicted = torch.randint(0, 3, (len(SITES), n), generator=generator)
    told, pieces = (torch.randint(0, high, (n,), generator=generator) for high in (3, 7))
    return losses, predicted, told, pieces


def test_columns_equal_a_count_token_by_token():
    losses, predicted, told, pieces = tokens()
    found = lens_columns(LensSums.of(losses, predicted, told, pieces), SITES)
    guess, n = predicted.numpy(), len(told)
    for s, site in enumerate(SITES):
        assert found[site]["lens_loss"] == pytest.approx(losses[s].mean().item(), abs=1e-12)
        assert found[site]["lens_accuracy"] == np.mean(guess[s] == told.numpy())
        assert found[site]["lens_agreement"] == np.mean(guess[s] == guess[-1])
        assert found[site]["lens_settled"] == np.mean(
            [all(guess[t, i] == guess[-1, i] for t in range(s, 4)) for i in range(n)]
        )
        excess = (losses[s] - losses[-1]).numpy()
        sums = [(excess[pieces == c] - excess.mean()).sum() for c in range(7)]
        assert found[site]["lens_excess_se"] == pytest.approx(np.sqrt(7 / 6 * np.sum(np.square(sums))) / n, abs=1e-12)


def test_tokens_of_a_piece_that_err_together_make_the_error_larger():
    losses = torch.zeros(2, 100)
    losses[0] = torch.arange(100) // 10  # ten pieces, within each of which nothing varies
    sums = [
        LensSums.of(losses, losses.long(), losses[0].long(), pieces)
        for pieces in (torch.arange(100) // 10, torch.arange(100))
    ]
    clustered, apart = (one.excess_errors[0] for one in sums)
    assert clustered == pytest.approx(np.std(np.arange(10), ddof=1) / np.sqrt(10))
    assert clustered > 3 * apart


def test_parts_of_a_text_add_up():
    losses, predicted, told, pieces = tokens()
    whole = LensSums.of(losses, predicted, told, pieces)
    parts = [pieces < 4, pieces >= 4]  # whole pieces, as ranks have them
    each = [LensSums.of(losses[:, p], predicted[:, p], told[p], pieces[p]) for p in parts]
    merged = LensSums(*(a + b for a, b in zip(*(one.tensors for one in each), strict=True)))
    for column, value in lens_columns(whole, SITES)["b"].items():
        assert lens_columns(merged, SITES)["b"][column] == pytest.approx(value, abs=1e-12), column


def test_one_piece_has_no_error_and_nothing_has_no_number():
    losses, predicted, told, pieces = tokens(5)
    assert lens_columns(LensSums.of(losses, predicted, told, pieces * 0), SITES)["a"]["lens_excess_se"] is None
    for empty in (LensSums.empty(4), LensSums.empty(4, torch.nan)):
        assert set(lens_columns(empty, SITES)["a"].values()) == {None}
        assert (empty.tokens, empty.pieces) == (0, 0)


def test_columns_of_both_lenses_are_described():
    for name in ("loss", "accuracy", "agreement", "settled", "excess_se"):
        assert REGISTRY[f"lens_{name}"].needs == "lens"
        column = describe(f"linear_lens_{name}")
        assert column.label.endswith("(after a linear map)")
        assert not column.law
    assert describe("linear_lens_agreement").text(0.5) == "50.0%"


@pytest.mark.parametrize(
    ("offset", "dtype", "near"), [(0, "float64", 1e-9), (1e3, "float64", 1e-5), (0, "float32", 1e-4)]
)
def test_a_linear_map_equals_numpy_least_squares_also_far_from_zero(offset, dtype, near):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 12)) @ rng.normal(size=(12, 12)) + offset
    Z = X @ rng.normal(size=(12, 5)) + rng.normal(size=(500, 5)) + offset
    cross, moments = [CrossMoments.empty(12, 5) for _ in range(2)], Moments.empty(2, 12, 0)
    targets = TargetMoments.empty(2, 0)
    for at in range(0, 500, 70):
        x, z = (torch.from_numpy(rows[at : at + 70]) for rows in (X, Z))
        cross[at // 70 % 2].update(*(rows.to(getattr(torch, dtype)) for rows in (x, z)))
        moments.update(at // 70 % 2, x, Columns(torch.ones(len(x), 1)))
        targets.update(at // 70 % 2, x[:, :0])
    for part in cross:
        part.settle()
    moments.settle(targets)
    both = CrossMoments(*(a + b for a, b in zip(cross[0].tensors, cross[1].tensors, strict=True)))  # as ranks do
    B, b = linear_map(moments, both)
    expected = np.linalg.lstsq(np.c_[X, np.ones(500)], Z, rcond=None)[0]
    assert np.abs(X @ (B.numpy() - expected[:-1]) + b.numpy() - expected[-1]).max() < near


def test_features_that_add_up_to_zero_are_mapped_all_the_same():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 6))
    X -= X.mean(1, keepdims=True)
    Z = X[:, :2] * 3 + 1
    cross, moments, targets = CrossMoments.empty(6, 2), Moments.empty(1, 6, 0), TargetMoments.empty(1, 0)
    cross.update(torch.from_numpy(X), torch.from_numpy(Z))
    moments.update(0, torch.from_numpy(X), Columns(torch.ones(300, 1)))
    targets.update(0, torch.zeros(300, 0))
    cross.settle()
    moments.settle(targets)
    for null_direction in (True, False):
        B, b = linear_map(moments, cross, null_direction=null_direction)
        np.testing.assert_allclose(X @ B.numpy() + b.numpy(), Z, atol=1e-9)
