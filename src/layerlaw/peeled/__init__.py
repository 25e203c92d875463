"""The Layer-Peeled Model: last-layer classifiers and features, free except for their norms; exact, instant, certified.

    solving      solve: from class counts and budgets to the global optimum; the penalized form
    solution     what the optimum says: phases, angles, logits, accuracy, neural collapse
    separation   whether every class is told apart: one answer for solving, thresholds and resampling
    thresholds   the ratio of minority collapse, the ratio of vanishing, curves, the critical budget
    resampling   oversampling that separates every class
    counts       class counts as groups of equal size
    reduced      K×K logits as one number per group and a G×G matrix; gradient and certificate
    two_groups   two sizes of classes: one root, up to a million classes
    biased       with a free bias: closed forms
    squares      squared loss: closed forms
    many_groups  any number of sizes: the reduced problem in factors
    blocks       Gram matrices that only know groups
    directly     the model as written, over all features, from random starts; other norms, few dimensions
    other_norms  the best simplex under a q-norm
    two_layers   two layers peeled
    figures      the figures of the paper and the talks as data; `from layerlaw.pages import draw_sheet` draws them
    roots        one bracketed root
    scipy_door   the one door to SciPy

Two sizes of classes and all closed forms need NumPy only; SciPy (extra "peeled") is imported for the rest when first used.
"""

from layerlaw.peeled.counts import Groups
from layerlaw.peeled.directly import Direct, solve_direct
from layerlaw.peeled.figures import collapse_sheet, cosine_sheet, phase_sheet, simplex_sheet
from layerlaw.peeled.other_norms import best_simplex
from layerlaw.peeled.resampling import Oversampling, oversampling
from layerlaw.peeled.solution import NeuralCollapse, Solution
from layerlaw.peeled.solving import solve, solve_penalized
from layerlaw.peeled.thresholds import CollapseCurve, collapse_curve, collapse_ratio, critical_budget, vanish_ratio
from layerlaw.peeled.two_layers import TwoLayers, solve_two_layers

__all__ = [
    "CollapseCurve",
    "Direct",
    "Groups",
    "NeuralCollapse",
    "Oversampling",
    "Solution",
    "TwoLayers",
    "best_simplex",
    "collapse_curve",
    "collapse_ratio",
    "collapse_sheet",
    "cosine_sheet",
    "critical_budget",
    "oversampling",
    "phase_sheet",
    "simplex_sheet",
    "solve",
    "solve_direct",
    "solve_penalized",
    "solve_two_layers",
    "vanish_ratio",
]
