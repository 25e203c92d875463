"""Figure S1: D of the last hidden layer over training, in the 20-layer network of Fig. 2: the law comes before collapse.

    layerlaw reproduce s1            20 networks at 10 seeds: the paper's recipe, and a constant learning rate
    layerlaw reproduce s1 --quick    two networks, 24 epochs instead of 600 (reported as the paper's: 100 stands for epoch 4)

At the authors' rate of Fig. 1 (3e-4), in their BatchNorm mode. The paper: D of the last layer "does not reach
convergence until after 400 epochs", and "the equi-separation law emerges prior to the occurrence of neural collapse".
It does not say within which share of its final value D has converged, and epoch 400 is before or after that as the
share is chosen: so the epoch is shown for 1, 2, 5 and 10 %, and judged at none of them. Judged is the order, by what
needs no such limit. Where features have collapsed to their class means, every training sample is nearest to its own
mean; so collapse is not earlier than the epoch from which on this is so. This epoch minus the one from which on the law
holds (`LawFit.holds`) is above 0 by a t test over seeds; either counts as the last epoch where it does not come until
then. How far D of the last layer falls after the law has emerged stands beside. The paper gives no values of D, so none
are judged. The learning rate drops at epochs 200 and 400, which alone can move the time of convergence, so the same
networks are trained with a constant rate too (ours).
Emergence is that of Fig. 2, asked at its epochs; all else is as fine as the measurements, 10 epochs. The epochs of
emergence of the same seeds differ between runs that probe at other epochs: "from then on" depends on which epochs are
asked, and networks that are trained in another sweep differ by rounding, which training magnifies.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from layerlaw.experiments import moments
from layerlaw.experiments.drawing import Courses, caption, courses, run_table
from layerlaw.experiments.moments import NEVER, bend, measured_epochs, paper_epoch, scaled
from layerlaw.experiments.numbers import Claim, above, mean_of, minus, over, row
from layerlaw.experiments.runs import ENDS, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.separation import fig2
from layerlaw.experiments.separation.fig1 import SHOWN
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Sheet

TITLE = "The law emerges before neural collapse"
PROBES = range(0, 601, 10)  # those of Fig. 2 are among them
QUICK_PROBES = range(0, 601, 100)
SHARES = (0.01, 0.02, 0.05, 0.1)  # of the final value, within which D has converged
START, LATE, LAST = 100, 400, 600  # the paper's epochs
DEPTH = 20
RATE = SHOWN["adam", DEPTH][0]
AFTER = Claim(f"after {LATE}", tolerance="not judged: the share is ours")
FIRST = above(0, "the law is first")
APART = "a sample is nearest to another mean at the end"  # why there is no epoch of collapse


def run(setting: Setting) -> Outcome:
    """Train with falling and with constant learning rate, report what came out."""
    total = setting.epochs(quick=24)
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(Shape.even(DEPTH), "fashion_mnist", learning_rate=RATE, epochs=total)
    recipes = base.grid(drops=(base.drops, ()), seed=setting.seeds(least=10))
    probes = scaled(QUICK_PROBES if setting.quick else PROBES, total)
    schedule = replace(PROTOCOLS, epochs=probes, test=False, permuted=False)
    runs = setting.train("last-layer", recipes, data, schedule)
    paper, constant = (runs.at(drops=drops) for drops in (base.drops, ()))
    survives = {"Fig. S1: the law emerges before neural collapse": lambda mode: leads(paper, mode).reproduced}
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


def convergence(run: Run, *, share: float, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on D of the last hidden layer stays within a share of its final value."""
    epochs = measured_epochs(run, batchnorm=batchnorm)
    return moments.settling(epochs, [last_layer(run, e, ENDS[batchnorm]) for e in epochs], share)


