"""The training loop of every network outside a fleet: `steps` for all, `train` for users, `SingleEngine` for sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import probing_state
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.site_rules import SiteChoice, find_sites
from layerlaw.errors import InputError, LayerlawError
from layerlaw.lab.networks import Precision, part_of
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule, measure_network
from layerlaw.progress import Progress, choose

B = TypeVar("B")
WARM_UP = 3  # steps before one is recorded


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


class Trainer:
    """A network on its way through a recipe: resident data, a new random order in every epoch, the recipe's loss.

    `precision`: `None` leaves torch's settings alone. `captured`: on CUDA the whole step (forward, backward, optimizer) is
    recorded once as a graph for each size of batch and replayed, images and their weights are kept channels last; a step
    that cannot be recorded is run as it is. A loss that looks into the network is always run as it is.
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
        self.captured, self.channels_last = cuda and recipe.loss.sites is None, cuda and x.dim() == 4
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network, self.x, self.y, self.recipe = network, x, y, recipe
        self.criterion = recipe.loss.build().to(self.device)
        self.optimizer = recipe.optimizer_for(network, self.criterion, capturable=self.captured)
        self.orders = torch.Generator().manual_seed(recipe.seed)
        self._plan = None if recipe.loss.sites is None else self.sites(recipe.loss.sites)
        self._forward = torch.compile(network, dynamic=False) if self.compiled else network
        # What the recorded steps read and write must stay where it is.
        self._rate: float | Tensor = torch.zeros((), device=self.device) if self.captured else 0.0
        self._total = torch.zeros((), device=self.device)
        self._graphs: dict[int, StepGraph] = {}
        self.not_captured = ""  # why not, where it was tried

    @property
    def how(self) -> str:
        """In which way steps are made, in words."""
        words = {"graph": self.captured, "channels last": self.channels_last, "compiled": self.compiled}
        found = [self.precision or "precision as set in torch", *(word for word, true in words.items() if true)]
        return ", ".join(found) + (f", no graph ({self.not_captured})" if self.not_captured else "")

    def sites(self, choice: SiteChoice) -> Plan:
        """Where the chosen sites are in the network."""
        with probing_state(self.network, "running"):
            return find_sites(self.network, Batch((self.x[:3],), {}, self.y[:3]), choice=choice)

    def train_epoch(self, epoch: int) -> Tensor:
        """Train an epoch, counted from 0; returns the sum of the samples' losses, on the device."""
        self.network.train()
        self.criterion.train()
        order = torch.randperm(len(self.y), generator=self.orders).to(self.device)
        batches = torch.split(order, self.recipe.batch_size)
        with arithmetic(self.precision, self.device, benchmark=self.captured):
            if self.captured and not self._graphs:
                self._capture(sorted({len(rows) for rows in batches}, reverse=True))
            if isinstance(self._rate, Tensor):
                self._rate.fill_(self.recipe.rate_at(epoch))
            else:
                self._rate = self.recipe.rate_at(epoch)
            self._total.zero_()
            if self._plan is not None:
                self._steps_looking_inside(batches, self._plan)
            else:
                for rows in batches:
                    step = self._graphs[len(rows)] if self.captured else self.step
                    step(rows)
        return self._total.clone()

    def step(self, rows: Tensor) -> None:
        """One step on these samples."""
        self._steps([rows], lambda rows: self._loss_of(lambda x, _: self._forward(x), rows, {}))

    def _steps_looking_inside(self, batches: Sequence[Tensor], plan: Plan) -> None:
        found: dict[str, Tensor] = {}

        def consume(site: Site, features: Tensor) -> None:
            found[site.name] = features

        how: dict[str, Any] = {"reduce": "flatten", "consume": consume, "gradients": True}
        with Capture(self.network, plan, plan.along_depth, **how) as capture:

            def forward(x: Tensor, y: Tensor) -> Any:
                return capture.run(Batch((x,), {}, y), where="training")

            self._steps(batches, lambda rows: self._loss_of(forward, rows, found))

    def _steps(self, batches: Sequence[Tensor], loss_of: Callable[[Tensor], Tensor]) -> None:
        losses = steps(self.network, self.optimizer, batches, loss_of, lambda _: self._rate)
        for rows, loss in zip(batches, losses, strict=True):
            self._total += loss * len(rows)

    def _loss_of(
        self, forward: Callable[[Tensor, Tensor], Any], rows: Tensor, features: Mapping[str, Tensor]
    ) -> Tensor:
        x, y, half = self.x[rows], self.y[rows], self.precision == "bf16"
        # Without a cache of weights in bfloat16: a recorded step must cast them anew.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            logits = forward(x, y)
            return self.criterion(logits, y, dict(features))  # type: ignore[no-any-return]

    def _changing(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        states = (value for state in self.optimizer.state.values() for value in state.values())
        parts = (part for module in (self.network, self.criterion) for part in (module.parameters(), module.buffers()))
        return [*chain.from_iterable(parts), *(value for value in states if isinstance(value, Tensor))]

    def _capture(self, sizes: Sequence[int]) -> None:
        """Record a step for batches of these sizes; what recording changes is put back."""
        kept = [(tensor, tensor.detach().clone()) for tensor in self._changing()]
        random, pool = torch.cuda.get_rng_state(self.device), torch.cuda.graph_pool_handle()
        try:
            self._graphs = {size: StepGraph(self, size, pool) for size in sizes}
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


class StepGraph:
    """A trainer's step for batches of one size, recorded as a CUDA graph; called with the rows of other samples."""

    def __init__(self, trainer: Trainer, size: int, pool: Any) -> None:
        self._rows = torch.arange(size, device=trainer.device)
        side = torch.cuda.Stream(trainer.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(trainer.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                trainer.step(self._rows)
        torch.cuda.current_stream(trainer.device).wait_stream(side)
        trainer.optimizer.zero_grad()  # the gradients' memory is to come from that of the graph
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            trainer.step(self._rows)
        trainer.optimizer.zero_grad()

    def __call__(self, rows: Tensor) -> None:
        """Make the step."""
        self._rows.copy_(rows)
        self._graph.replay()


@contextmanager
def arithmetic(precision: Precision | None, device: torch.device, *, benchmark: bool = False) -> Iterator[None]:
    """Products of float32 numbers on a GPU as they are, or in TF32 (also beside bf16); `None`: as torch is set.

    `benchmark`: cuDNN tries its convolutions and takes the fastest.
    """
    if device.type != "cuda" or precision is None:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    exact = precision == "float32"
    try:
        torch.set_float32_matmul_precision("highest" if exact else "high")
        cudnn.allow_tf32, cudnn.benchmark = not exact, benchmark
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:]


def batch_that_fits(recipe: Recipe, samples: Samples, device: str) -> int:
    """About how many samples per batch the device would hold while the recipe's network is trained."""
    where = torch.device(device)
    memory = torch.cuda.get_device_properties(where).total_memory if where.type == "cuda" else 4 * 2**30
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network = recipe.network.build().train()
        network(samples.inputs[:2].cpu())
    weights = {parameter.untyped_storage().data_ptr(): parameter for parameter in network.parameters()}
    each = sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in weights) / 2
    copies = 2 + {"sgd": 0, "momentum": 1, "adam": 2}[recipe.optimizer]  # weights and gradients, and the optimizer's
    fixed = copies * sum(p.nbytes for p in weights.values()) + 2 * samples.inputs.nbytes
    return max(0, int((0.8 * memory - fixed) / (1.5 * each)))  # what is saved, and gradients on their way back


def visited(
    network: nn.Module, rounds: Iterable[B], at: Collection[int], visit: Callable[[int], object] | None
) -> Iterator[B]:
    """Pass on what the rounds of a training give, until `visit` returns `True` (that very object); ends in eval mode."""
    if visit is None or 0 not in at or visit(0) is not True:
        network.train()
        for number, given in enumerate(rounds, 1):
            yield given
            if visit is not None and number in at:
                if visit(number) is True:
                    break
                network.train()
    network.eval()


def train(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    *,
    at_epochs: Collection[int] = (),
    visit: Callable[[int], object] | None = None,
    progress: bool | Progress = True,
) -> list[float]:
    """Train in place; returns the mean loss of each epoch. `visit(epoch)` is called at the chosen epochs (0: before).

    Training stops early when `visit` returns `True`. The network may be any; of the recipe, network and layers are not used.
    """
    precision = None if recipe.precision is None else recipe.precision_on(y.device)
    trainer, epochs = Trainer(network, x, y, recipe, precision=precision), range(1, recipe.epochs + 1)

    def loss_of(epoch: int) -> float:
        loss = float(trainer.train_epoch(epoch - 1)) / len(y)
        if math.isnan(loss):
            raise LayerlawError(f"training diverged in epoch {epoch} (the loss is NaN): use a lower learning rate.")
        return loss

    return list(visited(network, map(loss_of, choose(progress)(epochs, "training", len(epochs))), at_epochs, visit))


class SingleEngine:
    """One member of a sweep, any network and any loss; it draws from a stream of its own, whatever was trained before."""

    def __init__(
        self,
        recipe: Recipe,
        samples: Samples,
        schedule: Schedule,
        *,
        start: Mapping[str, Tensor] | None = None,
        copied: tuple[int, int] | None = None,
        device: str = "cpu",
        compile: bool = False,
    ) -> None:
        self._samples, self._schedule = samples.to(device), schedule
        self._device = torch.device(device)
        self._cuda = [self._device] if self._device.type == "cuda" else []
        self._random: list[Tensor] = []
        with self._drawing():
            torch.manual_seed(recipe.seed)
            network = recipe.network.build()
            if start is not None:  # from all of a state, or from the layers `copied` of it
                state = network.state_dict()
                parts = None if copied is None else recipe.network.layer_modules(copied)
                for name in [name for name in state if parts is None or _is_inside(name, parts)]:
                    state[name] = part_of(start, name, tuple(state[name].shape))
                network.load_state_dict(state)
            if recipe.decay_frozen:
                raise InputError(
                    f"decay_frozen: expected False for {recipe.network} with {recipe.loss}: only fleets have it."
                )
            if recipe.layers is not None:
                trained = recipe.network.layer_modules(recipe.layers)
                for name, parameter in network.named_parameters():
                    parameter.requires_grad_(_is_inside(name, trained))
            trainer = Trainer(
                network.to(device),
                self._samples.inputs,
                self._samples.labels,
                recipe,
                precision=recipe.precision_on(self._device),
                captured=True,
                compile=compile,
            )
        self._trainer, self._plan = trainer, trainer.sites(schedule.sites)
        self._parts: dict[str, Any] = {n: getattr(trainer, n) for n in ("network", "criterion", "optimizer")}

    @property
    def how(self) -> str:
        """In which way it is trained, in words."""
        return self._trainer.how

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Torch's generators as this member left them; afterwards as they were."""
        with torch.random.fork_rng(self._cuda):
            if self._random:
                torch.set_rng_state(self._random[0])
                for device, state in zip(self._cuda, self._random[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
            yield
            self._random = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda)]

    def train_epoch(self, epoch: int) -> Tensor:
        """The mean loss of an epoch, counted from 0, as (1,); on CUDA still there."""
        with self._drawing():
            total = self._trainer.train_epoch(epoch)
        total = total if self._cuda else total.cpu()  # fetching it would make a GPU wait
        return total.double().view(1) / len(self._samples.labels)

    def measure(self, epoch: int) -> list[list[Measurement]]:
        """All modes and splits of the schedule; in float32, however it is trained."""
        with arithmetic("float32", self._device):
            return [measure_network(self._trainer.network, self._plan, self._samples, self._schedule, epoch)]

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        return {**parts, "orders": self._trainer.orders.get_state(), "random": self._random}

    def resume(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go on as after so many epochs."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        for group in self._trainer.optimizer.param_groups:  # it may have been trained on another device before
            if "capturable" in group:
                group["capturable"] = self._trainer.captured
        self._trainer.orders.set_state(state["orders"])
        self._random = state["random"]

    def state_dict(self, member: int) -> dict[str, Tensor]:
        """The network's, on the CPU."""
        state = self._trainer.network.state_dict()
        return {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in state.items()}


def measured_again(
    network: nn.Module, samples: Samples, schedule: Schedule, epoch: int, device: str
) -> list[Measurement]:
    """What a schedule wants to know of a network that was trained before; in float32."""
    there, network = samples.to(device), network.to(device)
    with probing_state(network, "running"):
        plan = find_sites(network, Batch((there.inputs[:3],), {}, there.labels[:3]), choice=schedule.sites)
    with arithmetic("float32", torch.device(device)):
        return measure_network(network, plan, there, schedule, epoch)


def _is_inside(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
