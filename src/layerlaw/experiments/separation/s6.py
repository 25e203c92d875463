"""Figure S6: the law of every class by itself, D_k = Tr(SS_w^k SS_b⁺), in the 8-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce s6            50 networks at 10 seeds: five learning rates
    layerlaw reproduce s6 --quick    one network, 60 epochs instead of 600

At the authors' rate of Fig. 1 (1e-3), in their BatchNorm mode. The paper: "The equi-separation law emerges in each
class. Even though the equi-separation law can be a little noisy for some classes, the noise is reduced when we consider
the separation fuzziness for all classes". Which classes may be noisy it does not say, so they are judged together: the
share of classes in which the law holds (`LawFit.holds`) is above one half by a t test over seeds; every class stands
beside. Less noise: the evenness of all classes together is above the mean of the ten by a t test over seeds. D is the
mean of the ten D_k weighted by the class sizes, so this is arithmetic (ten curves of independent random steps pass it
in every one of 900 simulations): it is shown and not counted.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from layerlaw.experiments.drawing import EVAL_LONG_TITLE, caption, curve_mean, fit_note, fit_series, law_panel
from layerlaw.experiments.numbers import Claim, above, law_along, mean_of, minus, of_laws, row
from layerlaw.experiments.runs import ENDS, LAW, MODE_NAMES, MODES, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.separation.fig1 import SHOWN
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import LawFit
from layerlaw.outcome import Cell, Outcome, Row, Table
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "The law of each class"
DEPTH = 8
RATE = SHOWN["adam", DEPTH][0]
MOST = above(0.5, "law, a little noisy for some classes")
TOGETHER = Claim("law", tolerance="judged as a share of the classes")
LESS_NOISE = replace(above(0, "less noise"), chance=1.0)  # D is the mean of the ten: averages are always smoother


def run(setting: Setting) -> Outcome:
    """Train the grid, fit every class."""
    images = samples(setting, "fashion_mnist")
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", epochs=setting.epochs(quick=60))
    recipes = base.grid(learning_rate=(RATE,) if setting.quick else ADAM, seed=setting.seeds(least=10))
    schedule = replace(PROTOCOLS, by_class=True, test=False, permuted=False)
    runs = setting.train("classes", recipes, {"fashion_mnist": images}, schedule)
    shown = runs.at(learning_rate=RATE)
    names = images(setting.seeds()[0]).class_names
    every = _panels(shown, names, "batch")
    sheets = [
        Sheet("D of each class", every, 4, caption(every, "Train mode.")),
        Sheet(EVAL_LONG_TITLE, _panels(shown, names, "running"), 4),
        Sheet("All classes in one", [_together(shown, names, batchnorm) for batchnorm in MODES], 2),
    ]
    found = [*_class_rows(shown, names), *_summary_rows(shown)]
    survives = {"Fig. S6: the law holds in most classes": lambda mode: share_with_law(shown, mode).reproduced}
    tables = [protocol_table(survives), _class_table(shown, names), _rate_table(runs)]
    return Outcome("s6", TITLE, found, sheets, tables, _notes(shown, names))


def class_laws(run: Run, *, batchnorm: BatchNormMode = "batch") -> list[LawFit | None]:
    """The law of every class at the last epoch; `None` where a D_k is not defined or the run diverged."""
    by_class = None if run.diverged is not None else run.measurement(batchnorm=batchnorm).by_class
    if by_class is None:
        return [None] * run.recipe.network.classes
    return [law_along(values) for values in zip(*by_class, strict=True)]  # one class along the layers


def share_with_law(runs: Runs, batchnorm: BatchNormMode = "batch", name: str = "", claim: Claim = MOST) -> Row:
    """The share of classes in which the law holds, seed by seed."""
    shares = [mean_of(of_laws(class_laws(r, batchnorm=batchnorm), "holds")) for r in runs]
    return row(name, shares, claim, reason=runs.trouble())


def held_classes(runs: Runs, batchnorm: BatchNormMode = "batch") -> int:
    """In how many classes the law holds in most seeds."""
    seeds = [of_laws(class_laws(r, batchnorm=batchnorm), "holds") for r in runs]
    return sum(fmean(v or 0.0 for v in values) > 0.5 for values in zip(*seeds, strict=True))


def _laws(runs: Runs, k: int, batchnorm: BatchNormMode = "batch") -> list[LawFit]:
    """The laws of one class."""
    return [law for r in runs if (law := class_laws(r, batchnorm=batchnorm)[k])]


def _class_rows(runs: Runs, names: Sequence[str]) -> list[Row]:
    found, why = [], runs.trouble()
    laws = {mode: [class_laws(r, batchnorm=mode) for r in runs] for mode in MODE_NAMES}
    for k, name in enumerate(names):
        label = name.lower().replace(" ", "-").replace("/", "-")
        for mode, end in ENDS.items():
            of_class = [some[k] for some in laws[mode]]
            for what in ("holds", "evenness", "trend", "pearson") if mode == "batch" else ("holds",):
                claim = TOGETHER if what + end == "holds" else Claim()
                found.append(row(f"{label}/{what}{end}", of_laws(of_class, what), claim, reason=why))
    return found


def _evenness(run: Run, batchnorm: BatchNormMode) -> list[float]:
    """Of every class whose D_k falls."""
    return [v for v in of_laws(class_laws(run, batchnorm=batchnorm), "evenness") if v is not None]


def _less_noise(runs: Runs, batchnorm: BatchNormMode) -> Row:
    end = ENDS[batchnorm]
    means = [mean_of(_evenness(r, batchnorm)) for r in runs]
    gains = [minus(a, b) for a, b in zip(runs.values(f"evenness{end}"), means, strict=True)]
    return row(f"all-minus-mean-class/evenness{end}", gains, LESS_NOISE, reason=runs.trouble())


def _summary_rows(runs: Runs) -> list[Row]:
    """All classes together beside the ten, and the spread among the ten."""
    why = runs.trouble()
    found = [*runs.rows("all-classes", LAW), _less_noise(runs, "batch")]
    for mode, end in ENDS.items():
        each = [_evenness(r, mode) for r in runs]
        found += [
            row(f"mean-class/evenness{end}", list(map(mean_of, each)), reason=why),
            row(f"worst-class/evenness{end}", [min(some, default=None) for some in each], reason=why),
            share_with_law(runs, mode, f"share-of-classes-with-law{end}", Claim() if end else MOST),
        ]
    rhos = [[law.rho for law in class_laws(r) if law] for r in runs]
    spread = [max(some) - min(some) if some else None for some in rhos]
    return [*found, row("spread-of-rho-over-classes", spread, reason=why)]


def _panels(runs: Runs, names: Sequence[str], batchnorm: BatchNormMode) -> list[Panel]:
    """One panel per class, and all classes together."""
    panels = []
    for k, name in enumerate(names):
        laws = _laws(runs, k, batchnorm)
        panels.append(Panel(name, fit_series(laws), note=fit_note(laws) if laws else runs.trouble(batchnorm=batchnorm)))
    return [*panels, law_panel("all classes", runs, batchnorm=batchnorm)]


def _together(runs: Runs, names: Sequence[str], batchnorm: BatchNormMode) -> Panel:
    curves = {name: [law.values for law in _laws(runs, k, batchnorm)] for k, name in enumerate(names)}
    series = [Series(range(len(c[0])), curve_mean(c), name) for name, c in curves.items() if c]
    return Panel(f"{MODE_NAMES[batchnorm]} mode", series)


def _class_table(runs: Runs, names: Sequence[str]) -> Table:
    columns = ("class", "holds", "r", "ρ", "evenness", "trend", "off the line", "holds eval", "evenness eval", "D at input",
               "D at end")  # fmt: skip
    every = [(name, _laws(runs, k), _laws(runs, k, "running")) for k, name in enumerate(names)]
    every.append(("all", runs.laws(), runs.laws(batchnorm="running")))
    lines = []
    for name, laws, others in every:
        fit = [mean_of(of_laws(laws, what)) for what in ("holds", "pearson", "rho", "evenness", "trend")]
        off = mean_of(math.sqrt(fmean(r * r for r in f.residuals)) for f in laws)
        rest = [mean_of(of_laws(others, what)) for what in ("holds", "evenness")]
        lines.append((name, *fit, off, *rest, *(mean_of(f.values[i] for f in laws) for i in (0, -1))))
    note = (
        "Means over seeds; holds: share of seeds. Off the line: root mean square of ln D_k minus its line. Train mode where "
        "not said."
    )
    return Table("Every class", columns, lines, note)


def _rate_table(runs: Runs) -> Table:
    lines = []
    for run in runs:
        each = _evenness(run, "batch")
        cells: tuple[Cell, ...] = (Runs([run]).trouble(), None, None, None)
        if each:
            cells = (number(run, "evenness"), fmean(each), min(each), sum(map(bool, of_laws(class_laws(run), "holds"))))
        lines.append((run.recipe.learning_rate, run.recipe.seed, *cells))
    columns = (
        "lr",
        "seed",
        "evenness of all",
        "mean evenness of a class",
        "least evenness of a class",
        "classes with law",
    )
    return Table("Learning rates", columns, lines)


def _notes(runs: Runs, names: Sequence[str]) -> list[str]:
    means = [(mean, name) for k, name in enumerate(names) if (mean := mean_of(of_laws(_laws(runs, k), "evenness")))]
    if not means:
        return []
    (worst, uneven), (best, even) = min(means), max(means)
    return [
        f"The law holds in most seeds in {held_classes(runs)} of {len(names)} classes, with running statistics in "
        f"{held_classes(runs, 'running')}.",
        f"The most even class is {even} (evenness {best:.2f}), the least even {uneven} ({worst:.2f}).",
    ]
