"""Numbers along depth: the fit, how often chance would do as well, how far it would move, and when the law holds."""

from layerlaw.law.chance import binomial_p, greenwood_p, pooled_greenwood_p, shuffled_p, t_quantile
from layerlaw.law.fit import CHANCE, FEWEST_POINTS, RESIDUAL, UNCHANGED, LawFit, fit_law
from layerlaw.law.intervals import LawErrors, LawsAcross, interval_words, jackknife_error, law_errors, laws_across

__all__ = [
    "CHANCE",
    "FEWEST_POINTS",
    "RESIDUAL",
    "UNCHANGED",
    "LawErrors",
    "LawFit",
    "LawsAcross",
    "binomial_p",
    "fit_law",
    "greenwood_p",
    "interval_words",
    "jackknife_error",
    "law_errors",
    "laws_across",
    "pooled_greenwood_p",
    "shuffled_p",
    "t_quantile",
]
