"""Every measure once more, in NumPy and from its definition: d×d scatter matrices and an explicit pseudo-inverse.

Nothing here is imported from layerlaw. `number` is float64 or longdouble; for longdouble, which NumPy's linear algebra
does not know, the eigenvectors come from Jacobi rotations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def as_array(x: Any, number: type = np.float64) -> Array:
    """Torch (of any float dtype) or NumPy → NumPy numbers that hold the same values."""
    if isinstance(x, torch.Tensor):
        x = x.detach().double().numpy()
    return np.asarray(x, dtype=number)


def as_labels(y: Any) -> Array:
    return np.asarray(y.numpy() if isinstance(y, torch.Tensor) else y)


def class_weights(y: Array, K: int, weighting: str) -> Array:
    counts = np.bincount(y, minlength=K)
    return counts / np.longdouble(len(y)) if weighting == "samples" else np.full(K, 1 / np.longdouble(K))


def class_means(x: Array, y: Array, K: int) -> Array:
    return np.stack([x[y == k].sum(0) / x.dtype.type((y == k).sum()) for k in range(K)])


def class_covariance(x: Array, y: Array, k: int) -> Array:
    """(1/n_k) Σ_i (x_ki − x̄_k)(x_ki − x̄_k)ᵀ."""
    members = x[y == k]
    residual = members - members.sum(0) / x.dtype.type(len(members))
    return residual.T @ residual / x.dtype.type(len(members))


def scatters(x: Array, y: Array, K: int, weighting: str = "samples") -> tuple[Array, Array]:
    """SS_w and SS_b, both (d, d)."""
    w = class_weights(y, K, weighting).astype(x.dtype)
    means = class_means(x, y, K)
    centered = means - w @ means
    within = sum(w[k] * class_covariance(x, y, k) for k in range(K))
    between = sum(w[k] * np.outer(centered[k], centered[k]) for k in range(K))
    return np.asarray(within), np.asarray(between)


def jacobi_eigen(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors (columns) of a symmetric matrix, in its own precision, by Jacobi rotations."""
    A, d = matrix.copy(), len(matrix)
    V = np.eye(d, dtype=A.dtype)
    for _ in range(60):
        negligible = np.finfo(A.dtype).eps ** 2 * np.abs(A).max()
        if np.abs(A - np.diag(np.diag(A))).max() <= negligible:
            break
        for p in range(d - 1):
            for q in range(p + 1, d):
                if np.abs(A[p, q]) <= negligible:
                    continue
                theta = (A[q, q] - A[p, p]) / (2 * A[p, q])
                t = (1 if theta >= 0 else -1) / (np.abs(theta) + np.sqrt(theta * theta + 1))
                c = 1 / np.sqrt(t * t + 1)
                s = t * c
                A[:, p], A[:, q] = c * A[:, p] - s * A[:, q], s * A[:, p] + c * A[:, q]
                A[p, :], A[q, :] = c * A[p, :] - s * A[q, :], s * A[p, :] + c * A[q, :]
                V[:, p], V[:, q] = c * V[:, p] - s * V[:, q], s * V[:, p] + c * V[:, q]
    return np.diag(A).copy(), V


def pseudo_inverse(matrix: Array, rank: int) -> Array:
    """Moore–Penrose inverse of a symmetric non-negative matrix whose rank is known."""
    values, vectors = np.linalg.eigh(matrix) if matrix.dtype == np.float64 else jacobi_eigen(matrix)
    top = np.argsort(values)[::-1][:rank]
    return (vectors[:, top] / values[top]) @ vectors[:, top].T


def separation(
    x: Any, y: Any, K: int, *, weighting: str = "samples", rank: int | None = None, number: type = np.float64
) -> float:
    """D = Tr(SS_w SS_b⁺)."""
    x, y = as_array(x, number), as_labels(y)
    within, between = scatters(x, y, K, weighting)
    return float(np.trace(within @ pseudo_inverse(between, min(K - 1, x.shape[1]) if rank is None else rank)))


def linear_separation(x: Any, y: Any, K: int, *, weighting: str = "samples") -> float:
    """D_lin = Σ 1/λ_i over the K−1 largest eigenvalues of SS_w⁻¹ SS_b, for an SS_w that has an inverse."""
    within, between = scatters(as_array(x), as_labels(y), K, weighting)
    eigenvalues = np.sort(np.linalg.eigvals(np.linalg.solve(within, between)).real)[::-1]
    return float((1 / eigenvalues[: min(K - 1, len(within))]).sum())


def class_separation(x: Any, y: Any, K: int, *, weighting: str = "samples", rank: int | None = None) -> Array:
    """D_k = Tr(SS_w^k SS_b⁺)."""
    x, y = as_array(x), as_labels(y)
    inverse = pseudo_inverse(scatters(x, y, K, weighting)[1], min(K - 1, x.shape[1]) if rank is None else rank)
    return np.array([np.trace(class_covariance(x, y, k) @ inverse) for k in range(K)])


def nc1(x: Any, y: Any, K: int) -> float:
    return separation(x, y, K, weighting="classes") / K


def nearest_center(x: Any, y: Any, K: int) -> Array:
    """The class whose mean is nearest, by the distance in the whole space."""
    x, y = as_array(x), as_labels(y)
    means = class_means(x, y, K)
    return np.array([np.argmin([np.sum((row - mean) ** 2) for mean in means]) for row in x])


