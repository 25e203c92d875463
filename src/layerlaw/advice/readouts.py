"""What decides at an exit, class means or a linear read-out; from which margin on a sample leaves; what a file may hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture.plan import Reduce, Site
from layerlaw.plain import (
    Misfit,
    check_truth,
    either,
    fields,
    nothing_or,
    number_from,
    one_of,
    several,
    text_of,
    whole_from,
)
from layerlaw.stats import ClassSums
from layerlaw.stats.precision import at_least_float32

ExitKind = Literal["centers", "linear"]
STRENGTHS = (1e-1, 1e-3)  # of the L2 penalty of a linear read-out; a fifth of its data chooses
ITERATIONS = 40  # of L-BFGS, per strength
BUDGETS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # accuracy that those who leave at one exit may lose
FEWEST = 20  # samples that must leave at an exit for its threshold to mean something


class Readout(nn.Module):
    """Class scores from features: (x − m)·weightᵀ + bias. Nearest centers: v_c·(x−m) − ‖v_c‖²/2 with v_c = μ_c − m."""

    mean: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, mean: Tensor, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("weight", weight), ("bias", bias)):
            self.register_buffer(name, value)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) → (n, K), on the device of the features, which its numbers follow: a network is moved without it."""
        here = self if self.mean.device == features.device else self.to(features.device)
        return F.linear(features.to(here.mean.dtype) - here.mean, here.weight, here.bias)

    @classmethod
    def nearest_center(cls, sums: ClassSums) -> Readout:
        """The class whose mean is nearest; one without samples never is."""
        there = sums.counts > 0
        means = sums.sums / sums.counts.clamp_min(1).unsqueeze(1)
        mean = means[there].mean(0)
        away = means - mean  # subtracted in float64: an offset of the features costs no digits
        dtype = torch.float64 if sums.dtype == torch.float64 else torch.float32
        bias = (-away.square().sum(1) / 2).masked_fill(~there, -torch.inf)
        return cls(mean.to(dtype), away.to(dtype), bias.to(dtype))

    @classmethod
    def trained(cls, features: Tensor, labels: Tensor, classes: int, *, seed: int = 0) -> Readout:
        """Multinomial logistic regression on (n, d) features, by L-BFGS; a fifth of the samples chooses the L2 penalty."""
        x, labels = at_least_float32(features), labels.to(features.device)
        mean = x.mean(0)
        scale = (x - mean).square().mean().sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        x = (x - mean) / scale
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
        held, rest = order.tensor_split([max(1, len(x) // 5)])
        start = x.new_zeros(classes, x.shape[1] + 1)
        tried = []
        for strength in STRENGTHS:  # from the strongest, each from where the last one ended
            start = _logistic(x[rest], labels[rest], start, strength)
            right = ((x[held] @ start[:, :-1].T + start[:, -1]).argmax(1) == labels[held]).sum()
            tried.append((int(right), strength, start))
        _, strength, start = max(tried, key=lambda one: one[0])
        best = _logistic(x, labels, start, strength)
        return cls(mean, best[:, :-1] / scale, best[:, -1])


def _logistic(x: Tensor, y: Tensor, start: Tensor, strength: float) -> Tensor:
    """Weights and, in the last column, biases (K, d+1)."""
    with torch.inference_mode(False), torch.enable_grad():
        weight = start.detach().clone().requires_grad_()
        optimizer = torch.optim.LBFGS([weight], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = F.cross_entropy(x @ weight[:, :-1].T + weight[:, -1], y)
            found = found + strength / 2 * weight[:, :-1].square().sum() / x.shape[1]
            torch.autograd.backward(found)
            return found

        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach()


@dataclass(frozen=True)
class Held:
    """Decisions on the held-out samples: labels and the network's (n,); by kind, of every site, class and margin (s, n)."""

    labels: Tensor
    network: Tensor
    found: dict[ExitKind, tuple[Tensor, Tensor]]
    chooses: Tensor

    def half(self, chooses: bool) -> Held:
        """The samples that choose, or those that judge."""
        rows = (self.chooses == chooses).nonzero().squeeze(1)
        found = {kind: (a[:, rows], b[:, rows]) for kind, (a, b) in self.found.items()}
        return Held(self.labels[rows], self.network[rows], found, self.chooses[rows])

    @property
    def right(self) -> Tensor:
        """1 where the network decides rightly (n,)."""
        return (self.network == self.labels).double()


def limits_within(half: Held, kind: ExitKind, usable: Sequence[int], budget: float) -> dict[int, float]:
    """Margins from which on samples leave: those who leave at one exit lose at most so much accuracy, on this half.

    With the network's decisions as labels it is agreement with the network that they lose.
    """
    top, margin = half.found[kind]
    there, limits = torch.ones(len(half.labels), dtype=torch.bool), {}
    for j in usable:
        lost = half.right - (top[j] == half.labels).double()
        rows = there.nonzero().squeeze(1)
        order = rows[margin[j, rows].argsort(descending=True)]
        n = torch.arange(1, len(order) + 1)
        mean, square = lost[order].cumsum(0) / n, lost[order].square().cumsum(0) / n
        error = ((square - mean.square()).clamp_min(0) / n).sqrt()  # of a threshold that suits this half by chance
        good = (mean + error <= budget + 1e-12).nonzero().flatten()
        last = int(good[-1]) if len(good) else -1
        limits[j] = float(margin[j, order[last]]) if last + 1 >= FEWEST else math.inf
        there &= margin[j] < limits[j]
    return limits


def per_sample_limits(
    half: Held, kind: ExitKind, usable: Sequence[int], costs: Sequence[float], tolerance: float
) -> dict[int, float] | None:
    """Of all budgets the cheapest whose loss on this half is within the tolerance; `None`: none saves time."""
    best, least = None, 1.0
    for budget in BUDGETS:
        limits = limits_within(half, kind, usable, budget)
        decision, out = simulated(half, kind, limits)
        lost = float((half.right - (decision == half.labels).double()).mean())
        cost = float(torch.tensor(costs)[out].mean())
        if lost <= tolerance + 1e-12 and cost < least:
            best, least = limits, cost
    return best


def simulated(half: Held, kind: ExitKind, limits: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Decisions (n,) under these limits, and at which site each sample leaves (their number: at the end)."""
    top, margin = half.found[kind]
    decision, out = half.network.clone(), torch.full_like(half.network, len(top))
    for j in reversed(list(limits)):
        leaves = margin[j] >= limits[j]
        decision[leaves], out[leaves] = top[j, leaves], j
    return decision, out


_SITE = fields(
    {
        "name": text_of(1000),
        "module": text_of(1000),
        "at": one_of("input", "output", "logits"),
        "call": whole_from(0),
        "type": text_of(1000),
        "axis": whole_from(0, 100),
        "fold": whole_from(0),
        "channels_last": check_truth,
        "shape": several(whole_from(0), most=100),
        "features": whole_from(1),
    },
    {
        "itemsize": whole_from(1, 16),
        "in_fit": check_truth,
        "pick": whole_from(0),
        "branch": check_truth,
        "behind": check_truth,
        "aside": text_of(1000),
    },
)
_LIMITS = several(nothing_or(number_from()))
check_about = fields(
    {
        "kind": one_of(*get_args(ExitKind)),
        "reduce": one_of(*get_args(Reduce)),
        "threshold": number_from(),
        "sites": several(_SITE, most=5000),
        "thresholds": nothing_or(_LIMITS),
        "network": text_of(1000),
        "digest": nothing_or(text_of(1000)),
        "scores": nothing_or(several(either(text_of(1000), whole_from(-(2**31))), most=100)),
    },
    {"per_sample": fields({"sites": several(_SITE, most=5000), "thresholds": _LIMITS}, {})},
)
"""Raises unless what a file says of its exits is what a network can be given."""


def checked_readout(number: int, site: Site, tensors: Mapping[str, Tensor]) -> Readout:
    """What is read out at a site: mean (d,), weight (K, d) and bias (K,), which is −∞ of a class that had no samples."""
    mean, weight, bias = (tensors[f"{number}.{name}"] for name in ("mean", "weight", "bias"))
    d, kinds = site.features, {mean.dtype, weight.dtype, bias.dtype}
    if (*mean.shape, *weight.shape) != (d, len(bias), d) or bias.dim() != 1:
        came = ", ".join(str(tuple(part.shape)) for part in (mean, weight, bias))
        raise Misfit(f"sites[{number}]: expected a mean ({d},), a weight (K, {d}) and a bias (K,), got {came}")
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        raise Misfit(f"sites[{number}]: expected numbers of float32 or float64, got {', '.join(map(str, kinds))}")
    sound = mean.isfinite().all() & weight.isfinite().all() & (bias < torch.inf).all()  # not-a-number is not below
    if not bool(sound):
        raise Misfit(f"sites[{number}]: expected finite numbers, got NaN or infinity")
    return Readout(mean, weight, bias)
