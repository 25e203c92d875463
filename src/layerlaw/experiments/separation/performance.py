"""Performance: is the law "indicative of good model performance", as the paper says? Evenness against what a network can do.

    layerlaw reproduce performance            the grid of Figure 1 and as many rates of Adam on CIFAR-10, 10 seeds each
    layerlaw reproduce performance --quick    8 layers, two learning rates, two seeds, 60 epochs

The paper: "The emergence of the law of equi-separation during training is indicative of good model performance. For
example, its manifestation can improve the robustness to model shifts." It supports this by Proposition 1 and by the two
networks of Figure 9, which is judged on its own. The test here is our own, so all judged rows are remarks.

Of every trained network (training loss ≤ 0.1): how even the steps of log D are, how far their trend is from 1, and the
final D, in chunks of 100 and with running statistics; and four skills: accuracy on the test images, on the same with
noise (standard deviation 0.3; pixels lie in −1 … 1, those of CIFAR-10, normalized by its mean and deviation, in −2 … 2.1),
and with noise on the weights (a tenth of each), and how much the same noise on the weights moves ln D of the last layer
on the training images: Proposition 1's |R_ε − R|, relative to R because R differs between networks. Expected of more even
networks: more of the first three, less of the last.

Spearman's correlation of the one with the other is given pooled over all rates of one depth, where the learning rate
confounds it; matched: within groups of one optimizer, rate, data set and depth, whose networks differ in seed and images
alone; and partial: between what is left of the ranks within these groups after final D and training loss have been taken
out. Judged, for each skill: the mean of the matched correlations with evenness in chunks of 100 has the expected sign. All
groups share the same ten seeds and are not independent, so the seeds are permuted jointly: the same permutation of the
seeds of evenness in all groups, 2,000 times (all of them where there are no more); where a seed is not trained in a group,
the pairs that exist are used. The share of permutations with a mean as large or larger, one-sided, is below 5 %. The same
with running statistics, and everything else, stands beside and is not judged.

Not tested: whether a network gets better while the law emerges in its training (all are measured at the end); whether
networks with the law are better than networks without it (as in Figure 9); other shifts than this noise; and
Proposition 1 itself, which supposes that the ratios of all layers change by the same ε.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from layerlaw.experiments.drawing import run_table
from layerlaw.experiments.moments import ranked, spearman
from layerlaw.experiments.numbers import UNCLAIMED, Claim, row
from layerlaw.experiments.runs import ENDS, MODES, OURS, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.separation.fig1 import RATES, SHOWN
from layerlaw.experiments.setting import ADAM, TITLES, Setting, samples, stand_in
from layerlaw.lab import Recipe, Run, Samples, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import CHANCE
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "Is the law indicative of good performance?"
NOISE, WEIGHT_NOISE, DRAWS = 0.3, 0.1, 3
FEWEST = 5  # networks of a group whose correlation is taken
PERMUTATIONS = 2_000
TOO_FEW = "too few trained networks of one rate"
Value = Callable[[Run], float | None]


class Skill(NamedTuple):
    """What a network can do: the sign that is expected of its correlation with evenness, and words."""

    sign: int
    words: str
    paper: str
    more: str
    """What is expected of networks that are more even."""


GOOD, ROBUST = "indicative of good model performance", "can improve the robustness to model shifts"
SKILLS = {
    "test-accuracy": Skill(1, "test accuracy", GOOD, "are more accurate"),
    "noisy-input-accuracy": Skill(1, "accuracy with noisy inputs", GOOD, "are more accurate with noisy inputs"),
    "noisy-weight-accuracy": Skill(1, "accuracy with noisy weights", ROBUST, "are more accurate with noisy weights"),
    "change-of-log-D": Skill(
        -1, "change of ln D under noise on the weights", ROBUST, "change D less under noise on the weights"
    ),
}


def run(setting: Setting) -> Outcome:
    """Train the grid, measure what the networks can do, correlate."""
    images = {name: samples(setting, name, tests=200) for name in ("fashion_mnist", "cifar10")}
    seeds, base = setting.seeds(least=10), Recipe(epochs=setting.epochs())
    if setting.quick:
        base_grid = {"network": (Shape.even(8),), "learning_rate": (1e-3, 3e-3)}
        recipes = base.grid(data=images, **base_grid, seed=(seeds[0], 1))
    else:
        recipes = [
            recipe
            for optimizer, depth in SHOWN
            for recipe in base.grid(
                network=(Shape.even(depth),), data=("fashion_mnist",), optimizer=(optimizer,),
                learning_rate=RATES[optimizer], seed=seeds,
            )
        ]  # fmt: skip
        recipes += base.grid(network=map(Shape.even, (4, 8, 20)), data=("cifar10",), learning_rate=ADAM, seed=seeds)
    runs = setting.train("grid", recipes, images, PROTOCOLS, shared="fig1").trained
    able = {id(r): Able.of(r, images[r.recipe.data](r.recipe.seed), setting.device) for r in runs}
    laws: dict[str, Value] = {
        "evenness": _named("evenness"), "evenness-eval": _named("evenness-eval"), "bend": _bend, "final-D": _named("final-D")
    }  # fmt: skip
    held = {law: [_named(name) for name in ("final-D", "train-loss") if name != law] for law in laws}
    skills: dict[str, Value] = {name: _skill(able, name) for name in SKILLS}
    cells = runs.by(lambda r: (r.recipe.data, r.recipe.network.depth))
    every = {
        (mode, name): Matched.of(runs, _named(f"evenness{ENDS[mode]}"), skills[name], sign=skill.sign)
        for mode in ENDS
        for name, skill in SKILLS.items()
    }
    found = [one for mode in MODES for name in SKILLS for one in matched_rows(name, every[mode, name], mode)]
    for depth, some in runs.by(lambda r: r.recipe.network.depth).items():
        for name, expected in SKILLS.items():
            groups = Matched.of(some, laws["evenness"], skills[name], sign=expected.sign)
            found.append(row(f"{depth}-layers/evenness-with-{name}-matched", groups.correlations, reason=TOO_FEW))
            found.append(row(f"{depth}-layers/evenness-with-{name}-matched-p", [groups.p], reason=TOO_FEW))
    for (data, depth), some in cells.items():
        for law, skill in [(law, skill) for law in laws for skill in skills]:
            name, pair = f"{data}-{depth}/{law}-with-{skill}", (laws[law], skills[skill])
            found.append(row(f"{name}-pooled", [correlation(some, *pair)], reason="too few trained networks"))
            found.append(row(f"{name}-matched", Matched.of(some, *pair).correlations, reason=TOO_FEW))
            found.append(row(f"{name}-partial", [partial(some, *pair, held[law])], reason="too few trained networks"))
    columns: dict[str, Any] = {
        "evenness": "evenness",
        "evenness eval": "evenness-eval",
        "trend": "trend",
        "final D": "final-D",
        **skills,
    }
    about: dict[str, Any] = {
        "network": lambda r: f"{TITLES[r.recipe.data]}, {r.recipe.optimizer}, {r.recipe.network.depth} layers",
        "lr": lambda r: r.recipe.learning_rate, "seed": lambda r: r.recipe.seed,
    }  # fmt: skip
    survives = {
        f"{OURS}performance, more even networks {skill.more} (same rate)": lambda mode, name=name: (
            every[mode, name].shown
        )
        for name, skill in SKILLS.items()
    }
    tables = [protocol_table(survives), run_table("Every trained network", runs, about, columns)]
    notes = [*_notes(found, every), *stand_in(setting, "cifar10")]
    return Outcome("performance", TITLE, found, [_sheet(cells, skills)], tables, notes)


class Able:
    """What a network can do on its test images."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = dict(zip(SKILLS, values, strict=True))

    @classmethod
    @torch.no_grad()
    def of(cls, run: Run, data: Samples, device: str) -> Able:
        """With running statistics; noise is the same for every network of a seed."""
        assert data.test_inputs is not None
        assert data.test_labels is not None
        network = run.network().to(device)
        x, y, train_x, train_y = (t.to(device) for t in (data.test_inputs, data.test_labels, data.inputs, data.labels))
        generator = torch.Generator().manual_seed(run.recipe.seed)
        plain, D = _right(network, x, y), _last_separation(network, train_x, train_y)
        noisy = shaken = moved = 0.0
        for _ in range(DRAWS):
            noise = torch.randn(x.shape, generator=generator).to(device)
            noisy += _right(network, x + NOISE * noise, y) / DRAWS
            other = copy.deepcopy(network)
            for parameter in other.parameters():
                if parameter.dim() > 1:
                    factor = 1 + WEIGHT_NOISE * torch.randn(parameter.shape, generator=generator)
                    parameter.mul_(factor.to(device))
            shaken += _right(other, x, y) / DRAWS
            moved += abs(math.log(_last_separation(other, train_x, train_y) / D)) / DRAWS
        return cls((plain, noisy, shaken, moved))


