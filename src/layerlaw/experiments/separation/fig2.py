"""Figure 2: how the law emerges during training, in a 20-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce fig2            18 networks at 3 seeds: five learning rates, and random labels; a minute on a GPU
    layerlaw reproduce fig2 --quick    two networks, 24 epochs instead of 600, the probed epochs shortened alike
                                       (they are reported as the paper's: epoch 100 of 600 stands for epoch 4 of 24)

The authors' rate of Fig. 1 (3e-4), in their BatchNorm mode. Agreement: r at epoch 100 at most −0.986 (paper −0.996, up to
0.01); r at the last epoch at most −0.99 and lower than at 100; ρ at the last epoch below that at 100; ρ ≥ 1 at epoch 0 (D
rises with depth); the law (r ≤ −0.99 from then on) emerges between epochs 50 and 150 (paper: 100). Controls that the paper
lacks: fresh running statistics are 0 and 1, no normalization at all, so epoch 0 is measured with the statistics of all
samples as well ("whole"); and the same recipe on shuffled labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from layerlaw.experiments.drawing import (
    EVAL_LONG_TITLE,
    LAST_LOSS,
    RATE_AND_SEED,
    Column,
    caption,
    epoch_series,
    law_panel,
    run_table,
)
from layerlaw.experiments.moments import (
    NEVER,
    emergence,
    in_paper_epochs,
    interpolation,
    marks,
    measured_epochs,
    scaled,
    shortened,
)
from layerlaw.experiments.numbers import (
    LAW,
    Claim,
    at_least,
    at_most,
    below,
    grouped,
    mean_of,
    minus,
    number,
    row,
    rows,
    trouble,
)
from layerlaw.experiments.separation.fig1 import RATES, SHOWN
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import STRAIGHT
from layerlaw.outcome import Cell, Outcome, Row, Table
from layerlaw.sheet import Panel, Sheet

TITLE = "The law emerges during training"
DEPTH = 20
EARLY, LAST = 100, 600  # the paper's epochs at which the law is judged
SHUFFLED = (100, 200, 600)
EPOCHS = (0, 10, 20, 30, 50, 100, 200, 300, 600)  # the paper's panels
BETWEEN = (*range(0, 151, 10), *range(160, 201, 20), *range(250, 600, 50))  # to see when the law emerges
RATE = SHOWN["adam", DEPTH][0]
START: dict[BatchNormMode, str] = {
    "batch": "batches of 100 (the authors' mode)",
    "running": "fresh running statistics: none",
    "whole": "statistics of all samples",
}
STATISTICS = "BatchNorm as the authors had it (batches of 100)."
UNNORMALIZED = (
    "With nothing normalized (middle) class means of deep layers can coincide up to rounding: directions then leave D, "
    "which lowers it; where all have, D is not defined."
)


def run(setting: Setting) -> Outcome:
    """Train with real and with shuffled labels, report what came out."""
    total = setting.epochs(quick=24)
    real = samples(setting, "fashion_mnist")
    data = {"fashion_mnist": real, "random labels": real.with_random_labels()}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    rates = (RATE,) if setting.quick else RATES["adam"]
    recipes = base.grid(learning_rate=rates, seed=setting.seeds())
    recipes += base.grid(data=("random labels",), seed=setting.seeds())
    schedule = Schedule(scaled(EPOCHS if setting.quick else (*EPOCHS, *BETWEEN), total), batchnorm=tuple(START))
    runs = grouped(setting.train("epochs", recipes, data, schedule), lambda r: r.recipe.data)
    grid, null = runs["fashion_mnist"], runs["random labels"]
    shown = [r for r in grid if r.recipe.learning_rate == RATE]
    at = marks(EPOCHS, total)
    return Outcome(
        "fig2",
        TITLE,
        [*_start_rows(shown), *_law_rows(shown, total), *_moment_rows(shown, total), *_null_rows(null)],
        _sheets(shown, null, total),
        [_epoch_table("Every probed epoch", shown, null), _rate_table(grid, total)],
        [*shortened(total), *_notes(shown, null, at)],
    )


def _start_rows(runs: Sequence[Run]) -> list[Row]:
    """Before training."""
    names = [f"{what}{mode}" for what in ("rho", "pearson") for mode in ("", "-eval", "-full")]
    return rows("epoch-0", runs, names, {"rho": at_least(1.0, "no law; D may rise")}, epoch=0)


def _law_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """At the paper's epoch 100 and at the end, and whether ρ goes on falling in between."""
    (early,) = scaled((EARLY,), total)
    first, *others = rows(f"epoch-{EARLY}", runs, LAW, {"pearson": at_most(-0.986, -0.996)}, epoch=early)
    before = first.ours
    clearer = Claim(
        "clearer",
        lambda r: before is not None and r <= STRAIGHT and r < before,
        f"≤ −0.99 and lower than at epoch {EARLY}",
    )
    found = [first, *others, *rows(f"epoch-{LAST}", runs, LAW, {"pearson": clearer})]
    for what, claim in {"rho": below(0, "falls"), "rho-eval": Claim()}.items():
        change = [minus(number(r, what, epoch=total), number(r, what, epoch=early)) for r in runs]
        name = what.replace("rho", f"rho-at-{LAST}-minus-{EARLY}")
        found.append(row(name, change, claim, reason=trouble(runs)))
    return found


