"""Figure 2: how the law emerges during training, in a 20-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce fig2            18 networks at 3 seeds: five learning rates, and random labels; a minute on a GPU
    layerlaw reproduce fig2 --quick    two networks, 24 epochs instead of 600, the probed epochs shortened alike
                                       (they are told as the paper's: epoch 100 of 600 stands for epoch 4 of 24)

The authors' rate of Fig. 1 (3e-4), in their BatchNorm mode. Agreement: r at epoch 100 at most −0.986 (paper −0.996, up to
0.01); r at the last epoch at most −0.99 and lower than at 100; ρ at the last epoch below that at 100; ρ ≥ 1 at epoch 0 (D
rises with depth); the law (r ≤ −0.99 from then on) emerges between epochs 50 and 150 (paper: 100). Controls that the paper
lacks: fresh running statistics are 0 and 1, no normalization at all, so epoch 0 is measured with the statistics of all
samples as well ("whole"); and the same recipe on shuffled labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from layerlaw.experiments.drawing import LOSS, caption, epoch_series, law_panel
from layerlaw.experiments.fig1 import RATES, SHOWN
from layerlaw.experiments.images import samples
from layerlaw.experiments.moments import STRAIGHT, emergence, interpolation, marks, probed, scaled, shortened, told
from layerlaw.experiments.numbers import at_least, at_most, law_of, law_row, mean_of, minus, row, trouble
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Sheet

TITLE = "The law emerges during training"
DEPTH = 20
EARLY, LAST = 100, 600  # the paper's epochs at which the law is judged
SHUFFLED = (100, 200, 600)
EPOCHS = (0, 10, 20, 30, 50, 100, 200, 300, 600)  # the paper's panels
BETWEEN = (*range(0, 151, 10), *range(160, 201, 20), *range(250, 600, 50))  # to see when the law emerges
RATE = SHOWN["adam", DEPTH][0]
MODES: tuple[BatchNormMode, ...] = ("batch", "running", "whole")
SUFFIX = {"running": "eval", "whole": "full"}  # of rows in the ledger


def run(setting: Setting) -> Outcome:
    """Train with real and with shuffled labels, tell what came out."""
    total = setting.epochs(quick=24)
    real = samples(setting, "fashion_mnist")
    data = {"fashion_mnist": real, "random labels": real.with_random_labels()}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    rates = (RATE,) if setting.quick else RATES["adam"]
    recipes = base.grid(learning_rate=rates, seed=setting.seeds())
    recipes += base.grid(data=("random labels",), seed=setting.seeds())
    schedule = Schedule(scaled(EPOCHS if setting.quick else (*EPOCHS, *BETWEEN), total), batchnorm=MODES)
    runs = setting.train("epochs", recipes, data, schedule)
    grid = [r for r in runs if r.recipe.data == "fashion_mnist"]
    shown = [r for r in grid if r.recipe.learning_rate == RATE]
    null = [r for r in runs if r.recipe.data == "random labels"]
    at = marks(EPOCHS, total)
    first = [_panel(shown, *mark, "batch") for mark in at.items()]
    return Outcome(
        "fig2",
        TITLE,
        [*_start_rows(shown), *_law_rows(shown, total), *_moment_rows(shown, total), *_null_rows(null)],
        [
            Sheet("D over the epochs", first, caption=caption(first, _STATISTICS)),
            Sheet(
                "The same networks with running statistics (eval mode)",
                [_panel(shown, *mark, "running") for mark in at.items()],
            ),
            Sheet("From epoch to epoch", _courses(shown, null)),
            Sheet(
                "Before training, by how BatchNorm normalizes",
                [_start_panel(shown, batchnorm) for batchnorm in MODES],
                caption=_UNNORMALIZED,
            ),
            Sheet(
                "The same recipe on shuffled labels",
                [_panel(null, *mark, "batch") for mark in marks(SHUFFLED, total).items()],
            ),
        ],
        [_epoch_table("Every probed epoch", shown, null), _rate_table(grid, total)],
        [*shortened(total), *_notes(shown, null, at)],
    )


_STATISTICS = "BatchNorm as the authors had it (batches of 100)."
_UNNORMALIZED = (
    "With nothing normalized (middle) class means of deep layers can coincide up to rounding: directions then leave D, "
    "which lowers it; where all have, D is not defined."
)
_START = {
    "batch": "batches of 100 (the authors' mode)",
    "running": "fresh running statistics: none",
    "whole": "statistics of all samples",
}


def _panel(runs: Sequence[Run], paper: int, epoch: int, batchnorm: BatchNormMode) -> Panel:
    """One of the paper's epochs, and the one of ours that stands for it."""
    return law_panel(f"epoch {paper}", runs, epoch=epoch, batchnorm=batchnorm)


def _start_panel(runs: Sequence[Run], batchnorm: BatchNormMode) -> Panel:
    return law_panel(f"epoch 0, {_START[batchnorm]}", runs, epoch=0, batchnorm=batchnorm)


