"""Figure S1: D of the last hidden layer over training, in the 20-layer network of Fig. 2: the law comes before collapse.

    layerlaw reproduce s1            6 networks at 3 seeds: the paper's recipe, and a constant learning rate
    layerlaw reproduce s1 --quick    two networks, 24 epochs instead of 600 (told as the paper's: 100 stands for epoch 4)

Half a minute on a GPU. Agreement, in the authors' BatchNorm mode: D = 1.8 ± 0.6 at epoch 100 and 0.8 ± 0.3 at epoch 600
(both read off the talk's plot: "about"); D stays within 5 % of its final value only after epoch 400; the law (r ≤ −0.99
from then on) is there before that. The learning rate drops at epochs 200 and 400, which alone can move the time of
convergence, so the same networks are trained with a constant rate too (ours). Epochs are told as fine as the probes: 10.
"""

from __future__ import annotations

from collections.abc import Sequence

from layerlaw.experiments.drawing import caption, epoch_series
from layerlaw.experiments.fig2 import DEPTH, RATE
from layerlaw.experiments.images import samples
from layerlaw.experiments.moments import emergence, probed, scaled, settling, shortened, since, told
from layerlaw.experiments.numbers import law_of, minus, row, trouble, within
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Sheet

TITLE = "The law emerges before neural collapse"
PROBES = (0, 10, 20, 30, 50, 70, *range(100, 601, 10))
QUICK_PROBES = range(0, 601, 100)
CONVERGED = 0.05  # share of the final value
MARKS = (100, 400, 600)  # the paper's epochs
START, LATE, LAST = MARKS


def run(setting: Setting) -> Outcome:
    """Train with falling and with constant learning rate, tell what came out."""
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


def last_layer(run: Run, epoch: int, batchnorm: BatchNormMode = "batch") -> float | None:
    """D after the last hidden layer."""
    return None if run.diverged is not None else run.measurement(epoch=epoch, batchnorm=batchnorm).separation[-1]


