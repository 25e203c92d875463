"""Figure S6: the law of every class by itself, D_k = Tr(SS_w^k SS_b⁺), in the 8-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce s6            15 networks at 3 seeds: five learning rates
    layerlaw reproduce s6 --quick    one network, 60 epochs instead of 600

Seconds on a GPU. At the authors' rate of Fig. 1 (1e-3), in their BatchNorm mode. Agreement: r of each class at most −0.97
in the mean over seeds ("emerges in each class", "a little noisy for some classes"), and r of all classes together below
the mean of the ten ("the noise is reduced when we consider … all classes"). D is the mean of the ten D_k weighted by the
class sizes, so the last claim is partly arithmetic. A random split of the same drop over 7 layers has a median r of −0.968,
so r of one class says little: how evenly the layers share its drop, and how far it is from its line, is in the table.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from layerlaw.experiments.drawing import EVAL_LONG_TITLE, caption, curve_mean, fit_series, law_panel, r_and_rho
from layerlaw.experiments.numbers import Claim, at_most, below, law_along, mean_of, minus, of_laws, random_split_r, row
from layerlaw.experiments.runs import MODE_NAMES, MODES, Runs, number
from layerlaw.experiments.separation.fig1 import SHOWN
from layerlaw.experiments.setting import ADAM, Setting, samples
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
    recipes = base.grid(learning_rate=(RATE,) if setting.quick else ADAM, seed=setting.seeds())
    runs = setting.train("classes", recipes, data, Schedule(by_class=True))
    shown = runs.at(learning_rate=RATE)
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


def _laws(runs: Runs, k: int, batchnorm: BatchNormMode = "batch") -> list[LawFit]:
    """The laws of one class."""
    return [law for r in runs if (law := class_laws(r, batchnorm=batchnorm)[k])]


def _pearsons(run: Run, batchnorm: BatchNormMode = "batch") -> list[float | None]:
    return of_laws(class_laws(run, batchnorm=batchnorm), "pearson")


def _class_rows(runs: Runs, names: Sequence[str]) -> list[Row]:
    found = []
    for k, name in enumerate(names):
        label = name.lower().replace(" ", "-").replace("/", "-")
        found.append(runs.row(f"{label}/pearson", lambda r, k=k: _pearsons(r)[k], NOISY))  # type: ignore[misc]
        found.append(runs.row(f"{label}/pearson-eval", lambda r, k=k: _pearsons(r, "running")[k]))  # type: ignore[misc]
    return found


def _summary_rows(runs: Runs) -> list[Row]:
    """All classes together beside the ten, and the spread among the ten."""
    why = runs.trouble()
    found: list[Row] = []
    for batchnorm, what, claim in zip(MODES, ("pearson", "pearson-eval"), (LESS_NOISE, Claim()), strict=True):
        each = [[r for r in _pearsons(run, batchnorm) if r is not None] for run in runs]
        means, whole = list(map(mean_of, each)), runs.values(what)
        gains = [minus(a, b) for a, b in zip(whole, means, strict=True)]
        found += [
            row(f"all-classes/{what}", whole, reason=why),
            row(f"mean-class/{what}", means, reason=why),
            row(f"worst-class/{what}", [max(rs, default=None) for rs in each], reason=why),
            row(f"all-minus-mean-class/{what}", gains, claim, reason=why),
        ]
    laws = [[law for law in class_laws(r) if law] for r in runs]
    rhos = [[law.rho for law in some] for some in laws]
    even = [sum(law.greenwood_p < CHANCE for law in some if law.greenwood_p is not None) or 0.0 for some in laws]
    return [
        *found,
        row("spread-of-rho-over-classes", [max(some) - min(some) if some else None for some in rhos], reason=why),
        row("classes-with-greenwood-p-below-0.05", even, reason=why),
        *runs.rows("all-classes", ("effective-layers", "greenwood-p")),
    ]


def _panels(runs: Runs, names: Sequence[str], batchnorm: BatchNormMode) -> list[Panel]:
    """One panel per class, and all classes together."""
    panels = []
    for k, name in enumerate(names):
        laws = _laws(runs, k, batchnorm)
        panels.append(
            Panel(name, fit_series(laws), note=r_and_rho(laws) if laws else runs.trouble(batchnorm=batchnorm))
        )
    return [*panels, law_panel("all classes", runs, batchnorm=batchnorm)]


def _together(runs: Runs, names: Sequence[str], batchnorm: BatchNormMode) -> Panel:
    curves = {name: [law.values for law in _laws(runs, k, batchnorm)] for k, name in enumerate(names)}
    series = [Series(range(len(c[0])), curve_mean(c), name) for name, c in curves.items() if c]
    return Panel(f"{MODE_NAMES[batchnorm]} mode", series)


def _class_table(runs: Runs, names: Sequence[str]) -> Table:
    columns = ("class", "r", "ρ", "effective layers", "p", "off the line", "r eval", "ρ eval", "D at input", "D at end")
    every = [(name, _laws(runs, k), _laws(runs, k, "running")) for k, name in enumerate(names)]
    every.append(("all", runs.laws(), runs.laws(batchnorm="running")))
    lines = []
    for name, laws, others in every:
        fit = [mean_of(of_laws(laws, what)) for what in ("pearson", "rho", "effective-layers", "greenwood-p")]
        off = mean_of(math.sqrt(fmean(r * r for r in f.residuals)) for f in laws)
        rest = [mean_of(of_laws(others, what)) for what in ("pearson", "rho")]
        lines.append((name, *fit, off, *rest, *(mean_of(f.values[i] for f in laws) for i in (0, -1))))
    note = "Means over seeds. Off the line: root mean square of ln D_k minus its line. Train mode where not said."
    return Table("Every class", columns, lines, note)


def _rate_table(runs: Runs) -> Table:
    lines = []
    for run in runs:
        each = [r for r in _pearsons(run) if r is not None]
        cells: tuple[Cell, ...] = (Runs([run]).trouble(), None, None)
        if each:
            cells = (number(run, "pearson"), fmean(each), max(each))
        lines.append((run.recipe.learning_rate, run.recipe.seed, *cells))
    return Table("Learning rates", ("lr", "seed", "r of all", "mean r of a class", "worst r of a class"), lines)


def _notes(runs: Runs, names: Sequence[str]) -> list[str]:
    found = [(mean_of(_pearsons(r)[k] for r in runs), name) for k, name in enumerate(names)]
    means = [(r, name) for r, name in found if r is not None]
    if not means:
        return []
    (best, straightest), (worst, other) = min(means), max(means)
    chance = random_split_r(DEPTH - 1)
    beyond = sum(r < chance for r, _ in means)
    return [
        f"The straightest class is {straightest} (r = {best:.4f}), the least straight {other} (r = {worst:.4f}); {beyond} "
        f"of {len(means)} classes are straighter than the median of random splits of their drop (r = {chance:.3f})."
    ]
