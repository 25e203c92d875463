"""Twins for features at hand: torch or NumPy in, a plain number out (a float64 tensor where there are leading indices).

All take features (…, n, d) and labels (…, n); classes are numbered from 0.
"""

from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlaw.errors import Demand, FeatureError, LabelError, check_choice, check_whole, demand
from layerlaw.measures.columns import REGISTRY, measured
from layerlaw.measures.separation import separation, separation_by_inverse, some_first_far
from layerlaw.measures.site import Needs, SiteStatistics, enough_samples
from layerlaw.stats import Centers, ClassSums, Frame, Scatter, checked_labels, find_centers, project
from layerlaw.stats.careful import careful_centers, careful_fit
from layerlaw.stats.centers import COLLINEAR, CONSTANT, Weighting
from layerlaw.stats.labels import NUMBERED, check_counts, check_reached, checked_targets
from layerlaw.stats.limits import NO_SCALE, finite
from layerlaw.stats.passes import Dealt
from layerlaw.stats.precision import double, foreign, full_precision, native, not_dense, take_rows
from layerlaw.stats.regression import FirstRegression, SecondRegression, SiteRegression
from layerlaw.stats.sums import MANY
from layerlaw.threads import on_cpu

ALIKE = 1e-6  # of the largest eigenvalue of the targets' correlations: below, products of targets lose digits
SLOW_SUMS = {"cuda"}  # devices on which sums by many classes take long enough to be left out
_NUMBERED = "Number the classes from 0: np.unique(labels, return_inverse=True)[1]"


@on_cpu
def separation_fuzziness(
    features: Any, labels: Any, *, weighting: Weighting = "samples", classes: int | None = None
) -> Any:
    """Separation fuzziness D = Tr(SS_w SS_b⁺), ≥ 0, lower is better separated (He & Su, Eq. 1).

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 0.0], [12.0, 0.0]])
    >>> round(separation_fuzziness(x, torch.tensor([0, 0, 1, 1])), 12)  # within 1², between 5²
    0.04
    """
    with full_precision():
        x, y, sums = _added_up(features, labels, weighting, classes)
        if (found := separation_by_inverse(x, y, sums, weighting)) is not None:
            return found
        centers, scatter, _ = _scattered(x, y, sums, weighting, nearest=False)
        return _defined("D", separation(centers, scatter), centers)


@on_cpu
def target_separation(features: Any, targets: Any) -> float:
    """Separation fuzziness D_reg = Tr(SS_w SS_b⁺) of features (n, d) regressed on targets (n,) or (n, q), ≥ 0, lower better.

    SS_b is the scatter of the fitted features, SS_w that of the residuals; of one-hot targets it is D. Targets that differ
    from a combination of others by less than about a millionth of their deviation are taken for collinear: they add nothing.

    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> target_separation(x, x[:, 0]), target_separation(2 * x[:, :1] + x[:, 1:], x[:, 0])
    (0.0, 0.25)
    """
    x, y = _features(features, deep=False), checked_targets(as_tensor(targets, "targets").detach())
    if len(y) != len(x):
        raise LabelError(f"targets: expected one row for each of the {len(x)} rows of features, got {len(y)}.")
    with full_precision():
        y = _told_apart(y)
        found = careful_fit(x, lambda features: _regressed(features, y))
        if int(found.fit.rank) == 0:
            raise FeatureError("features: nothing in them goes with the targets, so D_reg is not defined (dead?).")
        return float(found.separation)


def _told_apart(y: Tensor) -> Tensor:
    """Targets (n, q) that are nearly collinear, in uncorrelated coordinates of the same span; others as they are.

    Their products would square what is left of the digits; of a singular value decomposition they are all there.
    """
    centered = y - y.mean(0)
    squares = centered.square().sum(0)
    varies = squares > CONSTANT * y.square().sum(0)
    if int(varies.sum()) < 2 or len(y) <= y.shape[1] + 1:
        return y
    U, s, _ = torch.linalg.svd(centered[:, varies] / squares[varies].sqrt(), full_matrices=False)
    values = s.square() / s[0].square()
    kept = values > COLLINEAR
    return U[:, kept] * len(y) ** 0.5 if float(values[kept].min()) < ALIKE else y


