"""Figure S1: D of the last hidden layer over training, in the 20-layer network of Fig. 2: the law comes before collapse.

    layerlaw reproduce s1            6 networks at 3 seeds: the paper's recipe, and a constant learning rate
    layerlaw reproduce s1 --quick    two networks, 24 epochs instead of 600 (reported as the paper's: 100 stands for epoch 4)

At the authors' rate of Fig. 1 (3e-4), in their BatchNorm mode. The paper: D of the last layer "does not reach
convergence until after 400 epochs", read as: D stays within 5 % of its final value only from an epoch after 400 on; and
the law "emerges prior to" that, read as: it holds (`LawFit.holds`) from an earlier epoch on without a break. Both are
judged by t tests over seeds; a seed in which the law does not hold at the end counts as if it emerged at the last
epoch. The paper gives no values of D, so none are judged. The learning rate drops at epochs 200 and 400, which alone
can move the time of convergence, so the same networks are trained with a constant rate too (ours). Epochs are as fine
as the measurements: 10.
"""

from dataclasses import replace
from functools import partial

from layerlaw.experiments import moments
from layerlaw.experiments.drawing import Courses, caption, courses, run_table
from layerlaw.experiments.moments import NEVER, bend, emergence, measured_epochs, paper_epoch, scaled
from layerlaw.experiments.numbers import Claim, above, minus, row
from layerlaw.experiments.runs import ENDS, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.separation.fig1 import SHOWN
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Sheet

TITLE = "The law emerges before neural collapse"
PROBES = (0, 10, 20, 30, 50, 70, *range(100, 601, 10))
QUICK_PROBES = range(0, 601, 100)
CONVERGED = 0.05  # share of the final value
START, LATE, LAST = 100, 400, 600  # the paper's epochs
DEPTH = 20
RATE = SHOWN["adam", DEPTH][0]
AFTER, FIRST = above(LATE, f"after {LATE}"), above(0, "the law is first")


def run(setting: Setting) -> Outcome:
    """Train with falling and with constant learning rate, report what came out."""
    total = setting.epochs(quick=24)
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    recipes = base.grid(drops=(base.drops, ()), seed=setting.seeds())
    probes = scaled(QUICK_PROBES if setting.quick else PROBES, total)
    schedule = replace(PROTOCOLS, epochs=probes, test=False, permuted=False)
    runs = setting.train("last-layer", recipes, data, schedule)
    paper, constant = (runs.at(drops=drops) for drops in (base.drops, ()))
    survives = {
        f"Fig. S1: the last D converges after epoch {LATE}": lambda mode: converges(paper, mode).reproduced,
        "Fig. S1: the law is there before": lambda mode: leads(paper, mode).reproduced,
    }
    return Outcome(
        "s1",
        TITLE,
        [*_level_rows(paper, total), *_moment_rows(paper), *_constant_rows(constant)],
        _sheets(paper, constant, total),
        [protocol_table(survives), _table(runs)],
        [*moments.shortened(total), *_notes(paper, constant)],
    )


def last_layer(run: Run, epoch: int, end: str = "") -> float | None:
    """D after the last hidden layer."""
    return number(run, f"last-D{end}", epoch=epoch)


