"""Figure 2: how the law emerges during training, in a 20-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce fig2            18 networks at 3 seeds: five learning rates, and random labels; a minute on a GPU
    layerlaw reproduce fig2 --quick    two networks, 24 epochs instead of 600, the probed epochs shortened alike
                                       (they are reported as the paper's: epoch 100 of 600 stands for epoch 4 of 24)

The authors' rate of Fig. 1 (3e-4), in their BatchNorm mode. Agreement: r at epoch 100 at most −0.986 (paper −0.996, up to
0.01); r at the last epoch at most −0.99 and lower than at 100; ρ at the last epoch below that at 100; ρ ≥ 1 at epoch 0 (D
rises with depth); the law emerges (law_holds from then on) between epochs 50 and 150 (paper: 100). Controls that the paper
lacks: fresh running statistics are 0 and 1, no normalization at all, so epoch 0 is measured with the statistics of all
samples as well ("whole"); and the same recipe on shuffled labels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from layerlaw.experiments import drawing, moments
from layerlaw.experiments.drawing import EVAL_LONG_TITLE, caption, courses, law_panel
from layerlaw.experiments.moments import NEVER, bend, emergence, interpolation, paper_epoch, scaled
from layerlaw.experiments.numbers import Claim, at_least, at_most, below, mean_of, minus, row
from layerlaw.experiments.runs import LAW, Runs, number
from layerlaw.experiments.separation.fig1 import SHOWN
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import STRAIGHT
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Sheet

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
BEFORE = [f"{what}{mode}" for what in ("rho", "pearson") for mode in ("", "-eval", "-full")]  # rows of epoch 0
STATISTICS = "BatchNorm as the authors had it (batches of 100)."
UNNORMALIZED = (
    "With nothing normalized (middle) class means of deep layers can coincide up to rounding: directions then leave D, "
    "which lowers it; where all have, D is not defined."
)
ENDS: dict[str, BatchNormMode] = {"": "batch", "-eval": "running"}  # of a row's name


def run(setting: Setting) -> Outcome:
    """Train with real and with shuffled labels, report what came out."""
    total = setting.epochs(quick=24)
    real = samples(setting, "fashion_mnist")
    data = {"fashion_mnist": real, "random labels": real.with_random_labels()}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    recipes = base.grid(learning_rate=(RATE,) if setting.quick else ADAM, seed=setting.seeds())
    recipes += base.grid(data=("random labels",), seed=setting.seeds())
    schedule = Schedule(scaled(EPOCHS if setting.quick else (*EPOCHS, *BETWEEN), total), batchnorm=tuple(START))
    runs = setting.train("epochs", recipes, data, schedule)
    grid, null = (runs.at(data=name) for name in data)
    shown = grid.at(learning_rate=RATE)
    rising = {"rho": at_least(1.0, "no law; D may rise")}
    found = shown.rows("epoch-0", BEFORE, rising, epoch=0)
    found += [*_law_rows(shown, total), *_moment_rows(shown), *_null_rows(null)]
    tables = [_epoch_table(shown, null), _rate_table(grid, total)]
    notes = [*moments.shortened(total), *_notes(shown, null, total)]
    return Outcome("fig2", TITLE, found, _sheets(shown, null, total), tables, notes)


def _law_rows(runs: Runs, total: int) -> list[Row]:
    """At the paper's epoch 100 and at the end, and whether ρ goes on falling in between."""
    (early,) = scaled((EARLY,), total)
    first, *others = runs.rows(f"epoch-{EARLY}", LAW, {"pearson": at_most(-0.986, -0.996)}, epoch=early)
    before = first.ours
    rule = f"≤ −0.99 and lower than at epoch {EARLY}"
    clearer = Claim("clearer", lambda r: before is not None and r <= STRAIGHT and r < before, rule)
    found = [first, *others, *runs.rows(f"epoch-{LAST}", LAW, {"pearson": clearer})]
    for end, claim in {"": below(0, "falls"), "-eval": Claim()}.items():
        ends = (runs.values(f"rho{end}", epoch=epoch) for epoch in (total, early))
        change = [minus(a, b) for a, b in zip(*ends, strict=True)]
        found.append(row(f"rho-at-{LAST}-minus-{EARLY}{end}", change, claim, reason=runs.trouble()))
    return found


def _moment_rows(runs: Runs) -> list[Row]:
    """When the law emerges, and when all training samples are classified correctly."""
    low, high = 50, 150
    found, right = (
        {end: runs.values(paper_epoch(moment, batchnorm=mode)) for end, mode in ENDS.items()}
        for moment in (emergence, interpolation)
    )
    seen = Claim(EARLY, lambda mean: None not in found[""] and low <= mean <= high, f"{low} to {high}, in every seed")
    wrong = "some training sample is wrong at every probe"
    return [
        row("emergence-epoch", found[""], seen, reason=NEVER),
        row("emergence-epoch-eval", found["-eval"], reason=NEVER),
        *(row(f"interpolation-epoch{end}", values, reason=wrong) for end, values in right.items()),
    ]


