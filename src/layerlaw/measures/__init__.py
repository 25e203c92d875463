"""What we say: pure functions of statistics (`Centers`, `Scatter`), and twins for features at hand."""

from layerlaw.measures.at_hand import cdnv, measure, nc1, ncc_accuracy, separation_fuzziness, target_separation
from layerlaw.measures.collapse import geometry, self_duality
from layerlaw.measures.separation import (
    Jackknife,
    class_separation,
    equal_separation,
    jackknife,
    linear_separation,
    separation,
)
from layerlaw.measures.variability import class_distance_variance, compression, discrimination

__all__ = [
    "Jackknife",
    "cdnv",
    "class_distance_variance",
    "class_separation",
    "compression",
    "discrimination",
    "equal_separation",
    "geometry",
    "jackknife",
    "linear_separation",
    "measure",
    "nc1",
    "ncc_accuracy",
    "self_duality",
    "separation",
    "separation_fuzziness",
    "target_separation",
]
