"""Figure S6: the law of every class by itself, D_k = Tr(SS_w^k SS_b⁺), in the 8-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce s6            15 networks at 3 seeds: five learning rates
    layerlaw reproduce s6 --quick    one network, 60 epochs instead of 600

Seconds on a GPU. At the authors' rate of Fig. 1 (1e-3), in their BatchNorm mode. Agreement: r of each class at most −0.97
in the mean over seeds ("emerges in each class", "a little noisy for some classes"), and r of all classes together below
the mean of the ten ("the noise is reduced when we consider … all classes"). D is the mean of the ten D_k weighted by the
class sizes, so the last claim is partly arithmetic. A random split of the same drop over 7 layers has a median r of −0.968,
so r of one class says little: how evenly the layers share its drop, and how far it is from its line, is in the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from layerlaw.experiments.drawing import EVAL_LONG_TITLE, caption, curve_mean, fit_series, law_panel, r_and_rho
from layerlaw.experiments.numbers import (
    MODE_NAMES,
    MODES,
    Claim,
    at_most,
    below,
    law_along,
    mean_of,
    minus,
    number,
    of_laws,
    random_split_r,
    row,
    rows,
    trouble,
)
from layerlaw.experiments.separation.fig1 import RATES, SHOWN
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import CHANCE, LawFit
from layerlaw.outcome import Cell, Outcome, Row, Table
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "The law of each class"
DEPTH = 8
RATE = SHOWN["adam", DEPTH][0]
NOISY = at_most(-0.97, "law, noisier")  # r that we still call a law, for a single class
LESS_NOISE = below(0, "less noise")


def run(setting: Setting) -> Outcome:
    """Train the grid, fit every class."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", epochs=setting.epochs(quick=60))
    rates = (RATE,) if setting.quick else RATES["adam"]
    runs = setting.train("classes", base.grid(learning_rate=rates, seed=setting.seeds()), data, Schedule(by_class=True))
    shown = [r for r in runs if r.recipe.learning_rate == RATE]
    names = data["fashion_mnist"].class_names
    every = _panels(shown, names, "batch")
    sheets = [
        Sheet("D of each class", every, 4, caption(every, "Train mode.")),
        Sheet(EVAL_LONG_TITLE, _panels(shown, names, "running"), 4),
        Sheet("All classes in one", [_together(shown, names, batchnorm) for batchnorm in MODES], 2),
    ]
    found = [*_class_rows(shown, names), *_summary_rows(shown)]
    return Outcome("s6", TITLE, found, sheets, [_class_table(shown, names), _rate_table(runs)], _notes(shown, names))


def class_laws(run: Run, *, batchnorm: BatchNormMode = "batch") -> list[LawFit | None]:
    """The law of every class at the last epoch; `None` where a D_k is not defined or the run diverged."""
    by_class = None if run.diverged is not None else run.measurement(batchnorm=batchnorm).by_class
    if by_class is None:
        return [None] * run.recipe.network.classes
    return [law_along(values) for values in zip(*by_class, strict=True)]  # one class along the layers


def _laws(runs: Sequence[Run], k: int, batchnorm: BatchNormMode = "batch") -> list[LawFit]:
    """The laws of one class."""
    return [law for r in runs if (law := class_laws(r, batchnorm=batchnorm)[k])]


def _pearsons(run: Run, batchnorm: BatchNormMode = "batch") -> list[float | None]:
    return of_laws(class_laws(run, batchnorm=batchnorm), "pearson")


def _class_rows(runs: Sequence[Run], names: Sequence[str]) -> list[Row]:
    why = trouble(runs)
    found = []
    for k, name in enumerate(names):
        label = name.lower().replace(" ", "-").replace("/", "-")
        found.append(row(f"{label}/pearson", [_pearsons(r)[k] for r in runs], NOISY, reason=why))
        found.append(row(f"{label}/pearson-eval", [_pearsons(r, "running")[k] for r in runs], reason=why))
    return found


