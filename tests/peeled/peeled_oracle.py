"""Independent of the package: the formulas as they stand in the project's facts, dense matrices, a semidefinite program."""

import math

import numpy as np

# K_A, K_B, E_W, E_H, R0, R_vanish
TABLE = [
    (5, 5, 1, 5, 12.192447, math.inf),
    (5, 5, 1, 10, 81.102206, math.inf),
    (3, 7, 1, 5, 245.49693, math.inf),
    (3, 7, 1, 10, 6350.8465, math.inf),
    (7, 3, 1, 5, 4.000467, 5.7053),
    (7, 3, 1, 10, 13.665857, 26.2409),
    (2, 2, 1, 5, 47.684880, math.inf),
    (8, 2, 2, 3, 3.677442, 4.455),
    (3, 3, 0.5, 8, 14.576543, math.inf),
    (10, 5, 1, 6, 4.050163, 5.283),
    (1, 4, 1, 2, 492.78021, math.inf),
    (5, 5, 5, 1, 12.192447, math.inf),
]
SWEEPS = [(K_A, E_H) for K_A in (3, 5, 7) for E_H in (5, 10)]
PAPER_RATIOS = 10 ** np.linspace(0, 4, 41)


def threshold_by_angle(K_A: int, K_B: int, m: float) -> tuple[float, float]:
    """(c, R0) at margin m, in the angle θ; naive, so only for moderate numbers."""
    K = K_A + K_B
    sin = math.sqrt(K * K_A) / (K_A + K_B * math.exp(m))
    cos = math.sqrt(1 - sin**2)
    r = m * K_B * (K_A + K_B * math.exp(m)) / K
    if K_A == 1:
        return r / K, cos * (K_B + math.exp(r * cos * math.sqrt(K / K_B))) / math.sqrt(K * K_B)
    rho = (math.sqrt(K * K_B) / cos - K_B) / K_A
    a = r * cos * math.sqrt(K / K_B) - K_A * math.log(rho)
    c = ((K_A - 1) * a + r) / K
    return c, (rho * (K_A - 1) + K_B + rho * math.exp(a)) / (K_A * rho + K_B)


def dense_loss(counts: np.ndarray, Z: np.ndarray, kind: str = "ce") -> tuple[float, np.ndarray]:
    """Loss and gradient of K×K logits, straight from the definition."""
    share = np.asarray(counts) / np.sum(counts)
    K = len(share)
    if kind == "mse":
        return 0.5 * float(share @ ((Z - np.eye(K)) ** 2).sum(1)), share[:, None] * (Z - np.eye(K))
    top = Z.max(1, keepdims=True)
    P = np.exp(Z - top)
    total = P.sum(1, keepdims=True)
    loss = (np.log(total) + top)[:, 0] - np.diagonal(Z)
    return float(share @ loss), share[:, None] * (P / total - np.eye(K))


def dense_gap(counts: np.ndarray, Z: np.ndarray, c: float, *, b: np.ndarray | float = 0.0, kind: str = "ce") -> float:
    G = dense_loss(counts, Z + b, kind)[1]
    return float((G * Z).sum() + len(Z) * c * np.linalg.norm(G, 2))


def two_group_loss(K_A: int, K_B: int, R: float, a: float, e: float, t_A: float, t_B: float) -> float:
    """The objective in four numbers (facts, 4)."""
    K = K_A + K_B
    m_A = a * (1 - 1 / K_A) + t_A * math.sqrt(K / K_B) / K_A
    m_B = e * (1 - 1 / K_B) + t_B * math.sqrt(K / K_A) / K_B
    one = R * K_A * math.log(1 + (K_A - 1) * math.exp(-a) + K_B * math.exp(-m_A))
    other = K_B * math.log(1 + (K_B - 1) * math.exp(-e) + K_A * math.exp(-m_B))
    return (one + other) / (R * K_A + K_B)


def mean_minority_cosine(gram: np.ndarray, K_A: int) -> float:
    block = gram[K_A:, K_A:]
    norm = np.sqrt(np.diagonal(block))
    cosines = block / np.outer(norm, norm)
    k = len(block)
    return float((cosines.sum() - np.trace(cosines)) / (k * (k - 1)))


class Relaxation:
    """The paper's convex relaxation over X ⪰ 0 of size 2K, built once and solved with CLARABEL for each ratio."""

    def __init__(self, K_A: int, K_B: int, E_W: float, E_H: float) -> None:
        import cvxpy as cp

        K = K_A + K_B
        self.K_A, self.K = K_A, K
        self.X = cp.Variable((2 * K, 2 * K), PSD=True)
        self.share = cp.Parameter(K, nonneg=True)
        Z = self.X[:K, K:]
        loss = [cp.log_sum_exp(Z[k]) - Z[k, k] for k in range(K)]
        budgets = [cp.trace(self.X[:K, :K]) <= K * E_H, cp.trace(self.X[K:, K:]) <= K * E_W]
        self.problem = cp.Problem(cp.Minimize(self.share @ cp.hstack(loss)), budgets)

    def solve(self, R: float) -> tuple[float, float]:
        """(loss, mean minority cosine)."""
        counts = np.repeat([R, 1.0], [self.K_A, self.K - self.K_A])
        self.share.value = counts / counts.sum()
        self.problem.solve(solver="CLARABEL")
        return float(self.problem.value), mean_minority_cosine(self.X.value[self.K :, self.K :], self.K_A)
