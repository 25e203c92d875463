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

from collections.abc import Sequence
from dataclasses import replace

from layerlaw.experiments.drawing import both_modes, curves_panel, grid_table
from layerlaw.experiments.numbers import Claim, at_least, at_most, between, paired_rows, within
from layerlaw.experiments.runs import LAW, Runs
from layerlaw.experiments.setting import Setting, samples, stand_in
from layerlaw.lab import Recipe, Samples, Schedule, Shape
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
CLAIMS: dict[str, dict[str, Claim]] = {
    "standard": {
        "pearson": at_most(STRAIGHT, -0.997),
        "test-accuracy": within(0.2385, 0.02),
        "training-loss": between(0.5 * 0.0021, 2 * 0.0021, 0.0021),
        "training-accuracy": at_least(0.999, 1.0),
    },
    "frozen": {
        "pearson": within(-0.971, 0.015),
        "test-accuracy": within(0.1967, 0.02),
        "training-loss": between(0.5 * 0.0019, 2 * 0.0019, 0.0019),
        "training-accuracy": at_least(0.999, 1.0),
    },
    "long": {},
}
DIFFERENCES: dict[str, tuple[float | None, bool | None]] = {  # the paper's, and whether it is positive
    "pearson": (0.026, True),
    "pearson-eval": (None, None),
    "test-accuracy": (-0.0418, False),
}
Kinds = dict[str, Runs]


def run(setting: Setting) -> Outcome:
    """Train every kind, report what came out."""
    data = {"cifar10": samples(setting, "cifar10", tests=50 if setting.quick else 1000)}
    rates = (AUTHORS_RATE,) if setting.quick else RATES
    kinds = _train(setting, data, rates)
    best = {kind: runs.best() for kind, runs in kinds.items()}
    found = [*(r for kind in KINDS for r in _rows(kind, best[kind], len(rates))), *_differences("", best, judged=True)]
    if len(rates) > 1:
        end, alike = "-at-3e-4", {kind: runs.at(learning_rate=AUTHORS_RATE) for kind, runs in kinds.items()}
        whats = ("pearson", "test-accuracy")
        found += [runs.row(f"{kind}/{what}{end}", what) for kind, runs in alike.items() for what in whats]
        found += _differences(end, alike)
    every, names = zip(*((r, KINDS[kind]) for kind, runs in kinds.items() for r in runs), strict=True)
    shown, behind = ({KINDS[kind]: runs for kind, runs in some.items()} for some in (best, kinds))
    together = Sheet("The three trainings together", [curves_panel("", shown)], 1)
    table = grid_table("Every network", every, names=names, label="training")
    notes = [*_notes(found), *setting.note(SEEDS, quick=False), *stand_in(setting, "cifar10")]
    return Outcome("fig9", TITLE, found, [*both_modes(shown, behind, share_y=True), together], [table], notes)


def _train(setting: Setting, data: dict[str, Samples], rates: Sequence[float]) -> Kinds:
    """The three kinds of training, each network of one kind beside those of the others in order."""
    whole, first, long = QUICK_EPOCHS if setting.quick else EPOCHS
    base = Recipe(network=Shape.even(DEPTH), data="cifar10", epochs=whole)
    grid = base.grid(learning_rate=rates, seed=setting.seeds(least=10))
    bottom = [replace(r, layers=(0, HALF), drops=(), epochs=first) for r in grid]
    schedule, n = Schedule(test=True), len(grid)
    runs = setting.train("whole", [*grid, *bottom, *(replace(r, epochs=long) for r in grid)], data, schedule)
    states = [r.state for r in runs[n : 2 * n] if r.state is not None]
    frozen = setting.train("top", [replace(r, layers=(HALF, DEPTH)) for r in grid], data, schedule, start=states)
    return {"standard": Runs(runs[:n]), "frozen": frozen, "long": Runs(runs[2 * n :])}


def _rows(kind: str, runs: Runs, choices: int) -> list[Row]:
    claims = CLAIMS[kind]
    return [
        *runs.rows(kind, LAW, claims, choices=choices),
        *runs.rows(kind, ["test-accuracy"], claims),
        runs.row(f"{kind}/training-loss", "train-loss", claims.get("training-loss", Claim())),
        runs.row(f"{kind}/training-accuracy", "train-accuracy", claims.get("training-accuracy", Claim())),
    ]


def _differences(suffix: str, kinds: Kinds, *, judged: bool = False) -> list[Row]:
    """Frozen minus standard, and minus as many epochs of standard training, seed by seed."""
    found = []
    for other in ("standard", "long"):
        for what, claim in DIFFERENCES.items():
            paper, larger = claim if judged and other == "standard" else (None, None)
            gaps = kinds["frozen"].minus(kinds[other], what)
            found += paired_rows(f"frozen-minus-{other}/{what}{suffix}", gaps, paper=paper, larger=larger)
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
                f"{clear} than two standard errors from 0."
            )
    return notes or ["One seed: no standard error, nothing can be said about the differences."]
