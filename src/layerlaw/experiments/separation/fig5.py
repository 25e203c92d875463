"""Figure 5: networks of 3 to 20 layers on MNIST, Fashion-MNIST and CIFAR-10; the depth with the lowest final D.

    layerlaw reproduce fig5            18 depths × 3 data sets × 5 learning rates × at least 10 seeds: 2700 networks
    layerlaw reproduce fig5 --quick    three depths, two learning rates, one seed, 10 epochs

The paper reads off 6, 10 and 12 as the depths with the lowest separation fuzziness after the last hidden layer, from one
network per depth (its scripts tried 3–10 and 18 layers on MNIST, 3–11 and 18 on Fashion-MNIST, 3, 4, 8–14, 18 and 20 on
CIFAR-10), each at the learning rate with the best law. Ours agrees when the depth with the lowest geometric mean over
seeds, each with its own images, is within 1 of the paper's (3 of 18 depths are: chance 1/6). That the depths follow the
"increasing complexity" of the data sets is implied by the three numbers: shown and not counted. Where the lowest D is at
the deepest network of the grid, notes and protocols write "≥ 20", where something is best at the shallowest, "≤ 3".
Controls: the range of that depth over seeds; the smallest depth that is not clearly worse (paired seeds, one standard
error); the other protocols; learning rates chosen by accuracy on 1000 further training images (validation) instead of by
the law; and the accuracy on the whole test set, which is what one would choose a depth for.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from layerlaw.experiments.drawing import caption, curves_panel, geometric_mean
from layerlaw.experiments.numbers import mean_of, row, standard_error
from layerlaw.experiments.runs import ENDS, MODE_NAMES, Runs, law_of, protocol_table
from layerlaw.experiments.setting import ADAM, TITLES, Images, Setting, samples, stand_in
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Cell, Outcome, Row, Table
from layerlaw.sheet import Panel, Series, Sheet

SEEDS = "At least 10 seeds, because a paired comparison of depths needs them; --seeds asks for more."
TITLE = "Depth: where the final separation fuzziness is lowest"
PAPER = {"mnist": 6, "fashion_mnist": 10, "cifar10": 12}
DEPTHS = tuple(range(3, 21))
SHOWN = (3, 4, 6, 8, 10, 12, 14, 18, 20)  # depths whose curves are drawn
WITHIN = 1  # layers
PER_CLASS = 100
Chosen = dict[int, Runs]  # by depth, one run per seed
Values = Mapping[int, Sequence[float]]  # depth, one number per seed


@dataclass(frozen=True)
class Depths:
    """One data set: networks by depth, at the rates with the best law and at those with the best validation.

    `tests` are the accuracies on the test set of the networks in `by_accuracy`.
    """

    name: str
    by_law: Chosen
    by_accuracy: Chosen
    tests: dict[int, list[float]]


def run(setting: Setting) -> Outcome:
    """Train all depths, report what came out."""
    depths = (3, 6, 10) if setting.quick else DEPTHS
    rates = (3e-4, 1e-3) if setting.quick else ADAM
    images = {name: samples(setting, name, 2 * PER_CLASS, tests=1000) for name in PAPER}
    base = Recipe(epochs=setting.epochs(quick=10))
    recipes = base.grid(network=map(Shape.even, depths), data=PAPER, learning_rate=rates, seed=setting.seeds(least=10))
    data = {name: partial(validated, some) for name, some in images.items()}
    runs = setting.train("grid", recipes, data, Schedule(batchnorm=tuple(MODE_NAMES), test=True))
    found = [_depths(setting, name, runs.at(data=name), images[name]) for name in PAPER]
    rows = [*(r for each in found for r in _rows(each, len(depths))), _order_row(found)]
    notes = [*(_note(each, rows) for each in found), *setting.note(SEEDS, quick=False), *stand_in(setting, *PAPER)]
    tables = [_protocols(found), _table(runs), _chosen_table(found)]
    return Outcome("fig5", TITLE, rows, _sheets(found), tables, notes)


@cache
def validated(images: Images, seed: int) -> Samples:
    """The first half of the images of every class to train on, the others held out."""
    drawn = images(seed)
    further = beyond(drawn.labels, PER_CLASS)
    return Samples.of(
        (drawn.inputs[~further], drawn.labels[~further]),
        (drawn.inputs[further], drawn.labels[further]),
        class_names=drawn.class_names,
    )


def beyond(labels: Tensor, count: int) -> Tensor:
    """Which samples come after the first `count` of their class.

    >>> beyond(torch.tensor([0, 1, 0, 0, 1]), 1)
    tensor([False, False,  True,  True,  True])
    """
    place = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels.unsqueeze(1)).squeeze(1)
    return place > count


def accuracy(run: Run, data: Samples, device: str = "cpu") -> float:
    """Of a trained network on the test images, with running statistics."""
    assert data.test_inputs is not None
    assert data.test_labels is not None
    with torch.no_grad():
        decided = run.network().to(device)(data.test_inputs.to(device)).argmax(1).cpu()
    return float((decided == data.test_labels).double().mean())


def validation(run: Run) -> float:
    """Accuracy on the further training images, with running statistics."""
    return run.measurement(batchnorm="running", split="test").accuracy or 0.0


def _depths(setting: Setting, name: str, runs: Runs, images: Images) -> Depths:
    fitted = Runs(r for r in runs if (law := law_of(r)) and law.pearson).by(lambda r: r.recipe.network.depth)
    by_accuracy = {d: Runs(max(cell, key=validation) for cell in some.seeds.values()) for d, some in fitted.items()}
    tests = {
        depth: [accuracy(r, images(r.recipe.seed), setting.device) for r in some] for depth, some in by_accuracy.items()
    }
    return Depths(name, {depth: some.best() for depth, some in fitted.items()}, by_accuracy, tests)


def finals(chosen: Chosen, what: str = "final-D") -> dict[int, list[float]]:
    """log D after the last hidden layer by depth, one per seed."""
    ends = {depth: some.values(what) for depth, some in whole(chosen).items()}
    return {depth: [math.log(D) for D in found if D] for depth, found in ends.items() if all(found)}


def whole(chosen: Chosen) -> Chosen:
    """The depths at which every seed has a network, seeds in one order."""
    seeds = {seed for some in chosen.values() for seed in some.seeds}
    sound = {depth: some for depth, some in chosen.items() if len(some) == len(seeds)}
    return {depth: Runs(sorted(some, key=lambda r: r.recipe.seed)) for depth, some in sound.items()}


def lowest(values: Values) -> int:
    """The choice with the lowest mean over seeds.

    >>> lowest({3: [2.0, 2.0], 4: [1.0, 2.5], 5: [3.0, 1.0]})
    4
    """
    return min(values, key=lambda choice: (fmean(values[choice]), choice))


def one_standard_error(values: Values) -> int:
    """The smallest choice that is not clearly worse than the one with the lowest mean.

    Not clearly worse: the mean of its paired differences to the best one is at most their standard error. With one
    seed there is no error to speak of, and the best one stands.

    >>> one_standard_error({3: [5.0, 5.0], 4: [1.0, 3.0], 5: [1.5, 2.0]})  # 4: differences −0.5, 1.0
    4
    """
    best = lowest(values)
    for choice in sorted(values):
        differences = [a - b for a, b in zip(values[choice], values[best], strict=True)]
        error = standard_error(differences)
        if choice == best or (error is not None and fmean(differences) <= error):
            return choice
    return best


def _depth_row(name: str, values: Values, paper: int | None = None, tried: int = len(DEPTHS)) -> Row:
    """The depth with the lowest mean; the range is the one of the seeds' own lowest depths."""
    about: dict[str, Any] = {} if paper is None else {"kind": "number", "chance": (2 * WITHIN + 1) / tried}
    if not values:
        verdict = None if paper is None else False
        return Row(name, paper, None, reproduced=verdict, reason="no depth with all its seeds", **about)
    best = lowest(values)
    single = [min(values, key=lambda depth: values[depth][i]) for i in range(len(values[best]))]
    agrees = None if paper is None else abs(best - paper) <= WITHIN
    tolerance = (
        f"{paper} ± {WITHIN}; " * (paper is not None) + "depth of the lowest mean; the range is that of single seeds"
    )
    return Row(name, paper, best, min(single), max(single), agrees, tolerance, **about)


