"""What we say: pure functions of statistics (`Centers`, `Scatter`), and twins for features at hand."""

from layerlaw.measures.at_hand import cdnv, measure, nc1, ncc_accuracy, separation_fuzziness
from layerlaw.measures.collapse import classifier_geometry, means_geometry, self_duality
from layerlaw.measures.separation import Jackknife, class_separation, equal_separation, jackknife, separation
from layerlaw.measures.variability import class_distance_variance, compression, discrimination

__all__ = [
    "Jackknife",
    "cdnv",
    "class_distance_variance",
    "class_separation",
    "classifier_geometry",
    "compression",
    "discrimination",
    "equal_separation",
    "jackknife",
    "means_geometry",
    "measure",
    "nc1",
    "ncc_accuracy",
    "self_duality",
    "separation",
    "separation_fuzziness",
]
