"""Figure 9: a 20-layer network on CIFAR-10 trained as a whole, or with one half frozen and then the other.

    layerlaw reproduce fig9            4 trainings × 3 learning rates × at least 10 paired seeds: 120 networks
                                       (a minute or two on a GPU, an hour or two on two cores)
    layerlaw reproduce fig9 --quick    one network of each kind at one learning rate, 10 to 25 epochs

Standard: 600 epochs. Frozen: the first ten layers learn for 900 epochs at a constant rate while the last ten keep their
initial values, then the last ten for 600 epochs with the usual decay while the first ten stay. Standard for 1500 epochs is
our control: as many epochs as the frozen training has. The learning rate is the one with the best law of each kind, chosen
anew for every seed, as in the paper; the numbers at 3e-4 in all kinds are given beside it.

The paper, from one network each: r −0.997 and −0.971, test accuracy 23.85 % and 19.67 % (21.46 % and 18.25 % in a talk),
training loss 0.0021 and 0.0019, training accuracy 100 %. Ours agree, as means over seeds: standard r at most −0.990, frozen
r within 0.015 of −0.971; test accuracies within 2 points; losses (on the training images, in eval mode) within a factor of
2; training accuracies of at least 99.9 %. The paper's claims are about differences: frozen r is higher and frozen test
accuracy lower. These hold when the mean paired difference is more than two standard errors from 0. A paired comparison
needs ten seeds: fewer are never taken, --seeds asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from layerlaw.experiments.drawing import caption, curves_panel, grid_table, law_panel
from layerlaw.experiments.images import samples, stand_in
from layerlaw.experiments.numbers import (
    Compare,
    at_least,
    at_most,
    best_of_seeds,
    law_of,
    law_rows,
    row,
    trouble,
    within,
)
from layerlaw.experiments.pairs import paired_rows
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Panel, Sheet

SEEDS = "At least 10 seeds, because a paired comparison needs them; --seeds asks for more."
TITLE = "Frozen training breaks the law: does it also cost test accuracy?"
DEPTH, HALF = 20, 10
RATES = (1e-4, 3e-4, 1e-3)
EPOCHS = (600, 900, 1500)  # standard, first ten layers, control
QUICK_EPOCHS = (10, 15, 25)
AUTHORS_RATE = 3e-4  # of their 20-layer network in Figure 1; for this one they do not give it
KINDS = {"standard": "standard", "frozen": "frozen", "long": "standard, as many epochs"}
Kinds = dict[str, list[Run]]


def run(setting: Setting) -> Outcome:
    """Train every kind, tell what came out."""
    data = {"cifar10": samples(setting, "cifar10", tests=50 if setting.quick else 1000)}
    kinds = _train(setting, data)
    best = {kind: best_of_seeds(runs) for kind, runs in kinds.items()}
    alike = {kind: [r for r in runs if r.recipe.learning_rate == AUTHORS_RATE] for kind, runs in kinds.items()}
    choices = len({r.recipe.learning_rate for r in kinds["standard"]})
    rows = [*_paper_rows(best, choices), *_differences("", best, judged=True)]
    if choices > 1:
        rows += [*_accuracy_rows("-at-3e-4", alike), *_differences("-at-3e-4", alike)]
    names = [KINDS[kind] for kind, runs in kinds.items() for _ in runs]
    every = [r for runs in kinds.values() for r in runs]
    table = grid_table("Every network", every, names=names, label="training")
    return Outcome(
        "fig9",
        TITLE,
        rows,
        _sheets(kinds, best),
        [table],
        [*_notes(rows), *([] if setting.quick else [SEEDS]), *stand_in(setting, "cifar10")],
    )


def _train(setting: Setting, data: dict[str, Samples]) -> Kinds:
    """The three kinds of training, each network of one kind beside those of the others in order."""
    whole, first, long = QUICK_EPOCHS if setting.quick else EPOCHS
    base = Recipe(network=Shape.even(DEPTH), data="cifar10", epochs=whole)
    rates = (AUTHORS_RATE,) if setting.quick else RATES
    grid = base.grid(learning_rate=rates, seed=setting.seeds(least=10))
    bottom = [replace(r, layers=(0, HALF), drops=(), epochs=first) for r in grid]
    top = [replace(r, layers=(HALF, DEPTH)) for r in grid]
    schedule = Schedule(test=True)
    n = len(grid)
    runs = setting.train("whole", [*grid, *bottom, *(replace(r, epochs=long) for r in grid)], data, schedule)
    states = [r.state for r in runs[n : 2 * n] if r.state is not None]
    frozen = setting.train("top", top, data, schedule, start=states)
    return {"standard": runs[:n], "frozen": frozen, "long": runs[2 * n :]}


def _test_accuracy(run: Run) -> float | None:
    return None if run.diverged is not None else run.measurement(batchnorm="running", split="test").accuracy


def _pearson(run: Run, batchnorm: BatchNormMode = "batch") -> float | None:
    law = law_of(run, batchnorm=batchnorm)
    return law.pearson if law else None


def _pearson_eval(run: Run) -> float | None:
    return _pearson(run, "running")


def _paper_rows(best: Kinds, choices: int) -> list[Row]:
    paper: dict[str, tuple[float | None, float | None, float | None]] = {  # r, test accuracy, training loss
        "standard": (-0.997, 0.2385, 0.0021),
        "frozen": (-0.971, 0.1967, 0.0019),
        "long": (None, None, None),
    }
    rows = []
    for kind, (r, accuracy, loss) in paper.items():
        runs = best[kind]
        judge = {"standard": at_most(-0.990), "frozen": within(-0.971, 0.015)}.get(kind)
        holds, tolerance = judge or (None, "")
        rows += law_rows(kind, runs, choices=choices, paper=r, holds=holds, tolerance=tolerance)
        ends = [None if run.diverged is not None else run.measurement(batchnorm="running") for run in runs]
        rows.append(_judged(f"{kind}/test-accuracy", [_test_accuracy(r) for r in runs], accuracy, 0.02))
        low, high = (0.5 * (loss or 0), 2 * (loss or 0))
        near: Compare | None = (lambda v, a=low, b=high: a <= v <= b) if loss else None
        words = f"{low:.3g} to {high:.3g}" if loss else ""
        losses = [end.loss if end else None for end in ends]
        rows.append(row(f"{kind}/training-loss", losses, paper=loss, holds=near, tolerance=words, reason=trouble(runs)))
        full, words = at_least(0.999) if loss else (None, "")
        known = [end.accuracy if end else None for end in ends]
        rows.append(row(f"{kind}/training-accuracy", known, paper=1.0 if loss else None, holds=full, tolerance=words))
    return rows


def _judged(name: str, values: Sequence[float | None], paper: float | None, by: float) -> Row:
    holds, tolerance = within(paper, by) if paper is not None else (None, "")
    return row(name, values, paper=paper, holds=holds, tolerance=tolerance)


def _accuracy_rows(suffix: str, kinds: Kinds) -> list[Row]:
    rows = []
    for kind, runs in kinds.items():
        rows.append(row(f"{kind}/pearson{suffix}", [_pearson(r) for r in runs], reason=trouble(runs)))
        rows.append(row(f"{kind}/test-accuracy{suffix}", [_test_accuracy(r) for r in runs], reason=trouble(runs)))
    return rows


def _differences(suffix: str, kinds: Kinds, *, judged: bool = False) -> list[Row]:
    """Frozen minus standard, and minus as many epochs of standard training, seed by seed."""
    rows = []
    for other in ("standard", "long"):
        claimed = judged and other == "standard"
        for what, value, paper, larger in (
            ("pearson", _pearson, 0.026, True),
            ("pearson-eval", _pearson_eval, None, None),
            ("test-accuracy", _test_accuracy, -0.0418, False),
        ):
            pair = _pairs(kinds["frozen"], kinds[other], value)
            claim = {"paper": paper, "larger": larger} if claimed and paper is not None else {}
            rows += paired_rows(f"frozen-minus-{other}/{what}{suffix}", *pair, **claim)  # type: ignore[arg-type]
    return rows


def _pairs(
    first: Sequence[Run], second: Sequence[Run], value: Callable[[Run], float | None]
) -> tuple[list[float | None], list[float | None]]:
    others = {r.recipe.seed: value(r) for r in second}
    ours = {r.recipe.seed: value(r) for r in first}
    seeds = [seed for seed in ours if seed in others]
    return [ours[seed] for seed in seeds], [others[seed] for seed in seeds]


def _sheets(kinds: Kinds, best: Kinds) -> list[Sheet]:
    sheets = []
    for batchnorm, title in (("batch", "D along depth"), ("running", "The same networks in eval mode")):
        panels = [
            law_panel(name, best[kind], faint=kinds[kind] if batchnorm == "batch" else (), batchnorm=batchnorm)  # type: ignore[arg-type]
            for kind, name in KINDS.items()
        ]
        sheets.append(Sheet(title, panels, caption=caption(panels) if batchnorm == "batch" else "", share_y=True))
    together: Panel = curves_panel("", {name: best[kind] for kind, name in KINDS.items()})
    sheets.append(Sheet("The three trainings together", [together], 1))
    return sheets


def _notes(rows: Sequence[Row]) -> list[str]:
    known = {r.name: r.ours for r in rows}
    notes = []
    for other in ("standard", "long"):
        for what, scale, unit in (("pearson", 1, ""), ("test-accuracy", 100, " points")):
            name = f"frozen-minus-{other}/{what}"
            mean, error = known.get(name), known.get(f"{name}-standard-error")
            if mean is None or error is None:
                continue
            clear = "more" if abs(mean) > 2 * error else "not more"
            notes.append(
                f"Frozen minus {KINDS[other]}: {what.replace('-', ' ')} {scale * mean:+.2g} ± {scale * error:.2g}{unit}, "
                f"{clear} than two standard errors from 0.".replace(" -", " −")
            )
    return notes or ["One seed: no standard error, nothing can be said about the differences."]
