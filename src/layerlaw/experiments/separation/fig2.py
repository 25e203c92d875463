"""Figure 2: how the law emerges during training, in a 20-layer network on Fashion-MNIST (Adam).

    layerlaw reproduce fig2            five learning rates, real and random labels, 10 seeds with their own images: 100
                                       networks
    layerlaw reproduce fig2 --quick    two networks, 24 epochs instead of 600, the probed epochs shortened alike
                                       (they are reported as the paper's: epoch 100 of 600 stands for epoch 4 of 24)

The authors' rate of Fig. 1 (3e-4), in their BatchNorm mode; the paper says that the law "starts to emerge at epoch 100".
Judged: no law at epoch 0 (`LawFit.holds` in every seed); r at epoch 100 within 0.01 of −0.996; evenness larger and ρ smaller
at the end than at 100 (paired t tests); the law holds from between epochs 50 and 150 on (mean over seeds; a seed in which it
is not there at the end counts as the last epoch). The law at the end is that of Fig. 1 and does not count again. Controls
that the paper lacks: the other protocols; the epoch at which the steps are most even; and random labels, with the learning
rate chosen among them too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from layerlaw.experiments import drawing, moments
from layerlaw.experiments.drawing import EVAL_LONG_TITLE, caption, courses, law_panel
from layerlaw.experiments.moments import NEVER, bend, emergence, interpolation, paper_epoch, scaled
from layerlaw.experiments.numbers import UNCLAIMED, Claim, above, below, does_not_hold, mean_of, minus, row, within
from layerlaw.experiments.runs import ENDS as ALL_ENDS
from layerlaw.experiments.runs import LAW, MODE_NAMES, Runs, number, protocol_table
from layerlaw.experiments.separation.fig1 import SHOWN
from layerlaw.experiments.setting import ADAM, Data, Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.lab.schedule import BatchNormMode
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
BEFORE = [f"{what}{mode}" for what in ("holds", "rho", "pearson") for mode in ("", "-eval", "-full")]  # of epoch 0
STATISTICS = "BatchNorm as the authors had it (batches of 100)."
UNNORMALIZED = (
    "With nothing normalized (middle) class means of deep layers can coincide up to rounding: directions then leave D, "
    "which lowers it; where all have, D is not defined."
)
ENDS: dict[str, BatchNormMode] = {"": "batch", "-eval": "running"}  # of a row's name


def run(setting: Setting) -> Outcome:
    """Train with real and with random labels, report what came out."""
    total = setting.epochs(quick=24)
    images = samples(setting, "fashion_mnist")
    data: Data = {"fashion_mnist": images, "random labels": lambda seed: images(seed).with_random_labels()}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    rates = (RATE,) if setting.quick else ADAM
    recipes = base.grid(data=data, learning_rate=rates, seed=setting.seeds(least=10))
    epochs = scaled(EPOCHS if setting.quick else (*EPOCHS, *BETWEEN), total)
    runs = setting.train("epochs", recipes, data, Schedule(epochs, batchnorm=tuple(MODE_NAMES)))
    grid, random = (runs.at(data=name) for name in data)
    shown, null = grid.at(learning_rate=RATE), random.best() or random.at(learning_rate=RATE)
    found = shown.rows("epoch-0", BEFORE, {"holds": does_not_hold(DEPTH - 1, paper="no law; D may rise")}, epoch=0)
    found += [*_law_rows(shown, grid, total), *_moment_rows(shown, grid), *_null_rows(null, len(rates))]
    tables = [_protocols(shown, total), _epoch_table(shown, null), _rate_table(grid, total)]
    notes = [*moments.shortened(total), *_notes(shown, null, total)]
    return Outcome("fig2", TITLE, found, _sheets(shown, null, total), tables, notes)


def _law_rows(runs: Runs, grid: Runs, total: int) -> list[Row]:
    """At the paper's epoch 100 and at the end, and what changes in between."""
    (early,) = scaled((EARLY,), total)
    at_100 = {"holds": Claim("starts to emerge"), "pearson": within(-0.996, 0.01)}
    found = runs.rows(f"epoch-{EARLY}", LAW, at_100, epoch=early, among=grid)
    found += runs.rows(f"epoch-{LAST}", LAW, {"holds": Claim("law", tolerance="judged in fig1: the same networks")})
    claims = {"rho": below(0, "falls"), "evenness": above(0, "clearer")}
    for what in ("rho", "rho-eval", "evenness", "evenness-eval"):
        ends = (runs.values(what, epoch=epoch) for epoch in (total, early))
        change = [minus(a, b) for a, b in zip(*ends, strict=True)]
        found.append(row(f"{what}-at-{LAST}-minus-{EARLY}", change, claims.get(what, UNCLAIMED), reason=runs.trouble()))
    return found