def _right(network: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((network(x).argmax(1) == y).double().mean())


def _last_separation(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """D of what the classifier reads."""
    found: list[Tensor] = []
    hook = network.get_submodule("classifier").register_forward_pre_hook(lambda module, args: found.append(args[0]))
    network(x)
    hook.remove()
    return float(separation_fuzziness(found[0], y))


def _named(name: str) -> Value:
    return lambda r: number(r, name)


def _bend(run: Run) -> float | None:
    """|ln trend|: how far the steps are from having no trend; none where one end does not fall."""
    trend = number(run, "trend")
    return abs(math.log(trend)) if trend is not None and 0 < trend < math.inf else None


def _skill(able: dict[int, Able], name: str) -> Value:
    return lambda r: able[id(r)].values[name]


def correlation(runs: Sequence[Run], law: Value, skill: Value) -> float | None:
    """Spearman's, over the networks that have both numbers; `None` of too few."""
    pairs = [(a, b) for r in runs if (a := law(r)) is not None and (b := skill(r)) is not None]
    return spearman(*zip(*pairs, strict=True)) if len(pairs) >= FEWEST else None


@dataclass(frozen=True)
class Matched:
    """A number of the law and a skill of groups of networks that differ in seed alone: a row per group, a column per seed.

    NaN where there is no trained network, or it has no such number. `sign` is that of the correlation that is expected.
    """

    law: np.ndarray
    skill: np.ndarray
    sign: int = 1

    @classmethod
    def of(cls, runs: Runs, law: Value, skill: Value, *, sign: int = 1) -> Matched:
        """The groups of one data set, depth, optimizer and learning rate."""
        groups = runs.by(
            lambda r: (r.recipe.data, r.recipe.network.depth, r.recipe.optimizer, r.recipe.learning_rate)
        ).values()
        columns = {seed: i for i, seed in enumerate(runs.seeds)}
        tables = np.full((2, len(groups), len(columns)), np.nan)
        for i, some in enumerate(groups):
            for r in some:
                tables[:, i, columns[r.recipe.seed]] = [np.nan if v is None else v for v in (law(r), skill(r))]
        return cls(tables[0], tables[1], sign)

    @property
    def correlations(self) -> list[float]:
        """Spearman's of every group that has one."""
        found = spearman_of_pairs(self.law, self.skill)
        return [float(r) for r in found if np.isfinite(r)]

    @cached_property
    def permuted(self) -> np.ndarray:
        """The groups' mean correlation times the expected sign, with the seeds as they are and then permuted.

        One permutation of the seeds of the law's number is used in all groups, which keeps what they have in common. All
        permutations where there are at most 2,000, else so many at random. Where no group is left: ∞, as against us.
        """
        orders = _orders(self.law.shape[1])  # (P, S)
        total, count = np.zeros(len(orders)), np.zeros(len(orders))
        for law, skill in zip(self.law, self.skill, strict=True):
            r = spearman_of_pairs(law[orders], skill[None])  # (P,)
            total += np.nan_to_num(r)
            count += np.isfinite(r)
        means: np.ndarray = np.where(count > 0, self.sign * total / np.maximum(count, 1), np.inf)
        return means

    @property
    def p(self) -> float | None:
        """The share of permutations with a mean correlation as large or larger in the expected direction."""
        return float((self.permuted >= self.permuted[0] - 1e-12).mean()) if self.correlations else None

    @property
    def shown(self) -> bool | None:
        """Whether the expected correlation is there, at the 5 % level; `None` where no group has enough networks."""
        return None if self.p is None else self.p < CHANCE


def _orders(seeds: int) -> np.ndarray:
    """Permutations, the first leaves everything as it is."""
    if math.factorial(seeds) <= PERMUTATIONS:
        return np.array(list(permutations(range(seeds))))
    rng, plain = np.random.default_rng(0), np.arange(seeds)
    return np.stack([plain, *(rng.permutation(seeds) for _ in range(PERMUTATIONS))])


def spearman_of_pairs(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation along the last axis over the pairs without a NaN; NaN of too few pairs or a constant side.

    >>> float(spearman_of_pairs(np.array([1, 2, 3, 4, 5, np.nan]), np.array([1, 2, 3, 5, 4, 9.0])))
    0.9
    """
    both = np.isfinite(x) & np.isfinite(y)
    a, b = (_ranks(np.where(both, side, np.nan), both) for side in (x, y))
    size = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    known = (both.sum(-1) >= FEWEST) & (size > 0)
    return np.where(known, (a * b).sum(-1) / np.where(known, size, 1), np.nan)


def _ranks(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Ranks among the known values of the last axis less their mean, ties at their mean rank; 0 for the others."""
    v, others = values[..., :, None], values[..., None, :]
    ranks = (v > others).sum(-1) + (v == others).sum(-1) / 2  # up to a constant
    mean = (ranks * known).sum(-1, keepdims=True) / np.maximum(known.sum(-1, keepdims=True), 1)
    return np.where(known, ranks - mean, 0)


def matched_rows(name: str, groups: Matched, mode: BatchNormMode) -> list[Row]:
    """The mean correlation of evenness with a skill within groups, judged in the authors' protocol, and its p."""
    skill = SKILLS[name]
    words = (
        f"mean over groups {'>' if skill.sign > 0 else '<'} 0 (permutation test: the seeds permuted alike in all groups, "
        f"{PERMUTATIONS:,} times; one-sided p < {CHANCE:g})"
    )
    shown = groups.shown
    claim = Claim(skill.paper, lambda _: bool(shown), words, "remark", CHANCE)
    if mode != "batch" or shown is None:
        claim = UNCLAIMED
    full = f"all/evenness{ENDS[mode]}-with-{name}-matched"
    return [row(full, groups.correlations, claim, reason=TOO_FEW), row(f"{full}-p", [groups.p], reason=TOO_FEW)]


def partial(runs: Sequence[Run], law: Value, skill: Value, held: Sequence[Value]) -> float | None:
    """Spearman's partial correlation: of the ranks within one optimizer and rate, less what `held` explains of them."""
    groups = Runs(runs).by(lambda r: (r.recipe.optimizer, r.recipe.learning_rate)).values()
    parts = [
        np.column_stack([ranked(column) for column in zip(*known, strict=True)])
        for some in groups
        if (known := [v for r in some if None not in (v := [value(r) for value in (law, skill, *held)])])
    ]
    if sum(len(part) - 1 for part in parts) - len(held) < FEWEST:  # degrees of freedom
        return None
    ranks = np.concatenate(parts)
    rest = ranks[:, :2] - ranks[:, 2:] @ np.linalg.lstsq(ranks[:, 2:], ranks[:, :2])[0]
    size = math.sqrt(float(np.prod((rest**2).sum(0))))
    return None if size < 1e-9 else float((rest[:, 0] * rest[:, 1]).sum()) / size


def _sheet(cells: dict[tuple[str, int], Runs], skills: dict[str, Value]) -> Sheet:
    panels = []
    for (data, depth), runs in cells.items():
        series = []
        for rate, some in runs.by(lambda r: r.recipe.learning_rate).items():
            points = [
                (a, b) for r in some if (a := number(r, "evenness")) is not None and (b := skills["test-accuracy"](r))
            ]
            if points:
                x, y = zip(*sorted(points), strict=True)
                series.append(Series(x, y, f"lr {rate:g}", style="points"))
        panels.append(Panel(f"{TITLES[data]}, {depth} layers", series, "evenness", "test accuracy", log_y=False))
    return Sheet("Test accuracy against evenness, trained networks", panels, caption="Chunks of 100; all optimizers.")


def _notes(found: Sequence[Row], every: dict[tuple[BatchNormMode, str], Matched]) -> list[str]:
    """What was tested and what was not, then every skill: matched, with running statistics, pooled, partial."""
    notes = [
        "Tested: whether, among networks of the same optimizer, learning rate, data and depth at the end of training, those "
        "with more even steps are more accurate and more robust. This is our reading of the paper's sentence. Not tested: "
        "whether a network gets better while the law emerges in its training, whether networks with the law are better "
        "than networks without it (Figure 9), other shifts than our noise, and Proposition 1 itself."
    ]
    for name, skill in SKILLS.items():
        groups, evals = (every[mode, name] for mode in MODES)
        values = groups.correlations
        if not values or not evals.correlations:
            continue
        signs = "positive" if skill.sign > 0 else "negative"
        needed = skill.sign * float(np.quantile(groups.permuted, 1 - CHANCE))
        notes.append(
            f"Evenness and {skill.words}, at the same optimizer and rate: mean Spearman correlation {np.mean(values):+.2f} "
            f"in {len(values)} groups ({min(values):+.2f} to {max(values):+.2f}), p = {groups.p:.2g}; {signs} is expected"
            f" and {'shown' if groups.shown else 'not shown'} ({needed:+.2f} would be needed). With running statistics "
            f"{np.mean(evals.correlations):+.2f}, p = {evals.p:.2g}. Pooled over learning rates, which confound it: "
            f"{_listed(_in_kinds(found, name, 'pooled'))}."
        )
    parts = [
        f"{skill.words} {min(values):+.2f} to {max(values):+.2f}"
        for name, skill in SKILLS.items()
        if (values := [r for _, _, r in _in_kinds(found, name, "partial")])
    ]
    if parts:
        words = "Partial correlations with evenness, final D and training loss taken out, in the kinds of network"
        notes.append(f"{words} (same optimizer and rate): {'; '.join(parts)}.")
    return notes


def _in_kinds(found: Sequence[Row], skill: str, how: str) -> list[tuple[str, str, float]]:
    """The correlation of evenness with a skill in every kind of network: data, depth, correlation."""
    end = f"/evenness-with-{skill}-{how}"
    known = [(r.name.removesuffix(end).rsplit("-", 1), r.ours) for r in found if r.name.endswith(end)]
    return [(data, depth, r) for (data, depth), r in known if r is not None]


def _listed(kinds: Sequence[tuple[str, str, float]]) -> str:
    """In words: data set by data set.

    >>> _listed([("mnist", "4", 0.1), ("mnist", "8", -0.2), ("cifar10", "8", 0.3)])
    'MNIST, 4, 8 layers +0.10, -0.20; CIFAR-10, 8 layers +0.30'
    """
    parts = []
    for data in dict.fromkeys(data for data, _, _ in kinds):
        depths, values = zip(*((depth, f"{r:+.2f}") for name, depth, r in kinds if name == data), strict=True)
        parts.append(f"{TITLES[data]}, {', '.join(depths)} layers {', '.join(values)}")
    return "; ".join(parts)
