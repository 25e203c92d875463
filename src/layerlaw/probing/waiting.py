"""Small batches on a GPU wait for each other: all statistics are then brought up to date at once.

There a call costs more than its work on a few hundred samples, and a stream has many of them for each site and batch.
Features are copied in any case, since what follows in the forward may overwrite them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from layerlaw.capture.hooks import Consume
from layerlaw.capture.plan import Site
from layerlaw.probing.memory import KeptFeatures
from layerlaw.stats.passes import Dealt, SecondPass
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size
from layerlaw.stats.regression import SecondRegression
from layerlaw.stats.spectrum import beside

MOST = {"cuda": 2**30}  # bytes of features that wait, by the kind of the device; on others none do
ENOUGH = 4096  # samples, whose work is more than the calls


BESIDE = {"cuda"}  # kinds of devices that work on while the process does something else


class Meanwhile:
    """While a GPU works on what is queued from here on: for what only needs what was queued before."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, None
        if device.type == "cuda":
            self._before = torch.cuda.current_stream(device).record_event()

    @classmethod
    def on(cls, places: set[torch.device]) -> Meanwhile | None:
        """On the one device that holds all features; `None` where all is done when a call returns, or ranks wait."""
        one = next(iter(places)) if len(places) == 1 and world_size() == 1 else None
        return cls(one) if one is not None and one.type in BESIDE else None

    @contextmanager
    def here(self) -> Iterator[None]:
        """What is done in here does not wait for what was queued meanwhile, and is over at the end."""
        if self._before is None:
            yield
            return
        stream = beside(self._device)
        stream.wait_event(self._before)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


class Waiting:
    """Features of all sites from batch to batch; `work` gets those of several batches, and how their labels were dealt.

    They take at most `room` bytes. Where not even two batches fit, none waits.
    """

    def __init__(self, sites: Sequence[Site], room: int, work: Callable[[KeptFeatures, Dealt], None]) -> None:
        self._sites, self._room, self._work = sites, room, work
        self._row_bytes = max(1, sum(site.features * site.itemsize for site in sites))
        self._kept = KeptFeatures(sites, 0, None)
        self._dealt: list[Dealt] = []
        self.open = False
        """Whether the features of the present batch wait."""

    def takes(self, labels: Tensor) -> bool:
        """Before a batch: whether it waits. Those before it are worked through where it does not fit beside them."""
        n, room = len(labels), min(self._room, MOST.get(labels.device.type, 0))
        self.open = 2 * n <= min(ENOUGH, room // self._row_bytes)
        if self._kept.rows and not (self.open and self._kept.rows < ENOUGH and self._kept.fits(n)):
            self.flush()
        if self.open and not self._kept.whole:
            rows = min(ENOUGH + n, room // self._row_bytes) // n * n  # all of them taken: sites lie side by side
            self._kept = KeptFeatures(self._sites, room, rows)
        return self.open

    def or_at_once(self, update: Callable[[str, Tensor], None]) -> Consume:
        """Takes the features (n, d) of a site: they wait, or `update` gets them."""

        def consume(site: Site, features: Tensor) -> None:
            if self.open:
                self._kept.add(site, features)
            else:
                update(site.name, features)

        return consume

    def add_all(self, features: Mapping[Site, Tensor]) -> bool:
        """Those of all sites at once, where they wait."""
        return self.open and self._kept.add_all(features)

    def close(self, dealt: Dealt, decision: Tensor | None, where: str) -> None:
        """End a batch."""
        self._kept.close(dealt.labels, decision, where)
        self._dealt.append(dealt)

    def flush(self) -> None:
        """Work through those that wait."""
        if self._kept.rows:
            dealt, self._dealt = Dealt.joined(self._dealt), []
            self._work(self._kept, dealt)
            self._kept.clear()

    def finish(self) -> None:
        """The same at the end of the data, and let go of the memory."""
        self.flush()
        self._kept.drop()
        self.open = False


def add_second(second: SecondPass | SecondRegression, classes: int, kept: KeptFeatures, dealt: Dealt) -> None:
    """Add kept features to pass 2, in blocks of rows."""
    with full_precision():
        for rows in kept.blocks(32 * classes * kept.sites):
            second.begin(dealt.rows(rows), kept.decisions(rows))
            kept.hand_over(second, rows)
            second.end()
