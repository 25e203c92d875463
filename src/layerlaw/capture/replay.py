"""Forwards of small networks on a GPU as CUDA graphs: launching their kernels one by one takes longer than their work.

A graph is recorded from one batch and replayed on every other of its shape. Only forwards in which no operation waits for
a number, draws at random or reads memory of the processor are recorded, and what a graph gives is compared with the
forward itself before it is used: its output, and the sum of the features of every site.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from layerlaw.capture.batches import Batch
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.recording import recording
from layerlaw.errors import CaptureError
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size

Features = dict[Site, Tensor]
Consume = Callable[[Site, Tensor], None]
Collect = Callable[[Batch], tuple[Any, Features]]
"""One forward: the model's output, and the features of all sites, which nothing behind them overwrites."""

RECORDED = {"cuda"}  # the kinds of devices where forwards are
FEW = 12  # batches, which do not pay for the recording
WARM = 1  # batches of one shape before it: kernels are chosen and memory is taken in them
SHAPES = 8  # so many times a batch may have another shape than the one before it; then no forward is watched any more
INPUTS = 2**24  # bytes of the inputs of a batch: larger ones keep a GPU busy
FEATURES = 2**29  # bytes of the features of all sites in a batch, which are held together
_not_recorded: WeakSet[nn.Module] = WeakSet()  # those that failed: torch keeps the memory of every attempt


class Passed:
    """Features of a forward where they were when they passed: a copy of those of all sites takes as long as the statistics.

    The sites that something behind overwrites are to be `copied` (`None`: all); of inference mode, where nothing is told of
    that, too. With `sums` those of the features are noted.
    """

    def __init__(self, copied: Container[Site] | None = None, *, sums: bool = False) -> None:
        self._copied, self._sums = copied, sums
        self._held: dict[Site, tuple[Tensor, int]] = {}
        self.sums: dict[Site, Tensor] = {}

    def add(self, site: Site, features: Tensor) -> None:
        """Those of one site."""
        # Rows that do not lie behind each other would keep those of all sites from being copied by one call.
        apart = self._copied is None or site in self._copied or not features.is_contiguous()
        held = features.clone(memory_format=torch.contiguous_format) if apart else features
        self._held[site] = held, -1 if held.is_inference() else held._version
        if self._sums:
            self.sums[site] = held.sum(dtype=torch.float64)  # that of half precision would be infinite

    @property
    def overwritten(self) -> frozenset[Site]:
        """The sites whose features are not, or perhaps not, as they were."""
        found = self._held.items()
        return frozenset(site for site, (held, seen) in found if seen < 0 or held._version != seen)

    def unchanged(self) -> Features:
        """The features of all sites; raises where they are not as they were."""
        if changed := self.overwritten:
            raise CaptureError(f"{sorted(map(str, changed))}: overwritten in this forward, and not in another one.")
        return {site: held for site, (held, _) in self._held.items()}