def cdnv(x: Any, y: Any, K: int, number: type = np.float64) -> float:
    x, y = as_array(x, number), as_labels(y)
    means = class_means(x, y, K)
    variances = [np.trace(class_covariance(x, y, k)) for k in range(K)]
    pairs = [
        (variances[a] + variances[b]) / (2 * np.sum((means[a] - means[b]) ** 2)) for a in range(K) for b in range(a)
    ]
    return float(np.mean(pairs))


def compression(x: Any, y: Any, K: int, weighting: str = "samples") -> float:
    within, between = scatters(as_array(x), as_labels(y), K, weighting)
    return float(np.trace(within) / np.trace(between))


def discrimination(x: Any, y: Any, K: int) -> float:
    means = class_means(as_array(x), as_labels(y), K)
    return 1 - max(_cosine(means[a], means[b]) for a in range(K) for b in range(a))


def norms_and_angles(rows: Array) -> tuple[float, float, float]:
    K = len(rows)
    norms = np.sqrt((rows**2).sum(1))
    cosines = np.array([_cosine(rows[a], rows[b]) for a in range(K) for b in range(a)])
    return float(np.std(norms) / np.mean(norms)), float(np.mean(np.abs(cosines + 1 / (K - 1)))), float(np.std(cosines))


def mean_cosine(rows: Array) -> float:
    pairs = [_cosine(rows[i], rows[j]) for i in range(len(rows)) for j in range(i)]
    return float(np.mean(pairs))


def feature_square(x: Any, y: Any, K: int) -> float:
    """E_H of the Layer-Peeled Model: the mean over classes of the mean squared norm of their samples."""
    x, y = as_array(x), as_labels(y)
    return float(np.mean([np.mean([row @ row for row in x[y == k]]) for k in range(K)]))


def used_budget(x: Any, y: Any, K: int, weight: Any) -> float:
    """‖M Wᵀ‖_*/K with both centered, as the trace of the root of (MWᵀ)(MWᵀ)ᵀ."""
    rows = as_array(weight)
    Z = centered_means(x, y, K) @ (rows - rows.mean(0)).T
    return float(np.sqrt(np.maximum(np.linalg.eigvalsh(Z @ Z.T), 0)).sum() / K)


def centered_means(x: Any, y: Any, K: int, weighting: str = "classes") -> Array:
    means = class_means(as_array(x), as_labels(y), K)
    return means - (means.mean(0) if weighting == "classes" else as_array(x).mean(0))


def self_duality(x: Any, y: Any, K: int, weight: Any, weighting: str = "samples") -> float:
    M, W = centered_means(x, y, K, weighting), as_array(weight)
    return float(((W / np.sqrt((W**2).sum()) - M / np.sqrt((M**2).sum())) ** 2).sum())


def everything(
    x: Any, y: Any, K: int, *, weighting: str = "samples", decision: Any = None, classifier: Any = None
) -> dict[str, Any]:
    """What `layerlaw.measures.measure` should say."""
    nearest = nearest_center(x, y, K)
    norms, angles, equal = norms_and_angles(centered_means(x, y, K, weighting))
    rank = min(K - 1, x.shape[-1])
    values = {
        "separation": separation(x, y, K, weighting=weighting),
        "separation_classes": class_separation(x, y, K, weighting=weighting),
        "rank": rank,
        "full_rank": rank == K - 1,
        "nc1": nc1(x, y, K),
        "nc2_norms": norms,
        "nc2_angles": angles,
        "nc2_equiangularity": equal,
        "ncc_accuracy": float(np.mean(nearest == as_labels(y))),
        "cdnv": cdnv(x, y, K),
        "compression": compression(x, y, K, weighting),
        "discrimination": discrimination(x, y, K),
    }
    if decision is not None:
        values["ncc_mismatch"] = float(np.mean(nearest != as_labels(decision)))
    if classifier is not None:
        values["nc2_norms_classifier"], values["nc2_angles_classifier"], _ = norms_and_angles(as_array(classifier))
        values["nc3"] = self_duality(x, y, K, classifier, weighting)
    return values


def blobs(
    counts: list[int], d: int, *, seed: int = 0, spread: float = 1.0, distance: float = 1.0, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaussian classes in float64, shuffled: features (n, d) and labels (n,)."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    means = distance * rng.normal(size=(len(counts), d))
    x = offset + means[y] + spread * rng.normal(size=(len(y), d))
    return torch.from_numpy(x), torch.from_numpy(y)


def _cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def target_scatters(x: Any, y: Any) -> tuple[Array, Array]:
    """SS_w and SS_b (d, d) of features regressed on targets (n,) or (n, q), by least squares on the rows themselves."""
    x, y = as_array(x), as_array(y).reshape(len(x), -1)
    X, Y = x - x.mean(0), y - y.mean(0)
    fitted = Y @ np.linalg.lstsq(Y, X, rcond=1e-9)[0]
    return (X - fitted).T @ (X - fitted) / len(x), fitted.T @ fitted / len(x)


def target_separation(x: Any, y: Any) -> float:
    """D_reg = Tr(SS_w SS_b⁺)."""
    within, between = target_scatters(x, y)
    span = as_array(y).reshape(len(x), -1)
    rank = min(np.linalg.matrix_rank(span - span.mean(0), tol=1e-6 * np.abs(span).max()), between.shape[0])
    return float(np.trace(within @ pseudo_inverse(between, int(rank))))
