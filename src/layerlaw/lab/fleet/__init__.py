"""The fleet: E feed-forward networks of one shape, trained as one program; the fast path of a sweep.

Activations are (member, unit, sample): every product is one batched call without a transpose, and BatchNorm sees
member·unit channels of neighboring numbers. The backward pass is written by hand: few calls per layer, buffers made
once, no graph to build. One member is the same code with E = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerlaw.errors import InputError
from layerlaw.lab.fleet.norms import BatchNorms
from layerlaw.lab.fleet.rows import RowLayout, Rule, compiles, fused_path
from layerlaw.lab.networks import part_of
from layerlaw.lab.networks.feed_forward import Shape
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples

if TYPE_CHECKING:
    from layerlaw.lab.fleet.fused import FusedStep

aten = torch.ops.aten
STATES_AT_ONCE = 64  # members whose parameters are fetched from a GPU by one call
ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {  # in place, unless what went in is needed again
    "relu": Tensor.relu_,
    "tanh": Tensor.tanh_,
    "gelu": torch.nn.functional.gelu,
    "none": lambda a: a,
}
SLOPE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {  # of a gradient, through what came out of what went in
    "relu": lambda g, out, _: aten.threshold_backward.grad_input(g, out, 0, grad_input=g),  # in place
    "tanh": lambda g, out, _: aten.tanh_backward(g, out),
    "gelu": lambda g, _, before: aten.gelu_backward(g, before),
    "none": lambda g, *_: g,
}


class Fleet:
    """E networks: rows of parameters (E, P), running statistics of BatchNorm, update rules, data.

    All members have one shape, number of samples, batch size, number of epochs and set of trained layers; they differ in
    optimizer, learning rate, weight decay, seed and data. Everything that training changes is changed in place.
    """

    def __init__(
        self, recipes: Sequence[Recipe], samples: Sequence[Samples], device: torch.device | str = "cpu"
    ) -> None:
        self.recipes, self.samples = list(recipes), list(samples)
        self.shape = _shape(self.recipes, self.samples)
        first, self.device, E = self.recipes[0], torch.device(device), len(self.recipes)
        self.layout = RowLayout(self.shape)
        self.parameters, self.gradients = (_aligned_rows(E, self.layout.size, self.device) for _ in range(2))
        self._draw_parameters()
        self.rules = []
        columns = self.layout.columns((0, self.shape.depth) if first.decay_frozen else first.trained)
        for _, run in groupby(range(E), key=lambda e: self.recipes[e].optimizer):
            here = list(run)
            part = slice(here[0], here[-1] + 1)
            self.rules.append(Rule(self.recipes[part], part, self.parameters, columns))
        self.weights = [self._matrix(self.parameters, i) for i in range(self.shape.depth)]  # (E, out, in)
        self.biases = [self.parameters[:, c] for c in self.layout.biases]  # (E, out)
        self.slopes = [self._matrix(self.gradients, i) for i in range(self.shape.depth)]
        self.norms = BatchNorms(self.layout, self.parameters, self.gradients) if self.shape.norm else None
        self._spaces: dict[int, Space] = {}
        self._minus_one = torch.full((1, 1, 1), -1.0, device=self.device)
        self._load_data()
        self._fused = _fused_step(self)

    def _matrix(self, rows: Tensor, layer: int) -> Tensor:
        """The weight of a layer in rows of parameters or gradients: a view (E, out, in)."""
        inward, outward = self.shape.sides[layer]
        return rows[:, self.layout.weights[layer]].view(-1, outward, inward)

    def _draw_parameters(self) -> None:
        """Every member's row from its seed; on a GPU's side by several threads, which need not wait for each other."""
        members: dict[int, list[int]] = {}
        for e, recipe in enumerate(self.recipes):
            members.setdefault(recipe.seed, []).append(e)
        with ThreadPoolExecutor() as pool:
            drawn = (pool.map if self.device.type == "cuda" and fused_path() else map)(self.layout.initial, members)
            for row, here in zip(drawn, members.values(), strict=True):
                there = row.to(self.device)
                for e in here:
                    self.parameters[e] = there

    def _load_data(self) -> None:
        """One pool of inputs; every member has its rows in it, and its labels."""
        pools = {id(s.inputs): s.inputs for s in self.samples}
        starts = dict(zip(pools, accumulate(map(len, pools.values()), initial=0), strict=False))
        self.pool = torch.cat(list(pools.values())).flatten(1).to(self.device)  # (N, d)
        offsets = torch.tensor([starts[id(s.inputs)] for s in self.samples])
        n = len(self.samples[0].labels)
        self.rows = (offsets.unsqueeze(-1) + torch.arange(n)).to(self.device)  # (E, n)
        self.labels = torch.stack([s.labels for s in self.samples]).to(self.device)  # (E, n)

    def __len__(self) -> int:
        return len(self.recipes)

    @property
    def how(self) -> str:
        """In which way it is trained, in words."""
        return "float32, fleet" + (", fused kernels" if self._fused else "")

    def start_epoch(self, epoch: int) -> None:
        """Set the learning rates of an epoch, counted from 0."""
        for rule in self.rules:
            rule.start_epoch(epoch)

    def train_epoch(self, orders: Tensor) -> Tensor:
        """One epoch over every member's samples in its order (E, n), the last batch may be short; mean losses (E,)."""
        rows, labels = self.rows.gather(1, orders), self.labels.gather(1, orders)
        total = torch.zeros(len(self), device=self.device)
        size = self.recipes[0].batch_size
        for r, y in zip(torch.split(rows, size, 1), torch.split(labels, size, 1), strict=True):
            fused = self._fused
            losses = self.gradients_of(self.pool[r].mT, y) if fused is None else fused.gradients_of(r, y)
            total.add_(losses, alpha=r.shape[1] / orders.shape[1])
            for rule in self.rules:
                rule.step(self.parameters, self.gradients)
        return total

    def gradients_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradients of the mean cross-entropy for inputs (E, d, B) and labels (E, B); returns the losses (E,)."""
        B = y.shape[1]
        if B not in self._spaces:
            self._spaces[B] = Space(self, B)
        space, hidden = self._spaces[B], len(self.shape.widths)
        if self.norms is not None:
            self.norms.fetch()
        inputs = [x]
        for i in range(hidden):
            if self.norms is None:
                a = torch.baddbmm(self.biases[i].unsqueeze(-1), self.weights[i], inputs[i], out=space.z[i])
            else:  # in front of BatchNorm a bias cancels: it only enters the running mean
                a = self.norms.forward(i, torch.bmm(self.weights[i], inputs[i], out=space.z[i]), space)
            inputs.append(ACTIVATE[self.shape.activation](a))
            space.a[i] = a
        if self.norms is not None:
            self.norms.follow(B)
        logits = torch.baddbmm(self.biases[hidden].unsqueeze(-1), self.weights[hidden], inputs[hidden])
        log_p = torch.log_softmax(logits, 1)  # (E, K, B)
        at = y.unsqueeze(1)
        losses = -log_p.gather(1, at).mean((1, 2))
        g = log_p.exp_().scatter_add_(1, at, self._minus_one.expand_as(at)).mul_(1 / B)
        self._backward(g, inputs, space)
        return losses

    def _backward(self, g: Tensor, inputs: list[Tensor], space: Space) -> None:
        """From the gradient at the logits (E, K, B) down to the lowest layer that learns."""
        hidden, (first, last) = len(self.shape.widths), self.recipes[0].trained
        for i in range(hidden, first - 1, -1):
            if i < hidden:
                g = SLOPE[self.shape.activation](g, inputs[i + 1], space.a[i])
                if self.norms is not None:
                    g = self.norms.backward(i, g, space)
            if i < last:
                torch.bmm(g, inputs[i].mT, out=self.slopes[i])
                if i == hidden or self.norms is None:  # else exactly zero, and never written
                    torch.sum(g, -1, out=self.gradients[:, self.layout.biases[i]])
            if i > first:
                g = torch.bmm(self.weights[i].mT, g, out=space.g[i - 1])
        if self.norms is not None:
            self.norms.deliver(range(first, min(last, hidden)))

    def site_features(self, x: Tensor, *, chunk: int | None, members: slice = slice(None)) -> Iterator[Tensor]:
        """Features (E, d, n) after each hidden layer, then the logits; BatchNorm by chunks (`None`: running statistics)."""
        h = x
        for i in range(len(self.shape.widths)):
            h = torch.baddbmm(self.biases[i][members].unsqueeze(-1), self.weights[i][members], h)
            if self.norms is not None:
                h = self.norms.measure(i, h, chunk, members)
            h = ACTIVATE[self.shape.activation](h)
            yield h
        yield torch.baddbmm(self.biases[-1][members].unsqueeze(-1), self.weights[-1][members], h)

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, as views: copy it to keep it, fill it to restore it."""
        tensors = {"parameters": self.parameters}
        if self.norms is not None:
            tensors |= {"running_means": self.norms.running_means, "running_variances": self.norms.running_variances}
        for i, rule in enumerate(self.rules):
            tensors[f"rule.{i}.steps"] = rule.steps
            tensors |= {f"rule.{i}.memory.{j}": memory for j, memory in enumerate(rule.memory)}
        return tensors

    def state_dict(self, member: int) -> dict[str, Tensor]:
        """One member as the state of a `FeedForward` of this shape, on the CPU."""
        (state,) = self.state_dicts(slice(member, member + 1))
        return state

    def state_dicts(self, members: slice = slice(None)) -> Iterator[dict[str, Tensor]]:
        """The same of several: a GPU is asked for few large tensors, not for thousands of small ones."""
        names, norms, widths = self.layout.names(), self.norms, self.shape.widths
        along_row = sorted(names, key=lambda name: names[name][0].start)
        sizes = [names[name][0].stop - names[name][0].start for name in along_row]
        steps = torch.stack([rule.steps for rule in self.rules]).max().long().cpu()
        statistics = []
        if norms is not None:
            statistics = [torch.cat([w[members] for w in of], 1).cpu() for of in (norms.means, norms.variances)]
        at = 0
        for part in torch.split(self.parameters[members], STATES_AT_ONCE):
            for row in part.cpu():
                # One copy of a row is cut into pieces: thousands of small copies would take longer than the training.
                pieces = dict(zip(along_row, torch.split(row.clone(), sizes), strict=True))
                state = {name: pieces[name].view(size) for name, (_, size) in names.items()}
                cut = [torch.split(values[at].clone(), list(widths)) for values in statistics]
                for i, (mean, variance) in enumerate(zip(*cut, strict=True) if cut else (), 1):
                    state |= {f"norm{i}.running_mean": mean, f"norm{i}.running_var": variance}
                    state[f"norm{i}.num_batches_tracked"] = steps.clone()
                yield state
                at += 1

    def load_state_dict(self, member: int, state: Mapping[str, Tensor], layers: tuple[int, int] | None = None) -> None:
        """Give one member the parameters and running statistics of a `FeedForward`, or those of the layers a … b−1."""
        a, b = layers or (0, self.shape.depth)
        wanted = self.shape.layer_modules((a, b))
        for name, (c, size) in self.layout.names().items():
            if name.split(".")[0] in wanted:
                self.parameters[member, c] = part_of(state, name, size).flatten().to(self.device)
        if self.norms is not None:
            for i, width in list(enumerate(self.shape.widths))[a:b]:
                self.norms.means[i][member] = part_of(state, f"norm{i + 1}.running_mean", (width,)).to(self.device)
                self.norms.variances[i][member] = part_of(state, f"norm{i + 1}.running_var", (width,)).to(self.device)