class Recording:
    """The graph of one forward, its inputs, and what it leaves: the output, and the features of all sites."""

    def __init__(self, batch: Batch, collect: Collect) -> None:
        self._given, self._device = batch.copy(), batch.labels.device
        with torch.cuda.device(self._device):
            self._graph = torch.cuda.CUDAGraph()
            with recording(self._graph, torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                self._output, self.features = collect(self._given)

    def replay(self, batch: Batch) -> Tensor:
        """The output for a batch; `features` are those of its samples until the next one."""
        for mine, given in zip(self._given.tensors(), batch.tensors(), strict=True):
            mine.copy_(given)
        with torch.cuda.device(self._device):
            self._graph.replay()
        output: Tensor = self._output.clone()
        return output


class Replays:
    """Decides whether forwards are recorded, and when; `batches` is how many there will be, where that is known.

    One serves all passes over the same data. `take_all` takes the features of all sites at once, or says that it does not.
    """

    def __init__(self, network: nn.Module, plan: Plan, sites: Sequence[Site], batches: int | None) -> None:
        self._network = network
        self.take_all: Callable[[Features], bool] | None = None
        self._row_bytes = sum(site.features * site.itemsize for site in sites)
        self._open = batches is not None and batches >= FEW and plan.steady and not plan.overwrites_input
        self._open = self._open and world_size() == 1 and repeats(network) and network not in _not_recorded
        self._shape: Hashable = None
        self._seen = self._shapes = 0
        self._known: tuple[Batch, Tensor] | None = None  # a batch of that shape, and its output
        self._watch: Passed | None = None  # what is seen of the features of a forward that is run as it is
        self._copied: frozenset[Site] | None = None  # sites that something overwrote in it; `None`: not known
        self._sums: dict[Site, Tensor] = {}  # of the features in it
        self._recording: Recording | None = None

    def run(self, batch: Batch, collect: Collect, consume: Consume) -> Tensor | None:
        """The output for a batch, whose features are consumed (the next one overwrites them); `None`: run it as it is."""
        if not self._open:
            return None
        shape = tuple((tuple(tensor.shape), tensor.dtype, tensor.stride()) for tensor in batch.tensors())
        if self._recording is None:
            self._seen = self._seen + 1 if shape == self._shape else 1
            self._shape, self._shapes = shape, self._shapes + (shape != self._shape)
            if self._shapes > SHAPES or not self._small(batch):
                self._open = False
            elif self._seen > WARM:
                self._recording = self._recorded(batch, collect)
                self._open = self._recording is not None
        if self._recording is None or shape != self._shape:  # the last batch is often smaller
            return None
        output = self._recording.replay(batch)
        features = self._recording.features
        with full_precision():
            if self.take_all is None or not self.take_all(features):
                for site, of_site in features.items():
                    consume(site, of_site)
        return output

    def watched(self, consume: Consume) -> Consume:
        """The same for a forward that is run as it is, of which a recording needs to know."""
        if not (self._open and self._recording is None and self._seen):
            return consume
        watch = self._watch = Passed((), sums=True)

        def both(site: Site, features: Tensor) -> None:
            watch.add(site, features)
            consume(site, features)

        return both

    def held(self) -> Passed:
        """Takes the features of a forward that is recorded."""
        return Passed(self._copied)

    def went(self, batch: Batch, output: Any) -> None:
        """What a forward gave that was run as it is: a recording is compared with it."""
        watch, self._watch = self._watch, None
        if watch is not None and isinstance(output, Tensor):
            self._known = batch.copy(), output.clone()  # in memory of its own, where nobody else writes
            self._copied, self._sums = watch.overwritten, watch.sums

    def drop(self) -> None:
        """Let go of the memory, and of who takes features."""
        self._recording, self._known, self._open, self.take_all = None, None, False, None
        self._watch, self._sums = None, {}

    def _small(self, batch: Batch) -> bool:
        """Whether a batch is one that a GPU is done with sooner than it is told to begin, and plain enough."""
        tensors, device = batch.tensors(), batch.labels.device
        held = (*tensors, *self._network.parameters(), *self._network.buffers())
        plain = len(tensors) == len(batch.args) + len(batch.kwargs) and batch.mask is None
        together = device.type in RECORDED and all(tensor.device == device for tensor in held)
        usual = not (torch.is_grad_enabled() or torch.is_autocast_enabled(device.type))
        little = sum(t.nbytes for t in tensors) <= INPUTS and len(batch.labels) * self._row_bytes <= FEATURES
        return plain and together and usual and little

    def _recorded(self, batch: Batch, collect: Collect) -> Recording | None:
        """A recording that gives what the forward gives; `None` where there can be none."""
        try:
            recording = Recording(batch, collect)
            if self._known is None:
                given, eager = batch, collect(batch)[0]
            else:
                given, eager = self._known
            same = isinstance(eager, Tensor) and torch.equal(recording.replay(given), eager)
            return recording if same and self._same_features(recording.features) else None
        except Exception:  # of the model, of the recording, or of memory: the forward as it is will tell
            _not_recorded.add(self._network)
            return None
        finally:
            self._known = None

    def _same_features(self, features: Features) -> bool:
        """Whether they have the sums of those that passed in the forward; each site by one number."""
        known, found = self._sums, {site: features[site].sum(dtype=torch.float64) for site in self._sums}
        return not known or torch.equal(torch.stack(list(known.values())), torch.stack(list(found.values())))


def repeats(network: nn.Module) -> bool:
    """Whether forwards are all alike as far as Python goes: evaluation mode, no hooks and no forward that others put on."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return False
    for one in network.modules():
        if one.training or one._forward_hooks or one._forward_pre_hooks or "forward" in vars(one):
            return False
    return True