def emergence(run: Run, *, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on the law holds at every later epoch of Fig. 2; `None` where this is never so."""
    asked = scaled((*fig2.EPOCHS, *fig2.BETWEEN), run.recipe.epochs)
    known = tuple(m for m in run.measurements if m.epoch in asked)
    return moments.emergence(replace(run, measurements=known), batchnorm=batchnorm)


def collapse(run: Run, *, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on every training sample is nearest to its own class mean in the last hidden layer."""
    epochs = measured_epochs(run, batchnorm=batchnorm)
    nearest = [run.measurement(epoch=epoch, batchnorm=batchnorm).nearest[-1] for epoch in epochs]
    return moments.since(epochs, [share == 1.0 for share in nearest])


def leads(runs: Runs, batchnorm: BatchNormMode, name: str = "", claim: Claim = FIRST) -> Row:
    """Epochs from the law to collapse; what does not come until the end counts as the last epoch."""
    return row(name, _gaps(runs, paper_epoch(collapse, batchnorm=batchnorm), batchnorm), claim, reason=runs.trouble())


def _gaps(runs: Runs, moment: Callable[[Run], int | None], batchnorm: BatchNormMode = "batch") -> list[float | None]:
    """Epochs from the law to another moment."""
    moments_of = (moment, paper_epoch(emergence, batchnorm=batchnorm))
    ends, laws = ([LAST if epoch is None else epoch for epoch in runs.sound.values(one)] for one in moments_of)
    return [minus(a, b) for a, b in zip(ends, laws, strict=True)]


def fall_after_emergence(run: Run) -> float | None:
    """D of the last layer at the end over that at the epoch at which the law emerges."""
    epoch = emergence(run)
    return None if epoch is None else over(last_layer(run, run.epoch), last_layer(run, epoch))


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
    """When the law emerges, when samples are nearest to their means, when D has converged, and what comes first."""
    found, why = [], runs.trouble()
    for mode, end in ENDS.items():
        found += [
            runs.sound.row(f"emergence-epoch{end}", paper_epoch(emergence, batchnorm=mode), reason=why or NEVER),
            runs.sound.row(f"nearest-mean-epoch{end}", paper_epoch(collapse, batchnorm=mode), reason=why or APART),
            leads(runs, mode, f"nearest-mean-minus-emergence{end}", Claim() if end else FIRST),
        ]
    for share in SHARES:
        within = f"within-{share:.0%}"
        for mode, end in ENDS.items():
            settled = paper_epoch(convergence, share=share, batchnorm=mode)
            claim = Claim() if end else AFTER
            found.append(runs.sound.row(f"convergence-epoch-{within}{end}", settled, claim, reason=why))
        gaps = _gaps(runs, paper_epoch(convergence, share=share))
        found.append(row(f"convergence-minus-emergence-{within}", gaps, reason=why))
    return [*found, runs.sound.row("last-D-at-end-over-emergence", fall_after_emergence, reason=why or NEVER)]


def _constant_rows(runs: Runs) -> list[Row]:
    """The same without drops of the learning rate."""
    why, name = runs.trouble(), "constant-rate"
    return [
        runs.row(f"{name}/last-D-epoch-{LAST}", "last-D"),
        *(
            runs.sound.row(f"{name}/convergence-epoch-within-{s:.0%}", paper_epoch(convergence, share=s), reason=why)
            for s in SHARES
        ),
        runs.sound.row(f"{name}/emergence-epoch", paper_epoch(emergence), reason=why or NEVER),
        leads(runs, "batch", f"{name}/nearest-mean-minus-emergence", Claim()),
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
    """Every network, with several shares of the final value."""
    return run_table(
        "When the law emerges and D of the last hidden layer has converged",
        runs,
        {"learning rate": lambda r: "falling" if r.recipe.drops else "constant", "seed": lambda r: r.recipe.seed},
        {
            "emergence": paper_epoch(emergence),
            "nearest mean": paper_epoch(collapse),
            **{f"within {share:.0%}": paper_epoch(convergence, share=share) for share in SHARES},
            "emergence eval": paper_epoch(emergence, batchnorm="running"),
            "nearest mean eval": paper_epoch(collapse, batchnorm="running"),
            "within 5% eval": paper_epoch(convergence, share=0.05, batchnorm="running"),
        },
        "Epochs from which on the law holds, every training sample is nearest to its own class mean in the last hidden "
        "layer, or the last layer's D stays within a share of its final value; train mode where not said.",
    )


def _notes(paper: Runs, constant: Runs) -> list[str]:
    notes = [_order(paper, "batch", "Chunks of 100"), _order(paper, "running", "Running statistics")]
    means = {share: mean_of(paper.sound.values(paper_epoch(convergence, share=share))) for share in SHARES}
    known = ", ".join(f"{share:.0%}: {mean:.0f}" for share, mean in means.items() if mean is not None)
    notes.append(f"Mean epoch from which on D of the last layer stays so close to its final value, {known or 'none'}.")
    drops = sorted({round(share * LAST) for r in paper for share in r.recipe.drops})
    ends = constant.sound.values(paper_epoch(convergence, share=0.05))
    late = sum(epoch is not None and epoch > drops[-1] for epoch in ends)
    return [
        *notes,
        f"The learning rate drops at epochs {drops[0]} and {drops[-1]}; without the drops D still moves by more than 5 % "
        f"after epoch {drops[-1]} in {late} of {len(ends)} seeds.",
        "Epochs of emergence of the same seeds differ between runs that probe at other epochs (Fig. 2): the law is asked "
        "at other times, and networks of another sweep differ by rounding.",
    ]


def _order(runs: Runs, batchnorm: BatchNormMode, words: str) -> str:
    """In how many seeds the law emerges, samples are nearest to their means, and the law is first."""
    laws, ends = (runs.sound.values(partial(moment, batchnorm=batchnorm)) for moment in (emergence, collapse))
    emerged, collapsed = (sum(epoch is not None for epoch in some) for some in (laws, ends))
    first = sum(a is not None and (b is None or a < b) for a, b in zip(laws, ends, strict=True))
    only = " The order says no more here than that the law comes before the end." if emerged and not collapsed else ""
    return (
        f"{words}: the law holds from some epoch on in {emerged} of {len(runs)} seeds, every training sample is nearest to "
        f"its own class mean from some epoch on in {collapsed}, and the law is first in {first}.{only}"
    )
