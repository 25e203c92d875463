"""Steps of training any network outside a fleet: plain ones, and on CUDA recorded ones, in a chosen precision."""

from __future__ import annotations

import math
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import said_of_device
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.recording import recording
from layerlaw.capture.site_rules import SiteChoice
from layerlaw.errors import InputError
from layerlaw.lab.losses import plan_sites
from layerlaw.lab.networks import Precision
from layerlaw.lab.recipe import Recipe
from layerlaw.threads import Counted, users_device

B = TypeVar("B")
WARM_UP = 2  # steps, and one more, before one is recorded


def steps(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[B],
    loss_of: Callable[[B], Tensor],
    rate_at: Callable[[int], float | Tensor],
    *,
    clip: float = math.inf,
) -> Iterator[Tensor]:
    """One optimizer step per batch; yields its loss, on the device. `clip` bounds the norm of the network's gradient."""
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        loss = loss_of(batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if clip < math.inf:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        yield loss.detach()


class Recorded(ABC):
    """What trainers share whose steps are recorded as CUDA graphs, one for each size of batch."""

    device: torch.device
    optimizer: torch.optim.Optimizer
    modules: tuple[nn.Module, ...]  # that a step changes
    captured: bool
    not_captured: str = ""  # why not, where it was tried
    _graphs: dict[int, StepGraph]

    @abstractmethod
    def step(self, rows: Tensor) -> None:
        """One step on these samples."""

    def rows_of(self, size: int) -> Tensor:
        """Any samples, as many as a batch has."""
        return torch.arange(size, device=self.device)

    def _changing(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        states = (value for state in self.optimizer.state.values() for value in state.values())
        parts = (part for module in self.modules for part in (module.parameters(), module.buffers()))
        return [*chain.from_iterable(parts), *(value for value in states if isinstance(value, Tensor))]

    def _capture(self, sizes: Sequence[int]) -> None:
        """Record a step for batches of these sizes; what recording changes is put back."""
        kept = [(tensor, tensor.detach().clone()) for tensor in self._changing()]
        random, pool = torch.cuda.get_rng_state(self.device), torch.cuda.graph_pool_handle()
        aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        try:
            self._graphs = {size: StepGraph(self, size, aside, pool) for size in sizes}
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # it waits for the device, say, to decide something in Python
            self.captured, self._graphs = False, {}
            self.not_captured = str(error).splitlines()[0][:100]
        finally:
            self.optimizer.zero_grad()
            with torch.no_grad():
                before = {id(tensor) for tensor, _ in kept}
                for tensor, content in kept:
                    tensor.copy_(content)
                for tensor in self._changing():  # of the optimizer, which had none before its first step
                    if id(tensor) not in before:
                        tensor.zero_()
            torch.cuda.set_rng_state(random, self.device)


class Trainer(Recorded):
    """A network on its way through a recipe: resident data, a new random order in every epoch, the recipe's loss.

    `precision`: `None` leaves torch's settings alone. `captured`: on CUDA the whole step (forward, backward, optimizer) is
    recorded once as a graph for each size of batch and replayed, images and their weights are kept channels last; a step
    that cannot be recorded is run as it is. So is one with a loss that looks into the network, unless its criterion says
    that it does the same at every step (`recordable`): a replay runs no Python.
    """

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        recipe: Recipe,
        *,
        precision: Precision | None = None,
        captured: bool = False,
        compile: bool = False,
    ) -> None:
        self.device, self.precision, self.compiled = y.device, precision, compile and recipe.loss.sites is None
        cuda = captured and self.device.type == "cuda"
        self.criterion = recipe.loss.build().to(self.device)
        recordable = recipe.loss.sites is None or bool(getattr(self.criterion, "recordable", False))
        self.captured, self.channels_last = cuda and recordable, cuda and x.dim() == 4
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network, self.x, self.y, self.recipe = network, x, y, recipe
        self.optimizer = recipe.optimizer_for(network, self.criterion, capturable=self.captured)
        self.orders = torch.Generator().manual_seed(recipe.seed)
        self._plan = None if recipe.loss.sites is None else self.sites(recipe.loss.sites)
        self._inside: Capture | None = None
        self._features: dict[str, Tensor] = {}  # of the last forward, for a loss that looks inside
        self._forward = torch.compile(network, dynamic=False) if self.compiled else network
        self._whole = min(recipe.batch_size, len(y))  # it is compiled for such batches, not for the last of an epoch
        # What the recorded steps read and write must stay where it is.
        self._rate: float | Tensor = torch.zeros((), device=self.device) if self.captured else 0.0
        self._total = torch.zeros((), device=self.device)
        self._graphs = {}
        self.modules = (self.network, self.criterion)

    @property
    def how(self) -> str:
        """In which way steps are made, in words."""
        words = {"graph": self.captured, "channels last": self.channels_last, "compiled": self.compiled}
        found = [self.precision or "precision as set in torch", *(word for word, true in words.items() if true)]
        return ", ".join(found) + (f", no graph ({self.not_captured})" if self.not_captured else "")

    def sites(self, choice: SiteChoice) -> Plan:
        """Where the chosen sites are in the network."""
        return plan_sites(self.network, Batch((self.x[:3],), {}, self.y[:3]), choice)

    def train_epoch(self, epoch: int) -> Tensor:
        """Train an epoch, counted from 0; returns the sum of the samples' losses, on the device."""
        self.network.train()
        self.criterion.train()
        order = torch.randperm(len(self.y), generator=self.orders).to(self.device, non_blocking=True)
        batches = torch.split(order, self.recipe.batch_size)
        with arithmetic(self.precision, self.device, benchmark=self.captured), self._looking_inside():
            if self.captured and not self._graphs:
                self._capture(sorted({len(rows) for rows in batches}, reverse=True))
            if isinstance(self._rate, Tensor):
                self._rate.fill_(self.recipe.rate_at(epoch))
            else:
                self._rate = self.recipe.rate_at(epoch)
            self._total.zero_()
            for rows in batches:
                step = self._graphs[len(rows)] if self.captured else self.step
                step(rows)
        if callable(end := getattr(self.criterion, "end_epoch", None)):
            end()
        return self._total.clone()

    def step(self, rows: Tensor) -> None:
        """One step on these samples."""
        losses = steps(self.network, self.optimizer, [rows], self._loss_of, lambda _: self._rate)
        for loss in losses:
            self._total += loss * len(rows)

    @contextmanager
    def _looking_inside(self) -> Iterator[None]:
        """Hooks for the loss, as long as steps are made or recorded; none where it needs no features."""
        if self._plan is None:
            yield
            return

        def consume(site: Site, features: Tensor) -> None:
            self._features[site.name] = features

        how: dict[str, Any] = {"reduce": "flatten", "consume": consume, "gradients": True}
        how["any_order"] = bool(getattr(self.criterion, "any_order", False))
        with Capture(self.network, self._plan, self._plan.along_depth, **how) as self._inside:
            try:
                yield
            finally:
                self._inside, self._features = None, {}

    def _logits(self, x: Tensor, y: Tensor) -> Any:
        if self._inside is not None:
            return self._inside.run(Batch((x,), {}, y), where="training")
        with users_device():
            return (self._forward if len(y) == self._whole else self.network)(x)

    def _loss_of(self, rows: Tensor) -> Tensor:
        x, y = self.x[rows], self.y[rows]
        with nullcontext() if self.precision != "bf16" else self._half():
            logits = self._logits(x, y)
            # Kept, they would hold this step's graph, made on another stream, while the next one is recorded.
            features, self._features = self._features, {}
            return self.criterion(logits, y, features)  # type: ignore[no-any-return]

    def _half(self) -> torch.autocast:
        """bfloat16, without a cache of weights: a recorded step must cast them anew."""
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)