def _numbers(
    runs: Sequence[Run], what: str, epoch: int | None = None, batchnorm: BatchNormMode = "batch"
) -> list[float | None]:
    """One number of the law per seed."""
    laws = [law_of(r, epoch=epoch, batchnorm=batchnorm) for r in runs]
    return [None if law is None else getattr(law, what) for law in laws]


def _start_rows(runs: Sequence[Run]) -> list[Row]:
    """Before training."""
    holds, tolerance = at_least(1.0)
    told = "no law; D may rise"
    rows = [law_row("epoch-0/rho", runs, "rho", epoch=0, paper=told, holds=holds, tolerance=tolerance)]
    rows += [
        law_row(f"epoch-0/rho-{SUFFIX[batchnorm]}", runs, "rho", epoch=0, batchnorm=batchnorm)
        for batchnorm in MODES[1:]
    ]
    rows += [law_row("epoch-0/pearson", runs, "pearson", epoch=0)]
    return rows + [
        law_row(f"epoch-0/pearson-{SUFFIX[batchnorm]}", runs, "pearson", epoch=0, batchnorm=batchnorm)
        for batchnorm in MODES[1:]
    ]


def _law_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """At the paper's epoch 100 and at the end."""
    (early,) = scaled((EARLY,), total)
    holds, told = at_most(-0.986)
    first = law_row(f"epoch-{EARLY}/pearson", runs, "pearson", epoch=early, paper=-0.996, holds=holds, tolerance=told)
    before = first.ours
    end = law_row(
        f"epoch-{LAST}/pearson",
        runs,
        "pearson",
        paper="clearer",
        holds=lambda r: before is not None and r <= STRAIGHT and r < before,
        tolerance=f"≤ −0.99 and lower than at epoch {EARLY}",
    )
    rest = [_further_rows(runs, *mark) for mark in ((EARLY, early), (LAST, total))]
    return [first, *rest[0], end, *rest[1], *_fall_rows(runs, early, total)]


def _further_rows(runs: Sequence[Run], paper: int, epoch: int) -> list[Row]:
    rows = [
        law_row(f"epoch-{paper}/{what.replace('_', '-')}", runs, what, epoch=epoch)
        for what in ("rho", "effective_layers", "greenwood_p")
    ]
    return rows + [
        law_row(f"epoch-{paper}/{w}-eval", runs, w, epoch=epoch, batchnorm="running") for w in ("pearson", "rho")
    ]


def _fall_rows(runs: Sequence[Run], early: int, last: int) -> list[Row]:
    """Whether ρ goes on falling after the paper's epoch 100."""
    name = f"rho-at-{LAST}-minus-{EARLY}"
    change = [minus(b, a) for a, b in zip(_numbers(runs, "rho", early), _numbers(runs, "rho", last), strict=True)]
    pairs = zip(_numbers(runs, "rho", early, "running"), _numbers(runs, "rho", last, "running"), strict=True)
    why = trouble(runs)
    return [
        row(name, change, paper="falls", holds=lambda mean: mean < 0, tolerance="< 0", reason=why),
        row(f"{name}-eval", [minus(b, a) for a, b in pairs], reason=why),
    ]


def _moment_rows(runs: Sequence[Run], total: int) -> list[Row]:
    """When the law emerges, and when all training samples are classified correctly."""
    low, high = 50, 150
    found = [told(emergence(r), total) for r in runs]
    never = "r does not stay at −0.99 or below until the end"
    wrong = "some training sample is wrong at every probe"

    def agrees(mean: float) -> bool:
        return None not in found and low <= mean <= high

    words = f"{low} to {high}, in every seed"
    right = {batchnorm: [told(interpolation(r, batchnorm=batchnorm), total) for r in runs] for batchnorm in MODES[:2]}
    return [
        row("emergence-epoch", found, paper=EARLY, holds=agrees, tolerance=words, reason=never),
        row("emergence-epoch-eval", [told(emergence(r, batchnorm="running"), total) for r in runs], reason=never),
        row("interpolation-epoch", right["batch"], reason=wrong),
        row("interpolation-epoch-eval", right["running"], reason=wrong),
    ]


def _null_rows(null: Sequence[Run]) -> list[Row]:
    """The same recipe on shuffled labels, at the last epoch."""
    numbers = ("pearson", "rho", "effective_layers", "greenwood_p")
    rows = [law_row(f"random-labels/{what.replace('_', '-')}", null, what) for what in numbers]
    rows += [law_row(f"random-labels/{what}-eval", null, what, batchnorm="running") for what in ("pearson", "rho")]
    accuracy = [None if r.diverged else r.measurement(batchnorm="batch").accuracy for r in null]
    never = "r does not stay at −0.99 or below until the end"
    return [
        *rows,
        row("random-labels/train-accuracy", accuracy, reason=trouble(null)),
        row("random-labels/emergence-epoch", [told(emergence(r), r.recipe.epochs) for r in null], reason=never),
    ]


