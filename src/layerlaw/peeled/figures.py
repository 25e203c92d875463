"""The figures of the paper and the talks as plain data (`layerlaw.pages.draw_sheet` puts them on paper).

Everything is computed exactly at each point, so a sheet takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.pages.outcome import Panel, PlanePanel, Series, Sheet
from layerlaw.peeled.solution import helmert
from layerlaw.peeled.thresholds import collapse_curve, collapse_ratio, vanish_ratio
from layerlaw.peeled.two_groups import TwoGroups, solve_pair

Array = npt.NDArray[np.float64]
PAPER_RATIOS = tuple(float(R) for R in 10 ** np.linspace(0, 4, 41))
BUDGETS = tuple(float(c) for c in np.linspace(0.02, 4, 200))
LONGEST = 60  # points that draw one vector
VIEW = np.array([[0.96, 0.10], [0.12, 0.86], [-0.26, 0.50]])  # (3, 2) a tetrahedron seen a little from above


def cosine_sheet(
    *,
    K: int = 10,
    K_A: Sequence[int] = (3, 5, 7),
    E_H: Sequence[float] = (5, 10),
    E_W: float = 1.0,
    ratios: Sequence[float] = PAPER_RATIOS,
) -> Sheet:
    """Cosine between minority classifiers against the ratio R, one panel per E_H, one curve per K_A (after Fang et al.).

    >>> [series.label for series in cosine_sheet().panels[0].series]
    ['K_A = 3', 'K_A = 5', 'K_A = 7']
    """
    panels = []
    for budget in E_H:
        curves = {k: collapse_curve(k, K - k, ratios, E_W=E_W, E_H=budget) for k in K_A}
        series = [Series(curve.ratios.tolist(), curve.cosines.tolist(), f"K_A = {k}") for k, curve in curves.items()]
        found = ", ".join(f"{math.exp(curve.collapse):.4g}" for curve in curves.values())
        panels.append(
            Panel(
                f"E_W = {E_W:g}, E_H = {budget:g}",
                series,
                xlabel="imbalance ratio R",
                ylabel="minority cosine",
                log_x=True,
                log_y=False,
                note=f"R0 = {found}",
            )
        )
    return Sheet(
        f"Minority collapse, K = {K}",
        panels,
        columns=2,
        share_y=True,
        caption="Cosine between two minority classifiers at the exact optimum: 1 from R0 on. A curve ends where they become "
        "0 and have no angle.",
    )


def phase_sheet(
    pairs: Sequence[tuple[int, int]] = ((3, 7), (5, 5), (7, 3)),
    *,
    budgets: Sequence[float] = BUDGETS,
    highest: float = 1e5,
) -> Sheet:
    """Phases in the plane of c = √(E_W E_H) and R, with their exact boundaries, without a bias and with one."""
    panels = []
    for K_A, K_B in pairs:
        series = []
        for bias in (False, True):
            words, style = (" (with a bias)", "fit") if bias else ("", "line")
            fine = sorted([*budgets, *([] if bias else _towards_the_end(K_A, K_B, budgets[-1]))])
            collapse = [_below(collapse_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True), highest) for c in fine]
            vanish = [_below(vanish_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True), highest) for c in fine]
            series.append(Series(fine, collapse, f"R0: collapsed above{words}", style=style, colour=0))  # type: ignore[arg-type]
            series.append(Series(fine, vanish, f"R_vanish: zero above{words}", style=style, colour=1))  # type: ignore[arg-type]
        title = f"K_A = {K_A}, K_B = {K_B}"
        panels.append(Panel(title, series, xlabel="c = √(E_W E_H)", ylabel="imbalance ratio R", log_y=True))
    return Sheet(
        "Phases of the minority classifiers",
        panels,
        columns=len(panels),
        share_y=True,
        caption="Exact boundaries: separated below R0, collapsed above it, zero above R_vanish. Without a bias the minority "
        "vanishes only while the budget is small.",
    )


def simplex_sheet(classes: Sequence[int] = (2, 3, 4)) -> Sheet:
    """Balanced classes: the classifiers are a simplex, all angles as large as can be."""
    panels = []
    for K in classes:
        rows = _rows(solve_pair(1, K - 1, 0.0, 1.0))
        panels.append(_rays(f"K = {K}, cosine {_signed(-1 / (K - 1))}", rows))
    return Sheet(
        "The simplex of K balanced classes", panels, columns=len(panels), caption="K = 4 is seen in projection."
    )


def collapse_sheet(
    K_A: int = 1,
    K_B: int = 2,
    *,
    E_W: float = 1.0,
    E_H: float = 2.0,
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0, 1.3),
) -> Sheet:
    """The classifiers as R grows to R0 and beyond, as small multiples: `shares` are values of log R / log R0.

    One majority and two minority classes lie in a plane, so lengths and angles are true; four are seen in projection.
    """
    log_R0 = collapse_ratio(K_A, K_B, E_W=E_W, E_H=E_H, log=True)
    pairs = [solve_pair(K_A, K_B, share * log_R0, math.sqrt(E_W * E_H)) for share in shares]
    seen = [_rows(pair) * (E_W / E_H) ** 0.25 for pair in pairs]
    reach = max(float(np.abs(rows).max()) for rows in seen)
    panels = []
    for pair, rows in zip(pairs, seen, strict=True):
        angle = "vanished" if pair.minority_cosine is None else f"cosine {_signed(pair.minority_cosine)}"
        panels.append(_rays(f"R = {math.exp(pair.log_R):.4g}, {angle}", rows, reach))
    return Sheet(
        f"Minority collapse: {K_A} majority and {K_B} minority classifiers as R grows",
        panels,
        columns=min(4, len(panels)),
        caption=f"E_W = {E_W:g}, E_H = {E_H:g}, R0 = {math.exp(log_R0):.4g}. The first {K_A} colours are the majority. "
        "The dots in the corners are the same everywhere: all panels have one scale.",
    )


def _signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _below(log_R: float, highest: float) -> float | None:
    return math.exp(log_R) if log_R <= math.log(highest) else None


def _towards_the_end(K_A: int, K_B: int, most: float) -> list[float]:
    """Budgets that approach the one beyond which nothing vanishes: R_vanish goes to infinity there."""
    K = K_A + K_B
    if K_A == 1:
        return []
    a = -K_A * math.log((math.sqrt(K * K_B) - K_B) / K_A)  # (K_A e^{−a/K_A} + K_B)² = K K_B
    end = a * (K_A - 1) / K
    return [end * (1 - 10.0**-k) for k in np.linspace(1, 12, 45)] if end < most else []


def _rows(pair: TwoGroups) -> Array:
    """(K, 2) the classifiers up to one factor, majority first, in coordinates that do not depend on R.

    Sideways what lies within the groups, upright what lies between them; a third dimension is projected.
    """
    K_A, K_B = pair.K_A, pair.K_B
    K = K_A + K_B
    if not 2 <= K <= 4:
        raise InputError(f"expected 2 to 4 classes, which fit into three dimensions, got {K_A} + {K_B}.")
    inner = np.zeros((K, K - 2))
    inner[:K_A, : K_A - 1] = math.sqrt(pair.a) * helmert(K_A)
    inner[K_A:, K_A - 1 :] = math.sqrt(pair.e) * helmert(K_B)
    up = math.sqrt(pair.r) * np.repeat([math.sqrt(K_B / (K * K_A)), -math.sqrt(K_A / (K * K_B))], [K_A, K_B])
    solid = np.zeros((K, 3))
    solid[:, 1] = up
    solid[:, : 2 * inner.shape[1] : 2] = inner
    return solid @ VIEW if K == 4 else solid[:, :2]


def _rays(title: str, tips: Array, reach: float | None = None) -> PlanePanel:
    """Each vector as points from the origin to its tip, with a ring around it; dots in the corners fix a common scale."""
    turn = np.linspace(0, 2 * math.pi, 17)[:-1]
    ring = 0.03 * (reach or float(np.abs(tips).max())) * np.column_stack([np.cos(turn), np.sin(turn)])
    points = np.concatenate([np.concatenate([np.linspace(0, 1, LONGEST)[:, None] * tip, tip + ring]) for tip in tips])
    labels = np.repeat(np.arange(len(tips)), LONGEST + len(turn))
    if reach is not None:
        corners = 1.06 * reach * np.array([(x, y) for x in (-1, 1) for y in (-1, 1)])
        points, labels = np.concatenate([points, corners]), np.concatenate([labels, np.full(4, len(tips))])
    return PlanePanel(title, [(float(x), float(y)) for x, y in points], labels.tolist())
