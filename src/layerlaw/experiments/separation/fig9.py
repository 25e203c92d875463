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

from collections.abc import Sequence
from dataclasses import replace

from layerlaw.experiments.drawing import both_modes, curves_panel, grid_table
from layerlaw.experiments.numbers import (
    LAW,
    Claim,
    at_least,
    at_most,
    best_of_seeds,
    differences,
    number,
    paired_rows,
    row,
    rows,
    trouble,
    within,
)
from layerlaw.experiments.setting import Setting, samples, stand_in
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.law import STRAIGHT
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

SEEDS = "At least 10 seeds, because a paired comparison needs them; --seeds asks for more."
TITLE = "Frozen training breaks the law: does it also cost test accuracy?"
DEPTH, HALF = 20, 10
RATES = (1e-4, 3e-4, 1e-3)
EPOCHS = (600, 900, 1500)  # standard, first ten layers, control
QUICK_EPOCHS = (10, 15, 25)
AUTHORS_RATE = 3e-4  # of their 20-layer network in Figure 1; for this one they do not give it
KINDS = {"standard": "standard", "frozen": "frozen", "long": "standard, as many epochs"}
CLAIMS = {  # the law, test accuracy, training loss, training accuracy
    "standard": (
        at_most(STRAIGHT, -0.997),
        within(0.2385, 0.02),
        Claim(0.0021, lambda loss: 0.5 * 0.0021 <= loss <= 2 * 0.0021, "0.00105 to 0.0042"),
        at_least(0.999, 1.0),
    ),
    "frozen": (
        within(-0.971, 0.015),
        within(0.1967, 0.02),
        Claim(0.0019, lambda loss: 0.5 * 0.0019 <= loss <= 2 * 0.0019, "0.00095 to 0.0038"),
        at_least(0.999, 1.0),
    ),
    "long": (Claim(), Claim(), Claim(), Claim()),
}
DIFFERENCES = {"pearson": (0.026, True), "pearson-eval": (None, None), "test-accuracy": (-0.0418, False)}
Kinds = dict[str, list[Run]]


def run(setting: Setting) -> Outcome:
    """Train every kind, report what came out."""
    data = {"cifar10": samples(setting, "cifar10", tests=50 if setting.quick else 1000)}
    kinds = _train(setting, data)
    best = {kind: best_of_seeds(runs) for kind, runs in kinds.items()}
    alike = {kind: [r for r in runs if r.recipe.learning_rate == AUTHORS_RATE] for kind, runs in kinds.items()}
    choices = len({r.recipe.learning_rate for r in kinds["standard"]})
    found = [*(r for kind in KINDS for r in _rows(kind, best[kind], choices)), *_differences("", best, judged=True)]
    if choices > 1:
        found += [*_alike_rows("-at-3e-4", alike), *_differences("-at-3e-4", alike)]
    every, names = zip(*((r, KINDS[kind]) for kind, runs in kinds.items() for r in runs), strict=True)
    shown, behind = ({KINDS[kind]: runs for kind, runs in some.items()} for some in (best, kinds))
    sheets = [
        *both_modes(shown, behind, share_y=True),
        Sheet("The three trainings together", [curves_panel("", shown)], 1),
    ]
    table = grid_table("Every network", every, names=names, label="training")
    notes = [*_notes(found), *setting.note(SEEDS, quick=False), *stand_in(setting, "cifar10")]
    return Outcome("fig9", TITLE, found, sheets, [table], notes)


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


def _rows(kind: str, runs: Sequence[Run], choices: int) -> list[Row]:
    law, test, loss, training = CLAIMS[kind]
    ends = [None if r.diverged is not None else r.measurement(batchnorm="running") for r in runs]
    return [
        *rows(kind, runs, LAW, {"pearson": law}, choices=choices),
        *rows(kind, runs, ["test-accuracy"], {"test-accuracy": test}),
        row(f"{kind}/training-loss", [end.loss if end else None for end in ends], loss, reason=trouble(runs)),
        row(f"{kind}/training-accuracy", [end.accuracy if end else None for end in ends], training),
    ]


def _alike_rows(suffix: str, kinds: Kinds) -> list[Row]:
    return [
        row(f"{kind}/{what}{suffix}", [number(r, what) for r in runs], reason=trouble(runs))
        for kind, runs in kinds.items()
        for what in ("pearson", "test-accuracy")
    ]


def _differences(suffix: str, kinds: Kinds, *, judged: bool = False) -> list[Row]:
    """Frozen minus standard, and minus as many epochs of standard training, seed by seed."""
    found = []
    for other in ("standard", "long"):
        for what, (paper, larger) in DIFFERENCES.items():
            gaps = differences(kinds["frozen"], kinds[other], what)
            claimed = judged and other == "standard"
            name = f"frozen-minus-{other}/{what}{suffix}"
            found += paired_rows(name, gaps, paper=paper if claimed else None, larger=larger if claimed else None)
    return found


def _notes(found: Sequence[Row]) -> list[str]:
    known = {r.name: r.ours for r in found}
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