def _courses(shown: Sequence[Run], null: Sequence[Run]) -> list[Panel]:
    """1 + r, ρ and training accuracy against the epoch."""
    epochs, total = probed(shown[0]), shown[0].recipe.epochs
    curves: tuple[tuple[str, Sequence[Run], BatchNormMode], ...] = (
        ("train mode", shown, "batch"),
        ("eval mode", shown, "running"),
        ("shuffled labels", null, "batch"),
    )

    def panel(
        title: str, ylabel: str, value: Callable[[Run, int, BatchNormMode], float | None], *, log: bool = False
    ) -> Panel:
        def of(batchnorm: BatchNormMode) -> Callable[[Run, int], float | None]:
            return lambda r, epoch: value(r, epoch, batchnorm)

        series = [epoch_series(name, runs, epochs, of(mode), total=total) for name, runs, mode in curves]
        return Panel(title, tuple(series), xlabel="epoch", ylabel=ylabel, log_y=log)

    def bend(r: Run, epoch: int, batchnorm: BatchNormMode) -> float | None:
        pearson = _numbers([r], "pearson", epoch, batchnorm)[0]
        return None if pearson is None else 1 + pearson

    return [
        panel("1 + r (0: a straight line)", "1 + r", bend, log=True),
        panel("factor per layer", "ρ", lambda r, epoch, batchnorm: _numbers([r], "rho", epoch, batchnorm)[0]),
        panel(
            "training accuracy",
            "share",
            lambda r, epoch, batchnorm: r.measurement(epoch=epoch, batchnorm=batchnorm).accuracy,
        ),
    ]


def _epoch_table(title: str, shown: Sequence[Run], null: Sequence[Run]) -> Table:
    """Means over the seeds."""
    columns = (
        "epoch",
        "r",
        "ρ",
        "effective layers",
        "p",
        "r eval",
        "ρ eval",
        "r full",
        "accuracy",
        "r, shuffled labels",
    )
    rows = []
    for epoch in probed(shown[0]):
        when = told(epoch, shown[0].recipe.epochs)
        train = [mean_of(_numbers(shown, w, epoch)) for w in ("pearson", "rho", "effective_layers", "greenwood_p")]
        others = [mean_of(_numbers(shown, w, epoch, "running")) for w in ("pearson", "rho")]
        full = mean_of(_numbers(shown, "pearson", epoch, "whole"))
        accuracy = mean_of(
            [r.measurement(epoch=epoch, batchnorm="batch").accuracy for r in shown if r.diverged is None]
        )
        rows.append((when, *train, *others, full, accuracy, mean_of(_numbers(null, "pearson", epoch))))
    note = "Means over seeds. r, ρ, effective layers and p in train mode; shares exist only where D falls as a whole."
    return Table(title, columns, tuple(rows), note)


def _rate_table(runs: Sequence[Run], total: int) -> Table:
    """Every learning rate and seed."""
    cases = [f"{w} at {e}" for e in (EARLY, LAST) for w in ("r", "ρ")]
    columns = ("lr", "seed", *cases, f"r at {LAST} eval", "emergence", "interpolation", LOSS)
    rows: list[tuple[float | None, ...]] = []
    for r in runs:
        laws = [law_of(r, epoch=e) for e in scaled((EARLY, LAST), total)]
        cells = [v for law in laws for v in ((None, None) if law is None else (law.pearson, law.rho))]
        end = law_of(r, batchnorm="running")
        cells.append(None if end is None else end.pearson)
        moments = [None if r.diverged else told(f(r, batchnorm="batch"), total) for f in (emergence, interpolation)]
        rows.append((r.recipe.learning_rate, r.recipe.seed, *cells, *moments, r.losses[-1]))
    note = "Emergence: r ≤ −0.99 from then on (train mode). Interpolation: every training sample right (train mode)."
    return Table("Learning rates", columns, tuple(rows), note)


def _notes(shown: Sequence[Run], null: Sequence[Run], at: dict[int, int]) -> list[str]:
    notes = []
    rho = {paper: mean_of(_numbers(shown, "rho", e)) for paper, e in at.items() if paper >= EARLY}
    known = [(e, v) for e, v in rho.items() if v is not None]
    steps = list(pairwise(known))
    rising = [f"{a[0]} to {b[0]}" for a, b in steps if b[1] >= a[1]]
    if steps:
        values = ", ".join(f"{v:.3f} at epoch {e}" for e, v in known)
        verdict = f"It does not fall from epoch {' and from '.join(rising)}." if rising else "It falls at every step."
        notes.append(f"ρ after the paper's epoch 100: {values}. {verdict}")
    ours, theirs = [emergence(r) for r in shown], [interpolation(r, batchnorm="batch") for r in shown]
    both = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    if both:
        earlier = sum(a < b for a, b in both)
        notes.append(
            f"In {earlier} of {len(both)} seeds with both, the law emerges at an earlier probe than the one at which all "
            "training samples are classified correctly."
        )
    real_r, null_r = mean_of(_numbers(shown, "pearson")), mean_of(_numbers(null, "pearson"))
    if real_r is not None and null_r is not None:
        also = "Shuffled labels give the law as well" if null_r <= STRAIGHT else "Shuffled labels do not give the law"
        words = (
            f"{also}: at the last epoch r = {null_r:.4f}, with the real labels r = {real_r:.4f} (law: r ≤ {STRAIGHT})."
        )
        notes.append(words.replace("-", "−"))
    return notes
