"""Singular values and vectors: by eigenvalues where these have the digits, otherwise exactly, on a GPU in steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from layerlaw.stats import spectrum
from layerlaw.stats.spectrum import in_steps, right_singular, singular_values, turned

SHAPES = [(30, 50), (50, 30), (40, 40)]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    values = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(values)[0]


def made_of(s: Tensor, k: int, d: int) -> Tensor:
    """A matrix (k, d) of these singular values."""
    r = min(k, d)
    return orthonormal(k, r, 1) * s.double() @ orthonormal(d, r, 2).mT


def spectra(r: int) -> dict[str, Tensor]:
    """Singular values of many kinds."""
    few = torch.linspace(1, 0.1, r // 3)
    return {
        "nearly equal": torch.linspace(1, 0.5, r),
        "three decades and more": torch.logspace(0, -3.5, r),
        "down to the rounding of float32": torch.logspace(0, -7, r),
        "down to that of float64": torch.logspace(0, -16, r),
        "few large ones, then noise": torch.cat([few, torch.full((r - len(few),), 1e-8)]),
        "some that are 0": torch.cat([few, torch.zeros(r - len(few))]),
        "all 0": torch.zeros(r),
        "one alone": torch.cat([torch.ones(1), torch.zeros(r - 1)]),
        "beyond squares": 1e200 * torch.logspace(0, -2, r, dtype=torch.float64),
        "below squares": 1e-200 * torch.logspace(0, -5, r, dtype=torch.float64),
    }


def check(A: Tensor, s: Tensor, V: Tensor, expected: Tensor) -> None:
    """`expected` are the singular values that the matrix was made of."""
    s, V, A = s.cpu(), V.cpu(), A.cpu()
    r, d = V.shape
    assert (r, d) == (min(A.shape), A.shape[1])
    torch.testing.assert_close(V @ V.mT, torch.eye(r, dtype=torch.float64), rtol=0, atol=1e-9)
    top = float(expected.max())
    torch.testing.assert_close(s, expected.double(), rtol=1e-9, atol=1e-14 * top)
    assert bool((s[1:] <= s[:-1] * (1 + 1e-9) + 1e-14 * top).all()), "descending"
    # Each direction in units of its own scale: A Vᵀ has orthogonal columns of length s, however small one is.
    real = expected > 1e-7 * top if top else expected > 0
    scaled = A / max(top, 1e-300) @ V[real].mT / (s[real] / max(top, 1e-300))
    torch.testing.assert_close(scaled.mT @ scaled, torch.eye(int(real.sum()), dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", spectra(30))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_steps_all_singular_values_keep_their_digits(shape: tuple[int, int], kind: str, device: str) -> None:
    expected = spectra(min(shape))[kind]
    A = made_of(expected, *shape).to(device)
    check(A, *in_steps(A), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("few", "long"), [(0, 0), (10**9, 10**9), (10**9, 0)], ids=["many", "few", "few, long"])
@pytest.mark.parametrize("kind", spectra(30))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_vectors_are_right_whichever_way_is_taken(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], kind: str, few: int, long: int, device: str
) -> None:
    monkeypatch.setattr(spectrum, "FEW", {"cpu": few, "cuda": few})
    monkeypatch.setattr(spectrum, "LONG", {"cpu": long, "cuda": long})
    expected = spectra(min(shape))[kind]
    A = made_of(expected, *shape).to(device)
    check(A, *right_singular(A), expected)
    check(A, *right_singular(A, nine_digits=True), expected)
    torch.testing.assert_close(
        singular_values(A).cpu(), expected.double(), rtol=1e-9, atol=1e-14 * float(expected.max())
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("few", [10, 100], ids=["many", "few, long"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stack_of_matrices_is_what_each_is_alone(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], few: int, device: str
) -> None:
    """Some of them are found by eigenvalues and others are not."""
    monkeypatch.setattr(spectrum, "FEW", {"cpu": few, "cuda": few})
    monkeypatch.setattr(spectrum, "LONG", {"cpu": 0, "cuda": 0})
    kinds = list(spectra(min(shape)).values())
    A = torch.stack([made_of(s, *shape) for s in kinds]).view(2, 5, *shape).to(device)
    s, V = right_singular(A)
    for i, expected in enumerate(kinds):
        place = divmod(i, 5)
        check(A[place], s[place], V[place], expected)


def test_well_conditioned_matrices_of_many_rows_need_no_singular_value_decomposition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [(made_of(s, *shape), s) for shape in SHAPES for s in [torch.logspace(0, -2, min(shape))]]
    monkeypatch.setattr(spectrum, "FEW", {"cpu": 10})
    monkeypatch.setattr(torch.linalg, "svd", None)
    monkeypatch.setattr(torch.linalg, "qr", None)
    for A, expected in made:
        check(A, *right_singular(A), expected)


def test_in_steps_nothing_but_products_and_eigenvalues_is_asked_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    eigh = torch.linalg.eigh

    def counted(matrix: Tensor) -> Any:
        steps.append(len(matrix))
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "svd", None)
    monkeypatch.setattr(torch.linalg, "eigh", counted)
    expected = torch.logspace(0, -8, 40)
    A = made_of(expected, 40, 60)
    check(A, *in_steps(A), expected)
    assert len(steps) == 3  # of three decades each
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
def test_below_the_floor_nothing_is_told_apart(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    steps: list[int] = []
    eigh = torch.linalg.eigh

    def counted(matrix: Tensor) -> Any:
        steps.append(len(matrix))
        return eigh(matrix)

    expected = 7 * torch.logspace(0, -12, 40, dtype=torch.float64)
    A = made_of(expected, *shape)
    monkeypatch.setattr(torch.linalg, "eigh", counted)
    s, V = in_steps(A, floor=7e-5)
    assert len(steps) == 3  # two for what is above it, one that says that no more is
    above = expected > 7e-5
    torch.testing.assert_close(s[above], expected[above], rtol=1e-9, atol=0.0)
    assert s[~above][0] == pytest.approx(float(expected[~above][0]), rel=1e-6)
    assert bool((s[~above] <= 7e-5).all())
    torch.testing.assert_close(V @ V.mT, torch.eye(40, dtype=torch.float64), rtol=0.0, atol=1e-9)
    torch.testing.assert_close((A @ V.mT).norm(dim=0)[above], expected[above], rtol=1e-9, atol=0.0)
    assert in_steps(A, floor=100.0)[0][0] == pytest.approx(7.0)


def test_few_rows_on_a_cpu_are_decomposed_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "eigh", None)
    expected = torch.logspace(0, -5, 20)
    A = made_of(expected, 20, 33)
    check(A, *right_singular(A), expected)


def test_where_nine_digits_are_enough_few_rows_are_found_by_eigenvalues_that_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = {decades: torch.logspace(0, -decades, 20) for decades in (2, 5)}
    small, smaller = (made_of(values, 20, 33) for values in expected.values())
    decomposed = torch.linalg.svd
    monkeypatch.setattr(torch.linalg, "svd", None)
    check(small, *right_singular(small, nine_digits=True), expected[2])
    monkeypatch.setattr(torch.linalg, "svd", decomposed)
    monkeypatch.setattr(spectrum, "_by_eigenvalues", lambda A: (None, None, torch.tensor([True, False])))
    check(smaller, *right_singular(smaller, nine_digits=True), expected[5])


def test_directions_have_one_sign_whatever_finds_them() -> None:
    """Also where the largest entries are equal, so that rounding says which of them is larger."""
    A = torch.randn(6, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A[0] = torch.tensor([3.0, -3.0]).repeat(15)
    ways = [spectrum._directly(A)[1], in_steps(A)[1], spectrum._by_eigenvalues(A)[1]]
    assert not torch.allclose(ways[0], ways[1], atol=1e-9)  # as they come
    first, *others = [turned(V.clone()) for V in (*ways, -ways[0])]
    for V in others:
        torch.testing.assert_close(V, first, rtol=0, atol=1e-9)
    together = torch.stack([*ways, -ways[0]])
    assert turned(together) is together
    torch.testing.assert_close(together, first.expand_as(together), rtol=0, atol=1e-9)
    pair = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert torch.equal(turned(pair.clone()), turned(-pair * (1 + 1e-15)).round())
    assert turned(A[:0].clone()).shape == (0, 30)
