"""What a record keeps for the picture of neural collapse: three classes where the classifier reads them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from layerlaw.later import later
from layerlaw.measures.collapse import VIEWED, collapse_view
from layerlaw.probing.run import Prober
from layerlaw.probing.state import Split
from layerlaw.stats.plane import FEW_BYTES
from layerlaw.stats.precision import full_precision


def three_classes(run: Prober, train: Split, weight: Tensor | str) -> dict[str, Any]:
    """The first three classes in three dimensions, as `measures.collapse` finds them, with rows of the classifier if known.

    Empty where there are fewer classes, or where what the classifier reads is no site.
    """
    site = next((site for site in train.around if site.name == run.plan.reads), None)
    if site is None or train.read is None or run.classes.K < 3:
        return {}
    read, labels, place = train.read, train.plane_labels, train.around[site].index
    centers = train.around[site].alike.centers
    few = read.nbytes <= FEW_BYTES
    # Of their own, so that nothing larger is held until somebody looks.
    means = centers.means[place, :3].clone()
    if centers.origin is not None:
        means += centers.origin[place]
    rows = weight[:3].to(means, copy=True) if isinstance(weight, Tensor) else None
    if few and means.device.type != "cpu":  # a GPU is slow with small matrices
        read, means, rows = read.cpu(), means.cpu(), None if rows is None else rows.cpu()

    def found() -> dict[str, Any]:
        # Wide features keep fewer samples.
        taken = [[i for i, label in enumerate(labels[: len(read)]) if label == k][:VIEWED] for k in range(3)]
        samples = read[[i for some in taken for i in some]].to(means)
        with full_precision():
            view = collapse_view(means, rows, samples, [k for k, some in enumerate(taken) for _ in some])
        return {"classes": [0, 1, 2], **view} if view else {}

    return later(found, read.nbytes + means.nbytes) if few else found()
