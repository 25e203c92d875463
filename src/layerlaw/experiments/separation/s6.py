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

from layerlaw.experiments.drawing import caption, law_panel
from layerlaw.experiments.fig1 import RATES, SHOWN
from layerlaw.experiments.images import samples
from layerlaw.experiments.numbers import at_most, law_of, law_row, mean_of, minus, random_split_r, row, trouble
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import LawFit, fit_law
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "The law of each class"
DEPTH = 8
RATE = SHOWN["adam", DEPTH][0]
NOISY = -0.97  # r that we still call a law, for a single class


def run(setting: Setting) -> Outcome:
    """Train the grid, fit every class."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", epochs=setting.epochs(quick=60))
    rates = (RATE,) if setting.quick else RATES["adam"]
    runs = setting.train("classes", base.grid(learning_rate=rates, seed=setting.seeds()), data, Schedule(by_class=True))
    shown = [r for r in runs if r.recipe.learning_rate == RATE]
    names = data["fashion_mnist"].class_names
    every = _panels(shown, names, "batch")
    return Outcome(
        "s6",
        TITLE,
        [*_class_rows(shown, names), *_summary_rows(shown)],
        [
            Sheet("D of each class", every, 4, caption(every, "Train mode.")),
            Sheet("The same networks with running statistics (eval mode)", _panels(shown, names, "running"), 4),
            Sheet("All classes in one", [_together(shown, names, batchnorm) for batchnorm in ("batch", "running")], 2),
        ],
        [_class_table(shown, names), _rate_table(runs)],
        _notes(shown, names),
    )


def class_laws(run: Run, *, batchnorm: BatchNormMode = "batch") -> list[LawFit | None]:
    """The law of every class at the last epoch; `None` where a D_k is not defined or the run diverged."""
    by_class = None if run.diverged is not None else run.measurement(batchnorm=batchnorm).by_class
    if by_class is None:
        return [None] * run.recipe.network.classes
    laws: list[LawFit | None] = []
    for values in zip(*by_class, strict=True):  # one class along the layers
        known = [v for v in values if v is not None and v > 0]
        laws.append(fit_law(known) if len(known) == len(values) else None)
    return laws


def _pearsons(run: Run, batchnorm: BatchNormMode = "batch") -> list[float | None]:
    return [None if law is None else law.pearson for law in class_laws(run, batchnorm=batchnorm)]


def _class_rows(runs: Sequence[Run], names: Sequence[str]) -> list[Row]:
    holds, told = at_most(NOISY)
    why = trouble(runs)
    rows = []
    for k, name in enumerate(names):
        values = [_pearsons(r)[k] for r in runs]
        label = _label(name)
        rows.append(row(f"{label}/pearson", values, paper="law, noisier", holds=holds, tolerance=told, reason=why))
        rows.append(row(f"{label}/pearson-eval", [_pearsons(r, "running")[k] for r in runs], reason=why))
    return rows


def _summary_rows(runs: Sequence[Run]) -> list[Row]:
    """All classes together beside the ten, and the spread among the ten."""
    why = trouble(runs)
    rows: list[Row] = []
    for batchnorm, suffix in (("batch", ""), ("running", "-eval")):
        each = [[r for r in _pearsons(run, batchnorm) if r is not None] for run in runs]  # type: ignore[arg-type]
        means = [fmean(rs) if rs else None for rs in each]
        whole = [law.pearson if (law := law_of(run, batchnorm=batchnorm)) else None for run in runs]  # type: ignore[arg-type]
        gains = [minus(a, b) for a, b in zip(whole, means, strict=True)]
        judged = {"paper": "less noise", "holds": lambda mean: mean < 0, "tolerance": "< 0"} if not suffix else {}
        rows += [
            row(f"all-classes/pearson{suffix}", whole, reason=why),
            row(f"mean-class/pearson{suffix}", means, reason=why),
            row(f"worst-class/pearson{suffix}", [max(rs) if rs else None for rs in each], reason=why),
            row(f"all-minus-mean-class/pearson{suffix}", gains, reason=why, **judged),  # type: ignore[arg-type]
        ]
    ratios = [_spread([law.rho for law in class_laws(r) if law]) for r in runs]
    ps = [[law.greenwood_p for law in class_laws(r) if law and law.greenwood_p is not None] for r in runs]
    return [
        *rows,
        row("spread-of-rho-over-classes", ratios, reason=why),
        row("classes-with-greenwood-p-below-0.05", [sum(p < 0.05 for p in found) or 0.0 for found in ps], reason=why),
        law_row("all-classes/effective-layers", runs, "effective_layers"),
        law_row("all-classes/greenwood-p", runs, "greenwood_p"),
    ]


def _panels(runs: Sequence[Run], names: Sequence[str], batchnorm: BatchNormMode) -> list[Panel]:
    """One panel per class, and all classes together."""
    return [
        *(_panel(runs, k, name, batchnorm) for k, name in enumerate(names)),
        law_panel("all classes", runs, batchnorm=batchnorm),
    ]


def _panel(runs: Sequence[Run], k: int, name: str, batchnorm: BatchNormMode) -> Panel:
    laws = [law for r in runs if (law := class_laws(r, batchnorm=batchnorm)[k])]
    if not laws:
        return Panel(name, (), note=trouble(runs, batchnorm=batchnorm))
    curve, low, high = _mean_curve(laws)
    fit = fit_law(curve)
    x = tuple(range(fit.points))
    ends = (low, high) if len(laws) > 1 else (None, None)
    note = f"r = {fmean(law.pearson or 0.0 for law in laws):.3f}, ρ = {fmean(law.rho for law in laws):.3f}"
    return Panel(name, (Series(x, fit.line, "line", style="fit"), Series(x, curve, "D", *ends)), note=note)


def _together(runs: Sequence[Run], names: Sequence[str], batchnorm: BatchNormMode) -> Panel:
    series = []
    for k, name in enumerate(names):
        laws = [law for r in runs if (law := class_laws(r, batchnorm=batchnorm)[k])]
        if laws:
            curve = _mean_curve(laws)[0]
            series.append(Series(tuple(range(len(curve))), curve, name))
    return Panel(f"{batchnorm} mode", tuple(series))


def _mean_curve(laws: Sequence[LawFit]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Geometric mean over seeds, and the range."""
    layers = list(zip(*(law.values for law in laws), strict=True))
    mean = tuple(math.exp(fmean(map(math.log, values))) for values in layers)
    return mean, tuple(map(min, layers)), tuple(map(max, layers))