def _regressed(x: Tensor, y: Tensor) -> SiteRegression:
    first = FirstRegression(y.shape[1], 1, jackknife=False)
    first.begin(Dealt(y))
    first.update("features", x)
    first.end(lambda _: "some row")
    first.check("targets")
    second = SecondRegression(first)
    second.begin(Dealt(y), None)
    second.update("features", x)
    return dict(second.sites())["features"]


@on_cpu
def nc1(features: Any, labels: Any, *, classes: int | None = None) -> Any:
    """NC1 = Tr(Σ_W Σ_B⁺)/K with equally weighted classes, ≥ 0, 0 at collapse.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> round(nc1(x, torch.tensor([0, 0, 1, 1])), 12)
    0.02
    """
    return _one("nc1", features, labels, classes)


@on_cpu
def ncc_accuracy(features: Any, labels: Any, *, classes: int | None = None) -> Any:
    """Share of samples whose nearest class mean is that of their own class, in 0 … 1, higher is better.

    >>> x = torch.tensor([[0.0], [2.0], [7.0], [10.0], [12.0], [14.0]])
    >>> ncc_accuracy(x, torch.tensor([0, 0, 0, 1, 1, 1]))
    1.0
    """
    return _one("ncc_accuracy", features, labels, classes)


@on_cpu
def cdnv(features: Any, labels: Any, *, classes: int | None = None) -> Any:
    """Class-distance normalized variance, ≥ 0, 0 at collapse (Galanti et al.); infinite where two class means coincide.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> cdnv(x, torch.tensor([0, 0, 1, 1]))  # variances 1 and 1, distance² 100
    0.01
    """
    return _one("cdnv", features, labels, classes)


@on_cpu
def measure(
    features: Any,
    labels: Any,
    *,
    weighting: Weighting = "samples",
    classes: int | None = None,
    decision: Any = None,
    classifier: Any = None,
    linear: bool = False,
) -> dict[str, Any]:
    """Every measure of one set of features as a dictionary: `separation`, `separation_classes`, `rank`, `nc1`, ….

    Floats, an integer `rank`, a boolean `full_rank`, `None` where a number does not exist, and a tensor (K,) of what is
    measured by class; with leading dimensions everything is a tensor.
    `decision` (n,) are the network's own class decisions (gives `ncc_mismatch`), `classifier` its last weight (K, d)
    (gives `nc2_…_classifier` and `nc3`). `linear` gives `separation_linear`, the least D of a linear map, which takes a d×d
    matrix and needs n ≥ d + K samples.
    """
    demand(linear=(linear, Demand("True or False", lambda value: isinstance(value, bool | np.bool_))))
    with full_precision():
        centers, scatter, x, y = _statistics(features, labels, weighting, classes, decision)
        needs: set[Needs] = {"classes"} if decision is None else {"classes", "decision"}
        weight = None
        if classifier is not None:
            needs.add("classifier")
            weight = as_tensor(classifier, "classifier").double()
            if weight.shape[-2:] != centers.means.shape[-2:]:
                raise FeatureError(
                    f"classifier: expected a weight of shape (K, d) = {tuple(centers.means.shape[-2:])}, "
                    f"got {tuple(weight.shape)}. Pass the rows of the classes, transposed if need be."
                )
            if not bool(weight.isfinite().all()):
                raise FeatureError("classifier: expected finite numbers, got NaN or infinity.")
        undefined = centers.rank.dim() == 0 and int(centers.rank) == 0
        within = _within(x, y, centers) if linear and not undefined else None
        needs |= {"within"} if linear else set()
        return measured(SiteStatistics(centers, scatter, weight=weight, undefined=undefined, within=within), needs)


