"""The figures of the paper and the talks as plain data, which `sheet.plot()` draws; exact at each point, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from layerlaw.errors import InputError, check_whole
from layerlaw.peeled.counts import Array, listed, positive, whole
from layerlaw.peeled.solution import helmert
from layerlaw.peeled.thresholds import LARGEST, CollapseCurve, collapse_curve, collapse_ratio, vanish_ratio
from layerlaw.peeled.two_groups import TwoGroups, solve_pair
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet, Style
from layerlaw.wording import minus

PAPER_RATIOS = tuple(float(R) for R in 10 ** np.linspace(0, 4, 41))
BUDGETS = tuple(float(c) for c in np.linspace(0.02, 4, 200))
LONGEST = 60  # points that draw one vector
DASHES = 6  # of vectors that coincide
COINCIDE = 1e-6  # of the longest vector: tips nearer than this are one
VANISHED = 7  # the color of "rows become 0"
VIEW = np.array([[0.96, 0.10], [0.12, 0.86], [-0.26, 0.50]])  # (3, 2) a tetrahedron seen a little from above


def cosine_sheet(
    *,
    K: int = 10,
    K_A: Sequence[int] = (3, 5, 7),
    E_H: Sequence[float] = (5, 10),
    E_W: float = 1.0,
    ratios: Sequence[float] | None = None,
) -> Sheet:
    """Cosine between minority classifiers against the ratio R, one panel per E_H, one curve per K_A (after Fang et al.).

    `ratios` are the paper's by default: 41 from 1 to 10⁴.

    >>> [series.label for series in cosine_sheet().panels[0].series]
    ['K_A = 3', 'K_A = 5', 'K_A = 7', 'rows become 0']
    """
    panels = []
    many = [whole(k, "K_A") for k in listed(K_A, "K_A", "numbers of majority classes")]
    check_whole(2, kind=Integral, K=K)
    if (most := max(many)) >= K:
        raise InputError(f"K_A: expected fewer majority classes than K = {K}, got {most}. Some must be the minority.")
    ratios = PAPER_RATIOS if ratios is None else ratios
    for budget in listed(E_H, "E_H", "feature budgets"):
        curves = {f"K_A = {k}": collapse_curve(k, K - k, ratios, E_W=E_W, E_H=budget) for k in many}
        found = ", ".join(f"{ratio_in_words(curve.log_collapse)} ({name})" for name, curve in curves.items())
        panels.append(ratio_panel(f"E_W = {E_W:g}, E_H = {budget:g}", curves, "minority cosine", f"R0 = {found}"))
    exact = "Cosine between two minority classifiers at the exact optimum"
    caption = f"{exact}: 1 from R0 on. A curve ends where they become 0."
    return Sheet(f"Minority collapse, K = {K}", panels, columns=2, share_y=True, caption=caption)


def ratio_panel(
    title: str,
    curves: Mapping[str, CollapseCurve],
    ylabel: str,
    note: str,
    *,
    more: Sequence[Series] = (),
    style: Style = "points",
    marked: float | None = None,
) -> Panel:
    """Cosines against R, curve by curve, with a mark where one ends because the minority vanishes."""
    series = [Series(c.ratios.tolist(), c.cosines.tolist(), name, style=style) for name, c in curves.items()]
    ends = sorted({math.exp(c.log_vanish) for c in curves.values() if c.log_vanish <= math.log(c.ratios.max())})
    if ends:
        apart = [x for R in ends for x in (R, R)]  # a gap after each mark, so that no line joins them
        series.append(Series(apart, [1.0, None] * len(ends), "rows become 0", color=VANISHED))
    about: dict[str, Any] = {"xlabel": "imbalance ratio R", "log_x": True, "log_y": False}
    return Panel(title, [*series, *more], ylabel=ylabel, note=note, marked=marked, **about)


def phase_sheet(
    pairs: Sequence[tuple[int, int]] = ((3, 7), (5, 5), (7, 3)),
    *,
    budgets: Sequence[float] | None = None,
    highest: float = 1e5,
) -> Sheet:
    """Phases in the plane of c = √(E_W E_H) and R, with their exact boundaries, without a bias and with one.

    `budgets` are values of c, 200 up to 4 by default.
    """
    panels = []
    given = listed(BUDGETS if budgets is None else budgets, "budgets", "budgets c = √(E_W E_H)")
    budgets = sorted(positive(c, f"budgets[{i}]", "budget") for i, c in enumerate(given))
    positive(highest, "highest", "ratio")
    boundaries = {collapse_ratio: "R0: collapsed above", vanish_ratio: "R_vanish: zero above"}
    for i, pair in enumerate(listed(pairs, "pairs", "pairs (K_A, K_B)")):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise InputError(f"pairs[{i}]: expected a pair (K_A, K_B), got {pair!r}.")
        K_A, K_B = whole(pair[0], f"pairs[{i}], K_A"), whole(pair[1], f"pairs[{i}], K_B")
        series = []
        for bias in (False, True):
            words, style = (" (with a bias)", "fit") if bias else ("", "line")
            fine = sorted([*budgets, *([] if bias else _towards_the_end(K_A, K_B, budgets[-1]))])
            for color, (ratio, name) in enumerate(boundaries.items()):
                logs = [ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True) for c in fine]
                values = [math.exp(log_R) if log_R <= math.log(highest) else None for log_R in logs]
                series.append(Series(fine, values, f"{name}{words}", style=style, color=color))  # type: ignore[arg-type]
        title = f"K_A = {K_A}, K_B = {K_B}"
        panels.append(Panel(title, series, xlabel="c = √(E_W E_H)", ylabel="imbalance ratio R", log_y=True))
    exact = "Exact boundaries: separated below R0, collapsed above it, zero above R_vanish."
    caption = f"{exact} Without a bias the minority vanishes only while the budget is small."
    return Sheet("Phases of the minority classifiers", panels, columns=len(panels), share_y=True, caption=caption)


def simplex_sheet(classes: Sequence[int] = (2, 3, 4)) -> Sheet:
    """Balanced classes: the classifiers are a simplex, all angles as large as can be."""
    panels = []
    for K in listed(classes, "classes", "numbers of classes"):
        check_whole(2, kind=Integral, classes=K)
        rows = _rows(solve_pair(1, K - 1, 0.0, 1.0))
        panels.append(_rays(f"K = {K}, cosine {minus(f'{-1 / (K - 1):.3g}')}", rows))
    title = "The simplex of K balanced classes"
    return Sheet(title, panels, columns=len(panels), caption="K = 4 is seen in projection.")


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
    if math.isinf(log_R0):
        raise InputError("K_B: expected at least 2 minority classes, which can coincide, got 1.")
    given = listed(shares, "shares", "values of log R / log R0")
    for i in (i for i, share in enumerate(given) if share != 0):
        positive(given[i], f"shares[{i}]", "value of log R / log R0")
    pairs = [solve_pair(K_A, K_B, share * log_R0, math.sqrt(E_W * E_H)) for share in given]
    seen = [_rows(pair) * (E_W / E_H) ** 0.25 for pair in pairs]
    reach = max(float(np.linalg.norm(rows, axis=1).max()) for rows in seen)
    majority = ["majority"] if K_A == 1 else [f"majority {k + 1}" for k in range(K_A)]
    names = [*majority, *(f"minority {k + 1}" for k in range(K_B)), "the longest row of all panels"]  # the circle
    panels = []
    for pair, rows in zip(pairs, seen, strict=True):
        angle = "vanished" if pair.minority_cosine is None else minus(f"cosine {pair.minority_cosine:.3g}")
        panels.append(_rays(f"R = {ratio_in_words(pair.log_R)}, {angle}", rows, reach, names))
    shared = "Rows that coincide share a line of dashes in their colors and have one ring within another."
    caption = f"E_W = {E_W:g}, E_H = {E_H:g}, R0 = {ratio_in_words(log_R0)}. {shared}"
    title = f"Minority collapse: {K_A} majority and {K_B} minority classifiers as R grows"
    return Sheet(title, panels, columns=min(4, len(panels)), caption=caption)


def ratio_in_words(log_ratio: float) -> str:
    """A ratio from its logarithm to four digits, also where it is more than a double can hold.

    >>> ratio_in_words(2.5), ratio_in_words(2000.0), ratio_in_words(math.inf)
    ('12.18', '10^868.6', '∞')
    """
    if math.isinf(log_ratio):
        return "∞"
    return f"{math.exp(log_ratio):.4g}" if log_ratio < LARGEST else f"10^{log_ratio / math.log(10):.1f}"


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
    solid = np.zeros((K, 3))  # sideways, up, to the back
    solid[:K_A, [0, 2][: K_A - 1]] = math.sqrt(pair.a) * helmert(K_A)
    solid[K_A:, [0, 2][K_A - 1 : K - 2]] = math.sqrt(pair.e) * helmert(K_B)
    solid[:, 1] = math.sqrt(pair.r) * np.repeat([math.sqrt(K_B / (K * K_A)), -math.sqrt(K_A / (K * K_B))], [K_A, K_B])
    return solid @ VIEW if K == 4 else solid[:, :2]


def _rays(title: str, tips: Array, reach: float | None = None, names: Sequence[str] = ()) -> PlanePanel:
    """Each vector as points from the origin to its tip, with a ring around it; a circle of radius `reach` fixes the scale.

    Vectors that coincide are drawn as dashes in turn, their rings one within another, so that none is hidden.
    """
    size = reach or float(np.linalg.norm(tips, axis=1).max())
    points, labels = [], []
    for k, tip in enumerate(tips):
        alike = [j for j in range(len(tips)) if np.linalg.norm(tips[j] - tip) < COINCIDE * size]
        turn = alike.index(k)
        along = np.linspace(0, 1, LONGEST)
        if len(alike) > 1:  # in every so-many-th of some dashes; the last point is the tip
            fine = np.linspace(0, 1, len(alike) * LONGEST)
            mine = fine[(np.arange(len(fine)) * DASHES // len(fine)) % len(alike) == turn]
            along = np.append(mine[:: max(1, len(mine) // LONGEST)][: LONGEST - 1], 1.0)
        points += [along[:, None] * tip, tip + _circle((0.03 + 0.02 * turn) * size, 16 + 8 * turn)]
        labels += [k] * sum(map(len, points[-2:]))
    if reach is not None:
        points.append(_circle(1.06 * reach, 120))
        labels += [len(tips)] * 120
    return PlanePanel(title, np.concatenate(points).tolist(), labels, names)


def _circle(radius: float, points: int) -> Array:
    turn = np.linspace(0, 2 * math.pi, points + 1)[:-1]
    return radius * np.column_stack([np.cos(turn), np.sin(turn)])
