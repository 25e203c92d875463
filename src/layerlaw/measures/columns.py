"""All numbers of one site as the columns of a record."""

from __future__ import annotations

import math

from torch import Tensor

from layerlaw.measures.collapse import classifier_geometry, means_geometry, self_duality
from layerlaw.measures.jackknife import jackknife
from layerlaw.measures.rows import mean_cosine, mean_norm, mean_square, rare_classes, used_budget
from layerlaw.measures.separation import class_separation, equal_separation
from layerlaw.measures.variability import class_distance_variance, class_variances, compression, discrimination
from layerlaw.stats.passes import Around
from layerlaw.stats.scatter import NearestCenter, Scatter

Columns = dict[str, float | None]
MOST_SINGULAR = 2048  # of class means against rows: beyond, their singular values take longer than the probe


def site_columns(
    around: Around, scatter: Scatter, near: NearestCenter | None = None
) -> tuple[Columns, dict[str, list[float | None]]]:
    """Numbers of one site and one split, and the numbers per class; `None` where a number does not exist.

    `near` are nearest-center decisions by other centers (those of the training data, for a test set).
    """
    centers = around.centers
    K = centers.counts.shape[-1]
    per_class = class_separation(centers, scatter)
    D = number((centers.weights * per_class).sum())
    undefined = int(centers.rank) == 0  # all class means coincide: nothing is separated, and D has no meaning
    columns: Columns = {"separation": None if undefined else D}
    if around.left_out is not None and not undefined:
        found = jackknife(D or 0.0, around.left_out)
        columns["separation_log_se"] = found.standard_error if found else None
        columns["separation_corrected"] = found.corrected if found else None
    if around.permuted is not None:
        columns["separation_permuted"] = number(around.permuted.separation())
    columns["rank"], columns["full_rank"] = float(centers.rank), float(centers.full_rank)
    equal = D if centers.balanced else number(equal_separation(centers, scatter))
    columns["nc1"] = None if undefined or equal is None else equal / K
    norms, angles = means_geometry(centers.coordinates)  # as the means themselves, in fewer dimensions
    columns["nc2_norms"], columns["nc2_angles"] = number(norms), number(angles)
    near = near or scatter.near
    n = float(near.counts.sum())
    columns["ncc_accuracy"] = number(near.hits.sum() / n)
    columns["ncc_mismatch"] = None if near.mismatches is None else number(near.mismatches.sum() / n)
    variances = class_variances(centers, scatter)
    columns["cdnv"] = number(class_distance_variance(centers, variances))
    columns["compression"] = number(compression(centers, variances))
    columns["discrimination"] = number(discrimination(centers))
    by_class = {
        "separation": [None if undefined else v for v in _numbers(per_class)],
        "ncc_accuracy": _numbers(near.hits / near.counts),
    }
    return columns, by_class


def classifier_columns(means: Tensor, weight: Tensor, mismatch: float | None) -> Columns:
    """NC2 and NC3 of the classifier at the site it reads, and NC4: where it disagrees with the nearest center."""
    rows = weight.to(means.device)
    norms, angles = classifier_geometry(rows)
    return {
        "nc2_norms_classifier": number(norms),
        "nc2_angles_classifier": number(angles),
        "nc3": number(self_duality(means, rows)),
        "nc4": mismatch,
    }


def row_columns(around: Around, scatter: Scatter, weight: Tensor) -> tuple[Columns, dict[str, list[float | None]]]:
    """Cosines and norms of the classifier's rows, of rare and frequent classes apart where counts differ; norm budgets."""
    centers = around.centers
    rows = weight.to(centers.means.device)
    columns: Columns = {"classifier_cosine": number(mean_cosine(rows)), "classifier_norm": number(mean_norm(rows))}
    counts = centers.counts.tolist()
    rare = rare_classes(counts)
    if rare is not None:
        frequent = sorted(set(range(len(counts))) - set(rare))
        for name, ids in (("majority", frequent), ("minority", rare)):
            columns[f"classifier_cosine_{name}"] = number(mean_cosine(rows[ids]))
            columns[f"classifier_norm_{name}"] = number(mean_norm(rows[ids]))
    squares = centers.means.square().sum(-1) + class_variances(centers, scatter)  # (K,) mean of ‖h_ki‖² in each class
    columns["classifier_square"], columns["feature_square"] = number(mean_square(rows)), number(squares.mean())
    if min(rows.shape) <= MOST_SINGULAR:
        columns["classifier_budget"] = number(used_budget(centers.means, rows))
    return columns, {"classifier_norm": _numbers(rows.norm(dim=-1))}


def _numbers(values: Tensor) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in values.tolist()]


def number(value: Tensor) -> float | None:
    """A finite float, or `None`."""
    plain = float(value)
    return plain if math.isfinite(plain) else None
