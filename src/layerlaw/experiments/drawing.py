"""From runs to panels: D along depth with its line, over seeds, with the rest of the grid behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from layerlaw.experiments.moments import FULL
from layerlaw.experiments.numbers import final_separation, law_of, over
from layerlaw.lab import Run
from layerlaw.lab.schedule import BatchNormMode, SplitName
from layerlaw.law import LawFit, fit_law
from layerlaw.outcome import Table
from layerlaw.sheet import Panel, Series, Style
from layerlaw.wording import p_value

LOSS = "last epoch's loss"
LOSS_NOTE = (
    "Last epoch's loss: the running mean during the last epoch of training. Rows called training-loss are measured after "
    "training, in eval mode."
)


def law_panel(
    title: str,
    runs: Sequence[Run],
    *,
    faint: Sequence[Run] = (),
    epoch: int | None = None,
    batchnorm: BatchNormMode = "batch",
    split: SplitName = "train",
    floor: bool = False,
    note: str | None = None,
) -> Panel:
    """D against the layer: the geometric mean over seeds with its range, the fitted line, other runs faintly behind.

    `floor` adds the level that shuffled labels give.
    """
    curves = [law.values for run in runs if (law := law_of(run, epoch=epoch, batchnorm=batchnorm, split=split))]
    shown = {id(run) for run in runs} if curves else set()
    others = [run for run in (*faint, *(() if curves else runs)) if run.diverged is None and id(run) not in shown]
    behind = [
        run.measurement(epoch=epoch, batchnorm=batchnorm, split=split).separation for run in others
    ]  # with holes where undefined
    series = [Series(tuple(range(len(values))), values, style="faint") for values in behind]
    if curves:
        mean = curve_mean(curves)
        fit = fit_law(mean)
        x = tuple(range(len(mean)))
        series.append(Series(x, fit.line, style="fit", label="line"))
        series.append(Series(x, mean, "D", *_ends(curves)))
    if floor and curves:
        levels = [law_of(run, epoch=epoch, batchnorm=batchnorm, split="permuted") for run in runs]
        known = [level.values for level in levels if level is not None]
        series += [Series(x, curve_mean(known), style="null", label="permuted labels")] if known else []
    return Panel(
        title,
        tuple(series),
        note=law_note(runs, epoch=epoch, batchnorm=batchnorm, split=split) if note is None else note,
    )


def curve_mean(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Geometric mean of curves, layer by layer.

    >>> curve_mean([(1.0, 4.0), (4.0, 4.0)])
    (2.0, 4.0)
    """
    return tuple(math.exp(fmean(map(math.log, values))) for values in zip(*curves, strict=True))


