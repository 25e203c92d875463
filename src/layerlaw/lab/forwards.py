"""What a network gives at some sites for all of its samples, forwarded batch by batch, in parts that fit the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import BatchNormMode, probing_state
from layerlaw.capture.plan import Plan, Site

BUDGET = {"cpu": 2**30, "cuda": 2**34}  # bytes of features that are kept at a time; elsewhere as on a CPU
FREE_SHARE = 0.25  # of what a GPU has free, where that is more: others may train on it, too


@dataclass(frozen=True)
class Forwarded:
    """Some samples' features (n, d) by the name of the site, and their logits (n, K); `rows`: which samples."""

    rows: slice
    features: dict[str, Tensor]
    logits: Tensor


@dataclass
class Forwards:
    """A network, its samples and how they are cut into batches (BatchNorm may see them).

    Gone through, it gives as many batches at once as fit the memory: statistics of many samples cost hardly more calls than
    those of few. Where all fit, the network runs once, however often one goes through them.
    """

    network: nn.Module
    plan: Plan
    sites: Sequence[Site]
    inputs: Tensor
    size: int
    state: BatchNormMode
    _all: Forwarded | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Forwarded]:
        if self._all is not None:
            yield self._all
            return
        cuts = self._cuts()
        parts = self._parts(cuts)
        for part in parts:
            given = self._forward(part)
            if len(parts) == 1:
                self._all = given
            yield given

    @property
    def device(self) -> torch.device:
        """Where it happens."""
        return self.inputs.device

    def _cuts(self) -> list[slice]:
        """Batches in order; a single sample at the end joins the one before, as it has no batch statistics."""
        n = len(self.inputs)
        ends = [*range(self.size, n, self.size), n]
        if len(ends) > 1 and ends[-1] - ends[-2] == 1:
            del ends[-2]
        return [slice(a, b) for a, b in pairwise([0, *ends])]

    def _parts(self, cuts: list[slice]) -> list[list[slice]]:
        each = sum(site.features * max(4, site.itemsize) for site in self.sites)
        budget = BUDGET.get(self.device.type, BUDGET["cpu"])
        if self.device.type == "cuda":
            budget = max(budget, int(FREE_SHARE * torch.cuda.mem_get_info(self.device)[0]))
        most = budget // max(1, each)  # samples
        parts: list[list[slice]] = []
        for cut in cuts:
            if not parts or cut.stop - parts[-1][0].start > most:
                parts.append([])
            parts[-1].append(cut)
        return parts

    def _forward(self, cuts: list[slice]) -> Forwarded:
        rows = slice(cuts[0].start, cuts[-1].stop)
        features: dict[str, Tensor] = {}
        logits: list[Tensor] = []
        at = slice(0, 0)

        def keep(site: Site, some: Tensor) -> None:
            if site.name not in features:
                features[site.name] = some.new_empty(rows.stop - rows.start, some.shape[1])
            features[site.name][at] = some  # a copy: a layer behind the site may write over it

        how = Capture(self.network, self.plan, self.sites, reduce="flatten", consume=keep)
        with probing_state(self.network, self.state), how as capture:
            for cut in cuts:
                at = slice(cut.start - rows.start, cut.stop - rows.start)
                x = self.inputs[cut]
                # Only their number is read of the labels.
                some = capture.run(Batch((x,), {}, x.new_zeros(len(x), dtype=torch.long)), where="measuring")
                logits.append(some.float())
        return Forwarded(rows, features, torch.cat(logits))