def _moment_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """When the law emerges, and when all training samples are classified correctly."""
    low, high = 50, 150
    modes: tuple[tuple[str, BatchNormMode], ...] = (("", "batch"), ("-eval", "running"))
    found = {end: [in_paper_epochs(emergence(r, batchnorm=mode), total) for r in runs] for end, mode in modes}
    right = {end: [in_paper_epochs(interpolation(r, batchnorm=mode), total) for r in runs] for end, mode in modes}
    seen = Claim(EARLY, lambda mean: None not in found[""] and low <= mean <= high, f"{low} to {high}, in every seed")
    wrong = "some training sample is wrong at every probe"
    return [
        row("emergence-epoch", found[""], seen, reason=NEVER),
        row("emergence-epoch-eval", found["-eval"], reason=NEVER),
        *(row(f"interpolation-epoch{end}", values, reason=wrong) for end, values in right.items()),
    ]


def _null_rows(null: Sequence[Run]) -> list[Row]:
    """The same recipe on shuffled labels, at the last epoch."""
    moments = [in_paper_epochs(emergence(r), r.recipe.epochs) for r in null]
    return [
        *rows("random-labels", null, LAW),
        row("random-labels/train-accuracy", [_accuracy(r) for r in null], reason=trouble(null)),
        row("random-labels/emergence-epoch", moments, reason=NEVER),
    ]


def _accuracy(run: Run, epoch: int | None = None, batchnorm: BatchNormMode = "batch") -> float | None:
    return None if run.diverged is not None else run.measurement(epoch=epoch, batchnorm=batchnorm).accuracy


def _sheets(shown: Sequence[Run], null: Sequence[Run], total: int) -> list[Sheet]:
    def epochs(
        title: str, runs: Sequence[Run], at: Sequence[int], *words: str, batchnorm: BatchNormMode = "batch"
    ) -> Sheet:
        ours = marks(at, total).items()
        panels = [law_panel(f"epoch {paper}", runs, epoch=epoch, batchnorm=batchnorm) for paper, epoch in ours]
        return Sheet(title, panels, caption=caption(panels, *words) if words else "")

    starts = [law_panel(f"epoch 0, {words}", shown, epoch=0, batchnorm=mode) for mode, words in START.items()]
    return [
        epochs("D over the epochs", shown, EPOCHS, STATISTICS),
        epochs(EVAL_LONG_TITLE, shown, EPOCHS, batchnorm="running"),
        Sheet("From epoch to epoch", _courses(shown, null)),
        Sheet("Before training, by how BatchNorm normalizes", starts, caption=UNNORMALIZED),
        epochs("The same recipe on shuffled labels", null, SHUFFLED),
    ]