def _one(name: str, features: Any, labels: Any, classes: int | None) -> Any:
    compute = REGISTRY[name].compute
    assert compute is not None
    with full_precision():
        centers, scatter, *_ = _statistics(features, labels, "samples", classes, nearest=name == "ncc_accuracy")
        value = compute(SiteStatistics(centers, scatter))
    assert isinstance(value, Tensor)
    if name == "ncc_accuracy":
        return value if value.dim() else float(value)
    return _defined(REGISTRY[name].label, value, centers)


def _defined(name: str, value: Tensor, centers: Centers) -> Any:
    """A float, if the class means say anything; of several sets of features NaN where they do not."""
    if value.dim():
        return torch.where(centers.rank > 0, value, torch.nan)
    if int(centers.rank) == 0 or bool(value.isnan()):
        raise FeatureError(f"features: class means coincide, so {name} is not defined (dead, or permuted copies?).")
    return float(value)


def _statistics(
    features: Any,
    labels: Any,
    weighting: Weighting,
    classes: int | None,
    decision: Any = None,
    *,
    nearest: bool = True,
) -> tuple[Centers, Scatter, Tensor, Tensor]:
    """Centers and scatter, and the features and labels that these are of."""
    x, y, sums = _added_up(features, labels, weighting, classes)
    chosen, K = None, sums.counts.shape[-1]
    if decision is not None:
        chosen = _one_per_row(checked_labels(as_tensor(decision, "decision"), K, where="decision")[0], x, "decision")
    centers, scatter, x = _scattered(x, y, sums, weighting, chosen, nearest=nearest)
    return centers, scatter, x, y


def _added_up(
    features: Any, labels: Any, weighting: Weighting, classes: int | None
) -> tuple[Tensor, Tensor, ClassSums]:
    """Features (…, n, d) and labels (…, n), which are looked at, and their class sums."""
    x = _features(features)
    check_choice("weighting", weighting, ("samples", "classes"), FeatureError)
    if classes is not None:
        check_whole(2, kind=Integral, classes=classes)
    y, K = checked_labels(as_tensor(labels, "labels"), classes)
    check_reached(K, y.shape[-1])
    y = _one_per_row(y, x, "labels")
    sums = ClassSums.of(x, y, K)
    check_counts(sums.counts, where="labels", cure=NUMBERED)
    return x, y, sums


def _scattered(
    x: Tensor, y: Tensor, sums: ClassSums, weighting: Weighting, chosen: Tensor | None = None, *, nearest: bool
) -> tuple[Centers, Scatter, Tensor]:
    """Centers and scatter, and the features that these are of: where digits would be lost, other ones."""
    _check_finite(x, sums.sums)
    x, centers = careful_centers(x, y, find_centers(sums, weighting))
    coordinates, lengths = project(x, y, Frame.of(centers))
    scatter_of = partial(Scatter.of, coordinates, lengths, y, centers, chosen, nearest=nearest)
    known, far = _known_residuals(centers, lengths, y) if x.device.type in SLOW_SUMS and x.dim() == 2 else (None, None)
    scatter = scatter_of(residuals=known)
    if far is not None and bool(far):  # asked behind the work that nearly always is right
        scatter = scatter_of()
    _check_finite(x, scatter.sums)
    return centers, scatter, x


