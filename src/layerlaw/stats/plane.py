"""A plane for the pictures: the first two principal components of a few hundred samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerlaw.later import Later, later
from layerlaw.stats.labels import FEW_LABELS
from layerlaw.stats.precision import at_least_float32, full_precision
from layerlaw.stats.ranks import gathered, world_size

SAMPLES = 200
TOGETHER = {"cpu": 500_000, "cuda": 2**23}  # numbers of the matrices of one shape that are worked through as one
SITE_BYTES = 6 * 2**20  # wide features keep fewer samples
FEW_BYTES = 2**22  # of all sites: so few are kept, and their planes worked out when somebody looks at them

Plane = list[tuple[float, ...]]


class PlaneSample:
    """Keeps the first samples of every class, the same ones at every site."""

    def __init__(self, classes: int, samples: int = SAMPLES) -> None:
        self.quota = max(1, samples // classes)
        self.most = samples
        self.labels: list[int] = []
        self._numbers: list[int] = []  # of the batches they come from
        self._taken = [0] * classes
        self._rows: list[int] = []
        self._chosen = torch.zeros(0, dtype=torch.long)  # the same
        self._kept: dict[object, list[Tensor]] = {}
        self.condensed: dict[object, Condensed] = {}
        """Of sites whose samples were worked through elsewhere, which are not kept here."""

    def begin(self, labels: Tensor, number: int = 0) -> None:
        """Choose from a batch; `labels` (n,) numbered 0 … K−1, `number` the batch's own among those of all ranks."""
        known = _begun[0] if _begun and labels.is_cpu and not self.labels else None
        how = self.quota, self.most, len(self._taken)
        if known is not None and known.how == how and torch.equal(known.labels, labels):
            self._taken, self._rows, self._chosen = list(known.taken), known.rows, known.chosen
            self.labels, self._numbers = list(known.of), [number] * len(known.rows)
            return
        first, self._rows = not self.labels, []
        missing = min(self.most - len(self.labels), sum(max(0, self.quota - taken) for taken in self._taken))
        for i, label in enumerate(labels.tolist() if missing > 0 else []):
            if self._taken[label] < self.quota:
                self._taken[label] += 1
                self._rows.append(i)
                self.labels.append(label)
                self._numbers.append(number)
                missing -= 1
                if not missing:
                    break
        self._chosen = torch.tensor(self._rows, dtype=torch.long)
        if first and labels.is_cpu and len(labels) <= FEW_LABELS:
            with torch.inference_mode(False):  # it may be used outside of one
                kept = labels.clone()  # labels may be changed
            _begun[:] = [Begun(kept, how, list(self._taken), self._rows, self._chosen, list(self.labels))]

    def update(self, key: object, features: Tensor) -> None:
        """Keep the chosen rows of one site's (n, d) features."""
        self.update_all([key], features.unsqueeze(0))

    def update_all(self, keys: Sequence[object], features: Tensor) -> None:
        """Keep those of several sites (S, n, d)."""
        if not self._rows:
            return
        before = {sum(map(len, self._kept.get(key, ()))) for key in keys}  # of sites that came together as many
        left = max(2, SITE_BYTES // (4 * features.shape[-1])) - max(before)
        if left > 0:
            rows = self._chosen if left >= len(self._rows) else self._chosen[:left]
            rows = rows.to(features.device)
            for key, chosen in zip(keys, at_least_float32(features.index_select(1, rows)), strict=True):
                self._kept.setdefault(key, []).append(chosen)

    def gather(self) -> None:
        """From the samples of all ranks choose those that one process would have kept."""
        if world_size() == 1:
            return
        mine = (self.labels, self._numbers, {key: torch.cat(kept).cpu() for key, kept in self._kept.items()})
        parts = gathered(mine)
        whole = PlaneSample(len(self._taken), self.most)
        places = []
        for r, (_, numbers, kept) in enumerate(parts):
            held = min(map(len, kept.values()), default=0)  # of wide features fewer than were chosen
            places += [(number, r, i) for i, number in enumerate(numbers[:held])]
        for number, r, i in sorted(places):
            labels, _, kept = parts[r]
            whole.begin(torch.tensor(labels[i : i + 1]), number)
            for key, features in kept.items():
                whole.update(key, features[i : i + 1])
        self.labels, self._numbers, self._kept = whole.labels, whole._numbers, whole._kept

    def follow(self, labels: Tensor, kept: Mapping[str, Tensor]) -> None:
        """As if the samples (n,) that another part of the data has kept, (≤ n, d) of every site, came behind these."""
        for i in range(len(labels)):
            before = len(self.labels)
            self.begin(labels[i : i + 1])
            for key, features in kept.items() if self._rows else ():
                there = sum(map(len, self._kept.get(key, ())))
                if i < len(features) and there == before:  # else one before it is not there
                    self.update(key, features[i : i + 1])

    def features(self, key: object) -> Tensor | None:
        """What was kept of one site (n, d), in the order of `labels`; `None` where nothing was."""
        kept = self._kept.get(key)
        return _joined(kept) if kept else None

    def planes_later(self) -> dict[object, Plane]:
        """As `planes`, of few samples worked out when one of them is first looked at (see `layerlaw.later`)."""
        kept = [part for parts in self._kept.values() for part in parts]
        held = sum(part.nbytes for part in kept) + sum(one.matrix.nbytes for one in self.condensed.values())
        made = None if held <= FEW_BYTES and all(part.device.type == "cpu" for part in kept) else self._condensed()
        if made is not None:
            held = sum(one.matrix.nbytes for one in made.values())
            if held > FEW_BYTES:
                return self._drawn(made)

        condensed = self._condensed if made is None else lambda: made  # which does not hold the samples themselves

        def found() -> dict[object, Plane]:
            with full_precision():
                return PlaneSample._drawn(condensed())

        whole = Later(found, held)
        return {key: later(lambda key=key: whole.value()[key]) for key in [*self._kept, *self.condensed]}  # type: ignore[misc]

    def planes(self) -> dict[object, Plane]:
        """[(x, y), …] of the kept samples for every site, in the order of `labels` (wide sites may have kept fewer)."""
        return self._drawn(self._condensed())

    def _condensed(self) -> dict[object, Condensed]:
        """What planes need of every site, on the CPU: a GPU is slow with small matrices."""
        shapes: dict[Hashable, list[object]] = defaultdict(list)
        matrices = {key: _joined(kept) for key, kept in self._kept.items()}
        for key, matrix in matrices.items():
            shapes[matrix.shape, matrix.dtype, matrix.device].append(key)
        parts: list[list[object]] = []
        for keys in shapes.values():
            one = matrices[keys[0]]
            step = max(1, TOGETHER.get(one.device.type, TOGETHER["cuda"]) // max(1, one.numel()))
            parts += [keys[at : at + step] for at in range(0, len(keys), step)]
        # All are on their way before the first is waited for.
        side_by_side = ((keys, [matrices[key] for key in keys]) for keys in parts)
        made = [(keys, Condensed.of(few[0][None] if len(few) == 1 else torch.stack(few))) for keys, few in side_by_side]
        return self.condensed | {
            key: one for keys, some in made for key, one in zip(keys, some.cpu().each(), strict=True)
        }

    @staticmethod
    def _drawn(condensed: Mapping[object, Condensed]) -> dict[object, Plane]:
        shapes: dict[Hashable, list[object]] = defaultdict(list)
        for key, one in condensed.items():
            shapes[one.matrix.shape, one.matrix.dtype, one.wide].append(key)
        found: dict[object, Plane] = {}
        for keys in shapes.values():
            planes = Condensed.stack([condensed[key] for key in keys]).plane().double().numpy()
            for key, plane in zip(keys, planes, strict=True):
                size = float(np.abs(plane).max())
                digits = 3 - math.floor(math.log10(size)) if size > 0 else 0  # four digits of the largest
                # A tuple of numbers is nothing that Python's garbage collector looks at again and again.
                found[key] = list(map(tuple, np.round(plane, digits).tolist()))
        return found


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One behind the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Begun(NamedTuple):
    """What was chosen from the first batch: a network that is trained is measured on the same samples again and again."""

    labels: Tensor
    how: tuple[int, int, int]
    taken: list[int]
    rows: list[int]
    chosen: Tensor
    of: list[int]


_begun: list[Begun] = []


def principal_plane(features: Tensor) -> Tensor:
    """(…, n, d) → (…, n, 2): the two leading principal components.

    >>> x = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [4.0, 1.0, 1.0]])
    >>> principal_plane(x).shape
    torch.Size([3, 2])
    """
    return Condensed.of(features).plane()


@dataclass(frozen=True)
class Condensed:
    """What a plane needs of features (…, n, d): them centered and divided by a size (…, 1, 1), of wide ones the products.

    Products of the samples (…, n, n) have the same spectrum, and are all that the coordinates of wide features need.
    """

    matrix: Tensor
    size: Tensor
    wide: bool

    @classmethod
    def of(cls, features: Tensor) -> Condensed:
        """Of features (…, n, d)."""
        if features.device.type == "cuda":  # which would have to be waited for
            mean = features.mean(-2, keepdim=True, dtype=torch.float64).to(features)
        else:
            mean = features.mean(-2, keepdim=True)
            if not bool(mean.isfinite().all()):  # a sum may overflow where its numbers do not
                features, mean = features.double(), features.double().mean(-2, keepdim=True)
        centered = features - mean
        size = centered[..., :1, :].abs().amax((-2, -1), keepdim=True)  # only the range of float32 matters
        size = torch.where(size > 0, size, 1.0)
        centered /= size
        wide = features.shape[-1] > features.shape[-2]
        return cls(centered @ centered.mT if wide else centered, size, wide)

    @classmethod
    def stack(cls, parts: Sequence[Condensed]) -> Condensed:
        """Several side by side."""
        return cls(torch.stack([p.matrix for p in parts]), torch.stack([p.size for p in parts]), parts[0].wide)

    def each(self) -> list[Condensed]:
        """One by one, of several."""
        return [Condensed(matrix, size, self.wide) for matrix, size in zip(self.matrix, self.size, strict=True)]

    def cpu(self) -> Condensed:
        """The same on the CPU."""
        return Condensed(self.matrix.cpu(), self.size.cpu(), self.wide)

    def plane(self) -> Tensor:
        """(…, n, 2): the two leading principal components, by orthogonal iteration on a small block."""
        if self.matrix.shape[-1] == 1:
            centered = self.matrix * self.size
            return torch.cat([centered, torch.zeros_like(centered)], -1)
        gram = self.matrix if self.wide else self.matrix.mT @ self.matrix  # products with the long side are slow
        drawn = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float32, "device": "cpu"}
        n = gram.shape[-1]
        Q = torch.randn(n, min(6, n), **drawn).to(gram)  # type: ignore[call-overload]
        for _ in range(3):
            Q = torch.linalg.qr(gram @ Q)[0]
        scale, rotation = torch.linalg.eigh(Q.mT @ gram @ Q)  # ascending
        top = Q @ rotation[..., -2:].flip(-1)
        lengths = scale[..., -2:].flip(-1).clamp_min(0).sqrt().unsqueeze(-2)
        plane: Tensor = (top * lengths if self.wide else self.matrix @ top) * self.size
        if plane.shape[-1] == 1:
            plane = torch.cat([plane, torch.zeros_like(plane)], -1)
        # A sign of one's own: the coordinate that reaches farther is positive.
        sign = torch.where(plane.amax(-2, keepdim=True) >= -plane.amin(-2, keepdim=True), 1.0, -1.0)
        return plane * sign
