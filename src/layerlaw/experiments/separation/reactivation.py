"""Reactivation: can a broken law be brought back by fine-tuning, "with about the same or better test performance"?

    layerlaw reproduce reactivation            3 kinds of networks × 10 seeds, fine-tuned with and without the penalty
    layerlaw reproduce reactivation --quick    one kind, one seed, few epochs

The paper: "Although this law is sometimes not observed in neural networks with good test performance, interestingly, one
can fine-tune the parameters to reactivate the law with about the same or better test performance." It names neither the
networks nor the method. Both are ours here, so all judged rows are remarks.

Networks whose law is broken: 20 layers on CIFAR-10 after frozen training (as in Figure 9); 8 layers without BatchNorm;
and 20 layers at a learning rate (1e-4) that gives no law. They are fine-tuned for 150 steps (Adam 3e-4, a tenth of it
for the last two fifths, batches of 500) by cross-entropy plus λ times (1/evenness − 1) of log D on the batch
(`EvenCrossEntropy`); the control is the same fine-tuning with λ = 0. λ is chosen on the first three seeds among 0.1,
0.3, 1 and 3: of those with which the law holds in most of them the one with the best accuracy on validation images
(further training images), else the one with the largest evenness.

Judged, over all seeds, is both at once: afterwards the law holds (`LawFit.holds`) in more than half of them, and test
accuracy is not lower than the control's by more than a point (one-sided paired t test, 5 %). The value is the share of
the seeds in which the law holds. Each kind of network is judged in two protocols: chunks of 100 as drawn, the authors';
and running statistics, because the penalty acts on batches of 500, which chunks of 100 as drawn are not (without
BatchNorm the two are the same and count once). Accuracy is that with running statistics in both. The parts, the other
protocols and the accuracy against that before fine-tuning stand beside and are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from layerlaw.experiments.drawing import across_table, curves_panel, run_table
from layerlaw.experiments.numbers import Claim, Values, above, mean_of, minus, paired_rows, row, standard_error
from layerlaw.experiments.runs import ENDS, LAW, MODES, OURS, PROTOCOL_WORDS, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.runs import holds as law_holds
from layerlaw.experiments.separation.fig5 import accuracy, validated, validation
from layerlaw.experiments.setting import Images, Setting, samples, stand_in
from layerlaw.lab import EvenCrossEntropy, Recipe, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import CHANCE
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Sheet

TITLE = "Reactivating the law: fine-tuning towards even steps"
WEIGHTS = (0.1, 0.3, 1.0, 3.0)
PILOT = 3  # seeds on which the weight is chosen
KEPT = above(-0.01)
"""Differences of test accuracy that are "about the same or better": not lower by more than a point."""
SCHEDULE = replace(PROTOCOLS, permuted=False)


@dataclass(frozen=True)
class Broken:
    """A kind of network without a law."""

    words: str
    data: str
    recipe: Recipe
    frozen: bool = False


KINDS = {
    "frozen": Broken(
        "CIFAR-10, 20 layers, frozen training", "cifar10", Recipe(Shape.even(20), learning_rate=1e-3), True
    ),
    "no-norm": Broken("Fashion-MNIST, 8 layers without BatchNorm", "fashion_mnist", Recipe(Shape.even(8, norm=False))),
    "bad-rate": Broken(
        "Fashion-MNIST, 20 layers, lr 1e-4", "fashion_mnist", Recipe(Shape.even(20), learning_rate=1e-4)
    ),
}


BESIDE = "not judged: another protocol than the authors’"
ABOUT = (
    "The paper names neither the networks nor the method; both are ours. The penalty acts on batches of 500, which chunks "
    "of 100 as drawn are not: running statistics stand beside them. Without BatchNorm they are the same."
)


def run(setting: Setting) -> Outcome:
    """Break the law, fine-tune, report what came out."""
    found: list[Row] = []
    across: dict[str, Runs] = {}
    verdicts: dict[str, Callable[[BatchNormMode], bool | None]] = {}
    tables, panels, notes = [], [], []
    for name, kind in list(KINDS.items())[1:2] if setting.quick else KINDS.items():
        images = samples(setting, kind.data, 200, tests=1000)
        before = _break(setting, name, kind, images)
        weight, tried = _choose(setting, name, before, images)
        control, after = _tune(setting, f"{name}-all", before, images, [0.0, weight])
        stages = {"before": before, "control": control, "after": after}
        tests = {
            stage: [accuracy(r, images(r.recipe.seed), setting.device) for r in some] for stage, some in stages.items()
        }
        found += _rows(name, stages, tests, weight)
        across |= {f"{kind.words}, {stage}": some for stage, some in stages.items()}
        words = f"{OURS}reactivation, the law is back and accuracy about the same, {kind.words}"
        verdicts[words] = partial(_verdict, after, _gaps(tests, "control"))
        panels.append(curves_panel(kind.words, stages))
        tables.append(_table(kind, tried))
        notes += [_note(kind, stages, tests, weight)]
    sheet = Sheet(
        "D along depth before and after fine-tuning", panels, caption="Chunks of 100; mean and range over seeds."
    )
    tables = [protocol_table(verdicts), across_table("Over seeds and images", across), *tables]
    return Outcome("reactivation", TITLE, found, [sheet], tables, [ABOUT, *notes, *stand_in(setting, "cifar10")])


def _break(setting: Setting, name: str, kind: Broken, images: Images) -> Runs:
    """Train networks of one kind, one per seed."""
    data = {kind.data: partial(validated, images)}
    whole = setting.epochs()
    grid = replace(kind.recipe, data=kind.data, epochs=whole).grid(seed=setting.seeds(least=10))
    if not kind.frozen:
        return setting.train(name, grid, data, SCHEDULE)
    half = kind.recipe.network.depth // 2
    bottom = [replace(r, layers=(0, half), drops=(), epochs=whole * 3 // 2) for r in grid]
    states = [r.state for r in setting.train(f"{name}-bottom", bottom, data, SCHEDULE) if r.state is not None]
    top = [replace(r, layers=(half, kind.recipe.network.depth)) for r in grid]
    return setting.train(f"{name}-top", top, data, SCHEDULE, start=states)


def _tune(setting: Setting, name: str, runs: Runs, images: Images, weights: Sequence[float]) -> list[Runs]:
    """Fine-tune these networks, with each of the weights."""
    data = {runs[0].recipe.data: partial(validated, images)}
    epochs = setting.epochs(75, 10)
    recipes = [
        replace(
            r.recipe, loss=EvenCrossEntropy(weight), learning_rate=3e-4, epochs=epochs, drops=(0.6,), batch_size=500,
            layers=None, decay_frozen=False,
        )
        for weight in weights
        for r in runs
    ]  # fmt: skip
    states = [r.state for _ in weights for r in runs if r.state is not None]
    tuned = setting.train(f"{name}-tuned", recipes, data, SCHEDULE, start=states)
    return [Runs(tuned[i * len(runs) : (i + 1) * len(runs)]) for i in range(len(weights))]


def _choose(setting: Setting, name: str, runs: Runs, images: Images) -> tuple[float, dict[float, Runs]]:
    """The weight of the penalty, by validation images of the first seeds."""
    weights = (1.0,) if setting.quick else WEIGHTS
    tried = dict(zip(weights, _tune(setting, f"{name}-pilot", Runs(runs[:PILOT]), images, weights), strict=True))

    def merit(weight: float) -> tuple[bool, float]:
        some = tried[weight].sound
        held = bool(some) and some.mostly_hold()
        return held, (some.mean(validation) if held else some.mean("evenness")) or 0.0

    return max(weights, key=merit), tried


def reactivated(gaps: Values) -> Claim:
    """The law is back in most seeds and accuracy is about the same; `gaps` are accuracies less the control's.

    Chance is that of the weaker part: networks that lose a point pass the t test in 5 %.
    """
    known = [gap for gap in gaps if gap is not None]
    words = f"> half of the seeds, and test accuracy less the control's {KEPT.tolerance}"

    def agrees(held: Sequence[float]) -> bool:
        assert KEPT.agrees is not None
        return 2 * sum(held) > len(held) and KEPT.agrees(known)

    paper = "reactivate the law with about the same or better test performance"
    return Claim(paper, agrees, words, "remark", CHANCE, single=False)


def _joint(name: str, after: Runs, gaps: Values, mode: BatchNormMode) -> Row:
    """The judged row in one protocol; a run that diverged has no law."""
    held = [float(law_holds(r, batchnorm=mode)) for r in after]
    return row(f"{name}/reactivated{ENDS[mode]}", held, reactivated(gaps))


def _verdict(after: Runs, gaps: Values, mode: BatchNormMode) -> bool | None:
    return _joint("", after, gaps, mode).reproduced


def _gaps(tests: dict[str, list[float]], other: str) -> list[float | None]:
    return [minus(a, b) for a, b in zip(tests["after"], tests[other], strict=True)]


def _rows(name: str, stages: dict[str, Runs], tests: dict[str, list[float]], weight: float) -> list[Row]:
    after, gaps = stages["after"], _gaps(tests, "control")
    modes = MODES if after[0].recipe.network.norm else MODES[:1]  # without BatchNorm all protocols are the same
    found = [_joint(name, after, gaps, mode) for mode in modes]
    found[1:] = [replace(r, reproduced=None, kind=None, chance=None, tolerance=BESIDE) for r in found[1:]]
    found += [
        r for stage, some in stages.items() for r in some.rows(f"{name}/{stage}", (*LAW, "trend-eval", "final-D"))
    ]
    found += [Row(f"{name}/{stage}/test-accuracy", None, mean_of(v), min(v), max(v)) for stage, v in tests.items() if v]
    found.append(Row(f"{name}/weight", None, weight))
    for other in ("control", "before"):
        found += paired_rows(f"{name}/after-minus-{other}/test-accuracy", _gaps(tests, other))
    return found


def _table(kind: Broken, tried: dict[float, Runs]) -> Table:
    weights = {id(r): weight for weight, some in tried.items() for r in some}
    return run_table(
        f"Weights tried, {kind.words}",
        [r for some in tried.values() for r in some],
        {"weight": lambda r: weights[id(r)], "seed": lambda r: r.recipe.seed},
        {
            **{f"{what}{mode}": f"{what}{mode}" for what in ("holds", "evenness") for mode in ("", "-eval")},
            "final D": "final-D", "train loss": "train-loss", "validation acc.": lambda r: validation(r),
        },
    )  # fmt: skip


def _note(kind: Broken, stages: dict[str, Runs], tests: dict[str, list[float]], weight: float) -> str:
    """Evenness and trend before, in the control and after; in which protocols the law is back; what accuracy does."""
    numbers = []
    for mode in MODES:
        parts = []
        for what in ("evenness", "trend"):
            values = (_median(some, f"{what}{ENDS[mode]}") for some in stages.values())
            parts.append(f"{what} {' / '.join(values)}")
        numbers.append(f"{PROTOCOL_WORDS[mode]}: {', '.join(parts)}")
    flat = " (∞: the fitted first step does not fall)" if any("∞" in words for words in numbers) else ""
    laws = "; ".join(
        f"{stage} {' and '.join(str(_held(some, mode)) for mode in MODES)}" for stage, some in stages.items()
    )
    others = ", ".join(
        f"{_held(stages['after'], mode)} with {words}" for mode, words in PROTOCOL_WORDS.items() if mode not in MODES
    )
    accuracies = ", ".join(f"{stage} {100 * (mean_of(v) or 0):.1f} %" for stage, v in tests.items())
    gaps = ", ".join(f"after less {other} {_points(_gaps(tests, other))}" for other in ("control", "before"))
    ends = ", ".join(f"{stage} {some.mean('final-D') or 0:.3g}" for stage, some in stages.items())
    return (
        f"{kind.words} (λ = {weight:g}). Medians before / control / after, {'; '.join(numbers)}{flat}. The law holds, of "
        f"{len(stages['after'])} networks with {' and with '.join(PROTOCOL_WORDS[mode] for mode in MODES)}: {laws}; "
        f"after, otherwise: {others}. Test accuracy {accuracies} ({gaps}). Final D {ends}."
    )


def _held(runs: Runs, mode: BatchNormMode) -> int:
    return sum(law_holds(r, batchnorm=mode) for r in runs)


def _median(runs: Runs, what: str) -> str:
    """Over the seeds; a trend can be 0 or infinite, where a fitted end step does not fall."""
    known = [v for r in runs if (v := number(r, what)) is not None]
    return f"{median(known):.2f}".replace("inf", "∞") if known else "–"


def _points(gaps: Values) -> str:
    """A mean difference in points of accuracy, with its standard error.

    >>> _points([0.01, 0.03]), _points([0.01])
    ('+2.0 ± 1.0 points', '+1.0 points')
    """
    known = [gap for gap in gaps if gap is not None]
    error = standard_error(known)
    return f"{100 * (mean_of(known) or 0):+.1f}{'' if error is None else f' ± {100 * error:.1f}'} points"