def _moment_rows(runs: Runs, grid: Runs) -> list[Row]:
    """When the law emerges, when its steps are most even, and when all training samples are classified correctly."""
    found, right, peak = (
        {end: runs.values(paper_epoch(moment, batchnorm=mode)) for end, mode in ENDS.items()}
        for moment in (emergence, interpolation, moments.most_even)
    )
    rest = Runs(r for r in grid if r not in runs).values(paper_epoch(emergence))
    late, others = ([LAST if epoch is None else epoch for epoch in some] for some in (found[""], rest))
    wrong = "some training sample is wrong at every probe"
    return [
        row("emergence-epoch", late, within(EARLY, 50, "starts at 100"), among=others),
        row("emergence-epoch-where-it-emerges", found[""], reason=NEVER),
        row("emergence-epoch-eval", found["-eval"], reason=NEVER),
        *(row(f"most-even-epoch{end}", values) for end, values in peak.items()),
        *(row(f"interpolation-epoch{end}", values, reason=wrong) for end, values in right.items()),
    ]


def _null_rows(null: Runs, choices: int) -> list[Row]:
    """The same recipe on random labels, at the rate with the best law there, at the last epoch."""
    return [
        *null.rows("random-labels", LAW, choices=choices),
        null.row("random-labels/train-accuracy", _accuracy),
        null.row("random-labels/emergence-epoch", paper_epoch(emergence), reason=NEVER),
    ]


def _protocols(runs: Runs, total: int) -> Table:
    (early,) = scaled((EARLY,), total)

    def at(epoch: int | None, wanted: bool) -> Callable[[BatchNormMode], bool]:
        return lambda mode: (
            (2 * sum(fit.holds is True for fit in runs.laws(epoch=epoch, batchnorm=mode)) > len(runs)) is wanted
        )

    def changed(what: str, claim: Claim) -> Callable[[BatchNormMode], bool | None]:
        def verdict(mode: BatchNormMode) -> bool | None:
            ends = (runs.values(f"{what}{ALL_ENDS[mode]}", epoch=epoch) for epoch in (total, early))
            return row("", [minus(a, b) for a, b in zip(*ends, strict=True)], claim, reason=NEVER).reproduced

        return verdict

    return protocol_table(
        {
            "Fig. 2: no law before training": at(0, False),
            f"Fig. 2: the law holds at epoch {EARLY}": at(early, True),
            f"Fig. 2: the law holds at epoch {LAST}": at(None, True),
            f"Fig. 2: steps are more even at epoch {LAST} than at {EARLY}": changed("evenness", above(0)),
            f"Fig. 2: ρ is smaller at epoch {LAST} than at {EARLY}": changed("rho", below(0)),
        }
    )


def _accuracy(run: Run, epoch: int | None = None, end: str = "") -> float | None:
    return None if run.diverged is not None else run.measurement(epoch=epoch, batchnorm=ENDS[end]).accuracy


def _sheets(shown: Runs, null: Runs, total: int) -> list[Sheet]:
    def epochs(title: str, runs: Runs, at: Sequence[int], *words: str, batchnorm: BatchNormMode = "batch") -> Sheet:
        ours = moments.marks(at, total).items()
        panels = [law_panel(f"epoch {paper}", runs, epoch=epoch, batchnorm=batchnorm) for paper, epoch in ours]
        return Sheet(title, panels, caption=caption(panels, *words) if words else "")

    def of(value: Callable[..., float | None]) -> drawing.Courses:
        train, evals = (partial(value, end=end) for end in ENDS)
        return {"train mode": (shown, train), "eval mode": (shown, evals), "random labels": (null, train)}

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
        epochs("The same recipe on random labels", null, SHUFFLED),
    ]


def _epoch_table(shown: Runs, null: Runs) -> Table:
    columns = {
        "holds": "holds", "r": "pearson", "ρ": "rho", "evenness": "evenness", "trend": "trend",
        "holds balanced": "holds-balanced", "holds eval": "holds-eval", "r eval": "pearson-eval", "ρ eval": "rho-eval",
    }  # fmt: skip
    lines = []
    for epoch in moments.measured_epochs(shown[0]):
        numbers = [shown.mean(name, epoch=epoch) for name in columns.values()]
        accuracy = mean_of(_accuracy(r, epoch) for r in shown)
        when = moments.in_paper_epochs(epoch, shown[0].recipe.epochs)
        lines.append((when, *numbers, accuracy, null.mean("holds", epoch=epoch)))
    note = "Means over seeds; holds: the share of seeds. Evenness and trend exist only where D falls as a whole."
    return Table("Every probed epoch", ("epoch", *columns, "accuracy", "holds, random labels"), lines, note)


def _rate_table(runs: Runs, total: int) -> Table:
    (early,) = scaled((EARLY,), total)
    note = "Chunks of 100. Emergence: the law holds from then on. Interpolation: every training sample is right."
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
    real, other = shown.mean("holds"), null.mean("holds")
    if real is not None and other is not None:
        also = "give the law as well" if other > 0.5 else "do not give the law"
        words = ", ".join(
            f"{name} {r:.4f} and {n:.4f}"
            for name, r, n in ((what, shown.mean(what), null.mean(what)) for what in ("pearson", "evenness", "trend"))
            if r is not None and n is not None
        )
        notes.append(
            f"Random labels {also}: at the last epoch it holds in {real:.0%} of the seeds with the real labels and in "
            f"{other:.0%} with random ones ({words})."
        )
    return notes
