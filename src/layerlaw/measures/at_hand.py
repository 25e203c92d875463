"""Twins for features at hand: torch or NumPy in, a number (a 0-d float64 tensor, or one per leading index) out.

All take features (…, n, d) and labels (…, n); classes are numbered from 0.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlaw.errors import FeatureError, LabelError, check_choice
from layerlaw.measures.columns import REGISTRY, measured
from layerlaw.measures.separation import separation
from layerlaw.measures.site import Needs, SiteStatistics
from layerlaw.stats import Centers, ClassSums, Frame, Scatter, checked_labels, find_centers, project
from layerlaw.stats.centers import Weighting
from layerlaw.stats.labels import check_counts, checked_targets
from layerlaw.stats.passes import Dealt
from layerlaw.stats.precision import full_precision
from layerlaw.stats.regression import FirstRegression, SecondRegression


def separation_fuzziness(
    features: Any, labels: Any, *, weighting: Weighting = "samples", classes: int | None = None
) -> Tensor:
    """Separation fuzziness D = Tr(SS_w SS_b⁺), ≥ 0, lower is better separated (He & Su, Eq. 1).

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 0.0], [12.0, 0.0]])
    >>> round(float(separation_fuzziness(x, torch.tensor([0, 0, 1, 1]))), 12)  # within 1², between 5²
    0.04
    """
    with full_precision():
        centers, scatter = _statistics(features, labels, weighting, classes)
        if centers.rank.dim() == 0 and int(centers.rank) == 0:
            raise FeatureError("features: all class means coincide, so D is not defined (dead, or permuted copies?).")
        return separation(centers, scatter)


def target_separation(features: Any, targets: Any) -> Tensor:
    """Separation fuzziness D_reg = Tr(SS_w SS_b⁺) of features (n, d) regressed on targets (n,) or (n, q), ≥ 0, lower better.

    SS_b is the scatter of the fitted features, SS_w that of the residuals; of one-hot targets it is D.

    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> float(target_separation(x, x[:, 0])), float(target_separation(2 * x[:, :1] + x[:, 1:], x[:, 0]))
    (0.0, 0.25)
    """
    x, y = _features(features, deep=False), checked_targets(_tensor(targets).detach())
    if len(y) != len(x):
        raise LabelError(f"targets: expected one row for each of the {len(x)} rows of features, got {len(y)}.")
    first = FirstRegression(y.shape[1], 1, jackknife=False)
    with full_precision():
        first.begin(Dealt(y))
        first.update("features", x)
        first.end(lambda _: "some row")
        first.check("targets")
        second = SecondRegression(first)
        second.begin(Dealt(y), None)
        second.update("features", x)
        found = dict(second.sites())["features"]
        if int(found.fit.rank) == 0:
            raise FeatureError("features: nothing in them goes with the targets, so D_reg is not defined (dead?).")
        return found.separation


def nc1(features: Any, labels: Any, *, classes: int | None = None) -> Tensor:
    """NC1 = Tr(Σ_W Σ_B⁺)/K with equally weighted classes, ≥ 0, 0 at collapse.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> round(float(nc1(x, torch.tensor([0, 0, 1, 1]))), 12)
    0.02
    """
    return _one("nc1", features, labels, classes)


def ncc_accuracy(features: Any, labels: Any, *, classes: int | None = None) -> Tensor:
    """Share of samples whose nearest class mean is that of their own class, in 0 … 1, higher is better.

    >>> x = torch.tensor([[0.0], [2.0], [7.0], [10.0], [12.0], [14.0]])
    >>> float(ncc_accuracy(x, torch.tensor([0, 0, 0, 1, 1, 1])))
    1.0
    """
    return _one("ncc_accuracy", features, labels, classes)


def cdnv(features: Any, labels: Any, *, classes: int | None = None) -> Tensor:
    """Class-distance normalized variance, ≥ 0, 0 at collapse (Galanti et al.).

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> float(cdnv(x, torch.tensor([0, 0, 1, 1])))  # variances 1 and 1, distance² 100
    0.01
    """
    return _one("cdnv", features, labels, classes)


def measure(
    features: Any,
    labels: Any,
    *,
    weighting: Weighting = "samples",
    classes: int | None = None,
    decision: Any = None,
    classifier: Any = None,
) -> dict[str, Any]:
    """Every measure of one set of features as a dictionary: `separation`, `separation_classes`, `rank`, `nc1`, ….

    `decision` (n,) are the network's own class decisions (gives `ncc_mismatch`), `classifier` its last weight (K, d)
    (gives `nc2_…_classifier` and `nc3`).
    """
    with full_precision():
        centers, scatter = _statistics(features, labels, weighting, classes, decision)
        needs: set[Needs] = {"classes"} if decision is None else {"classes", "decision"}
        weight = None
        if classifier is not None:
            needs.add("classifier")
            weight = torch.as_tensor(classifier).double()
            if weight.shape[-2:] != centers.means.shape[-2:]:
                raise FeatureError(
                    f"classifier: expected a weight of shape (K, d) = {tuple(centers.means.shape[-2:])}, "
                    f"got {tuple(weight.shape)}. Pass the rows of the classes, transposed if need be."
                )
        return measured(SiteStatistics(centers, scatter, weight=weight), needs)


def _one(name: str, features: Any, labels: Any, classes: int | None) -> Tensor:
    compute = REGISTRY[name].compute
    assert compute is not None
    with full_precision():
        value = compute(SiteStatistics(*_statistics(features, labels, "samples", classes)))
    assert isinstance(value, Tensor)
    return value


def _statistics(
    features: Any, labels: Any, weighting: Weighting, classes: int | None, decision: Any = None
) -> tuple[Centers, Scatter]:
    x = _features(features)
    check_choice("weighting", weighting, ("samples", "classes"), FeatureError)
    y, K = checked_labels(_tensor(labels), classes)
    y, chosen = _one_per_row(y, x, "labels"), None
    if decision is not None:
        chosen = _one_per_row(checked_labels(_tensor(decision), K, where="decision")[0], x, "decision")
    sums = ClassSums.of(x, y, K)
    check_counts(sums.counts, where="labels")
    if not bool(torch.isfinite(sums.sums).all()):
        raise FeatureError("features: expected finite numbers, got NaN or infinity. Find them by features.isfinite().")
    centers = find_centers(sums, weighting)
    coordinates, lengths = project(x, y, Frame.of(centers))
    return centers, Scatter.of(coordinates, lengths, y, centers, chosen)


def _features(features: Any, *, deep: bool = True) -> Tensor:
    x = _tensor(features).detach()
    if x.dim() < 2 or (x.dim() > 2 and not deep) or not x.dtype.is_floating_point:
        raise FeatureError(
            f"features: expected floating-point numbers of shape (n, d), got {x.dtype} of shape {tuple(x.shape)}. "
            "Flatten each sample to one row: features.flatten(1)."
        )
    return x


def _one_per_row(labels: Tensor, features: Tensor, name: str) -> Tensor:
    """Labels (n,) serve every leading index; else their shape must be that of the features without the last axis."""
    n, labeled = features.shape[-2], labels.shape[-1]
    if labeled != n:
        flat = " Flatten each sample to one row: features.flatten(1)." if len(features) == labeled else ""
        raise LabelError(f"{name}: expected one for each of the {n} rows of features, got {labeled}.{flat}")
    if labels.dim() > 1 and labels.shape != features.shape[:-1]:
        raise LabelError(f"{name}: expected shape {tuple(features.shape[:-1])}, got {tuple(labels.shape)}.")
    return labels.to(features.device).expand(features.shape[:-1])


def _tensor(values: Any) -> Tensor:
    """Torch or NumPy (also read-only, reversed or memory-mapped) as a tensor."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biufc":
        raise LabelError(
            f"expected numbers, got an array of {values.dtype}. Number the classes from 0: "
            "np.unique(labels, return_inverse=True)[1]."
        )
    if isinstance(values, np.ndarray) and not (values.flags.writeable and all(s >= 0 for s in values.strides)):
        values = values.copy()
    return torch.as_tensor(values)
