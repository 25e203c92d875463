"""Proposition 1, tried out: disturb the weights of one layer, or of all, and see what becomes of D_{L−1}/D_0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from layerlaw.advice.choosing import flat_samples
from layerlaw.errors import InputError, check_whole
from layerlaw.lab import FeedForward, Fleet, Recipe, Run, Schedule
from layerlaw.lab.fleet.engine import measure_fleet
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import LawFit, fit_law
from layerlaw.probing import probe
from layerlaw.record import Record
from layerlaw.verdict import working_sites
from layerlaw.wording import number, percent, sentence

Prediction = Literal["formula", "added", "local"]
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)
ACCURATE = 0.1  # a prediction is called accurate up to this relative error
Array = npt.NDArray[np.float64]
Noise = list[list[Tensor]]
"""What is added to the weights of every layer, which may have several; empty for a layer that is left alone."""
Subject = tuple[list[str], list[list[Tensor]], Callable[[list[Noise]], Array]]
"""Names and weights of the layers that can be disturbed, and what measures D (networks, layers + 1) under such noises."""


def _rms(values: npt.ArrayLike) -> float:
    return float(np.sqrt(np.square(values).mean()))


@dataclass(frozen=True)
class Effect:
    """What noise of one relative size did; every number is a relative change of R = D_{L−1}/D_0, one per draw.

    measured   all layers disturbed together
    formula    Σ_l (D_{l−1}/D_l)·ε_l, the first order of the proposition, with the ε_l that all layers together produce
    added      the changes from disturbing one layer at a time, summed: first order in the noise
    local      the formula with ε_l from disturbing layer l alone, as if the layers above did not notice

    `epsilon` and `local_epsilon` are those ε_l = change of D_l/D_{l−1}, (draws, layers).
    """

    scale: float
    measured: tuple[float, ...]
    formula: tuple[float, ...]
    added: tuple[float, ...]
    local: tuple[float, ...]
    epsilon: tuple[tuple[float, ...], ...]
    local_epsilon: tuple[tuple[float, ...], ...]

    def error(self, which: Prediction) -> float:
        """Root mean square of prediction − measurement over that of the measurement."""
        return _rms(np.subtract(getattr(self, which), self.measured)) / self.size

    def slope(self, which: Prediction) -> float:
        """Predicted over measured change: the least-squares line through the origin. 1 is right, below 1 too small."""
        return float(np.dot(getattr(self, which), self.measured) / np.square(self.measured).sum())

    def correlation(self, which: Prediction) -> float | None:
        """Between prediction and measurement over draws; `None` for fewer than three."""
        x, y = np.array(getattr(self, which)), np.array(self.measured)
        return float(np.corrcoef(x, y)[0, 1]) if len(x) > 2 and x.std() and y.std() else None

    @property
    def size(self) -> float:
        """Root mean square of the measured change."""
        return _rms(self.measured)

    @property
    def by_layer(self) -> tuple[float, ...]:
        """Root mean square of ε_l over draws, all layers disturbed."""
        return tuple(map(_rms, zip(*self.epsilon, strict=True)))

    @property
    def inequality(self) -> float:
        """Largest over smallest |ε_l|; the proposition assumes 1."""
        sizes = self.by_layer
        return max(sizes) / min(sizes) if min(sizes) > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        how = {"slope": self.slope, "error": self.error, "correlation": self.correlation}
        predictions = {which: {name: of(which) for name, of in how.items()} for which in PREDICTIONS}
        more = {"predictions": predictions, "epsilon_by_layer": self.by_layer, "inequality": self.inequality}
        return asdict(self) | more


@dataclass(frozen=True)
class Robustness:
    """How sensitive R is to noise on the weights, by measurement and by Proposition 1. `layers` names the disturbed ones."""

    fit: LawFit
    layers: tuple[str, ...]
    effects: tuple[Effect, ...]
    batchnorm: BatchNormMode
    repeats: int
    seed: int

    @property
    def reduction(self) -> float:
        """R = D_{L−1}/D_0 of the undisturbed network."""
        return self.fit.values[-1] / self.fit.values[0]

    @property
    def linear_until(self) -> float | None:
        """The largest scale up to which, from the smallest on, the formula is accurate to a tenth; `None` if it never is."""
        accurate = takewhile(lambda effect: effect.error("formula") <= ACCURATE, self.effects)
        return max((effect.scale for effect in accurate), default=None)

    @property
    def sentence(self) -> str:
        """What was found, without overselling the proposition."""
        # The largest noise at which the formula is right: smaller ones drown in the luck of the draws
        effect = next((e for e in self.effects if e.scale == self.linear_until), self.effects[0])
        local = f"with ε read off one layer at a time (local) it gives {effect.slope('local'):.2f} of the change"
        if self.linear_until is None:
            already = f"already at noise of {effect.scale:g}, the smallest tried"
            return sentence(f"The formula is off by more than a tenth {already}; {local}.")
        until = f"{self.linear_until:g}" + (", the largest tried" if effect is self.effects[-1] else "")
        return sentence(f"Given all ε the formula is right to a tenth up to noise of {until}; {local} there.")

    @property
    def table(self) -> str:
        """One line per size of the noise: the measured change of R, and how much of it three predictions give.

        A prediction of the right size for the wrong draws says nothing: what is shown is its slope times the measured
        change.
        """
        rows = [["noise", "measured change of R", "formula, joint ε", "sum of single layers", "local ε"]]
        for e in self.effects:
            changes = [e.size, *(e.slope(name) * e.size for name in PREDICTIONS)]
            rows.append([f"{e.scale:g}", *(percent(change, 2) for change in changes)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(" | ".join(map(str.rjust, row, widths)) for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        same = ("reduction", "layers", "batchnorm", "repeats", "seed", "linear_until", "sentence")
        return {
            "separation": list(self.fit.values),
            **{name: getattr(self, name) for name in same},
            "effects": [effect.to_dict() for effect in self.effects],
            "inefficiency": self.fit.inefficiency,
        }

    def __str__(self) -> str:
        draws = "one draw" if self.repeats == 1 else f"root mean square of {self.repeats} draws"
        head = f"R = D_last/D_first = {number(self.reduction)}; its change in % ({draws})"
        return f"{head}, and what predictions give of it\n{self.table}\n{self.sentence}"


def robustness(
    network: nn.Module | Run,
    data: Any,
    *,
    scales: Sequence[float] = (0.001, 0.003, 0.01, 0.03),
    repeats: int = 5,
    batchnorm: BatchNormMode = "running",
    seed: int = 0,
) -> Robustness:
    """Disturb the weights of every layer, alone and together, and compare with Proposition 1 of He & Su.

    With R = Π_l D_l/D_{l−1} = D_{L−1}/D_0, a change of every ratio by ε_l changes R, to first order, by

        ΔR = R · Σ_l (D_{l−1}/D_l) · ε_l,

    which for equal ε and fixed R is least when all ratios are equal: when the law holds. Here the weights of layer l get
    Gaussian noise of `scale` times their Frobenius norm, `repeats` times, the same noise at every scale. The classifier
    is left alone: no D depends on it.

    `network` is a `lab.FeedForward`, a `lab.Run`, or any module that `probe` can measure; `data` as for `choose_depth`, or
    for other modules as for `probe`. `batchnorm="batch"` and "whole" let BatchNorm make up for the noise.
    """
    chosen = sorted(set(scales))
    if not chosen or not 0 < chosen[0] <= chosen[-1] < math.inf:
        raise InputError(f"scales: expected positive numbers, got {list(scales)}.")
    check_whole(1, repeats=repeats)
    if isinstance(network, Run):
        network = network.network()
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected a module or a run, got {type(network).__name__}.")
    of = _fleet if isinstance(network, FeedForward) else _module
    layers, weights, measure = of(network, data, batchnorm)  # type: ignore[arg-type]
    m = len(layers)
    base = measure([[[]] * m])[0]
    if not (np.isfinite(base) & (base > 0)).all() or len(base) != m + 1:
        raise InputError(f"robustness: expected D > 0 before and after each of {m} layers, got {base.tolist()}.")
    generator = torch.Generator().manual_seed(seed)
    draws = [draw_noise(weights, generator) for _ in range(repeats)]
    effects = []
    for scale in chosen:
        noises: list[Noise] = []
        for draw in draws:  # every layer alone, then all together
            scaled = [[scale * n for n in layer] for layer in draw]
            noises += [[layer if i == alone else [] for i, layer in enumerate(scaled)] for alone in range(m)]
            noises.append(scaled)
        D = measure(noises).reshape(repeats, m + 1, m + 1)
        if not (np.isfinite(D) & (D > 0)).all():
            raise InputError(f"robustness: D is not defined any more at noise of {scale:g}. Use smaller scales.")
        effects.append(_effect(scale, D, base))
    return Robustness(fit_law(base), tuple(layers), tuple(effects), batchnorm, repeats, seed)


def _effect(scale: float, D: Array, base: Array) -> Effect:
    """D (draws, layers + 1 disturbances, layers + 1 places), the last disturbance being that of all layers."""
    ratios, then = D[..., 1:] / D[..., :-1], base[1:] / base[:-1]
    own = np.diagonal(ratios[:, :-1], axis1=1, axis2=2) - then  # (draws, layers)
    joint = ratios[:, -1] - then
    change = D[..., -1] / D[..., 0] / (base[-1] / base[0]) - 1  # (draws, disturbances)
    # Measured, by the formula, added and local: in the order of the fields
    sums = change[:, -1], (joint / then).sum(-1), change[:, :-1].sum(-1), (own / then).sum(-1)
    return Effect(scale, *(tuple(x.tolist()) for x in sums), *(tuple(map(tuple, x.tolist())) for x in (joint, own)))


def draw_noise(weights: list[list[Tensor]], generator: torch.Generator) -> Noise:
    """Gaussian noise for every weight, of the weight's own Frobenius norm."""

    def like(weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        return noise.mul_(float(weight.detach().double().norm() / noise.norm())).to(weight.dtype)

    return [[like(w) for w in layer] for layer in weights]


def _fleet(network: FeedForward, data: Any, batchnorm: BatchNormMode) -> Subject:
    """All disturbed copies of a feed-forward network are measured at once."""
    samples = flat_samples(data)
    recipe = Recipe(network=network.shape, epochs=1, batch_size=max(2, len(samples.labels)))
    state = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    names = [f"linear{i + 1}" for i in range(len(network.shape.widths))]
    weights = [[state[f"{name}.weight"]] for name in names]

    def measure(noises: list[Noise]) -> Array:
        with torch.no_grad():
            fleet = Fleet([recipe] * len(noises), [samples] * len(noises))
            for member, noise in enumerate(noises):
                fleet.load_state_dict(member, state)
                for i, layer in enumerate(noise):
                    for added in layer:
                        fleet.weights[i][member] += added
            measurements = measure_fleet(fleet, Schedule(batchnorm=(batchnorm,)), 0)
        return np.array([member[0].separation for member in measurements], dtype=np.float64)  # None becomes NaN

    return names, weights, measure


def _module(network: nn.Module, data: Any, batchnorm: BatchNormMode) -> Subject:
    """Any module is measured by `probe`, one noise after the other."""
    if batchnorm not in ("running", "batch"):
        raise InputError(f"batchnorm: expected 'running' or 'batch' for {type(network).__name__}, got {batchnorm!r}.")

    def record() -> Record:
        return probe(network, data, batchnorm=batchnorm, uncertainty=False, progress=False)

    sites = [site for site in record().sites if site.in_fit]
    modules = dict(network.named_modules())
    names = [sites[i].name.split("#")[0] for i in working_sites(sites)]
    weights = []
    for name in names:
        if name not in modules:
            raise InputError(f"robustness: expected every site to be a module of its own, got '{name}'.")
        weights.append([p for p in modules[name].parameters() if p.dim() > 1])
        if not weights[-1]:
            raise InputError(f"robustness: expected a weight at every site, found none at '{name}'.")

    def measure(noises: list[Noise]) -> Array:
        rows = []
        for noise in noises:
            pairs = [(w, n) for layer, added in zip(weights, noise, strict=True) for w, n in zip(layer, added)]  # noqa: B905
            kept = [w.detach().clone() for w, _ in pairs]
            try:
                with torch.no_grad():
                    for w, n in pairs:
                        w += n.to(w.device)
                rows.append([site.values.get("separation") for site in record().sites if site.in_fit])
            finally:  # the very bits that were there
                with torch.no_grad():
                    for (w, _), before in zip(pairs, kept, strict=True):
                        w.copy_(before)
        return np.array(rows, dtype=np.float64)

    return names, weights, measure
