"""Narrow networks for images, trained many at once: the channels of all members lie side by side in one tensor.

A convolution of 8 channels leaves a GPU idle. Side by side, with the weights of the members as the blocks on the diagonal
of one weight, the same kernels serve them all; the zeros between the blocks cost less than what was idle. All other layers
treat every channel, or every member, by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture.batches import Batch
from layerlaw.lab.fleet.rows import Rule
from layerlaw.lab.losses import CrossEntropy, plan_sites
from layerlaw.lab.networks import part_of
from layerlaw.lab.networks.convolutional import CopiedConv2d, ImageNetwork, PlainNetwork
from layerlaw.lab.networks.residual import ResidualBlock
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule, measure_network
from layerlaw.lab.trainer import arithmetic
from layerlaw.stats.precision import at_least_float32

CHANNELS = 64  # side by side; of more, the zeros cost more than they save
MANY = 3  # members that are worth it
WITHOUT_WEIGHTS = (nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Identity)
CONTAINERS = (nn.Sequential, PlainNetwork, ResidualBlock)
JoinedBy = Literal["blocks", "groups"]


def members_side_by_side(recipe: Recipe) -> int:
    """How many members of this recipe are worth training at once, on a GPU; 1: each alone."""
    network = recipe.network
    if not isinstance(network, ImageNetwork) or recipe.loss != CrossEntropy() or recipe.decay_frozen:
        return 1
    with torch.random.fork_rng(devices=[]):
        modules = list(network.build().modules())
    if not all(_joins(module) for module in modules):
        return 1
    widest = max((m.out_channels for m in modules if isinstance(m, nn.Conv2d)), default=CHANNELS)
    found = CHANNELS // widest
    return found if found >= MANY else 1


def _joins(module: nn.Module) -> bool:
    """Whether a layer can stand for those of all members."""
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
    own = isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.Flatten | nn.Linear)
    return own or type(module) in (*WITHOUT_WEIGHTS, *CONTAINERS)


class ImageFleet:
    """E networks of one architecture: rows of parameters (E, P), running statistics, an update rule, data.

    They differ in learning rate, weight decay, seed and data. `networks` are the members themselves: their parameters and
    running statistics are views of those that are trained.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        samples: Sequence[Samples],
        device: torch.device | str = "cpu",
        by: JoinedBy = "blocks",
    ) -> None:
        self.recipes, self.samples = list(recipes), list(samples)
        self.device, first, E = torch.device(device), self.recipes[0], len(self.recipes)
        self.precision = first.precision_on(self.device)
        self.networks = []
        for recipe in self.recipes:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(recipe.seed)
                self.networks.append(recipe.network.build().to(self.device))
        pieces = [list(network.parameters()) for network in self.networks]
        self.parameters = torch.stack([torch.cat([p.detach().flatten() for p in own]) for own in pieces])  # (E, P)
        self._sizes = [p.numel() for p in pieces[0]]
        for row, own in zip(self.parameters, pieces, strict=True):
            for part, parameter in zip(row.split(self._sizes), own, strict=True):
                parameter.data = part.view_as(parameter)
        self._rule = Rule(self.recipes, slice(None), self.parameters, [slice(None)])
        self._layers: list[Joined] = []
        self._joined = self._join(self.networks, by)
        self.repeat = getattr(self.networks[0], "repeat", 1)
        if isinstance(self._joined, PlainNetwork):
            self._joined.repeat = 1  # each member's image is repeated by itself
        unique = list({id(s): s for s in self.samples}.values())
        self._inputs = torch.stack([s.inputs for s in unique]).to(self.device)  # (U, n, c, h, w)
        self._labels = torch.stack([s.labels for s in unique]).to(self.device)  # (U, n)
        self._own = torch.tensor([next(i for i, u in enumerate(unique) if u is s) for s in self.samples])
        self._own = self._own.unsqueeze(1).to(self.device)  # (E, 1)
        self._there = {id(s): s.to(self.device) for s in unique}
        self.rows = torch.arange(len(first_labels := unique[0].labels), device=self.device).expand(E, len(first_labels))

    def __len__(self) -> int:
        return len(self.recipes)

    @property
    def how(self) -> str:
        """In which way it is trained, in words."""
        return f"{self.precision}, {len(self)} networks side by side"

    def start_epoch(self, epoch: int) -> None:
        """Set the learning rates of an epoch, counted from 0."""
        self._rule.start_epoch(epoch)

    def train_epoch(self, orders: Tensor) -> Tensor:
        """One epoch over every member's samples in its order (E, n), the last batch may be short; mean losses (E,)."""
        total = self.parameters.new_zeros(len(self))
        with arithmetic(self.precision, self.device, benchmark=True):
            for rows in torch.split(orders, self.recipes[0].batch_size, 1):
                losses, gradients = self.gradients_of(rows)
                total.add_(losses, alpha=rows.shape[1] / orders.shape[1])
                self._rule.step(self.parameters, gradients)
        return total

    def gradients_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy (E,) of every member's samples in these rows (E, B), and its gradients (E, P)."""
        leaf = self.parameters.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._logits(leaf, self._inputs[self._own, rows])
            y = self._labels[self._own, rows].mT  # (B, E)
            losses = F.cross_entropy(at_least_float32(logits).flatten(0, 1), y.flatten(), reduction="none")
            losses = losses.view_as(y).mean(0)
            (gradients,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradients

    def _logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Images (E, B, c, h, w) → (B, E, K)."""
        x = x.transpose(0, 1).repeat(1, 1, self.repeat, 1, 1).flatten(1, 2)  # (B, E·c, h, w)
        x = x.contiguous(memory_format=torch.channels_last)
        pieces = iter(torch.split(parameters, self._sizes, 1))
        for layer in self._layers:
            layer.take(pieces)
        half = torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
        with half if self.precision == "bf16" else nullcontext():
            return self._joined(x)  # type: ignore[no-any-return]

    def _join(self, modules: Sequence[nn.Module], by: JoinedBy) -> nn.Module:
        """One module that does the work of all; in the order of their parameters."""
        first: Any = modules[0]
        if isinstance(first, nn.Conv2d):
            made: Joined = JoinedConv(modules, by)
        elif isinstance(first, nn.BatchNorm1d | nn.BatchNorm2d):
            made = JoinedNorm(modules)
        elif isinstance(first, nn.Linear):
            made = JoinedLinear(modules)
        elif isinstance(first, nn.Flatten):
            return JoinedFlatten(len(modules))
        elif type(first) in WITHOUT_WEIGHTS:
            return first  # type: ignore[no-any-return]
        else:
            both = copy.copy(first)
            both._modules = {
                name: self._join([module._modules[name] for module in modules], by)  # type: ignore[misc]
                for name in first._modules
            }
            return both  # type: ignore[no-any-return]
        self._layers.append(made)
        return made

    def measure(self, schedule: Schedule, epoch: int) -> list[list[Measurement]]:
        """Of every member by itself, in float32."""
        found = []
        for network, samples in zip(self.networks, self.samples, strict=True):
            there = self._there[id(samples)]
            plan = plan_sites(network, Batch((there.inputs[:3],), {}, there.labels[:3]), schedule.sites)
            with arithmetic("float32", self.device):
                found.append(measure_network(network, plan, there, schedule, epoch))
        return found

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, as views: copy it to keep it, fill it to restore it."""
        tensors = {"parameters": self.parameters, "steps": self._rule.steps}
        tensors |= {f"memory.{i}": memory for i, memory in enumerate(self._rule.memory)}
        for i, layer in enumerate(self._layers):
            tensors |= {f"layer{i}.{name}": buffer for name, buffer in layer.named_buffers()}
        return tensors

    def state_dict(self, member: int) -> dict[str, Tensor]:
        """One member's, on the CPU."""
        state = self.networks[member].state_dict()
        found = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        return {n: self._rule.steps.cpu().long() if n.endswith("num_batches_tracked") else t for n, t in found.items()}

    def state_dicts(self) -> Iterator[dict[str, Tensor]]:
        """Of every member."""
        return map(self.state_dict, range(len(self)))

    def load_state_dict(self, member: int, state: Mapping[str, Tensor], layers: tuple[int, int] | None = None) -> None:
        """Give one member the parameters and running statistics of a network like it."""
        own = self.networks[member].state_dict()
        self.networks[member].load_state_dict({name: part_of(state, name, tuple(t.shape)) for name, t in own.items()})


class Joined(nn.Module):
    """A layer for all members: it takes its parameters (E, …) out of their rows, in the order that modules have them."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members, self._given = len(modules), list[Tensor]()
        self._shapes = [tuple(p.shape) for p in modules[0].parameters()]

    def take(self, pieces: Iterator[Tensor]) -> None:
        """Parameters for the next forward."""
        self._given = [next(pieces).view(self.members, *shape) for shape in self._shapes]


class JoinedConv(Joined):
    """(n, E·c, h, w) → (n, E·c′, h′, w′), by a weight with the members' as blocks on its diagonal, or in groups."""

    def __init__(self, modules: Sequence[nn.Module], by: JoinedBy) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.by, self.stride, self.padding = by, first.stride, first.padding
        self.copies = first.copies if isinstance(first, CopiedConv2d) else 1
        self._diagonal = torch.eye(self.members, device=first.weight.device)[:, None, :, None, None, None]

    def forward(self, x: Tensor) -> Tensor:
        """Every member's channels by its own weights."""
        weight, *bias = self._given  # (E, c′, c, k, k)
        if self.copies > 1:
            E, outputs, _, *kernel = weight.shape
            weight = weight.view(E, outputs, self.copies, -1, *kernel).sum(2)
        if self.by == "blocks":
            weight = (weight.unsqueeze(2) * self._diagonal).flatten(0, 1).flatten(1, 2)  # (E·c′, E·c, k, k)
        else:
            weight = weight.flatten(0, 1)
        weight = weight.contiguous(memory_format=torch.channels_last)
        groups = 1 if self.by == "blocks" else self.members
        return F.conv2d(x, weight, bias[0].flatten() if bias else None, self.stride, self.padding, groups=groups)


class JoinedNorm(Joined):
    """BatchNorm of all channels (n, E·c, …), or of features (n, E, d); the members' running statistics are views of its."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.momentum, self.eps = first.momentum, first.eps
        for name in ("running_mean", "running_var"):
            joined = torch.stack([getattr(module, name) for module in modules])  # (E, c)
            self.register_buffer(name, joined.flatten())
            for module, row in zip(modules, getattr(self, name).view_as(joined), strict=True):
                setattr(module, name, row)

    def forward(self, x: Tensor) -> Tensor:
        """Always as in training."""
        flat = x.flatten(1) if x.dim() == 3 else x
        weight, bias = (given.flatten() for given in self._given)
        found = F.batch_norm(flat, self.running_mean, self.running_var, weight, bias, True, self.momentum, self.eps)  # type: ignore[arg-type]
        return found.view_as(x) if x.dim() == 3 else found


class JoinedFlatten(nn.Module):
    """(n, E·c, h, w) → (n, E, c·h·w)."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        """In the order of a single network's features."""
        return x.reshape(len(x), self.members, -1)


class JoinedLinear(Joined):
    """(n, E, d) → (n, E, d′)."""

    def forward(self, x: Tensor) -> Tensor:
        """Every member's features by its own weights."""
        weight, bias = self._given  # (E, d′, d), (E, d′)
        return torch.baddbmm(bias.unsqueeze(1), x.transpose(0, 1), weight.mT).transpose(0, 1)