def convergence(run: Run, *, share: float = CONVERGED, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on D of the last hidden layer stays within a share of its final value."""
    epochs = measured_epochs(run, batchnorm=batchnorm)
    return moments.settling(epochs, [last_layer(run, e, ENDS[batchnorm]) for e in epochs], share)


def collapse(run: Run) -> int | None:
    """The epoch from which on every training sample is nearest to its own class mean in the last hidden layer (NC4)."""
    epochs = measured_epochs(run)
    return moments.since(epochs, [run.measurement(epoch=epoch).nearest[-1] == 1.0 for epoch in epochs])


def converges(runs: Runs, batchnorm: BatchNormMode, name: str = "", claim: Claim = AFTER) -> Row:
    """When D of the last layer has converged."""
    return row(name, runs.sound.values(paper_epoch(convergence, batchnorm=batchnorm)), claim, reason=runs.trouble())


def leads(runs: Runs, batchnorm: BatchNormMode, name: str = "", claim: Claim = FIRST) -> Row:
    """Epochs from the law to the convergence of D; a law that never stays counts as one of the last epoch."""
    ends, laws = (runs.sound.values(paper_epoch(moment, batchnorm=batchnorm)) for moment in (convergence, emergence))
    gaps = [minus(a, LAST if b is None else b) for a, b in zip(ends, laws, strict=True)]
    return row(name, gaps, claim, reason=runs.trouble())


def _level_rows(runs: Runs, total: int) -> list[Row]:
    """D at the paper's epochs."""
    found = []
    for mark in (START, LATE, LAST):
        (epoch,) = scaled((mark,), total)
        for end in ("", "-eval"):
            value = partial(last_layer, epoch=epoch, end=end)
            found.append(runs.sound.row(f"last-D/epoch-{mark}{end}", value, reason=runs.trouble()))
    return found


def _moment_rows(runs: Runs) -> list[Row]:
    """When D has converged, and whether the law was there before."""
    found = []
    for mode, end in ENDS.items():
        law = runs.sound.values(paper_epoch(emergence, batchnorm=mode))
        found += [
            converges(runs, mode, f"convergence-epoch{end}", Claim() if end else AFTER),
            row(f"emergence-epoch{end}", law, reason=NEVER),
            leads(runs, mode, f"convergence-minus-emergence{end}", Claim() if end else FIRST),
        ]
    why = "a sample is nearest to another mean at the end"
    return [*found, runs.row("nearest-mean-epoch", paper_epoch(collapse), reason=why)]


def _constant_rows(runs: Runs) -> list[Row]:
    """The same without drops of the learning rate."""
    return [
        runs.row(f"constant-rate/last-D-epoch-{LAST}", "last-D"),
        runs.sound.row("constant-rate/convergence-epoch", paper_epoch(convergence), reason=runs.trouble()),
        runs.sound.row("constant-rate/emergence-epoch", paper_epoch(emergence), reason=NEVER),
        leads(runs, "batch", "constant-rate/convergence-minus-emergence", Claim()),
    ]


def _sheets(paper: Runs, constant: Runs, total: int) -> list[Sheet]:
    modes: Courses = {"train mode": (paper, last_layer), "eval mode": (paper, partial(last_layer, end="-eval"))}
    first = courses("", modes, since=scaled((START,), total)[0], log_y=False, marked=LATE)
    words = caption([first], f"From epoch {START} on, as in the paper. Marked: the rate drops for the last time.")
    both = {"falling learning rate": paper, "constant learning rate": constant}
    whole, bends = ({name: (runs, value) for name, runs in both.items()} for value in (last_layer, bend))
    panels = [
        courses("D of the last hidden layer", whole, marked=LATE),
        courses("1 + r of the law (0: a straight line)", bends, ylabel="1 + r", marked=LATE),
    ]
    return [
        Sheet("D of the last hidden layer", [first], 1, words),
        Sheet("With a constant learning rate, and the law beside it", panels, 2, "The whole training. Train mode."),
    ]


def _table(runs: Runs) -> Table:
    """Every network, with other shares of the final value."""
    return run_table(
        "When D of the last hidden layer has converged",
        runs,
        {"learning rate": lambda r: "falling" if r.recipe.drops else "constant", "seed": lambda r: r.recipe.seed},
        {
            **{f"within {share:.0%}": paper_epoch(convergence, share=share) for share in (0.02, 0.05, 0.1, 0.2)},
            "within 5% eval": paper_epoch(convergence, batchnorm="running"),
            "emergence": paper_epoch(emergence),
            "nearest mean": paper_epoch(collapse),
        },
        "Epochs from which on the last layer's D stays within a share of its final value; train mode where not said.",
    )


def _notes(paper: Runs, constant: Runs) -> list[str]:
    notes = []
    for name, runs in (("falling", paper), ("constant", constant)):
        pairs = [(convergence(r), emergence(r)) for r in runs.sound]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        first = sum(b < a for a, b in known)
        notes.append(
            f"With a {name} learning rate the law has emerged in {len(known)} of {len(runs)} seeds, and in {first} of them "
            "before D of the last layer has converged (within 5 %)."
        )
    drops = sorted({round(share * LAST) for r in paper for share in r.recipe.drops})
    ends = constant.sound.values(paper_epoch(convergence))
    late = sum(epoch is not None and epoch > drops[-1] for epoch in ends)
    return [
        *notes,
        f"The learning rate drops at epochs {drops[0]} and {drops[-1]}; without the drops D still moves by more than 5 % "
        f"after epoch {drops[-1]} in {late} of {len(ends)} seeds.",
    ]
