"""From runs to panels, sheets and tables: D along depth with its line, over seeds, the rest of the grid behind it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Unpack

from layerlaw.experiments.moments import FULL, measured_epochs
from layerlaw.experiments.runs import Runs, Where, number
from layerlaw.lab import Run
from layerlaw.law import RESIDUAL, LawFit, fit_law, interval_words, laws_across
from layerlaw.outcome import Cell, Table
from layerlaw.sheet import Panel, Series, Sheet, spread_series
from layerlaw.wording import counted

LOSS = "last epoch's loss"
LOSS_NOTE = (
    "Last epoch's loss: the running mean during the last epoch of training. Rows called train-loss are measured after "
    "training, in eval mode."
)
EVAL_TITLE = "The same networks in eval mode"
EVAL_LONG_TITLE = "The same networks with running statistics (eval mode)"
FLOOR_TITLE = "D beside the level of noise alone (permuted labels)"
BEST_RATE = "The rate with the best law of each seed."
REST_FAINT = "the rest of the grid faint"
Column = str | Callable[[Run], Cell]
AtEpoch = Callable[[Run, int], float | None]
Courses = Mapping[str, tuple[Runs, AtEpoch]]  # by their labels


def law_panel(
    title: str,
    runs: Runs,
    *,
    faint: Sequence[Run] = (),
    floor: bool = False,
    note: str | None = None,
    **where: Unpack[Where],
) -> Panel:
    """D against the layer: the geometric mean over seeds with its range, the fitted line, other runs faintly behind.

    `floor` adds the level that shuffled labels give.
    """
    laws = runs.laws(**where)
    shown = {id(run) for run in runs} if laws else set()
    others = [run for run in Runs((*faint, *(() if laws else runs))).sound if id(run) not in shown]
    behind = [run.measurement(**where).separation for run in others]  # with holes where undefined
    series = [Series(range(len(values)), values, style="faint") for values in behind]
    series += fit_series(laws)
    if floor and laws:
        permuted: Where = {**where, "split": "permuted"}
        known = [level.values for level in runs.laws(**permuted)]
        series += [Series(series[-1].x, curve_mean(known), style="null", label="permuted labels")] if known else []
    return Panel(title, series, note=law_note(runs, **where) if note is None else note)


def law_sheet(
    title: str,
    cells: Mapping[str, Runs],
    *,
    faint: Mapping[str, Sequence[Run]] | None = None,
    words: Sequence[str] | None = None,
    faint_words: str = "other learning rates faint",
    columns: int = 3,
    share_y: bool = False,
    **panel: Any,
) -> Sheet:
    """A `law_panel` for every group of runs by its title; a caption with these words, or none."""
    panels = [law_panel(name, runs, faint=(faint or {}).get(name, ()), **panel) for name, runs in cells.items()]
    text = "" if words is None else caption(panels, *words, faint=faint_words)
    return Sheet(title, panels, columns, text, share_y)


def both_modes(best: Mapping[str, Runs], grid: Mapping[str, Runs], *, share_y: bool = False) -> list[Sheet]:
    """The chosen runs with the rest of the grid behind them in the authors' BatchNorm mode, then in eval mode."""
    return [
        law_sheet("D along depth", best, faint=grid, words=(), share_y=share_y),
        law_sheet(EVAL_TITLE, best, batchnorm="running", share_y=share_y),
    ]


def floor_sheet(best: Mapping[str, Runs], *, share_y: bool = False) -> Sheet:
    """The chosen runs beside what permuted labels give."""
    return law_sheet(FLOOR_TITLE, best, floor=True, note="", share_y=share_y)


def fit_series(laws: Sequence[LawFit]) -> list[Series]:
    """The line of the mean curve, then the curve with its range; nothing without laws."""
    if not laws:
        return []
    curves = [law.values for law in laws]
    mean = mean_series(curves, "D")
    return [Series(mean.x, fit_law(curve_mean(curves)).line, style="fit", label="line"), mean]