class StepGraph:
    """A trainer's step for batches of one size, recorded as a CUDA graph; called with the rows of other samples."""

    def __init__(self, trainer: Recorded, size: int, aside: torch.cuda.Stream, pool: Any) -> None:
        self._rows = trainer.rows_of(size)
        here = torch.cuda.current_stream(trainer.device)
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside):
                for _ in range(WARM_UP):
                    trainer.step(self._rows)
                with _no_waiting():  # most of what cannot be recorded fails here, before torch is in the middle of it
                    trainer.step(self._rows)
        finally:  # also behind an error: what the steps have written is then put back
            here.wait_stream(aside)
        trainer.optimizer.zero_grad()  # the gradients' memory is to come from that of the graph
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(trainer.device)
        torch.cuda.empty_cache()
        with recording(self._graph, aside, pool=pool, mode="global"):
            trainer.step(self._rows)
        trainer.optimizer.zero_grad()

    def __call__(self, rows: Tensor) -> None:
        """Make the step."""
        self._rows.copy_(rows)
        self._graph.replay()


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Raise where anything waits for the device, as `item()` does: that cannot be part of a graph."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not find all; most will do
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def check_device(device: str) -> None:
    """Raise unless torch can use the device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        kinds = [kind for kind in ("cuda", "mps", "xpu") if torch.get_device_module(kind).is_available()]
        known, said = ", ".join(["cpu", *kinds]), said_of_device(error)
        raise InputError(f"device: expected one that torch can use here ({known}), got {device!r}. {said}.") from None


@contextmanager
def arithmetic(precision: Precision | None, device: torch.device, *, benchmark: bool = False) -> Iterator[None]:
    """Products of float32 numbers on a GPU as they are, or in TF32 (also beside bf16); `None`: as torch is set.

    `benchmark`: cuDNN tries its convolutions and takes the fastest.
    """
    if device.type != "cuda" or precision is None:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    exact = precision == "float32"
    inside = getattr(_mine, "inside", False)
    # Within one thread each puts back what it found; threads side by side leave that to the last of them.
    with _arithmetic_put_back, _put_back() if inside else _noted():
        torch.set_float32_matmul_precision("highest" if exact else "high")
        cudnn.allow_tf32, cudnn.benchmark = not exact, benchmark
        yield


@contextmanager
def _put_back() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:]


@contextmanager
def _noted() -> Iterator[None]:
    _mine.inside = True
    try:
        yield
    finally:
        _mine.inside = False


_arithmetic_put_back = Counted(_put_back)  # these are switches of the whole process
_mine = threading.local()
