"""Singular values and right singular vectors of the small matrices between the passes.

Of a matrix A of class means, contrasts or products (…, k, d), the eigenvalues of its smaller Gram matrix are found first,
which is much faster than a singular value decomposition, on a GPU above all. They are squares: beside the largest, s₁²,
those of s below 1e-3·s₁ have lost more than six of sixteen digits. Where there are such, A is decomposed exactly:

- on a CPU by QR and LAPACK;
- on a GPU, where a singular value decomposition in float64 takes ten times as long as an eigenvalue decomposition, in steps
  (`in_steps`). With U the eigenvectors of A Aᵀ, the rows of Uᵀ A are orthogonal up to the rounding of s₁², and those of the
  large scales, divided by these, are right singular vectors. The others are left without what they have of the former (to
  drop it changes small singular values in the second order only, 1e-20 of them), and are now of size 1e-3·s₁ or less: their
  own Gram matrix has the digits for the next three decades. At most six steps lead down to the rounding of A itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Singular values up to this number take no time (of a GPU: they are found for all matrices at once).
FEW = {"cpu": 200, "cuda": 32}
MANY = 128  # so many of each matrix keep a GPU busy: several matrices gain nothing together
NEARLY_EQUAL = 1e-6  # of the largest eigenvalue: larger ones keep ten digits, and their roots as many
EPS = torch.finfo(torch.float64).eps


def right_singular(A: Tensor, *, nine_digits: bool = False) -> tuple[Tensor, Tensor]:
    """Singular values (…, r), descending, and right singular vectors (…, r, d) of float64 (…, k, d), r = min(k, d).

    The vectors are orthonormal to at least nine digits, also those of values that are 0. `nine_digits`: whether so many are
    enough where there are many small matrices.

    >>> s, V = right_singular(torch.tensor([[0.0, 3.0], [4.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    >>> s.tolist(), V.abs().tolist()
    ([4.0, 3.0], [[1.0, 0.0], [0.0, 1.0]])
    """
    r, cpu = min(A.shape[-2:]), A.device.type == "cpu"
    if r <= FEW["cpu" if cpu else "cuda"]:
        if cpu and nine_digits and A.shape[-2] <= A.shape[-1]:
            s, V, certain = _by_eigenvalues(A)
            if bool(certain.all()):
                return s, V
        return _directly(A)
    if not cpu and (r > MANY or torch.Size(A.shape[:-2]).numel() == 1):  # its first step is the one by eigenvalues
        found = [in_steps(one) for one in A.reshape(-1, *A.shape[-2:])]
        s, V = (torch.stack(part) for part in zip(*found, strict=True))
        return s.view(*A.shape[:-2], r), V.view(*A.shape[:-2], r, -1)
    s, V, certain = _by_eigenvalues(A)
    if not bool(certain.all()):
        # Entries of a leading dimension one by one: they differ in how many of their values are small.
        for index in (~certain).nonzero().tolist():
            place = tuple(index)
            s[place], V[place] = _directly(A[place]) if cpu else in_steps(A[place])
    return s, V


def singular_values(A: Tensor) -> Tensor:
    """The singular values alone (…, r), descending."""
    return torch.linalg.svdvals(A) if A.device.type == "cpu" else right_singular(A)[0]


def _directly(A: Tensor) -> tuple[Tensor, Tensor]:
    """By QR of the longer side, and a decomposition of the small factor."""
    k, d = A.shape[-2:]
    if k > d:
        _, s, V = torch.linalg.svd(torch.linalg.qr(A, mode="r")[1], full_matrices=False)
        return s, V
    Q, R = torch.linalg.qr(A.mT)  # (…, d, r), (…, r, k)
    _, s, rotation = torch.linalg.svd(R.mT, full_matrices=False)
    return s, rotation @ Q.mT


def _by_eigenvalues(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By those of the smaller Gram matrix; and whether all of these have their digits (…)."""
    k, d = A.shape[-2:]
    size = _size(A)
    A = A / size  # its squares neither overflow nor vanish
    values, vectors = torch.linalg.eigh(A @ A.mT if k <= d else A.mT @ A)  # ascending
    s, vectors = values.flip(-1).clamp_min(0).sqrt(), vectors.flip(-1).mT
    V = vectors @ A / s.unsqueeze(-1) if k <= d else vectors.contiguous()
    return s * size.squeeze(-1), V, values[..., 0] > NEARLY_EQUAL * values[..., -1]


def in_steps(A: Tensor) -> tuple[Tensor, Tensor]:
    """The same of one matrix (k, d), with the digits of the small ones, by products and eigenvalues alone."""
    if A.shape[0] > A.shape[1]:
        A = torch.linalg.qr(A, mode="r")[1]
    size, floor = _size(A), EPS * max(A.shape)
    W = A / size  # rows of which nothing is known yet
    scales: list[Tensor] = []
    V = W[:0]
    while len(W):
        values, U = torch.linalg.eigh(W @ W.mT)
        s, U = values.flip(0).clamp_min(0).sqrt(), U.flip(1)
        known = int((s > NEARLY_EQUAL**0.5 * s[0]).sum())
        if not known or (scales and bool(s[0] <= floor * scales[0][0])):  # what is left is 0, or the rounding of A
            scales.append(s)
            V = torch.cat([V, torch.linalg.qr(torch.cat([V, W]).mT)[0].mT[len(V) :]])
            break
        scales.append(s[:known])
        V = torch.cat([V, U[:, :known].mT @ W / s[:known].unsqueeze(1)])
        W = U[:, known:].mT @ W
        for _ in range(2):  # the second time for the rounding of the first
            W = W - W @ V.mT @ V
    return torch.cat(scales) * size.squeeze(-1), V


def _size(A: Tensor) -> Tensor:
    """Largest magnitude (…, 1, 1), or 1 where all are 0."""
    size = A.abs().amax((-2, -1), keepdim=True)
    return torch.where(size > 0, size, 1.0)