def _known_residuals(centers: Centers, lengths: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Σ z of many classes (K, r), where nothing but the rounding of their means to float32 is left of it; else `None`.

    Where the first row of some class lies far from the others, more is left: whether one does so is the second.
    """
    K = centers.counts.shape[-1]
    if centers.dtype == torch.float64 or K < MANY:
        return None, None
    squares = double(lengths).square()  # lengths of extreme features are float64 already, and are read again
    usual = torch.zeros_like(centers.counts).index_add_(0, y, squares) / centers.counts
    return centers.expected_residuals * centers.counts.unsqueeze(-1), some_first_far(squares, usual, y)


def _check_finite(x: Tensor, sums: Tensor) -> None:
    """Not-a-number and infinity show in the sums; so do numbers that are too large to be added up."""
    if finite([sums]):
        return
    if finite([x]):
        why = f"finite numbers, up to {float(x.abs().max()):.2g}, are too large to be added up in {_kind(x)}"
        raise FeatureError(f"features: {why}. {NO_SCALE}: divide them by a constant.")
    raise FeatureError(
        "features: expected finite numbers, got NaN or infinity. Find them by features.isfinite(). "
        "Numbers too large for a dtype become infinity where they are converted: float64 reaches further."
    )


def _kind(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _within(x: Tensor, y: Tensor, centers: Centers) -> Tensor:
    """SS_w (…, d, d)."""
    n, d = x.shape[-2:]
    K = centers.counts.shape[-1]
    if not enough_samples(centers):
        why = "with fewer some linear map separates any classes perfectly, and D_lin says nothing"
        raise FeatureError(f"linear: expected at least d + K = {d + K} samples of {d} features, got {n}: {why}.")
    roots = (centers.weights / centers.counts).sqrt().gather(-1, y)  # (…, n)
    residual = (double(x) - take_rows(centers.means, y)) * roots.unsqueeze(-1)
    return residual.mT @ residual


def _features(features: Any, *, deep: bool = True) -> Tensor:
    return check_kind(as_tensor(features).detach(), deep=deep)


def check_kind(x: Tensor, where: str = "features", *, deep: bool = True) -> Tensor:
    """Floating-point features of two axes, or more where they may be `deep`; those of 8 bits become float32."""
    shaped = x.dim() == 2 or (x.dim() > 2 and deep)
    if not shaped or not x.dtype.is_floating_point:
        cures = []
        if x.dtype.is_complex:
            cures.append(
                "Pass real and imaginary parts as features of their own: torch.view_as_real(features).flatten(1)."
            )
        elif not x.dtype.is_floating_point:
            cures.append("Convert them: features.double().")
        if not shaped:
            one = "A single feature per sample is a column: features[:, None]."
            cures.append(one if x.dim() == 1 else "Flatten each sample to one row: features.flatten(1).")
        raise FeatureError(
            f"{where}: expected floating-point numbers of shape (n, d), got {x.dtype} of shape {tuple(x.shape)}. "
            + " ".join(cures)
        )
    x = x.float() if x.element_size() < 2 else x  # of 8 bits: torch adds up nothing in these
    if x.shape[-1] == 0:
        raise FeatureError(f"{where}: expected at least one feature per sample, got shape {tuple(x.shape)}.")
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


def as_tensor(values: Any, name: str = "features", *, where: str = "") -> Tensor:
    """Torch, NumPy (also read-only, reversed or memory-mapped), pandas, lists, or arrays of JAX and others as a tensor.

    `where`: what errors begin with, if not with the name.
    """
    values = values.to_numpy() if hasattr(values, "to_numpy") else foreign(values)
    error = FeatureError if name in ("features", "classifier", "logits") else LabelError
    name = where or name
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biufc":
        cure = _NUMBERED if error is LabelError else f"Convert them where they are numbers: {name}.astype(float)"
        raise error(f"{name}: expected numbers, got an array of {values.dtype}. {cure}.")
    if isinstance(values, np.ndarray):
        values = native(values, name)
    if isinstance(values, Tensor) and (came := not_dense(values)):
        raise error(f"{name}: expected numbers, got {came}.")
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        words = isinstance(values, (list, tuple)) and any(isinstance(value, str) for value in values)
        cure = _NUMBERED if words and error is LabelError else "Pass an array of them"
        came = (
            "words" if words else "rows of different length" if isinstance(values, (list, tuple)) else repr(values)[:80]
        )
        raise error(f"{name}: expected numbers, got {came}. {cure}.") from None