def mean_series(curves: Sequence[Sequence[float]], label: str) -> Series:
    """Geometric mean of curves, layer by layer; with its range when there are several."""
    layers = list(zip(*curves, strict=True))
    return spread_series(label, range(len(layers)), layers, several=len(curves) > 1, middle=geometric_mean)


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm."""
    return math.exp(fmean(map(math.log, values)))


def curve_mean(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Geometric mean of curves, layer by layer.

    >>> curve_mean([(1.0, 4.0), (4.0, 4.0)])
    (2.0, 4.0)
    """
    return tuple(map(geometric_mean, zip(*curves, strict=True)))


def epoch_series(label: str, runs: Runs, epochs: Sequence[int], value: AtEpoch, *, total: int = FULL) -> Series:
    """A number over the epochs of training: mean and range over the runs that have it.

    Epochs of a shortened training (`total`) are drawn as the paper's.
    """
    x = [round(epoch * FULL / total) for epoch in epochs]
    values = [[value(run, epoch) for run in runs.sound] for epoch in epochs]
    return spread_series(label, x, values, several=len(runs) > 1, style="line")


def courses(title: str, curves: Courses, *, since: int = 0, **panel: Any) -> Panel:
    """Numbers over the epochs of training, the runs and the number of each curve by its label."""
    (first, *_), _ = next(iter(curves.values()))
    epochs = [epoch for epoch in measured_epochs(first) if epoch >= since]
    series = [
        epoch_series(label, runs, epochs, value, total=first.recipe.epochs) for label, (runs, value) in curves.items()
    ]
    return Panel(title, series, xlabel="epoch", **panel)


def curves_panel(title: str, groups: Mapping[str, Runs], **where: Unpack[Where]) -> Panel:
    """D against the layer for several groups of runs: the geometric mean over seeds of each, with its range."""
    curves = {label: [law.values for law in runs.laws(**where)] for label, runs in groups.items()}
    return Panel(title, [mean_series(found, label) for label, found in curves.items() if found])


def caption(panels: Sequence[Panel], *more: str, faint: str = "other learning rates faint") -> str:
    """What ranges and faint curves are, as far as there are any; then further sentences.

    >>> caption([Panel("", [Series((0, 1), (2.0, 1.0), style="faint")])], "Train mode.")
    'Other learning rates faint. Train mode.'
    """
    drawn = [series for panel in panels for series in panel.series]
    parts = ["mean and range over seeds"] if any(series.low is not None for series in drawn) else []
    parts += [faint] if any(series.style == "faint" for series in drawn) else []
    first = "; ".join(parts)
    return " ".join([f"{first[:1].upper()}{first[1:]}.", *more] if first else more)


def law_note(runs: Runs, **where: Unpack[Where]) -> str:
    """What stands inside a panel: means over the seeds."""
    laws = runs.laws(**where)
    if not laws:
        ends = sorted({run.diverged for run in runs if run.diverged is not None})
        return f"diverged in epoch {', '.join(map(str, ends))}" if ends else "no law can be fitted"
    lost = {place for run in runs.sound for place in run.lost_rank(**where)}
    if lost and all(law.effective_layers is not None for law in laws):
        # D then falls without anything being separated better
        return f"{r_and_rho(laws)}\nclass means lose rank at {counted(len(lost), laws[0].step)}"
    return fit_note(laws)


def fit_note(laws: Sequence[LawFit], *, flat: str = "") -> str:
    """r, ρ, how evenly the drop is shared, and in how many the law holds; `flat` where there is no drop to share."""
    even = [law.evenness for law in laws if law.evenness is not None]
    if len(even) < len(laws):
        return r_and_rho(laws) + flat
    held = sum(law.holds is True for law in laws)
    return f"{r_and_rho(laws)}\nevenness {fmean(even):.2f}, holds in {held} of {len(laws)}"


def r_and_rho(laws: Sequence[LawFit], digits: int = 3) -> str:
    """Means over the seeds."""
    r, rho = fmean(law.pearson or 0.0 for law in laws), fmean(law.rho for law in laws)
    return f"r = {r:.3f}, ρ = {rho:.{digits}f}".replace("-", "−")