def _ends(curves: Sequence[Sequence[float]]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The range over seeds, layer by layer; none for one seed."""
    columns = list(zip(*curves, strict=True))
    return (tuple(map(min, columns)), tuple(map(max, columns))) if len(curves) > 1 else (None, None)


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


def law_note(
    runs: Sequence[Run], *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: SplitName = "train"
) -> str:
    """What stands inside a panel: means over the seeds."""
    laws = [law for run in runs if (law := law_of(run, epoch=epoch, batchnorm=batchnorm, split=split))]
    if not laws:
        ends = sorted({run.diverged for run in runs if run.diverged is not None})
        return f"diverged in epoch {', '.join(map(str, ends))}" if ends else "no law can be fitted"
    r = fmean(law.pearson or 0.0 for law in laws)
    rho = fmean(law.rho for law in laws)
    first = f"r = {r:.3f}, ρ = {rho:.3f}".replace("-", "−")
    effective = [law.effective_layers for law in laws if law.effective_layers is not None]
    if len(effective) < len(laws):
        return first
    lost = {
        place
        for run in runs
        if run.diverged is None
        for place in run.lost_rank(epoch=epoch, batchnorm=batchnorm, split=split)
    }
    if lost:  # D then falls without anything being separated better
        return f"{first}\nclass means lose rank at {len(lost)} layer{'s' * (len(lost) > 1)}"
    p = fmean(law.greenwood_p or 0.0 for law in laws)
    return f"{first}\n{fmean(effective):.1f} of {laws[0].layers} layers, {p_words(p)}"


def p_words(p: float) -> str:
    """A probability in a sentence, as tables write it.

    >>> p_words(0.00026), p_words(3e-9)
    ('p = 0.00026', 'p < 0.0001')
    """
    return f"p = {p_value(p)}".replace("= <", "<")


def grid_table(title: str, runs: Sequence[Run], *, label: str = "network", names: Sequence[str] | None = None) -> Table:
    """Every run of a grid: both BatchNorm modes, shares, losses, accuracies."""
    columns = (
        label,
        "lr",
        "seed",
        "r",
        "ρ",
        "effective layers",
        "p",
        "r eval",
        "ρ eval",
        "p eval",
        LOSS,
        "test acc.",
    )
    rows: list[tuple[str | float | int | None, ...]] = []
    for i, run in enumerate(runs):
        recipe = run.recipe
        name = names[i] if names else f"{recipe.optimizer}, {recipe.network}"
        if run.diverged is not None:
            rows.append((name, recipe.learning_rate, recipe.seed, f"diverged in epoch {run.diverged}", *(None,) * 8))
            continue
        fits = [law_of(run, batchnorm=batchnorm) for batchnorm in ("batch", "running")]
        rows.append((name, recipe.learning_rate, recipe.seed, *_cells(fits[0]), *_eval_cells(fits[1]), *_end(run)))
    return Table(title, columns, tuple(rows), LOSS_NOTE)


def _cells(law: LawFit | None) -> tuple[float | None, ...]:
    return (None,) * 4 if law is None else (law.pearson, law.rho, law.effective_layers, law.greenwood_p)


def _eval_cells(law: LawFit | None) -> tuple[float | None, ...]:
    return (None,) * 3 if law is None else (law.pearson, law.rho, law.greenwood_p)


def _end(run: Run) -> tuple[float | None, float | None]:
    tests = [r for r in run.measurements if r.split == "test" and r.batchnorm == "running" and r.epoch == run.epoch]
    return run.losses[-1], tests[0].accuracy if tests else None


def epoch_series(
    label: str,
    runs: Sequence[Run],
    epochs: Sequence[int],
    value: Callable[[Run, int], float | None],
    *,
    style: Style = "line",
    color: int | None = None,
    total: int = FULL,
) -> Series:
    """A number over the epochs of training: mean and range over the runs that have it.

    Epochs of a shortened training (`total`) are drawn as the paper's.
    """
    columns = [[v for run in runs if run.diverged is None and (v := value(run, epoch)) is not None] for epoch in epochs]
    mean, low, high = (tuple(f(column) if column else None for column in columns) for f in (fmean, min, max))
    alone = len(runs) < 2
    x = tuple(round(epoch * FULL / total) for epoch in epochs)
    return Series(x, mean, label, None if alone else low, None if alone else high, style, color)


def curves_panel(
    title: str,
    groups: Mapping[str, Sequence[Run]],
    *,
    batchnorm: BatchNormMode = "batch",
    note: str = "",
) -> Panel:
    """D against the layer for several groups of runs: the geometric mean over seeds of each, with its range."""
    series = []
    for label, runs in groups.items():
        curves = [law.values for run in runs if (law := law_of(run, batchnorm=batchnorm))]
        if curves:
            series.append(Series(tuple(range(len(curves[0]))), curve_mean(curves), label, *_ends(curves)))
    return Panel(title, tuple(series), note=note)


def ends_table(title: str, runs: Sequence[Run], *, label: str = "network", names: Sequence[str] | None = None) -> Table:
    """Every run of a grid by what comes out at its end: D after the last hidden layer beside its floor, accuracies.

    The floor is D with permuted labels: what wide layers reach by noise alone. Accuracies are those in eval mode.
    """
    columns = (label, "lr", "seed", "r", "D", "D permuted", "D / permuted", "D eval", "train acc.", "test acc.")
    rows: list[tuple[str | float | int | None, ...]] = []
    for i, run in enumerate(runs):
        recipe, law = run.recipe, law_of(run)
        name = names[i] if names else f"{recipe.optimizer}, {recipe.network}"
        if run.diverged is not None:
            rows.append((name, recipe.learning_rate, recipe.seed, f"diverged in epoch {run.diverged}", *(None,) * 6))
            continue
        D, floor = final_separation(run), final_separation(run, split="permuted")
        accuracy = run.measurement(batchnorm="running").accuracy
        cells = (
            law.pearson if law else None,
            D,
            floor,
            over(D, floor),
            final_separation(run, batchnorm="running"),
            accuracy,
        )
        rows.append((name, recipe.learning_rate, recipe.seed, *cells, _end(run)[1]))
    return Table(title, columns, tuple(rows))
