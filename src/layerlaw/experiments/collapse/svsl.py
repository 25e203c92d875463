"""Nearest class centers over training, and SVSL beside plain training: ResNet18 on MNIST, Fashion-MNIST and CIFAR-10.

SGD with momentum 0.9, weight decay 5e-4, batches of 128, 350 epochs, the rate divided by ten at 1/3 and 2/3, no
augmentation; CIFAR-10 with ImageNet's 7×7 stem, one-channel images with a 3×3 one, as the authors had it (on a GPU the
latter in bf16, which is what their 350 epochs of larger maps take the time of). Both trainings
of a pair have one seed: the same initial weights, the same order of the images. SVSL has the authors' α and first site,
with the penalty summed over the batch as in their code (averaged as in their formula it would be 128 times weaker), and,
with several seeds, again α and first site from a search of our own on a tenth of the training images (where the extra
"search" is there).

At 30 epochs: mismatch of the nearest class center (means of the training images), D, NC1 to NC4 at the four stages, the
average pool and the logits, on training and test images, with running statistics. Judged: conjectures 7, 8 and 11
(`check_conjectures`, pooled over the seeds), and the gain in test accuracy at the end over the pairs (t test). One seed
shows the conjectures, but no gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerlaw.advice.courses import ENDS, course_ends, course_panel, course_series, course_sheets, example_tables
from layerlaw.advice.penalty_search import PenaltySearch, svsl_search
from layerlaw.errors import MissingExtraError
from layerlaw.experiments.numbers import UNCLAIMED, Claim, above, below, paired_rows, row, standard_error, within
from layerlaw.experiments.runs import Runs
from layerlaw.experiments.setting import Data, Setting, samples, stand_in
from layerlaw.lab import Architecture, CrossEntropy, Recipe, Run, Samples, Schedule
from layerlaw.lab.networks import Precision
from layerlaw.lab.schedule import COLLAPSE
from layerlaw.lab.variability import VariabilityCrossEntropy
from layerlaw.law import CHANCE, t_quantile
from layerlaw.measures.columns import REGISTRY
from layerlaw.outcome import Cell, Kind, Outcome, Row, Table
from layerlaw.sheet import Sheet
from layerlaw.verdict.conjectures import ConjectureVerdict, TrainingCourse, check_conjectures, training_course
from layerlaw.wording import percent

TITLES = {
    "svsl_mnist": "SVSL beside plain training: ResNet18 on MNIST",
    "svsl_fashion_mnist": "SVSL beside plain training: ResNet18 on Fashion-MNIST",
    "svsl_cifar10": "SVSL beside plain training: ResNet18 on CIFAR-10",
    "svsl_random_labels": "Nearest class centers with random labels: ResNet18 on Fashion-MNIST",
}
SITES = ("stage1", "stage2", "stage3", "stage4", "average", "classifier")
PLAIN, SVSL, FOUND = "plain", "svsl", "svsl-searched"
LABELS = {PLAIN: "plain", SVSL: "SVSL", FOUND: "SVSL, α searched"}
EPOCHS = 350
MEASURED = (
    *(1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 84, 100, 116, 118, 120, 124, 130),
    *(145, 165, 190, 215, 232, 235, 240, 260, 300, 350),
)
QUICK_EPOCHS, QUICK_MEASURED = 30, (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 25, 30)
QUICK_SHAPE: dict[str, Any] = {"widths": (16, 32, 32, 64), "blocks": (1, 1, 1, 1)}
QUICK_COUNT, QUICK_RANDOM = 30, 10  # images of a class: few enough to be fitted in so few epochs
QUICK_TESTS = 20
QUICK_ALPHA = 1e-3
WHOLE = 10_000  # images of a class: all there are
RANDOM_COUNT = 500  # images of a class with random labels: few enough to be learned by heart
NOTHING = "no training came to its end"
FALLS = {
    7: "a fall from the first layer to the last",
    **dict.fromkeys((8, 11), "a fall at every layer with room for it"),
}
NO_TERMINAL = "the training images were not fitted: no terminal phase"


@dataclass(frozen=True)
class Published:
    """A setting of the authors and their numbers: accuracies at the end and at the threshold, first-layer mismatch."""

    rate: float
    alpha: float
    first: str
    at_end: tuple[float, float]  # plain, SVSL
    at_threshold: tuple[float, float]
    first_mismatch: float | None = None
    network: str = "resnet18"
    size: int = 28
    search: tuple[int, int] = (8, 30)  # trials and their epochs
    precision: Precision | None = "bf16"  # on a GPU; `None`: TF32

    @property
    def gain(self) -> float:
        """Of SVSL at the end."""
        return round(self.at_end[1] - self.at_end[0], 6)


PUBLISHED = {
    "mnist": Published(0.0096, 1e-5, "stage1", (0.9961, 0.9969), (0.9937, 0.9936), 0.16),
    "fashion_mnist": Published(0.0255, 1e-5, "stage1", (0.9382, 0.9388), (0.9178, 0.9313)),
    "cifar10": Published(
        0.180, 4e-6, "average", (0.8096, 0.8119), (0.8064, 0.8056), 0.6, "resnet18_7x7", 32, (12, 60), None
    ),
}
NEAR = {"mnist": 0.002, "fashion_mnist": 0.01, "cifar10": 0.02}  # tolerance of accuracies, written before any run


def svsl_mnist(setting: Setting) -> Outcome:
    """SVSL beside plain training on MNIST (their Table 1 and Figure 2).

        layerlaw reproduce svsl_mnist            3 pairs of 350 epochs and the search (on a GPU)
        layerlaw reproduce svsl_mnist --quick    a small ResNet, 300 images of Fashion-MNIST, 30 epochs

    The paper: 99.61 % plain, 99.69 % with SVSL at the end; first-layer mismatch about .16.
    """
    return beside(setting, "mnist")


def svsl_fashion_mnist(setting: Setting) -> Outcome:
    """SVSL beside plain training on Fashion-MNIST (their Table 1 and Figure 2).

        layerlaw reproduce svsl_fashion_mnist            3 pairs of 350 epochs and the search (on a GPU)
        layerlaw reproduce svsl_fashion_mnist --quick    a small ResNet, 300 images, 30 epochs

    The paper: 93.82 % plain, 93.88 % with SVSL at the end.
    """
    return beside(setting, "fashion_mnist")


def svsl_cifar10(setting: Setting) -> Outcome:
    """SVSL beside plain training on CIFAR-10 (their Table 1 and Figure 2).

        layerlaw reproduce svsl_cifar10            3 pairs of 350 epochs and the search (on a GPU)
        layerlaw reproduce svsl_cifar10 --quick    a small ResNet, 300 images of Fashion-MNIST, 30 epochs

    The paper: 80.96 % plain, 81.19 % with SVSL at the end; first-layer mismatch about .6.
    """
    return beside(setting, "cifar10")


def svsl_random_labels(setting: Setting) -> Outcome:
    """The control that the paper names: the mismatch collapses with random labels too.

        layerlaw reproduce svsl_random_labels            2 networks per seed, 350 epochs on 5000 images (on a GPU)
        layerlaw reproduce svsl_random_labels --quick    a small ResNet, 100 images, 30 epochs

    Fashion-MNIST, 500 images of every class, with their labels and with shuffled ones, otherwise as svsl_fashion_mnist.
    Judged: conjectures 7 and 8 on the training images with random labels, and that at the end the network's nearest
    center agrees with it at the last layers (mismatch of the average pool below 1 %). Test images have their true
    labels; their accuracy is that of guessing.
    """
    about = PUBLISHED["fashion_mnist"]
    true = _images(setting, "fashion_mnist", about, RANDOM_COUNT)
    data: Data = {"true-labels": true, "random-labels": true.with_random_labels}
    bases = {name: replace(_recipe(setting, about, true), data=name) for name in data}
    recipes = [r for base in bases.values() for r in base.grid(seed=setting.seeds())]
    runs = setting.train("labels", recipes, data, _schedule(setting), networks=False)
    arms = {name: runs.at(data=name) for name in data}
    found: list[Row] = []
    courses = {name: _courses(some) for name, some in arms.items()}
    verdicts = {name: check_conjectures(some) if some else [] for name, some in courses.items()}
    for name, some in arms.items():
        judged = name == "random-labels"
        found += _ends(name, some, {})
        ends = [m.collapse["ncc_mismatch"][4] for m in _last(some, "train") if m.collapse]
        claim = below(0.01, "collapse occurs") if judged else UNCLAIMED
        found.append(row(f"{name}/average/train-mismatch", ends, claim, reason=NOTHING))
        found += verdict_rows(
            name, [v for v in verdicts[name] if v.split == "train"], kind="direction" if judged else None
        )
    words = [f"{name.replace('-', ' ')}: {v.sentence}" for name in arms for v in verdicts[name] if v.split == "train"]
    figure, notes = "svsl_random_labels", [*words, *_how(arms)]
    return Outcome(figure, TITLES[figure], found, _sheets(arms), _tables(arms, verdicts), notes)


def beside(setting: Setting, name: str) -> Outcome:
    """Plain training, SVSL as published, SVSL as searched: pairs of one seed."""
    about = PUBLISHED[name]
    images = _images(setting, name, about, WHOLE)
    base = replace(_recipe(setting, about, images), data=name)
    alpha = QUICK_ALPHA if setting.quick else about.alpha
    losses: dict[str, Any] = {PLAIN: CrossEntropy(), SVSL: _penalty(alpha, about.first)}
    recipes = [replace(r, loss=loss) for r in base.grid(seed=setting.seeds()) for loss in losses.values()]
    runs = setting.train("pairs", recipes, {name: images}, _schedule(setting), networks=False)
    one = len(setting.seeds()) == 1  # its gain could not be told from chance
    searched, missing = (None, "") if setting.quick or one else _searched(setting, base, images, about)
    if searched is not None:
        losses[FOUND] = _penalty(searched.alpha, searched.first)
        recipes = [replace(r, loss=losses[FOUND]) for r in base.grid(seed=setting.seeds())]
        more = setting.train("searched", recipes, {name: images}, _schedule(setting), networks=False)
        runs = Runs((*runs, *more))
    arms = {arm: runs.at(loss=loss) for arm, loss in losses.items()}
    courses = {arm: _courses(some) for arm, some in arms.items()}
    found, notes = [], []
    verdicts: dict[str, list[ConjectureVerdict]] = {}
    for arm, some in arms.items():
        found += _ends(arm, some, _claims(name, about, arm))
        pairs = [_paired(arms[PLAIN], some)] if arm != PLAIN else []
        others = pairs[0][1] if pairs and pairs[0][1] else None
        ours = pairs[0][0] if others else courses[arm]
        verdicts[arm] = check_conjectures(ours, others) if ours else []
        kept = (11, 12) if others else (7, 8)
        verdicts[arm] = [v for v in verdicts[arm] if v.number in kept]
        if others:
            verdicts[arm] += check_conjectures(others)
        kind: Kind | None = "direction" if arm in (PLAIN, SVSL) else None
        found += verdict_rows(arm, [v for v in verdicts[arm] if v.number != 12], kind=kind)
        if arm != PLAIN:
            gains = [g for g in some.sound.minus(arms[PLAIN].sound, "test-accuracy") if g is not None]
            claim = above(0, about.gain) if arm == SVSL else UNCLAIMED
            found += gain_rows(f"{arm}-minus-plain/test-accuracy", gains, claim)
        notes += [f"{LABELS[arm]}: {v.sentence}" for v in verdicts[arm]]
    if searched is not None:
        notes.append(f"Search: {searched.sentence}")
    notes += [f"No search of α: {missing}"] if missing else []
    notes += setting.note("One seed: no search of α, and no gain is judged.", quick=False) if one else []
    notes += [*_how(arms), *stand_in(setting, name)]
    tables = [*_tables(arms, verdicts), *([_search_table(searched)] if searched else [])]
    return Outcome(f"svsl_{name}", TITLES[f"svsl_{name}"], found, _sheets(arms), tables, notes)


def _penalty(alpha: float, first: str) -> VariabilityCrossEntropy:
    return VariabilityCrossEntropy(alpha, first=first, reduction="authors", where=SITES)


def _images(setting: Setting, name: str, about: Published, count: int) -> Samples:
    """All images in their order (of every class so many); few and small ones in a quick run."""
    few = QUICK_RANDOM if count == RANDOM_COUNT else QUICK_COUNT
    counts, size, tests = (few, 16, QUICK_TESTS) if setting.quick else (count, about.size, WHOLE)
    return samples(setting, name, counts, size=size, tests=tests, flat=False)(None)


def _recipe(setting: Setting, about: Published, images: Samples) -> Recipe:
    changes: dict[str, Any] = {"inputs": images.inputs.shape[1], **(QUICK_SHAPE if setting.quick else {})}
    network = Architecture.named("resnet18" if setting.quick else about.network, **changes)
    how: dict[str, Any] = {"optimizer": "momentum", "learning_rate": about.rate, "batch_size": 128}
    how["precision"] = setting.on_gpu(about.precision)
    if setting.quick:
        how |= (
            {"learning_rate": 0.02, "batch_size": 10}
            if len(images.labels) < 200
            else {"learning_rate": 0.05, "batch_size": 20}
        )
    return Recipe(network, epochs=setting.epochs(EPOCHS, QUICK_EPOCHS), **how)


def _schedule(setting: Setting) -> Schedule:
    epochs = QUICK_MEASURED if setting.quick else MEASURED
    return Schedule(epochs, batchnorm=("running",), test=True, collapse=True, sites=SITES)


def _searched(setting: Setting, base: Recipe, images: Samples, about: Published) -> tuple[PenaltySearch | None, str]:
    """α and first site on a tenth of the training images; `None` and why, where Optuna is not there."""
    trials, epochs = about.search
    folder = None if setting.folder is None else setting.folder / "search"
    how: dict[str, Any] = {"folder": folder, "device": setting.device, "progress": setting.progress}
    how["workers"] = setting.workers or 1
    try:
        return svsl_search(replace(base, epochs=epochs), images, sites=SITES, trials=trials, **how), ""
    except MissingExtraError as error:
        return None, f"{error}."


def _last(runs: Runs, split: Any) -> list[Any]:
    return [run.measurement(batchnorm="running", split=split) for run in runs.sound]


def _courses(runs: Runs) -> list[TrainingCourse]:
    return [training_course(run) for run in runs.sound]


def _paired(plain: Runs, others: Runs) -> tuple[list[TrainingCourse], list[TrainingCourse]]:
    """Courses of the seeds that came to their end in both."""
    known = {run.recipe.seed: run for run in plain.sound}
    pairs = [(known[run.recipe.seed], run) for run in others.sound if run.recipe.seed in known]
    return [training_course(a) for a, _ in pairs], [training_course(b) for _, b in pairs]


def _claims(name: str, about: Published, arm: str) -> dict[str, Claim]:
    """The paper's numbers; those at the end are judged, on the authors' own settings."""
    if arm == FOUND:
        return {}
    i = int(arm == SVSL)
    claims = {
        "test-accuracy": within(about.at_end[i], NEAR[name]),
        "test-accuracy-at-threshold": Claim(about.at_threshold[i]),
    }
    if about.first_mismatch is not None and arm == PLAIN:
        claims["stage1/train-mismatch"] = Claim(f"about {about.first_mismatch:g}")
    return claims


def _ends(arm: str, runs: Runs, claims: Mapping[str, Claim]) -> list[Row]:
    """What comes out at the end and on the way."""
    test, train = (_last(runs, split) for split in ("test", "train"))
    courses = _courses(runs)
    ends = [course_ends(course) for course in courses]
    values: dict[str, Sequence[float | None]] = {
        "test-accuracy": [m.accuracy for m in test],
        "test-accuracy-at-threshold": [one.at_threshold for one in ends],
        "test-accuracy-best": [one.best for one in ends],
        "best-epoch-is-terminal": [float(one.best_epoch in c.terminal) for one, c in zip(ends, courses, strict=True)],
        "interpolation-epoch": [course.interpolation for course in courses],
        "stage1/train-mismatch": [m.mismatch[0] for m in train],
        "stage1/test-mismatch": [m.mismatch[0] for m in test],
        "average/nc1": [m.collapse["nc1"][4] for m in train],
        "average/nc3": [m.collapse["nc3"][4] for m in train],
    }
    why = {"test-accuracy-at-threshold": NO_TERMINAL, "interpolation-epoch": NO_TERMINAL}
    return [
        row(
            f"{arm}/{what}",
            found,
            claims.get(what, UNCLAIMED),
            reason=runs.trouble(batchnorm="running") or why.get(what, NOTHING),
        )
        for what, found in values.items()
    ]


def gain_rows(name: str, gains: Sequence[float], claim: Claim) -> list[Row]:
    """The gain over the pairs with its standard error and 95 % interval."""
    error = standard_error(gains)
    rows = paired_rows(name, gains, claim, reason=NOTHING)
    for side, sign in (("low", -1), ("high", 1)):
        end = None if error is None else sum(gains) / len(gains) + sign * t_quantile(len(gains) - 1) * error
        rows.append(row(f"{name}-interval-{side}", [end], reason="one seed has no interval"))
    return rows


def verdict_rows(arm: str, verdicts: Sequence[ConjectureVerdict], *, kind: Kind | None) -> list[Row]:
    """1 where a conjecture holds, 0 where it fails, none where it is open; counter-examples beside it. `kind`: judged."""
    rows = []
    for v in verdicts:
        name, ours = f"{arm}/conjecture-{v.number}/{v.split}", None if v.holds is None else float(v.holds)
        about: dict[str, Any] = {
            "tolerance": f"{FALLS.get(v.number, 'a gain')} beyond the noise, no counter-example",
            "reason": v.why if ours is None else "",
        }
        if kind and v.checked:
            about |= {"reproduced": v.holds is True, "kind": kind, "chance": CHANCE}
        rows.append(Row(name, "holds", ours, **about))
        rows.append(
            row(f"{name}/counter-examples", [float(len(v.counter_examples))] if v.checked else [], reason=v.why)
        )
    return rows


def _label(arm: str) -> str:
    return LABELS.get(arm, arm.replace("-", " "))


def _sheets(arms: Mapping[str, Runs]) -> list[Sheet]:
    """Figure 2: mismatch over the epochs; Figure 1: accuracy; then D and NC1 to NC4 where the classifier reads."""
    known = {arm: courses for arm, some in arms.items() if (courses := _courses(some))}
    sheets = course_sheets({_label(arm): courses for arm, courses in known.items()})
    sheets = [replace(s, title=f"{s.title} (Figure {n})") for s, n in zip(sheets, (2, 1), strict=True)]
    panels = []
    for column in (None, *(name for name in COLLAPSE if name not in ("ncc_mismatch", "nc2_angles"))):
        title = "D" if column is None else REGISTRY[column].label
        series = [
            course_series(_label(arm), courses, [_read(run, column, courses[0].epochs) for run in arms[arm].sound])
            for arm, courses in known.items()
        ]
        panels.append(course_panel(title, (), series, title, log_y=True))
    return [*sheets, Sheet("D and NC1 to NC4 where the classifier reads, training images", panels, 3)]


def _read(run: Run, column: str | None, epochs: Sequence[int]) -> list[float | None]:
    """A column of the average pool, `None`: D, on training images after each of the epochs."""
    found: list[Any] = [run.measurement(epoch=epoch, batchnorm="running", split="train") for epoch in epochs]
    return [m.separation[4] if column is None else m.collapse[column][4] for m in found]


def _tables(arms: Mapping[str, Runs], verdicts: Mapping[str, Sequence[ConjectureVerdict]]) -> list[Table]:
    """Every training, the mismatch at its end, and what contradicts a conjecture."""
    every: list[tuple[Cell, ...]] = []
    ends: list[tuple[Cell, ...]] = []
    for arm, run in ((arm, run) for arm, some in arms.items() for run in some):
        about = (_label(arm), str(run.recipe.loss), run.recipe.seed)
        if run.diverged is not None:
            every.append((*about, None, None, None, None, f"diverged in epoch {run.diverged}"))
            continue
        course = training_course(run)
        every.append((*about, *course_ends(course)))
        ends += [(*about, split, *rows[-1]) for split, rows in course.mismatch.items()]
    names = ("training", "loss", "seed")
    return [
        Table("Every training", (*names, *ENDS), every),
        Table("Mismatch at the end", (*names, "split", *SITES), ends),
        *example_tables({_label(arm): some for arm, some in verdicts.items()}),
    ]


def _search_table(search: PenaltySearch) -> Table:
    lines: list[tuple[Cell, ...]] = [(0.0, "", search.plain), *((t.alpha, t.first, t.accuracy) for t in search.trials)]
    return Table("Search of α and the first site", ("α", "first site", "validation accuracy"), lines, search.sentence)


def _how(arms: Mapping[str, Runs]) -> list[str]:
    ways = sorted({way for runs in arms.values() for run in runs for way in run.how})
    lost = sum(len(runs) - len(runs.sound) for runs in arms.values())
    fitted = [r for runs in arms.values() for r in runs.sound if training_course(r).interpolation is None]
    open_ = [f"Training images not fitted to {percent(0.995)} in {len(fitted)} trainings: no terminal phase."]
    return [*([f"Diverged: {lost}."] if lost else []), *(open_ if fitted else []), f"Trained: {'; '.join(ways)}."]
