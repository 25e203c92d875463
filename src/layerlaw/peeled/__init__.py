"""The Layer-Peeled Model: last-layer classifiers and features, free except for their norms; exact, instant, certified.

Two sizes of classes and all closed forms need NumPy only; SciPy (extra "peeled") is imported for the rest when first used.
"""

from layerlaw.peeled.counts import Groups
from layerlaw.peeled.directly import Direct, TwoLayers, best_simplex, solve_direct, solve_two_layers
from layerlaw.peeled.figures import collapse_sheet, cosine_sheet, phase_sheet, simplex_sheet
from layerlaw.peeled.solution import NeuralCollapse, Solution
from layerlaw.peeled.solving import solve, solve_penalized
from layerlaw.peeled.thresholds import (
    CollapseCurve,
    Oversampling,
    collapse_curve,
    collapse_ratio,
    critical_budget,
    oversampling,
    vanish_ratio,
)

__all__ = [
    "CollapseCurve", "Direct", "Groups", "NeuralCollapse", "Oversampling", "Solution", "TwoLayers", "best_simplex",
    "collapse_curve", "collapse_ratio", "collapse_sheet", "cosine_sheet", "critical_budget", "oversampling",
    "phase_sheet", "simplex_sheet", "solve", "solve_direct", "solve_penalized", "solve_two_layers", "vanish_ratio",
]  # fmt: skip