def convergence(run: Run, *, share: float = CONVERGED, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on D of the last hidden layer stays within a share of its final value."""
    epochs = probed(run, batchnorm=batchnorm)
    return settling(epochs, [last_layer(run, epoch, batchnorm) for epoch in epochs], share)


def collapse(run: Run, *, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on every training sample is nearest to its own class mean in the last hidden layer (NC4)."""
    epochs = probed(run, batchnorm=batchnorm)
    return since(epochs, [run.measurement(epoch=epoch, batchnorm=batchnorm).nearest[-1] == 1.0 for epoch in epochs])


def _level_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """D at the paper's epochs."""
    why = trouble(runs)
    targets = dict(zip(MARKS, ((1.8, 0.6), None, (0.8, 0.3)), strict=True))
    rows = []
    for mark, target in targets.items():
        (epoch,) = scaled((mark,), total)
        values = [last_layer(r, epoch) for r in runs]
        if target is None:
            rows.append(row(f"last-D/epoch-{mark}", values, reason=why))
        else:
            holds, told = within(*target)
            rows.append(row(f"last-D/epoch-{mark}", values, paper=target[0], holds=holds, tolerance=told, reason=why))
        rows.append(row(f"last-D/epoch-{mark}-eval", [last_layer(r, epoch, "running") for r in runs], reason=why))
    return rows


def _moment_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """When D has converged, and whether the law was there before."""
    why = trouble(runs)
    ours, law = [told(convergence(r), total) for r in runs], [told(emergence(r), total) for r in runs]
    still, there = ([told(f(r, batchnorm="running"), total) for r in runs] for f in (convergence, emergence))
    lead = [minus(a, b) for a, b in zip(ours, law, strict=True)]
    evals = [minus(a, b) for a, b in zip(still, there, strict=True)]
    never = "r does not stay at −0.99 or below until the end"

    def before(mean: float) -> bool:
        return None not in lead and mean > 0

    return [
        row(
            "convergence-epoch",
            ours,
            paper=f"after {LATE}",
            holds=lambda mean: mean > LATE,
            tolerance=f"> {LATE}; within 5 % of the final D from then on",
            reason=why,
        ),
        row("convergence-epoch-eval", still, reason=why),
        row("emergence-epoch", law, reason=never),
        row("emergence-epoch-eval", there, reason=never),
        row(
            "convergence-minus-emergence",
            lead,
            paper="the law is first",
            holds=before,
            tolerance="> 0, a law in every seed",
            reason=never,
        ),
        row("convergence-minus-emergence-eval", evals, reason=never),
        row(
            "nearest-mean-epoch",
            [told(collapse(r), total) for r in runs],
            reason="a sample is nearest to another mean at the end",
        ),
    ]


def _constant_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """The same without drops of the learning rate."""
    why = trouble(runs)
    never = "r does not stay at −0.99 or below until the end"
    return [
        row(f"constant-rate/last-D-epoch-{LAST}", [last_layer(r, total) for r in runs], reason=why),
        row("constant-rate/convergence-epoch", [told(convergence(r), total) for r in runs], reason=why),
        row("constant-rate/emergence-epoch", [told(emergence(r), total) for r in runs], reason=never),
    ]


def _sheets(paper: Sequence[Run], constant: Sequence[Run], total: int) -> list[Sheet]:
    epochs = probed(paper[0])
    later = [epoch for epoch in epochs if epoch >= scaled((START,), total)[0]]

    def bend(r: Run, epoch: int) -> float | None:
        law = law_of(r, epoch=epoch)
        return None if law is None or law.pearson is None else 1 + law.pearson

    curves = [
        epoch_series("train mode", paper, later, last_layer, total=total),
        epoch_series("eval mode", paper, later, lambda r, e: last_layer(r, e, "running"), total=total),
    ]
    both = (("falling learning rate", paper), ("constant learning rate", constant))
    course = [epoch_series(name, runs, epochs, bend, total=total) for name, runs in both]
    whole = [epoch_series(name, runs, epochs, last_layer, total=total) for name, runs in both]
    how = {"xlabel": "epoch", "marked": LATE}
    first = Panel("", tuple(curves), log_y=False, **how)  # type: ignore[arg-type]
    words = caption([first], f"From epoch {START} on, as in the paper. Marked: the rate drops for the last time.")
    return [
        Sheet("D of the last hidden layer", [first], 1, words),
        Sheet(
            "With a constant learning rate, and the law beside it",
            [
                Panel("D of the last hidden layer", tuple(whole), **how),  # type: ignore[arg-type]
                Panel("1 + r of the law (0: a straight line)", tuple(course), ylabel="1 + r", **how),  # type: ignore[arg-type]
            ],
            2,
            "The whole training. Train mode.",
        ),
    ]


def _table(runs: Sequence[Run]) -> Table:
    """Every network, with other shares of the final value."""
    shares = (0.02, 0.05, 0.1, 0.2)
    columns = (
        "learning rate",
        "seed",
        *(f"within {s:.0%}" for s in shares),
        "within 5% eval",
        "emergence",
        "nearest mean",
    )
    rows: list[tuple[str | float | None, ...]] = []
    for r in runs:
        name = "falling" if r.recipe.drops else "constant"
        if r.diverged is not None:
            rows.append((name, r.recipe.seed, f"diverged in epoch {r.diverged}", *(None,) * 6))
            continue
        found = [convergence(r, share=s) for s in shares]
        found += [convergence(r, batchnorm="running"), emergence(r), collapse(r)]
        rows.append((name, r.recipe.seed, *(told(epoch, r.recipe.epochs) for epoch in found)))
    note = "Epochs from which on the last layer's D stays within a share of its final value; train mode where not said."
    return Table("When D of the last hidden layer has converged", columns, tuple(rows), note)


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
    ends = [told(convergence(r), r.recipe.epochs) for r in constant if r.diverged is None]
    late = sum(epoch is not None and epoch > drops[-1] for epoch in ends)
    return [
        *notes,
        f"The learning rate drops at epochs {drops[0]} and {drops[-1]}; without the drops D still moves by more than 5 % "
        f"after epoch {drops[-1]} in {late} of {len(ends)} seeds.",
    ]