def _protocols(found: Sequence[Depths]) -> Table:
    def near(each: Depths, mode: BatchNormMode) -> bool | None:
        values = finals(each.by_law, f"final-D{ENDS[mode]}")
        return abs(lowest(values) - PAPER[each.name]) <= WITHIN if values else None

    def words(each: Depths) -> str:
        values = [finals(each.by_law, f"final-D{end}") for end in ENDS.values()]
        ours = ", ".join(in_words(lowest(some), each.by_law) if some else "–" for some in values)
        return f"Fig. 5: final D is lowest at {PAPER[each.name]} layers, {TITLES[each.name]} (ours {ours})"

    return protocol_table({words(each): partial(near, each) for each in found})


def _rows(each: Depths, tried: int) -> list[Row]:
    law, name = finals(each.by_law), each.name
    wrong = {depth: [-validation(r) for r in some] for depth, some in whole(each.by_accuracy).items()}
    tested = {"lowest-D-depth": law, "best-validation-depth": wrong}
    return [
        _depth_row(f"{name}/lowest-D-depth", law, PAPER[name], tried),
        row(f"{name}/one-standard-error-depth", [one_standard_error(law) if law else None]),
        *(
            _depth_row(f"{name}/lowest-D-depth{end}", finals(each.by_law, f"final-D{end}"))
            for end in ENDS.values()
            if end
        ),
        _depth_row(f"{name}/lowest-D-depth-rate-by-validation", finals(each.by_accuracy)),
        _depth_row(f"{name}/best-validation-depth", wrong),
        *(row(f"{name}/test-accuracy-at-{w}", each.tests[lowest(v)] if v else [None]) for w, v in tested.items()),
    ]


