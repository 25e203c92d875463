"""Bias and standard error of log D from leaving out one group of samples at a time."""

import math
from dataclasses import dataclass

from layerlaw.stats import LeftOut

REFUSE_ABOVE = math.log(1.3)  # beyond a bias of about 30 % the correction itself is not to be trusted (simulated)


@dataclass(frozen=True)
class Jackknife:
    """D corrected for finite samples (`None` where the bias is too large to correct) and the standard error of log D."""

    corrected: float | None
    standard_error: float
    bias: float


def jackknife(value: float, left_out: LeftOut) -> Jackknife | None:
    """Stratified delete-group jackknife: log D_J = g·log D − (g−1)·mean log D_(−i); `None` when D is zero."""
    without = left_out.separation()
    g = len(without)
    if value <= 0 or bool((without <= 0).any()):
        return None
    logs = without.log()
    bias = (g - 1) * (float(logs.mean()) - math.log(value))
    error = math.sqrt((g - 1) / g * float((logs - logs.mean()).square().sum()))
    corrected = value * math.exp(-bias) if abs(bias) <= REFUSE_ABOVE else None
    return Jackknife(corrected, error, bias)
