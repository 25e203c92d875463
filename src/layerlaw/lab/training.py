"""The training loop of every network outside a fleet: `steps` for all, `train` for users, `SingleEngine` for sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.site_rules import SiteChoice
from layerlaw.errors import InputError, LayerlawError
from layerlaw.lab.losses import plan_sites
from layerlaw.lab.networks import part_of
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule, measure_network
from layerlaw.progress import Progress, choose

B = TypeVar("B")


def steps(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[B],
    loss_of: Callable[[B], Tensor],
    rate_at: Callable[[int], float],
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
    """A network on its way through a recipe: resident data, a new random order in every epoch, the recipe's loss."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, recipe: Recipe) -> None:
        self.network, self.x, self.y, self.recipe = network, x, y, recipe
        self.criterion = recipe.loss.build().to(y.device)
        self.optimizer = recipe.optimizer_for(network, self.criterion)
        self.orders = torch.Generator().manual_seed(recipe.seed)
        self._plan = None if recipe.loss.sites is None else self.sites(recipe.loss.sites)

    def sites(self, choice: SiteChoice) -> Plan:
        """Where the chosen sites are in the network."""
        return plan_sites(self.network, Batch((self.x[:3],), {}, self.y[:3]), choice)

    def train_epoch(self, epoch: int) -> Tensor:
        """Train an epoch, counted from 0; returns the sum of the samples' losses."""
        self.network.train()
        self.criterion.train()
        rate, total = self.recipe.rate_at(epoch), torch.zeros((), device=self.y.device)
        order = torch.randperm(len(self.y), generator=self.orders).to(self.y.device)
        batches = torch.split(order, self.recipe.batch_size)
        plan, found = self._plan, dict[str, Tensor]()

        def consume(site: Site, features: Tensor) -> None:
            found[site.name] = features

        hooks: AbstractContextManager[Capture | None] = nullcontext()
        if plan is not None:
            hooks = Capture(self.network, plan, plan.along_depth, reduce="flatten", consume=consume, gradients=True)
        with hooks as capture:

            def loss_of(rows: Tensor) -> Tensor:
                x, y = self.x[rows], self.y[rows]
                logits = self.network(x) if capture is None else capture.run(Batch((x,), {}, y), where="training")
                return self.criterion(logits, y, dict(found))  # type: ignore[no-any-return]

            losses = steps(self.network, self.optimizer, batches, loss_of, lambda _: rate)
            for rows, loss in zip(batches, losses, strict=True):
                total += loss * len(rows)
        if callable(end := getattr(self.criterion, "end_epoch", None)):
            end()
        return total


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
    trainer, epochs = Trainer(network, x, y, recipe), range(1, recipe.epochs + 1)

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
    ) -> None:
        self._samples, self._schedule = samples.to(device), schedule
        self._cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
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
            trainer = Trainer(network.to(device), self._samples.inputs, self._samples.labels, recipe)
        self._trainer, self._plan = trainer, trainer.sites(schedule.sites)
        self._parts: dict[str, Any] = {n: getattr(trainer, n) for n in ("network", "criterion", "optimizer")}

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
        """The mean loss of an epoch, counted from 0, as (1,)."""
        with self._drawing():
            total = self._trainer.train_epoch(epoch)
        return total.cpu().double().view(1) / len(self._samples.labels)

    def measure(self, epoch: int) -> list[list[Measurement]]:
        """All modes and splits of the schedule."""
        return [measure_network(self._trainer.network, self._plan, self._samples, self._schedule, epoch)]

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        return {**parts, "orders": self._trainer.orders.get_state(), "random": self._random}

    def resume(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go on as after so many epochs."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self._trainer.orders.set_state(state["orders"])
        self._random = state["random"]

    def state_dict(self, member: int) -> dict[str, Tensor]:
        """The network's, on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self._trainer.network.state_dict().items()}


def _is_inside(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
