"""Figure S1: D of the last hidden layer over training, in the 20-layer network of Fig. 2: the law comes before collapse.

    layerlaw reproduce s1            6 networks at 3 seeds: the paper's recipe, and a constant learning rate
    layerlaw reproduce s1 --quick    two networks, 24 epochs instead of 600 (reported as the paper's: 100 stands for epoch 4)

Half a minute on a GPU. Agreement, in the authors' BatchNorm mode: D = 1.8 ± 0.6 at epoch 100 and 0.8 ± 0.3 at epoch 600
(both read off the talk's plot: "about"); D stays within 5 % of its final value only after epoch 400; the law (r ≤ −0.99
from then on) is there before that. The learning rate drops at epochs 200 and 400, which alone can move the time of
convergence, so the same networks are trained with a constant rate too (ours). Epochs are as fine as the measurements: 10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layerlaw.experiments.drawing import Column, caption, epoch_series, run_table
from layerlaw.experiments.moments import (
    NEVER,
    emergence,
    in_paper_epochs,
    measured_epochs,
    scaled,
    settling,
    shortened,
    since,
)
from layerlaw.experiments.numbers import Claim, minus, number, row, trouble, within
from layerlaw.experiments.separation.fig2 import DEPTH, RATE
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Sheet

TITLE = "The law emerges before neural collapse"
PROBES = (0, 10, 20, 30, 50, 70, *range(100, 601, 10))
QUICK_PROBES = range(0, 601, 100)
CONVERGED = 0.05  # share of the final value
START, LATE, LAST = 100, 400, 600  # the paper's epochs
LEVELS = {START: within(1.8, 0.6), LATE: Claim(), LAST: within(0.8, 0.3)}  # of D


def run(setting: Setting) -> Outcome:
    """Train with falling and with constant learning rate, report what came out."""
    total = setting.epochs(quick=24)
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    recipes = base.grid(drops=(base.drops, ()), seed=setting.seeds())
    schedule = Schedule(scaled(QUICK_PROBES if setting.quick else PROBES, total))
    runs = setting.train("last-layer", recipes, data, schedule)
    paper = [r for r in runs if r.recipe.drops]
    constant = [r for r in runs if not r.recipe.drops]
    return Outcome(
        "s1",
        TITLE,
        [*_level_rows(paper, total), *_moment_rows(paper, total), *_constant_rows(constant, total)],
        _sheets(paper, constant, total),
        [_table(runs)],
        [*shortened(total), *_notes(paper, constant)],
    )


def last_layer(run: Run, epoch: int) -> float | None:
    """D after the last hidden layer."""
    return number(run, "last-D", epoch=epoch)


def convergence(run: Run, *, share: float = CONVERGED, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on D of the last hidden layer stays within a share of its final value."""
    epochs, name = measured_epochs(run, batchnorm=batchnorm), "last-D" if batchnorm == "batch" else "last-D-eval"
    return settling(epochs, [number(run, name, epoch=epoch) for epoch in epochs], share)


def collapse(run: Run) -> int | None:
    """The epoch from which on every training sample is nearest to its own class mean in the last hidden layer (NC4)."""
    epochs = measured_epochs(run)
    return since(epochs, [run.measurement(epoch=epoch).nearest[-1] == 1.0 for epoch in epochs])


def _level_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """D at the paper's epochs."""
    why = trouble(runs)
    found = []
    for mark, claim in LEVELS.items():
        (epoch,) = scaled((mark,), total)
        found.append(row(f"last-D/epoch-{mark}", [last_layer(r, epoch) for r in runs], claim, reason=why))
        evals = [number(r, "last-D-eval", epoch=epoch) for r in runs]
        found.append(row(f"last-D/epoch-{mark}-eval", evals, reason=why))
    return found


def _moment_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """When D has converged, and whether the law was there before."""

    def epochs(moment: Callable[..., int | None], **mode: Any) -> list[int | None]:
        return [in_paper_epochs(moment(r, **mode), total) for r in runs]

    why = trouble(runs)
    ours, still = epochs(convergence), epochs(convergence, batchnorm="running")
    law, there = epochs(emergence), epochs(emergence, batchnorm="running")
    lead, lead_eval = ([minus(a, b) for a, b in zip(*pair, strict=True)] for pair in ((ours, law), (still, there)))
    late = Claim(f"after {LATE}", lambda mean: mean > LATE, f"> {LATE}; within 5 % of the final D from then on")
    first = Claim("the law is first", lambda mean: None not in lead and mean > 0, "> 0, a law in every seed")
    return [
        row("convergence-epoch", ours, late, reason=why),
        row("convergence-epoch-eval", still, reason=why),
        row("emergence-epoch", law, reason=NEVER),
        row("emergence-epoch-eval", there, reason=NEVER),
        row("convergence-minus-emergence", lead, first, reason=NEVER),
        row("convergence-minus-emergence-eval", lead_eval, reason=NEVER),
        row("nearest-mean-epoch", epochs(collapse), reason="a sample is nearest to another mean at the end"),
    ]