def _class_table(runs: Sequence[Run], names: Sequence[str]) -> Table:
    columns = ("class", "r", "ρ", "effective layers", "p", "off the line", "r eval", "ρ eval", "D at input", "D at end")
    rows: list[tuple[str | float | None, ...]] = []
    every = [
        (name, [class_laws(r)[k] for r in runs], [class_laws(r, batchnorm="running")[k] for r in runs])
        for k, name in enumerate(names)
    ]
    sound = [r for r in runs if r.diverged is None]
    every.append(("all", [r.law() for r in sound], [r.law(batchnorm="running") for r in sound]))
    for name, found, evals in every:
        laws, others = [law for law in found if law], [law for law in evals if law]
        cells = [
            mean_of([getattr(law, w) for law in laws]) for w in ("pearson", "rho", "effective_layers", "greenwood_p")
        ]
        rest = [mean_of([getattr(law, w) for law in others]) for w in ("pearson", "rho")]
        ends = [mean_of([law.values[i] for law in laws]) for i in (0, -1)]
        rows.append((name, *cells, mean_of([_off(law) for law in laws]), *rest, *ends))
    note = "Means over seeds. Off the line: root mean square of ln D_k minus its line. Train mode where not said."
    return Table("Every class", columns, tuple(rows), note)


def _rate_table(runs: Sequence[Run]) -> Table:
    rows: list[tuple[str | float | None, ...]] = []
    for run in runs:
        each = [r for r in _pearsons(run) if r is not None]
        if not each:
            rows.append((run.recipe.learning_rate, run.recipe.seed, trouble([run]), None, None))
            continue
        law = run.law()
        rows.append((run.recipe.learning_rate, run.recipe.seed, law.pearson if law else None, fmean(each), max(each)))
    return Table("Learning rates", ("lr", "seed", "r of all", "mean r of a class", "worst r of a class"), tuple(rows))


def _notes(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    found = [(name, [_pearsons(r)[k] for r in runs]) for k, name in enumerate(names)]
    means = {name: fmean(known) for name, values in found if (known := [v for v in values if v is not None])}
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


def _label(name: str) -> str:
    return name.lower().replace(" ", "-").replace("/", "-")


def _off(law: LawFit) -> float:
    return math.sqrt(fmean(r * r for r in law.residuals))


def _spread(values: Sequence[float]) -> float | None:
    return max(values) - min(values) if values else None
