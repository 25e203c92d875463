"""Performance: is the law "indicative of good performance", as the paper says? Straightness against what a network can do.

    layerlaw reproduce performance            the grid of Figure 1 and as many rates of Adam on CIFAR-10, 10 seeds each
    layerlaw reproduce performance --quick    8 layers, two learning rates, two seeds, 60 epochs

Of every trained network (training loss ≤ 0.1): how even the steps of log D are, how far their trend is from 1, and the
final D, in chunks of 100 and with running statistics; and what it can do: accuracy on the test images, on the same with
noise (standard deviation 0.3; pixels lie in −1 … 1), and with noise on the weights (a tenth of each), and how much the
same noise on the weights moves ln D of the last layer (what Proposition 1 is about). Spearman's correlation of the one
with the other is given pooled over all rates of one depth, where the learning rate confounds it; matched: within the
networks of one optimizer and rate, which differ in seed and images alone; and partial: between what is left of the ranks
within these groups after final D and training loss have been taken out. The paper's claim is judged by the matched
correlations of evenness with test accuracy: their mean over these groups is above 0 by a t test. The other rows say
what else goes along with what.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerlaw.experiments.drawing import run_table
from layerlaw.experiments.moments import ranked, spearman
from layerlaw.experiments.numbers import UNCLAIMED, above, row
from layerlaw.experiments.runs import ENDS, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.separation.fig1 import RATES, SHOWN
from layerlaw.experiments.setting import ADAM, TITLES, Setting, samples, stand_in
from layerlaw.lab import Recipe, Run, Samples, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "Is the law indicative of good performance?"
NOISE, WEIGHT_NOISE, DRAWS = 0.3, 0.1, 3
FEWEST = 5  # networks of a group whose correlation is taken
Value = Callable[[Run], float | None]


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
    skills: dict[str, Value] = {name: _skill(able, name) for name in Able.NAMES}
    cells = runs.by(lambda r: (r.recipe.data, r.recipe.network.depth))
    found = []
    for (data, depth), some in cells.items():
        for law, skill in [(law, skill) for law in laws for skill in skills]:
            name, pair = f"{data}-{depth}/{law}-with-{skill}", (laws[law], skills[skill])
            found.append(row(f"{name}-pooled", [correlation(some, *pair)], reason="too few trained networks"))
            found.append(row(f"{name}-matched", matched(some, *pair), reason="too few trained networks of one rate"))
            found.append(row(f"{name}-partial", [partial(some, *pair, held[law])], reason="too few trained networks"))
    every = matched(runs, laws["evenness"], skills["test-accuracy"], by_data=True)
    claim = above(0, "indicative of good performance")
    found.insert(0, row("all/evenness-with-test-accuracy-matched", every, claim))
    evals = matched(runs, laws["evenness-eval"], skills["test-accuracy"], by_data=True)
    found.insert(1, row("all/evenness-eval-with-test-accuracy-matched", evals, UNCLAIMED))
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
    tables = [_protocols(runs, skills["test-accuracy"]), run_table("Every trained network", runs, about, columns)]
    notes = [*_notes(found), *stand_in(setting, "cifar10")]
    return Outcome("performance", TITLE, found, [_sheet(cells, skills)], tables, notes)


class Able:
    """What a network can do on its test images."""

    NAMES = ("test-accuracy", "noisy-input-accuracy", "noisy-weight-accuracy", "change-of-log-D")

    def __init__(self, values: Sequence[float]) -> None:
        self.values = dict(zip(self.NAMES, values, strict=True))

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


def matched(runs: Runs, law: Value, skill: Value, *, by_data: bool = False) -> list[float | None]:
    """The correlations within the networks of one optimizer and learning rate (and data and depth)."""

    def kind(r: Run) -> tuple[object, ...]:
        more = (r.recipe.data, r.recipe.network.depth) if by_data else ()
        return (r.recipe.optimizer, r.recipe.learning_rate, *more)

    found = [correlation(some, law, skill) for some in runs.by(kind).values() if len(some) >= FEWEST]
    return [value for value in found if value is not None]


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


def _protocols(runs: Runs, accuracy: Value) -> Table:
    def verdict(mode: BatchNormMode) -> bool | None:
        values = matched(runs, _named(f"evenness{ENDS[mode]}"), accuracy, by_data=True)
        return row("", values, above(0), reason="too few networks").reproduced

    return protocol_table({"Performance: more even networks are more accurate (same rate)": verdict})


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


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r for r in found}
    judged = known["all/evenness-with-test-accuracy-matched"]
    notes = []
    if judged.ours is not None and judged.reproduced is not None:
        words = "go along with" if judged.reproduced else "do not go along with"
        notes.append(
            f"At the same optimizer and rate, even steps {words} a higher test accuracy: the mean Spearman correlation is "
            f"{judged.ours:+.2f} (groups: {judged.low:+.2f} to {judged.high:+.2f})."
        )
    pooled = [
        r for name, r in known.items() if name.endswith("/evenness-with-test-accuracy-pooled") and r.ours is not None
    ]
    if pooled:
        words = ", ".join(f"{r.name.split('/')[0].replace('_', ' ')} layers {r.ours:+.2f}" for r in pooled)
        notes.append(f"Pooled over learning rates, which confound it: {words}.")
    return notes
