"""A plane for the pictures: the first two principal components of a few hundred samples."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from layerlaw.stats.precision import at_least_float32

SAMPLES = 500
SITE_BYTES = 16 * 2**20  # wide features keep fewer samples


class PlaneSample:
    """Keeps the first samples of every class, the same ones at every site."""

    def __init__(self, classes: int, samples: int = SAMPLES) -> None:
        self.quota = max(1, samples // classes)
        self.most = samples
        self.labels: list[int] = []
        self._taken = [0] * classes
        self._rows: list[int] = []
        self._kept: dict[object, list[Tensor]] = {}

    def begin(self, labels: Tensor) -> None:
        """Choose from a batch; `labels` (n,) numbered 0 … K−1."""
        self._rows = []
        if len(self.labels) >= self.most or all(taken >= self.quota for taken in self._taken):
            return
        for i, label in enumerate(labels.tolist()):
            if self._taken[label] < self.quota and len(self.labels) < self.most:
                self._taken[label] += 1
                self._rows.append(i)
                self.labels.append(label)

    def update(self, key: object, features: Tensor) -> None:
        """Keep the chosen rows of one site's (n, d) features."""
        if not self._rows:
            return
        kept = self._kept.setdefault(key, [])
        room = max(2, SITE_BYTES // (4 * features.shape[1])) - sum(map(len, kept))
        if room > 0:
            rows = torch.tensor(self._rows[:room], device=features.device)
            kept.append(at_least_float32(features.index_select(0, rows)))

    def coordinates(self, key: object) -> list[list[float]]:
        """[[x, y], …] of the kept samples, in the order of `labels` (wide sites may have kept fewer)."""
        if key not in self._kept:
            return []
        plane = principal_plane(torch.cat(self._kept[key]))
        size = float(plane.abs().max())
        digits = 3 - math.floor(math.log10(size)) if size > 0 else 0  # four digits of the largest
        rows: list[list[float]] = np.round(plane.double().numpy(), digits).tolist()
        return rows


def principal_plane(features: Tensor) -> Tensor:
    """(n, d) → (n, 2): the two leading principal components, by orthogonal iteration on a small block.

    >>> x = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [4.0, 1.0, 1.0]])
    >>> principal_plane(x).shape
    torch.Size([3, 2])
    """
    centred = features - features.mean(0)
    n, d = centred.shape
    size = float(centred.abs().max())
    if size == 0.0 or d < 2 or n < 3:
        flat = torch.zeros(n, 2, dtype=centred.dtype)
        flat[:, : min(d, 2)] = centred[:, :2]
        return flat
    centred = centred / size
    block = min(6, n, d)
    generator = torch.Generator().manual_seed(0)
    Q = torch.randn(d, block, generator=generator).to(centred)
    gram = centred.mT @ centred if d <= n else None
    for _ in range(4):
        Q = torch.linalg.qr(gram @ Q if gram is not None else centred.mT @ (centred @ Q))[0]
    inside = centred @ Q  # (n, block)
    _, rotation = torch.linalg.eigh(inside.mT @ inside)  # ascending
    plane: Tensor = (inside @ rotation[:, -2:].flip(1) * size).cpu()
    # A sign of one's own: the coordinate that reaches farther is positive.
    sign = torch.where(plane.amax(0) >= -plane.amin(0), 1.0, -1.0)
    return plane * sign