def _courses(shown: Sequence[Run], null: Sequence[Run]) -> list[Panel]:
    """1 + r, ρ and training accuracy against the epoch."""
    epochs, total = measured_epochs(shown[0]), shown[0].recipe.epochs
    curves = (("train mode", shown, ""), ("eval mode", shown, "-eval"), ("shuffled labels", null, ""))

    def panel(title: str, ylabel: str, value: Callable[[Run, int, str], float | None], *, log: bool = False) -> Panel:
        def of(end: str) -> Callable[[Run, int], float | None]:
            return lambda r, epoch: value(r, epoch, end)

        series = [epoch_series(name, runs, epochs, of(end), total=total) for name, runs, end in curves]
        return Panel(title, tuple(series), xlabel="epoch", ylabel=ylabel, log_y=log)

    def bend(r: Run, epoch: int, end: str) -> float | None:
        pearson = number(r, f"pearson{end}", epoch=epoch)
        return None if pearson is None else 1 + pearson

    return [
        panel("1 + r (0: a straight line)", "1 + r", bend, log=True),
        panel("factor per layer", "ρ", lambda r, epoch, end: number(r, f"rho{end}", epoch=epoch)),
        panel(
            "training accuracy",
            "share",
            lambda r, epoch, end: _accuracy(r, epoch, "running" if end else "batch"),
        ),
    ]


def _epoch_table(title: str, shown: Sequence[Run], null: Sequence[Run]) -> Table:
    """Means over the seeds."""
    columns = {
        "r": "pearson", "ρ": "rho", "effective layers": "effective-layers", "p": "greenwood-p",
        "r eval": "pearson-eval", "ρ eval": "rho-eval", "r full": "pearson-full",
    }  # fmt: skip
    lines: list[tuple[Cell, ...]] = []
    for epoch in measured_epochs(shown[0]):
        numbers = [mean_of(number(r, name, epoch=epoch) for r in shown) for name in columns.values()]
        shuffled = mean_of(number(r, "pearson", epoch=epoch) for r in null)
        when = in_paper_epochs(epoch, shown[0].recipe.epochs)
        lines.append((when, *numbers, mean_of(_accuracy(r, epoch) for r in shown), shuffled))
    note = "Means over seeds. r, ρ, effective layers and p in train mode; shares exist only where D falls as a whole."
    return Table(title, ("epoch", *columns, "accuracy", "r, shuffled labels"), tuple(lines), note)


def _rate_table(runs: Sequence[Run], total: int) -> Table:
    """Every learning rate and seed."""

    def at(what: str, epoch: int) -> Column:
        return lambda r: number(r, what, epoch=scaled((epoch,), total)[0])

    columns: dict[str, Column] = {
        f"{head} at {epoch}": at(what, epoch)
        for epoch in (EARLY, LAST)
        for head, what in (("r", "pearson"), ("ρ", "rho"))
    }
    columns |= {
        f"r at {LAST} eval": "pearson-eval",
        "emergence": lambda r: in_paper_epochs(emergence(r), total),
        "interpolation": lambda r: in_paper_epochs(interpolation(r, batchnorm="batch"), total),
        **LAST_LOSS,
    }
    note = "Emergence: r ≤ −0.99 from then on (train mode). Interpolation: every training sample right (train mode)."
    return run_table("Learning rates", runs, RATE_AND_SEED, columns, note)


def _notes(shown: Sequence[Run], null: Sequence[Run], at: dict[int, int]) -> list[str]:
    notes = []
    rho = {paper: mean_of(number(r, "rho", epoch=e) for r in shown) for paper, e in at.items() if paper >= EARLY}
    known = [(e, v) for e, v in rho.items() if v is not None]
    steps = list(pairwise(known))
    rising = [f"{a[0]} to {b[0]}" for a, b in steps if b[1] >= a[1]]
    if steps:
        values = ", ".join(f"{v:.3f} at epoch {e}" for e, v in known)
        verdict = f"It does not fall from epoch {' and from '.join(rising)}." if rising else "It falls at every step."
        notes.append(f"ρ after the paper's epoch 100: {values}. {verdict}")
    pairs = [(emergence(r), interpolation(r, batchnorm="batch")) for r in shown]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if both:
        earlier = sum(a < b for a, b in both)
        notes.append(
            f"In {earlier} of {len(both)} seeds with both, the law emerges at an earlier probe than the one at which all "
            "training samples are classified correctly."
        )
    real_r, null_r = (mean_of(number(r, "pearson") for r in runs) for runs in (shown, null))
    if real_r is not None and null_r is not None:
        also = "Shuffled labels give the law as well" if null_r <= STRAIGHT else "Shuffled labels do not give the law"
        words = (
            f"{also}: at the last epoch r = {null_r:.4f}, with the real labels r = {real_r:.4f} (law: r ≤ {STRAIGHT})."
        )
        notes.append(words.replace("-", "−"))
    return notes
