"""What a record keeps for the picture of neural collapse: three classes where the classifier reads them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from layerlaw.measures.collapse import VIEWED, collapse_view
from layerlaw.probing.run import Prober, Split
from layerlaw.stats.precision import full_precision


def three_classes(run: Prober, train: Split, weight: Tensor | str) -> dict[str, Any]:
    """The first three classes in three dimensions, as `measures.collapse` finds them, with rows of the classifier if known.

    Empty where there are fewer classes, or where what the classifier reads is no site.
    """
    site = next((site for site in train.around if site.name == run.plan.reads), None)
    if site is None or train.read is None or run.classes.K < 3:
        return {}
    centers = train.around[site].centers
    means = centers.means[:3] if centers.origin is None else centers.means[:3] + centers.origin
    labels = train.plane_labels[: len(train.read)]  # wide features keep fewer samples
    taken = [[i for i, label in enumerate(labels) if label == k][:VIEWED] for k in range(3)]
    rows = weight[:3].to(means) if isinstance(weight, Tensor) else None
    samples = train.read[[i for some in taken for i in some]].to(means)
    with full_precision():
        view = collapse_view(means, rows, samples, [k for k, some in enumerate(taken) for _ in some])
    return {"classes": [0, 1, 2], **view} if view else {}