def _summary_rows(runs: Sequence[Run]) -> list[Row]:
    """All classes together beside the ten, and the spread among the ten."""
    why = trouble(runs)
    found: list[Row] = []
    for batchnorm, what in zip(MODES, ("pearson", "pearson-eval"), strict=True):
        each = [[r for r in _pearsons(run, batchnorm) if r is not None] for run in runs]
        means = [fmean(rs) if rs else None for rs in each]
        whole = [number(run, what) for run in runs]
        gains = [minus(a, b) for a, b in zip(whole, means, strict=True)]
        found += [
            row(f"all-classes/{what}", whole, reason=why),
            row(f"mean-class/{what}", means, reason=why),
            row(f"worst-class/{what}", [max(rs) if rs else None for rs in each], reason=why),
            row(f"all-minus-mean-class/{what}", gains, LESS_NOISE if batchnorm == "batch" else Claim(), reason=why),
        ]
    laws = [[law for law in class_laws(r) if law] for r in runs]
    rhos = [[law.rho for law in some] for some in laws]
    even = [sum(law.greenwood_p < CHANCE for law in some if law.greenwood_p is not None) or 0.0 for some in laws]
    return [
        *found,
        row("spread-of-rho-over-classes", [max(some) - min(some) if some else None for some in rhos], reason=why),
        row("classes-with-greenwood-p-below-0.05", even, reason=why),
        *rows("all-classes", runs, ("effective-layers", "greenwood-p")),
    ]


def _panels(runs: Sequence[Run], names: Sequence[str], batchnorm: BatchNormMode) -> list[Panel]:
    """One panel per class, and all classes together."""
    panels = []
    for k, name in enumerate(names):
        laws = _laws(runs, k, batchnorm)
        note = r_and_rho(laws) if laws else trouble(runs, batchnorm=batchnorm)
        panels.append(Panel(name, tuple(fit_series(laws)), note=note))
    return [*panels, law_panel("all classes", runs, batchnorm=batchnorm)]


def _together(runs: Sequence[Run], names: Sequence[str], batchnorm: BatchNormMode) -> Panel:
    curves = {name: [law.values for law in _laws(runs, k, batchnorm)] for k, name in enumerate(names)}
    series = [Series(tuple(range(len(c[0]))), curve_mean(c), name) for name, c in curves.items() if c]
    return Panel(f"{MODE_NAMES[batchnorm]} mode", tuple(series))


def _class_table(runs: Sequence[Run], names: Sequence[str]) -> Table:
    columns = ("class", "r", "ρ", "effective layers", "p", "off the line", "r eval", "ρ eval", "D at input", "D at end")
    sound = [r for r in runs if r.diverged is None]
    every = [(name, _laws(runs, k), _laws(runs, k, "running")) for k, name in enumerate(names)]
    train, evals = ([law for r in sound if (law := r.law(batchnorm=mode))] for mode in MODES)
    every.append(("all", train, evals))
    lines: list[tuple[Cell, ...]] = []
    for name, laws, others in every:
        fit = [mean_of(getattr(f, w) for f in laws) for w in ("pearson", "rho", "effective_layers", "greenwood_p")]
        off = mean_of(math.sqrt(fmean(r * r for r in f.residuals)) for f in laws)
        rest = [mean_of(getattr(f, w) for f in others) for w in ("pearson", "rho")]
        lines.append((name, *fit, off, *rest, *(mean_of(f.values[i] for f in laws) for i in (0, -1))))
    note = "Means over seeds. Off the line: root mean square of ln D_k minus its line. Train mode where not said."
    return Table("Every class", columns, tuple(lines), note)


def _rate_table(runs: Sequence[Run]) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for run in runs:
        each = [r for r in _pearsons(run) if r is not None]
        cells: tuple[Cell, ...] = (trouble([run]), None, None)
        if each:
            cells = (number(run, "pearson"), fmean(each), max(each))
        lines.append((run.recipe.learning_rate, run.recipe.seed, *cells))
    return Table("Learning rates", ("lr", "seed", "r of all", "mean r of a class", "worst r of a class"), tuple(lines))


def _notes(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    found = [(name, mean_of(_pearsons(r)[k] for r in runs)) for k, name in enumerate(names)]
    means = {name: r for name, r in found if r is not None}
    if not means:
        return []
    worst, best = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    chance = random_split_r(DEPTH - 1)
    beyond = sum(v < chance for v in means.values())
    words = (
        f"The straightest class is {best} (r = {means[best]:.4f}), the least straight {worst} (r = {means[worst]:.4f}); "
        f"{beyond} of {len(means)} classes are straighter than the median of random splits of their drop (r = {chance:.3f})."
    )
    return [words.replace("= -", "= −")]