def _order_row(found: Sequence[Depths]) -> Row:
    """The paper's order of the data sets, the harder the deeper: implied by its three numbers, which are judged."""
    best = {each.name: lowest(values) for each in found if (values := finals(each.by_law))}
    name, paper = "cifar10-minus-mnist/lowest-D-depth", PAPER["cifar10"] - PAPER["mnist"]
    if len(best) < len(PAPER):
        return Row(name, paper, None, reason="no depth with all its seeds")
    gap = best["cifar10"] - best["mnist"]
    return Row(name, paper, gap, tolerance="not judged: implied by the three depths")


def in_words(depth: float | None, tried: Iterable[int]) -> str:
    """A best depth, which at an end of those tried is only a bound.

    >>> [in_words(depth, range(3, 21)) for depth in (3, 12, 20)]
    ['≤ 3', '12', '≥ 20']
    """
    if depth is None:
        return "–"
    least, *_, most = sorted(tried)
    return f"{'≥ ' if depth == most else '≤ ' if depth == least else ''}{depth:.0f}"


def _note(each: Depths, rows: Sequence[Row]) -> str:
    known = {r.name.removeprefix(f"{each.name}/"): r for r in rows if r.name.startswith(f"{each.name}/")}
    best, one, by_test = (
        known[name] for name in ("lowest-D-depth", "one-standard-error-depth", "best-validation-depth")
    )
    if best.ours is None:
        return f"{TITLES[each.name]}: {best.reason}."
    ends = ("best-validation-depth", "lowest-D-depth")
    other, at_best = (100 * (known[f"test-accuracy-at-{end}"].ours or math.nan) for end in ends)
    depth, low, high, right = (in_words(d, each.by_law) for d in (best.ours, best.low, best.high, by_test.ours))
    return (
        f"{TITLES[each.name]}: final D is lowest at {depth} layers (single seeds: {low} to {high}; paper: "
        f"{PAPER[each.name]}); {one.ours:.0f} layers are not clearly worse. Validation accuracy is best at {right} layers, "
        f"where the test accuracy is {other:.1f} %, against {at_best:.1f} % at the depth of the lowest D."
    )