def run_table(
    title: str, runs: Sequence[Run], about: Mapping[str, Column], columns: Mapping[str, Column], note: str = ""
) -> Table:
    """A line per run: what it is, then its numbers (by name, see `number`), or that it diverged."""
    lines: list[tuple[Cell, ...]] = []
    for run in runs:
        known: list[Cell] = [f"diverged in epoch {run.diverged}", *[None] * (len(columns) - 1)]
        if run.diverged is None:
            known = [_cell(run, column) for column in columns.values()]
        lines.append((*(_cell(run, column) for column in about.values()), *known))
    return Table(title, (*about, *columns), lines, note)


def _cell(run: Run, column: Column) -> Cell:
    return number(run, column) if isinstance(column, str) else column(run)


def across_table(title: str, cells: Mapping[str, Runs], **where: Unpack[Where]) -> Table:
    """The laws of several groups of runs, each over its seeds and images."""
    return laws_table(title, {name: runs.laws(**where) for name, runs in cells.items()})


def laws_table(title: str, cells: Mapping[str, Sequence[LawFit]], what: str = "D") -> Table:
    """The laws of several groups of networks: means and 95 % intervals, and the steps."""
    lines: list[tuple[Cell, ...]] = []
    for name, laws in cells.items():
        if laws:
            a = laws_across(laws)
            rho = interval_words(a.rho, 5 if what == RESIDUAL else 3)  # of a residual 1 − ρ is a few thousandths
            numbers = [rho, *(None if found is None else interval_words(found) for found in (a.evenness, a.trend))]
            shown = {True: "yes", False: "not shown", None: "–"}[a.equal_steps]
            low, high = (f(step.mean for step in a.steps) if a.steps else None for f in (min, max))
            lines.append((name, f"{a.holds} of {a.networks}", *numbers, low, high, shown))
    columns = (
        "networks",
        "law holds in",
        "ρ",
        "evenness",
        "trend",
        "smallest step",
        "largest step",
        "all within factor 2",
    )
    note = f"Means with 95 % intervals; steps of log {what} as means, in units of the even one."
    return Table(title, columns, lines, note)


RATE_AND_SEED: dict[str, Column] = {"lr": lambda run: run.recipe.learning_rate, "seed": lambda run: run.recipe.seed}
LAST_LOSS: dict[str, Column] = {LOSS: lambda run: run.losses[-1]}
_GRID: dict[str, Column] = {
    "holds": "holds", "r": "pearson", "ρ": "rho", "evenness": "evenness", "trend": "trend", "p": "greenwood-p",
    "holds eval": "holds-eval", "r eval": "pearson-eval", "ρ eval": "rho-eval", "evenness eval": "evenness-eval",
    **LAST_LOSS, "test acc.": "test-accuracy",
}  # fmt: skip
_ENDS: dict[str, Column] = {
    "r": "pearson", "D": "final-D", "D permuted": "final-D-permuted", "D / permuted": "final-D-over-permuted",
    "D eval": "final-D-eval", "train acc.": "train-accuracy", "test acc.": "test-accuracy",
}  # fmt: skip


def grid_table(title: str, runs: Sequence[Run], *, label: str = "network", names: Sequence[str] | None = None) -> Table:
    """Every run of a grid: both BatchNorm modes, shares, losses, accuracies."""
    return run_table(title, runs, _about(label, runs, names), _GRID, LOSS_NOTE)


def ends_table(title: str, runs: Sequence[Run], *, label: str = "network", names: Sequence[str] | None = None) -> Table:
    """Every run of a grid by what comes out at its end: D after the last hidden layer beside its floor, accuracies.

    The floor is D with permuted labels: what wide layers reach by noise alone. Accuracies are those in eval mode.
    """
    return run_table(title, runs, _about(label, runs, names), _ENDS)


def _about(label: str, runs: Sequence[Run], names: Sequence[str] | None) -> dict[str, Column]:
    given = names or [f"{run.recipe.optimizer}, {run.recipe.network}" for run in runs]
    known = {id(run): name for run, name in zip(runs, given, strict=True)}
    return {label: lambda run: known[id(run)], **RATE_AND_SEED}