def _aligned_rows(members: int, size: int, device: torch.device) -> Tensor:
    """Zeros (E, P); on a GPU every row begins where loads of several numbers may begin."""
    step = -(-size // 16) * 16 if device.type == "cuda" and fused_path() else size
    return torch.zeros((members, step), device=device)[:, :size]


def _fused_step(fleet: Fleet) -> FusedStep | None:
    """Kernels written for this, where they can train the fleet and there is a GPU that runs them."""
    if fleet.device.type != "cuda" or not fused_path() or not compiles():
        return None
    from layerlaw.lab.fleet.fused import FusedStep  # imports triton, which exists beside CUDA only

    return FusedStep.tried(fleet)


class Space:
    """Buffers for a batch of B, made once: fresh memory would come from further away than the cache."""

    def __init__(self, fleet: Fleet, B: int) -> None:
        E, widths, device = len(fleet), fleet.shape.widths, fleet.device
        self.z = [torch.empty((E, w, B), device=device) for w in widths]
        self.a = [torch.empty_like(z) if fleet.shape.norm else z for z in self.z]
        # BatchNorm hands on a gradient of its own; without it, one layer's is read while the next one's is written
        largest = [torch.empty(E * max(widths) * B, device=device) for _ in range(1 if fleet.shape.norm else 2)]
        self.g = [largest[i % len(largest)][: E * w * B].view(E, w, B) for i, w in enumerate(widths)]
        self.mean: dict[int, Tensor] = {}
        self.inverse: dict[int, Tensor] = {}


def _shape(recipes: Sequence[Recipe], samples: Sequence[Samples]) -> Shape:
    """The shape of all members, if these can be members of one fleet, each with its samples."""
    if not recipes or len(recipes) != len(samples):
        raise InputError(f"fleet: expected one set of samples per recipe, got {len(samples)} for {len(recipes)}.")
    for what, values in (
        ("network", {r.network for r in recipes}),
        ("batch size", {r.batch_size for r in recipes}),
        ("number of epochs", {r.epochs for r in recipes}),
        ("set of trained layers", {(r.trained, r.decay_frozen) for r in recipes}),
        ("number of samples", {len(s.labels) for s in samples}),
    ):
        if len(values) > 1:
            raise InputError(f"fleet: expected members of one {what}, got {sorted(map(str, values))}.")
    shape = recipes[0].network
    if not isinstance(shape, Shape):
        raise InputError(f"fleet: expected feed-forward networks, got {shape}. sweep trains any.")
    for s in samples:
        shape.check(s, recipes[0].batch_size)
    return shape