def _sheets(found: Sequence[Depths]) -> list[Sheet]:
    curves = [
        curves_panel(TITLES[each.name], {str(d): each.by_law[d] for d in SHOWN if d in each.by_law}) for each in found
    ]
    ends, accuracies = [], []
    for each in found:
        evals, validated = finals(each.by_law, "final-D-eval"), finals(each.by_accuracy)
        logs = {
            "rate with the best law": finals(each.by_law),
            "the same, eval mode": evals,
            "rate by validation": validated,
        }
        shares = {depth: list(map(validation, some)) for depth, some in each.by_accuracy.items()}
        ends.append(_panel(each, "final D", logs, math.exp))
        accuracies.append(_panel(each, "accuracy", {"validation": shares, "test": each.tests}))
    marked = "The line marks the depth that the paper found."
    rates = "Rates with the best validation accuracy. The line marks the paper's depth."
    words = caption(curves, "Rates with the best law.")
    return [
        Sheet("D along depth, for networks of several depths", curves, caption=words),
        Sheet("D after the last hidden layer", ends, caption=marked),
        Sheet("Accuracy", accuracies, caption=rates),
    ]


def _panel(each: Depths, ylabel: str, curves: Mapping[str, Values], back: Callable[[float], float] = float) -> Panel:
    """Numbers by depth, mean and range over seeds; `back` from what is averaged to what is drawn."""
    series = []
    for label, values in curves.items():
        mean, low, high = ([back(f(some)) for some in values.values()] for f in (fmean, min, max))
        series += [Series(tuple(values), mean, label, low, high)] if values else []
    return Panel(TITLES[each.name], series, "depth", ylabel, log_y=back is math.exp, marked=PAPER[each.name])


def _table(runs: Runs) -> Table:
    lines = []
    cells = runs.by(lambda r: (TITLES[r.recipe.data], r.recipe.network.depth, r.recipe.learning_rate))
    for cell, found in cells.items():
        laws = found.laws()
        D = geometric_mean(law.values[-1] for law in laws) if laws else None
        r_mean = mean_of(law.pearson for law in laws)
        held = sum(law.holds is True for law in laws)
        lines.append((*cell, len(found) - len(laws), held, r_mean, D, found.sound.mean(validation)))
    columns = ("data", "depth", "lr", "no number", "law holds in", "r", "final D", "validation acc.")
    return Table("The whole grid, means over seeds", columns, lines, "Final D: geometric mean.")


def _chosen_table(found: Sequence[Depths]) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for each in found:
        for depth, chosen in each.by_law.items():
            parts = ((chosen, "final-D"), (chosen, "final-D-eval"), (each.by_accuracy[depth], "final-D"))
            means = [math.exp(fmean(finals({depth: some}, what)[depth])) for some, what in parts]
            rates = ", ".join(f"{rate:g}" for rate in sorted({r.recipe.learning_rate for r in chosen}))
            lines.append((TITLES[each.name], depth, rates, *means, fmean(each.tests[depth])))
    ends = ("final D", "final D eval", "final D, rate by validation", "test acc.")
    note = "Geometric means over seeds; the test accuracy is that of the rates chosen by validation."
    return Table("The networks chosen", ("data", "depth", "rates chosen by the law", *ends), lines, note)