def _constant_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """The same without drops of the learning rate."""
    settled, law = ([in_paper_epochs(moment(r), total) for r in runs] for moment in (convergence, emergence))
    why = trouble(runs)
    return [
        row(f"constant-rate/last-D-epoch-{LAST}", [last_layer(r, total) for r in runs], reason=why),
        row("constant-rate/convergence-epoch", settled, reason=why),
        row("constant-rate/emergence-epoch", law, reason=NEVER),
    ]


def _sheets(paper: Sequence[Run], constant: Sequence[Run], total: int) -> list[Sheet]:
    epochs = measured_epochs(paper[0])
    later = [epoch for epoch in epochs if epoch >= scaled((START,), total)[0]]

    def bend(r: Run, epoch: int) -> float | None:
        pearson = number(r, "pearson", epoch=epoch)
        return None if pearson is None else 1 + pearson

    curves = [
        epoch_series("train mode", paper, later, last_layer, total=total),
        epoch_series("eval mode", paper, later, lambda r, e: number(r, "last-D-eval", epoch=e), total=total),
    ]
    both = (("falling learning rate", paper), ("constant learning rate", constant))
    course = [epoch_series(name, runs, epochs, bend, total=total) for name, runs in both]
    whole = [epoch_series(name, runs, epochs, last_layer, total=total) for name, runs in both]
    how: dict[str, Any] = {"xlabel": "epoch", "marked": LATE}
    first = Panel("", tuple(curves), log_y=False, **how)
    words = caption([first], f"From epoch {START} on, as in the paper. Marked: the rate drops for the last time.")
    panels = [
        Panel("D of the last hidden layer", tuple(whole), **how),
        Panel("1 + r of the law (0: a straight line)", tuple(course), ylabel="1 + r", **how),
    ]
    return [
        Sheet("D of the last hidden layer", [first], 1, words),
        Sheet("With a constant learning rate, and the law beside it", panels, 2, "The whole training. Train mode."),
    ]


def _table(runs: Sequence[Run]) -> Table:
    """Every network, with other shares of the final value."""

    def of(moment: Callable[..., int | None], **how: Any) -> Column:
        return lambda r: in_paper_epochs(moment(r, **how), r.recipe.epochs)

    about: dict[str, Column] = {
        "learning rate": lambda r: "falling" if r.recipe.drops else "constant",
        "seed": lambda r: r.recipe.seed,
    }
    columns = {f"within {share:.0%}": of(convergence, share=share) for share in (0.02, 0.05, 0.1, 0.2)}
    columns |= {"within 5% eval": of(convergence, batchnorm="running")}
    columns |= {"emergence": of(emergence), "nearest mean": of(collapse)}
    note = "Epochs from which on the last layer's D stays within a share of its final value; train mode where not said."
    return run_table("When D of the last hidden layer has converged", runs, about, columns, note)


def _notes(paper: Sequence[Run], constant: Sequence[Run]) -> list[str]:
    notes = []
    for name, runs in (("falling", paper), ("constant", constant)):
        pairs = [(convergence(r), emergence(r)) for r in runs if r.diverged is None]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        first = sum(b < a for a, b in known)
        notes.append(
            f"With a {name} learning rate the law has emerged in {len(known)} of {len(runs)} seeds, and in {first} of them "
            "before D of the last layer has converged (within 5 %)."
        )
    drops = sorted({round(share * LAST) for r in paper for share in r.recipe.drops})
    ends = [in_paper_epochs(convergence(r), r.recipe.epochs) for r in constant if r.diverged is None]
    late = sum(epoch is not None and epoch > drops[-1] for epoch in ends)
    return [
        *notes,
        f"The learning rate drops at epochs {drops[0]} and {drops[-1]}; without the drops D still moves by more than 5 % "
        f"after epoch {drops[-1]} in {late} of {len(ends)} seeds.",
    ]
