"""Singular values and right singular vectors of the small matrices between the passes.

Of a matrix A of class means, contrasts or products (…, k, d), the eigenvalues of its smaller Gram matrix are found first,
which is much faster than a singular value decomposition, on a GPU above all. They are squares: beside the largest, s₁²,
those of s below 1e-3·s₁ have lost more than six of sixteen digits. Where there are such, A is decomposed exactly:

- on a CPU by QR and LAPACK;
- so too on a GPU where there are few values: their small Gram matrices are decomposed on the CPU;
- else on a GPU, where a singular value decomposition in float64 takes ten times as long as eigenvalues do, in steps
  (`in_steps`). With U the eigenvectors of A Aᵀ, the rows of Uᵀ A are orthogonal up to the rounding of s₁², and those of the
  large scales, divided by these, are right singular vectors. The others are left without what they have of the former (to
  drop it changes small singular values in the second order only, 1e-20 of them), and are now of size 1e-3·s₁ or less: their
  own Gram matrix has the digits for the next three decades. At most six steps lead down to the rounding of A itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache

import torch
from torch import Tensor

# Singular values up to this number take no time (of a GPU: they are found for all matrices at once).
FEW = {"cpu": 200, "cuda": 32}
LONG = {"cpu": 10**12, "cuda": 256}  # numbers in a row: beyond, QR on a GPU takes one matrix after the other
SEVERAL = 128  # matrices: the small Gram matrices of more keep a GPU busy
MANY = 128  # so many of each matrix keep a GPU busy: several matrices gain nothing together
AT_ONCE = 4  # matrices that a GPU decomposes
NEARLY_EQUAL = 1e-6  # of the largest eigenvalue: larger ones keep ten digits, and their roots as many
EPS = torch.finfo(torch.float64).eps


def right_singular(A: Tensor, *, nine_digits: bool = False, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Singular values (…, r), descending, and right singular vectors (…, r, d) of float64 (…, k, d), r = min(k, d).

    The vectors are orthonormal to at least nine digits, also those of values that are 0. `nine_digits`: whether so many are
    enough where there are many small matrices. Values below the `floor` (…) are told apart only where that takes no time:
    the largest of them has its digits.

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
        if max(A.shape[-2:]) <= LONG["cpu" if cpu else "cuda"] or A.shape[:-2].numel() > SEVERAL:
            return _directly(A)
        s, V, certain = _by_eigenvalues(A, at_hand=True)
        if not bool(certain.all()):
            s[~certain], V[~certain] = _directly(A[~certain])
        return s, V
    if not cpu and (r > MANY or torch.Size(A.shape[:-2]).numel() == 1):  # its first step is the one by eigenvalues
        s, V = _each_in_steps(A.reshape(-1, *A.shape[-2:]), None if floor is None else floor.reshape(-1))
        return s.view(*A.shape[:-2], r), V.view(*A.shape[:-2], r, -1)
    s, V, certain = _by_eigenvalues(A)
    if not bool(certain.all()):
        # Entries of a leading dimension one by one: they differ in how many of their values are small.
        if cpu:
            for index in (~certain).nonzero().tolist():
                s[tuple(index)], V[tuple(index)] = _directly(A[tuple(index)])
        else:
            s[~certain], V[~certain] = _each_in_steps(A[~certain], None if floor is None else floor[~certain])
    return s, V


def turned(V: Tensor) -> Tensor:
    """Rows V (…, r, d), in place, each pointing to the one side of a plane through 0 that has nothing to do with data.

    A singular direction has two signs, and every algorithm, device or processor gives one of them. What several processes
    add up along it needs the same one. (A largest entry that is to be positive would be drawn by lot between equal ones.)
    Of equal scales, to some eleven digits, the directions themselves are drawn by lot, and no sign mends that.

    >>> turned(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)).tolist()
    [[1.0, -1.0], [1.0, -1.0]]
    """
    toward = V @ marks(V.shape[-1], V.device)
    return V.mul_(torch.ones_like(toward).copysign_(toward).unsqueeze(-1))


def singular_values(A: Tensor) -> Tensor:
    """The singular values alone (…, r), descending."""
    return torch.linalg.svdvals(A) if A.device.type == "cpu" else right_singular(A)[0]


def _directly(A: Tensor) -> tuple[Tensor, Tensor]:
    """By QR of the longer side, and a decomposition of the small factor."""
    if A.device.type != "cpu":  # where QR of several matrices takes squares, which may vanish
        size = _size(A)
        s, V = _by_qr(A / size)
        return s * size.squeeze(-1), V
    return _by_qr(A)


def _by_qr(A: Tensor) -> tuple[Tensor, Tensor]:
    k, d = A.shape[-2:]
    if k > d:
        _, s, V = torch.linalg.svd(torch.linalg.qr(A, mode="r")[1], full_matrices=False)
        return s, V
    Q, R = torch.linalg.qr(A.mT)  # (…, d, r), (…, r, k)
    _, s, rotation = torch.linalg.svd(R.mT, full_matrices=False)
    return s, rotation @ Q.mT


def _by_eigenvalues(A: Tensor, *, at_hand: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """By those of the smaller Gram matrix; and whether all of these have their digits (…).

    `at_hand`: few small matrices, which a CPU decomposes while a GPU would still be told to begin.
    """
    k, d = A.shape[-2:]
    size = _size(A)
    A = A / size  # its squares neither overflow nor vanish
    gram = A @ A.mT if k <= d else A.mT @ A
    values, vectors = torch.linalg.eigh(gram.cpu() if at_hand else gram)  # ascending
    certain = values[..., 0] > NEARLY_EQUAL * values[..., -1]
    values, vectors = values.to(A.device), vectors.to(A.device)
    s, vectors = values.flip(-1).clamp_min(0).sqrt(), vectors.flip(-1).mT
    V = vectors @ A / s.unsqueeze(-1) if k <= d else vectors.contiguous()
    return s * size.squeeze(-1), V, certain


def in_steps(A: Tensor, floor: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """The same of one matrix (k, d), with the digits of the small ones, by products and eigenvalues alone."""
    if A.shape[0] > A.shape[1]:
        A = torch.linalg.qr(A, mode="r")[1]
    size, rounding = _size(A), EPS * max(A.shape)
    W = A / size  # rows of which nothing is known yet
    least = torch.as_tensor(floor).to(A) / size.squeeze()
    scales: list[Tensor] = []
    V = W[:0]
    while len(W):
        values, U = torch.linalg.eigh(W @ W.mT)
        s, U = values.flip(0).clamp_min(0).sqrt(), U.flip(1)
        first = scales[0][0] if scales else s[0]
        told = torch.stack([(s > NEARLY_EQUAL**0.5 * s[0]).sum(), s[0] <= torch.maximum(rounding * first, least)])
        known, last = told.tolist()  # one transfer from the device
        if not known or last:  # what is left is 0, the rounding of A, or below the floor
            scales.append(s)
            V = torch.cat([V, torch.linalg.qr(torch.cat([V, W]).mT)[0].mT[len(V) :]])
            break
        scales.append(s[:known])
        V = torch.cat([V, U[:, :known].mT @ W / s[:known].unsqueeze(1)])
        W = U[:, known:].mT @ W
        for _ in range(2):  # the second time for the rounding of the first
            W = W - W @ V.mT @ V
    return torch.cat(scales) * size.squeeze(-1), V


def _each_in_steps(A: Tensor, floor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of several matrices (m, k, d) on a GPU, several at once: each alone leaves most of it idle, waiting for itself."""
    floors = A.new_zeros(len(A)) if floor is None else floor
    if len(A) == 1:
        found = [in_steps(A[0], floors[0])]
    else:
        here = torch.cuda.current_stream(A.device)
        pool, streams = _workers(A.device)

        @torch.no_grad()
        def work(number: int) -> list[tuple[Tensor, Tensor]]:
            stream = streams[number]
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                mine = [in_steps(A[i], floors[i]) for i in range(number, len(A), AT_ONCE)]
            for part in (tensor for pair in mine for tensor in pair):
                part.record_stream(here)
            here.wait_stream(stream)
            return mine

        parts = list(pool.map(work, range(min(AT_ONCE, len(A)))))
        found = [parts[i % AT_ONCE][i // AT_ONCE] for i in range(len(A))]
    s, V = (torch.stack(part) for part in zip(*found, strict=True))
    return s, V


@cache
def _workers(device: torch.device) -> tuple[ThreadPoolExecutor, list[torch.cuda.Stream]]:
    """Threads, with a stream for each. Torch loads what it solves these with at the first call, which must not be two."""
    torch.linalg.qr(torch.linalg.eigh(torch.ones(1, 1, dtype=torch.float64, device=device))[1])
    streams = [beside(device, number) for number in range(1, AT_ONCE + 1)]
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="layerlaw-spectrum"), streams


@cache
def beside(device: torch.device, number: int = 0) -> torch.cuda.Stream:
    """A stream on which a GPU works beside the current one; always the same, since memory is kept for each of them."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=256)
def marks(n: int, device: torch.device, *, step: float = 1.0) -> Tensor:
    """Numbers (n,) without a pattern; of another `step` others.

    Made on the CPU: they are the same on all devices, and on a GPU before any of its streams can read them.
    """
    with torch.inference_mode(False):  # they may be used outside of one
        return torch.arange(1.0, n + 1, dtype=torch.float64, device="cpu").mul_(step).cos_().to(device)


def _size(A: Tensor) -> Tensor:
    """Largest magnitude (…, 1, 1), or 1 where all are 0."""
    size = A.abs().amax((-2, -1), keepdim=True)
    return torch.where(size > 0, size, 1.0)
