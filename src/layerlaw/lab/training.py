"""The training loop of every network outside a fleet: `train` for users, `SingleEngine` for sweeps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from layerlaw.capture.arguments import what_would_do
from layerlaw.capture.batches import Batch
from layerlaw.capture.network import has_batchnorm, probing_state
from layerlaw.capture.site_rules import find_sites
from layerlaw.errors import InputError, LayerlawError, MemoryBudgetError
from layerlaw.lab.networks import check_batches, none_alone, part_of
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule, measure_network
from layerlaw.lab.trainer import Trainer, arithmetic
from layerlaw.progress import Progress, choose
from layerlaw.threads import on_cpu, users_device

B = TypeVar("B")


def batch_that_fits(
    recipe: Recipe, samples: Samples, device: str | torch.device, network: nn.Module | None = None
) -> int:
    """About how many samples per batch the device would hold while the recipe's network is trained, or this one."""
    where, found = torch.device(device), dict[int, Tensor]()
    memory = torch.cuda.get_device_properties(where).total_memory if where.type == "cuda" else 4 * 2**30

    def keep(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network = (recipe.network.build() if network is None else copy.deepcopy(network).cpu()).train()
        network(samples.inputs[:2].cpu())
    weights = {parameter.untyped_storage().data_ptr(): parameter for parameter in network.parameters()}
    each = sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in weights) / 2
    copies = 2 + {"sgd": 0, "momentum": 1, "adam": 2}[recipe.optimizer]  # weights and gradients, and the optimizer's
    fixed = copies * sum(p.nbytes for p in weights.values()) + 2 * samples.inputs.nbytes
    return max(0, int((0.8 * memory - fixed) / (1.5 * each)))  # what is saved, and gradients on their way back


def smaller_batch(
    recipe: Recipe, samples: Samples, device: str | torch.device, network: nn.Module | None = None
) -> str:
    """What to do where batches of the recipe's size do not fit."""
    half = max(recipe.batch_size // 2, min(2, recipe.batch_size - 1))
    fit = none_alone(len(samples.labels), min(half, batch_that_fits(recipe, samples, device, network)))
    if fit < 2:
        return "not even batches of 2 would fit. Choose a smaller network"
    return f"about {fit} samples per batch would fit, not {recipe.batch_size}. Pass batch_size={fit}"


def visited(
    network: nn.Module, rounds: Iterable[B], at: Collection[int], visit: Callable[[int], object] | None
) -> Iterator[B]:
    """Pass on what the rounds of a training give, until `visit` returns `True` (that very object); ends in eval mode."""
    visit = visit and users_device()(visit)
    if visit is None or 0 not in at or visit(0) is not True:
        network.train()
        for number, given in enumerate(rounds, 1):
            yield given
            if visit is not None and number in at:
                if visit(number) is True:
                    break
                network.train()
    network.eval()


@on_cpu
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
    check_batches(has_batchnorm(network), len(y), recipe.batch_size)
    precision = None if recipe.precision is None else recipe.precision_on(y.device)
    trainer, epochs = Trainer(network, x, y, recipe, precision=precision), range(1, recipe.epochs + 1)

    def loss_of(epoch: int) -> float:
        try:
            loss = float(trainer.train_epoch(epoch - 1)) / len(y)
        except torch.OutOfMemoryError as error:
            cure = smaller_batch(recipe, Samples(x, y), y.device, network)
            what = f"training in batches of {recipe.batch_size} ran out of memory on {y.device}"
            raise MemoryBudgetError(f"{what}: {cure}.") from error
        except RuntimeError as error:
            came = f"one that fails in epoch {epoch}: {error}"
            takes = f"takes samples of shape {tuple(x.shape[1:])} and gives class scores"
            cure = what_would_do(network, x)
            raise InputError(f"network: expected one that {takes}, got {came}{cure and f'. {cure}'}") from error
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
        self._device, self._random = torch.device(device), list[Tensor]()
        self._cuda = [self._device] if self._device.type == "cuda" else []
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
                # fewer or more where it was trained on another device before
                for device, state in zip(self._cuda, self._random[1:], strict=False):
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
        optimizer = self._trainer.optimizer
        for group in optimizer.param_groups:  # it may have been trained on another device before
            if "capturable" in group:
                group["capturable"] = self._trainer.captured
        for parameter, memory in optimizer.state.items():  # there channels may have been last, or first
            for name, value in memory.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    memory[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)
        self._trainer.orders.set_state(state["orders"])
        self._random = state["random"]

    def state_dicts(self) -> list[dict[str, Tensor]]:
        """The network's, on the CPU; one, as there is one member."""
        state = self._trainer.network.state_dict()
        return [{n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in state.items()}]


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