def _null_rows(null: Runs) -> list[Row]:
    """The same recipe on shuffled labels, at the last epoch."""
    return [
        *null.rows("random-labels", LAW),
        null.row("random-labels/train-accuracy", _accuracy),
        null.row("random-labels/emergence-epoch", paper_epoch(emergence), reason=NEVER),
    ]


def _accuracy(run: Run, epoch: int | None = None, end: str = "") -> float | None:
    return None if run.diverged is not None else run.measurement(epoch=epoch, batchnorm=ENDS[end]).accuracy


def _sheets(shown: Runs, null: Runs, total: int) -> list[Sheet]:
    def epochs(title: str, runs: Runs, at: Sequence[int], *words: str, batchnorm: BatchNormMode = "batch") -> Sheet:
        ours = moments.marks(at, total).items()
        panels = [law_panel(f"epoch {paper}", runs, epoch=epoch, batchnorm=batchnorm) for paper, epoch in ours]
        return Sheet(title, panels, caption=caption(panels, *words) if words else "")

    def of(value: Callable[..., float | None]) -> drawing.Courses:
        train, evals = (partial(value, end=end) for end in ENDS)
        return {"train mode": (shown, train), "eval mode": (shown, evals), "shuffled labels": (null, train)}

    starts = [law_panel(f"epoch 0, {words}", shown, epoch=0, batchnorm=mode) for mode, words in START.items()]
    over_time = [
        courses("1 + r (0: a straight line)", of(bend), ylabel="1 + r"),
        courses("factor per layer", of(lambda r, e, end: number(r, f"rho{end}", epoch=e)), ylabel="ρ", log_y=False),
        courses("training accuracy", of(_accuracy), ylabel="share", log_y=False),
    ]
    return [
        epochs("D over the epochs", shown, EPOCHS, STATISTICS),
        epochs(EVAL_LONG_TITLE, shown, EPOCHS, batchnorm="running"),
        Sheet("From epoch to epoch", over_time),
        Sheet("Before training, by how BatchNorm normalizes", starts, caption=UNNORMALIZED),
        epochs("The same recipe on shuffled labels", null, SHUFFLED),
    ]


def _epoch_table(shown: Runs, null: Runs) -> Table:
    columns = {
        "r": "pearson", "ρ": "rho", "effective layers": "effective-layers", "p": "greenwood-p",
        "r eval": "pearson-eval", "ρ eval": "rho-eval", "r full": "pearson-full",
    }  # fmt: skip
    lines = []
    for epoch in moments.measured_epochs(shown[0]):
        numbers = [shown.mean(name, epoch=epoch) for name in columns.values()]
        accuracy = mean_of(_accuracy(r, epoch) for r in shown)
        when = moments.in_paper_epochs(epoch, shown[0].recipe.epochs)
        lines.append((when, *numbers, accuracy, null.mean("pearson", epoch=epoch)))
    note = "Means over seeds. r, ρ, effective layers and p in train mode; shares exist only where D falls as a whole."
    return Table("Every probed epoch", ("epoch", *columns, "accuracy", "r, shuffled labels"), lines, note)


def _rate_table(runs: Runs, total: int) -> Table:
    (early,) = scaled((EARLY,), total)
    note = (
        "Train mode. Emergence: the law holds (law_holds) from then on. Interpolation: every training sample is right."
    )
    return drawing.run_table(
        "Learning rates",
        runs,
        drawing.RATE_AND_SEED,
        {
            f"r at {EARLY}": lambda r: number(r, "pearson", epoch=early),
            f"ρ at {EARLY}": lambda r: number(r, "rho", epoch=early),
            f"r at {LAST}": "pearson",
            f"ρ at {LAST}": "rho",
            f"r at {LAST} eval": "pearson-eval",
            "emergence": paper_epoch(emergence),
            "interpolation": paper_epoch(interpolation),
            **drawing.LAST_LOSS,
        },
        note,
    )


def _notes(shown: Runs, null: Runs, total: int) -> list[str]:
    notes = []
    at = {paper: epoch for paper, epoch in moments.marks(EPOCHS, total).items() if paper >= EARLY}
    known = [(paper, rho) for paper, epoch in at.items() if (rho := shown.mean("rho", epoch=epoch)) is not None]
    if len(known) > 1:
        rising = [f"{a[0]} to {b[0]}" for a, b in pairwise(known) if b[1] >= a[1]]
        values = ", ".join(f"{v:.3f} at epoch {e}" for e, v in known)
        verdict = f"It does not fall from epoch {' and from '.join(rising)}." if rising else "It falls at every step."
        notes.append(f"ρ after the paper's epoch 100: {values}. {verdict}")
    pairs = [(emergence(r), interpolation(r)) for r in shown]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if both:
        notes.append(
            f"In {sum(a < b for a, b in both)} of {len(both)} seeds with both, the law emerges at an earlier probe than the "
            "one at which all training samples are classified correctly."
        )
    real_r, null_r = shown.mean("pearson"), null.mean("pearson")
    if real_r is not None and null_r is not None:
        also = "give the law as well" if null_r <= STRAIGHT else "do not give the law"
        notes.append(
            f"Shuffled labels {also}: at the last epoch r = {null_r:.4f}, with the real labels r = {real_r:.4f} (law: r ≤ "
            f"{STRAIGHT})."
        )
    return notes
