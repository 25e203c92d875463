"""Minority collapse in networks for images: do the classifiers of rare classes become one? A function per network.

K_A of ten classes (the first ones) have n_A training images, the others n_A/R; R = ∞ leaves them none, and the classifier
keeps rows for them. SGD with momentum 0.9, rate 0.1 divided by ten at 1/3 and 2/3 of 350 epochs, weight decay 5e-4, batches
of 128, as the authors had it. They have n_A = 6000 (Fashion-MNIST) and 5000 (CIFAR-10) and K_A = 3, 5, 7. Here n_A = 1000
and K_A = 5 (`SCALED`): a sixth or a fifth of the steps, and a single image per rare class at R = 1000; with K_A = 5 alone
`minority_whole` has the authors' n_A. All their counts are `CountPlan.published(data)`; `collapse` takes any plan.

Judged: the cosine between rare rows of the classifier rises with R (rank correlation in every seed, t test over seeds); it
is 0.9 or more at the largest ratio and at R = ∞; showing every rare image w times (the authors' remedy, at R = 1000) lowers
it and raises the accuracy on rare test images (paired t tests). Beside each cosine stands the exact optimum of the
Layer-Peeled Model, with the norms of that very network ("predicted") and with the part of them that its class means use
("predicted-in-use"); beside accuracies 1/K_B, what the model says of training images whose rows have merged. Neither is
judged: the model takes norms as given, and training makes them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.advice import forecast
from layerlaw.experiments.layer_peeled.class_counts import QUICK, SCALED, WHOLE, Case, CountPlan, K
from layerlaw.experiments.moments import spearman
from layerlaw.experiments.numbers import UNCLAIMED, Claim, above, below, between, minus, row
from layerlaw.experiments.setting import Data, Images, Setting, samples, stand_in
from layerlaw.lab import Architecture, Recipe, Run, Samples, Schedule
from layerlaw.lab.schedule import held_out
from layerlaw.lab.trainer import arithmetic
from layerlaw.measures.collapse import mean_cosine, mean_norm, mean_square, used_budget
from layerlaw.outcome import Cell, Outcome, Row, Table
from layerlaw.peeled import vanish_ratio
from layerlaw.sheet import Panel, Series, Sheet, Style, spread_series
from layerlaw.wording import counted, finite

TITLES = {
    "minority": "Minority collapse: VGG11 on Fashion-MNIST",
    "minority_vgg13": "Minority collapse: VGG13 on CIFAR-10",
    "minority_resnet18": "Minority collapse: ResNet18 on Fashion-MNIST",
    "minority_resnet18_cifar10": "Minority collapse: ResNet18 on CIFAR-10",
    "minority_whole": "Minority collapse: VGG11 on all images of Fashion-MNIST",
}
SIZE = 32  # pixels
QUICK_SHAPES: dict[str, dict[str, Any]] = {  # a quick run's networks: every layer of theirs, few channels
    "vgg11": {"stages": ((4,), (8,), (16,) * 2, (32,) * 2, (32,) * 2)},
    "vgg13": {"stages": ((4,) * 2, (8,) * 2, (16,) * 2, (32,) * 2, (32,) * 2)},
    "resnet18": {"widths": (4, 8, 16, 32)},
}
QUICK_SIZES = {"resnet18": 16}  # pixels; the five pools of a VGG need all 32
AT_ONCE = 500  # images of a forward
COLLAPSED = 0.9  # mean cosine from which on rows count as one
NOTHING = "no network of these counts was trained to its end"
MERGED = "not judged: 1/K_B, once rows have merged"
VANISHED = "the model's rare rows are 0, and have no angle"
RISES, FALLS, HELPS = above(0, "rises with R"), below(0, "falls"), above(0, "rises")
ONE_ROW = between(COLLAPSED, 1.0, "all collapse: 1").of("direction")


@dataclass(frozen=True)
class ClassifierReading:
    """What one trained network shows: cosines and norms of its classifier's rows, what the model says of them, accuracies.

    Pairs are of the majority and the minority classes; `stolen` is the share of rare test images given to a majority class.
    """

    cosine: float | None
    centered: float | None
    majority_cosine: float | None
    norms: tuple[float, float]
    predicted: float | None
    in_use: float | None
    fitted: tuple[float | None, float | None]
    tested: tuple[float | None, float | None]
    stolen: float


def minority(setting: Setting) -> Outcome:
    """VGG11 on Fashion-MNIST with rare classes: K_A = K_B = 5, R = 1 … 1000 and ∞, and the rare images shown again.

    layerlaw reproduce minority             7 networks per seed, n_A = 1000 (the authors: 6000)
    layerlaw reproduce minority --quick     few channels, n_A = 100, R = 1, 10, 100, ∞, 30 epochs
    """
    return collapse(setting, "minority", "vgg11", "fashion_mnist")


def minority_vgg13(setting: Setting) -> Outcome:
    """VGG13 on CIFAR-10 with rare classes, otherwise as `minority`: `layerlaw reproduce minority_vgg13`."""
    return collapse(setting, "minority_vgg13", "vgg13", "cifar10")


def minority_resnet18(setting: Setting) -> Outcome:
    """ResNet18 on Fashion-MNIST with rare classes, otherwise as `minority`: `layerlaw reproduce minority_resnet18`."""
    return collapse(setting, "minority_resnet18", "resnet18", "fashion_mnist")


def minority_resnet18_cifar10(setting: Setting) -> Outcome:
    """ResNet18 on CIFAR-10 with rare classes, otherwise as `minority`: `layerlaw reproduce minority_resnet18_cifar10`."""
    return collapse(setting, "minority_resnet18_cifar10", "resnet18", "cifar10")


def minority_whole(setting: Setting) -> Outcome:
    """VGG11 on all images of Fashion-MNIST: the authors' n_A, six images of a rare class at R = 1000, else as `minority`.

    layerlaw reproduce minority_whole             7 networks per seed, n_A = 6000
    layerlaw reproduce minority_whole --quick     few channels, n_A = 500, R = 1, 10, 100, ∞, 12 epochs
    """
    plan = replace(QUICK, majority=5 * QUICK.majority, epochs=-(-2 * QUICK.epochs // 5)) if setting.quick else WHOLE
    return collapse(setting, "minority_whole", "vgg11", "fashion_mnist", plan)


def collapse(setting: Setting, name: str, network: str, data: str, plan: CountPlan | None = None) -> Outcome:
    """Train a network on all class counts of a plan, read its classifiers, report what came out."""
    plan = plan or (QUICK if setting.quick else SCALED)
    size = QUICK_SIZES.get(network, SIZE) if setting.quick else SIZE
    images = samples(setting, data, plan.majority, size=size, tests=1000, flat=False)
    given: Data = {case.name: partial(case.of, images) for case in plan.cases}
    how = Recipe(
        _network(setting, network, data),
        optimizer="momentum",
        learning_rate=0.1,
        epochs=plan.epochs,
        precision=setting.on_gpu("bf16"),
    )
    cells = {}
    for case in plan.cases:  # one after the other: what was read survives the networks
        recipes = replace(how, data=case.name).grid(seed=setting.seeds())
        cells[case] = networks_read(setting, recipes, case, images, given)
    found = {case: [network.reading for network in some] for case, some in cells.items()}
    rows = [r for case, some in found.items() for r in _case_rows(plan, case, some, found)]
    rows += [r for K_A in plan.K_A for r in _direction_rows(plan, K_A, found)]
    tables = [_table(cells)]
    gray = ", which sees the gray channel three times" * (data == "cifar10")
    trained = f"{how.epochs} epochs, SGD with momentum, learning rate {how.learning_rate:g}"
    small = setting.note(f"Quick run: a small {network} ({how.network}){gray}, on {size}×{size} pixels; {trained}.")
    notes = [*_notes(setting, plan, data), *small, *stand_in(setting, data)]
    return Outcome(name, TITLES[name], rows, [_sheet(TITLES[name], plan, found)], tables, notes)


def _network(setting: Setting, name: str, data: str) -> Architecture:
    channels = 3 if data == "cifar10" else 1
    if setting.quick:  # gray images stand in for those in color: repeated, they fill as many channels
        return Architecture.named(name, inputs=1, repeat=channels, **QUICK_SHAPES[name])
    return Architecture.named(name, inputs=channels)


Readings = Mapping[Case, Sequence[ClassifierReading | None]]


@dataclass(frozen=True)
class NetworkRead:
    """What is left of a trained network: its reading (`None` if it diverged), D at the classifier, the last loss."""

    seed: int
    reading: ClassifierReading | None
    diverged: int | None
    D: float | None
    loss: float

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "NetworkRead":
        """The inverse of `asdict`, after a trip through JSON."""
        read: dict[str, Any] | None = data["reading"]
        if read is not None:
            read = {name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}
        return cls(**{**data, "reading": read and ClassifierReading(**read)})


def networks_read(
    setting: Setting, recipes: Sequence[Recipe], case: Case, images: Images, given: Data
) -> list[NetworkRead]:
    """Train the networks of a case and read them; what was read is kept, in small files, and not trained again."""
    keys = {recipe: [recipe.to_dict(), images(recipe.seed).checksum] for recipe in recipes}
    trained: list[Recipe] = []

    def make(missing: list[Recipe]) -> Iterator[tuple[Recipe, dict[str, Any]]]:
        trained.extend(missing)
        name = f"counts/{case.name.replace('/', '-')}"
        for run in setting.train(name, missing, given, Schedule(batchnorm=("running",)), compile=True):
            read = reading(run, case, images(run.recipe.seed).imbalanced(case.counts), setting.device)
            D = None if read is None else run.measurement(batchnorm="running").separation[-1]
            yield run.recipe, asdict(NetworkRead(run.recipe.seed, read, run.diverged, D, run.losses[-1]))

    found = setting.remembered(keys, make, shared="readings")
    setting.used([recipe for recipe in recipes if recipe not in trained], given)
    return [NetworkRead.from_dict(found[recipe]) for recipe in recipes]


def reading(run: Run, case: Case, data: Samples, device: str = "cpu") -> ClassifierReading | None:
    """What a trained network shows on these images, each once, however often it was shown; `None` where it diverged."""
    if run.diverged is not None:
        return None
    x, y = held_out(data)
    network, rare = run.network(), y >= case.K_A
    features, decided = _forward(network, data.inputs, device)
    tested = _forward(network, x, device)[1]
    W = network.get_parameter("classifier.weight").detach().cpu().double()
    few, many = W[case.K_A :], W[: case.K_A]
    predicted, in_use = predictions(case, W, features.double(), data.labels)
    return ClassifierReading(
        cosine=finite(float(mean_cosine(few))),
        centered=finite(float(mean_cosine(few - W.mean(0)))),
        majority_cosine=finite(float(mean_cosine(many))),
        norms=(float(mean_norm(many)), float(mean_norm(few))),
        predicted=predicted,
        in_use=in_use,
        fitted=_shares(decided == data.labels, data.labels >= case.K_A),
        tested=_shares(tested == y, rare),
        stolen=float((tested[rare] < case.K_A).double().mean()),
    )


def predictions(case: Case, W: Tensor, features: Tensor, labels: Tensor) -> tuple[float | None, float | None]:
    """The model's minority cosine at the norms of a network, and at the norm that its class means use; `None`: vanished.

    Without rare images it is the limit of R → ∞: rare features cost nothing, and their rows are one unless they vanish.
    """
    if case.shown[0] == case.shown[-1]:
        return -1 / (K - 1), -1 / (K - 1)  # balanced: the simplex, at any norm
    if math.isfinite(case.ratio):
        found = forecast(case.shown, classifier=W, features=(features, labels), progress=False)
        return found.by_norms.cosine, None if found.by_use is None else found.by_use.cosine
    own = [features[labels == k] for k in range(case.K_A)]
    means = torch.cat([torch.stack([h.mean(0) for h in own]), W.new_zeros(case.K_B, W.shape[1])])
    E_H, used = sum(float(mean_square(h)) for h in own) / K, float(used_budget(means, W))
    by_norms, by_use = (
        vanish_ratio(case.K_A, case.K_B, E_W=a, E_H=b, log=True)
        for a, b in ((float(mean_square(W)), E_H), (used, used))
    )
    return (1.0 if math.isinf(by_norms) else None), (1.0 if math.isinf(by_use) else None)


def _forward(network: nn.Module, x: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """What the classifier gets, and the class it decides for; on the CPU, in float32."""
    features: list[Tensor] = []
    network.to(device)
    hook = network.get_submodule("classifier").register_forward_pre_hook(lambda _, got: features.append(got[0].cpu()))
    with torch.no_grad(), arithmetic("float32", torch.device(device)):
        decided = [network(part.to(device)).argmax(1).cpu() for part in torch.split(x, AT_ONCE)]
    hook.remove()
    return torch.cat(features), torch.cat(decided)


def _shares(right: Tensor, rare: Tensor) -> tuple[float | None, float | None]:
    """Share of right images of the majority and of the minority classes; `None` of none."""
    many, few = (finite(float(own.double().mean())) for own in (right[~rare], right[rare]))
    return many, few


NUMBERS: dict[str, Callable[[ClassifierReading], float | None]] = {
    "cosine": lambda r: r.cosine,
    "cosine-predicted": lambda r: r.predicted,
    "cosine-predicted-in-use": lambda r: r.in_use,
    "cosine-minus-predicted": lambda r: minus(r.cosine, r.predicted),
    "cosine-centered": lambda r: r.centered,
    "cosine-majority": lambda r: r.majority_cosine,
    "row-norm-minority-over-majority": lambda r: r.norms[1] / r.norms[0],
    "train-accuracy-minority": lambda r: r.fitted[1],
    "test-accuracy-minority": lambda r: r.tested[1],
    "test-accuracy-majority": lambda r: r.tested[0],
    "test-minority-given-to-majority": lambda r: r.stolen,
}


def values(readings: Sequence[ClassifierReading | None], what: str) -> list[float | None]:
    """A number of every seed; `None` of a network that diverged."""
    return [None if r is None else NUMBERS[what](r) for r in readings]


def _case_rows(plan: CountPlan, case: Case, readings: Sequence[ClassifierReading | None], found: Readings) -> list[Row]:
    claims: dict[str, Claim] = {}
    if case.times == 1 and case.ratio >= plan.largest:
        claims = {
            "cosine": ONE_ROW,
            "train-accuracy-minority": Claim(f"{1 / case.K_B:.2g} in the model", tolerance=MERGED),
        }
    lower = [c for c in found if c.K_A == case.K_A and c.times == 1 and c.ratio < plan.largest]
    among = [v for c in lower for v in values(found[c], "cosine")]
    missing = {
        "train-accuracy-minority": "no rare training image" if math.isinf(case.ratio) else NOTHING,
        **dict.fromkeys(("cosine-predicted", "cosine-predicted-in-use", "cosine-minus-predicted"), VANISHED),
    }
    return [
        row(
            f"{case.name}/{what}",
            values(readings, what),
            claims.get(what, UNCLAIMED),
            among=among if what in claims else (),
            reason=missing.get(what, NOTHING),
        )
        for what in NUMBERS
    ]


def _direction_rows(plan: CountPlan, K_A: int, found: Readings) -> list[Row]:
    """What changes with R, and what showing rare images again does, seed by seed."""
    plain = {c.ratio: found[c] for c in found if c.K_A == K_A and c.times == 1}
    ranks = []
    for readings in zip(*plain.values(), strict=True):
        pairs = [(R, r.cosine) for R, r in zip(plain, readings, strict=True) if r is not None and r.cosine is not None]
        ranks.append(spearman(*zip(*pairs, strict=True)) if len(pairs) > 2 else None)
    rows = [row(f"K_A-{K_A}/cosine-with-R/spearman", ranks, RISES, reason=NOTHING)]
    for case in (c for c in found if c.K_A == K_A and c.times > 1):
        for what, claim in (("cosine", FALLS), ("test-accuracy-minority", HELPS)):
            pairs_of = zip(values(found[case], what), values(plain[case.ratio], what), strict=True)
            rows.append(
                row(f"{case.name}/{what}-minus-once", [minus(a, b) for a, b in pairs_of], claim, reason=NOTHING)
            )
    return rows


def _sheet(title: str, plan: CountPlan, found: Readings) -> Sheet:
    end = 10 * plan.largest  # where R = ∞ is drawn
    axes: dict[str, Any] = {"xlabel": "R over how often rare images are shown", "log_y": False, "log_x": True}
    axes |= {"infinity": end} if math.inf in plan.ratios else {}
    panels = []
    for K_A in plan.K_A:
        plain = {min(c.ratio, end): found[c] for c in found if c.K_A == K_A and c.times == 1}
        again = {
            c.ratio / c.times: found[c] for c in found if c.K_A == K_A and (c.times > 1 or c.ratio == plan.largest)
        }
        again = dict(sorted(again.items()))
        # No line from the largest R to infinity: the model says nothing in between.
        apart: dict[float, Any] = dict(sorted({**plain, end / 10**0.5: ()}.items()))
        cosines = [
            _series("measured", plain, "cosine"),
            _series("predicted by norms", apart, "cosine-predicted", style="line"),
            _series("predicted, norm in use", apart, "cosine-predicted-in-use", style="line"),
            _series(f"R = {plan.largest:g}, shown again", again, "cosine"),
        ]
        panels.append(Panel(f"K_A = {K_A}: cosine of rare rows", cosines, ylabel="cosine", **axes))
        shares = [
            _series("training, rare", plain, "train-accuracy-minority"),
            _series("test, rare", plain, "test-accuracy-minority"),
            _series("test, rare, shown again", again, "test-accuracy-minority"),
            Series([min(plain), max(plain)], [1 / (K - K_A)] * 2, "1/K_B", style="null"),
        ]
        panels.append(Panel(f"K_A = {K_A}: accuracy", shares, ylabel="share right", **axes))
    several = any(len(some) > 1 for some in found.values())
    caption = f"{'Mean and range over seeds; p' if several else 'P'}redictions from each network's own norms."
    return Sheet(title, panels, columns=2, caption=caption)


def _series(
    label: str, cells: Mapping[float, Sequence[ClassifierReading | None]], what: str, style: Style = "points"
) -> Series:
    columns = [values(readings, what) for readings in cells.values()]
    return spread_series(label, cells, columns, several=len(columns[0]) > 1, style=style)


def _table(cells: Mapping[Case, Sequence[NetworkRead]]) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for case, networks in cells.items():
        for network in networks:
            about: list[Cell] = [case.K_A, f"{case.ratio:g}".replace("inf", "∞"), case.times, network.seed]
            if (read := network.reading) is None:
                lines.append((*about, f"diverged in epoch {network.diverged}", *[None] * (len(NUMBERS) + 1)))
                continue
            lines.append((*about, *(NUMBERS[what](read) for what in NUMBERS), network.D, network.loss))
    columns = ("K_A", "R", "shown", "seed", *(what.replace("-", " ") for what in NUMBERS), "D", "last epoch's loss")
    return Table(
        "Every network", columns, lines, "D: of what the classifier gets, training images, running statistics."
    )


def _notes(setting: Setting, plan: CountPlan, data: str) -> list[str]:
    theirs = CountPlan.published(data)
    left = [f"n_A = {plan.majority:,} instead of {theirs.majority:,}"] if plan.majority != theirs.majority else []
    absent = [K_A for K_A in theirs.K_A if K_A not in plan.K_A]
    left += [f"K_A = {' and '.join(map(str, absent))} not trained"] if absent else []
    left += [f"remedy at R = {plan.largest:g} only, rare images shown {' and '.join(map(str, plan.times))} times"]
    least = plan.majority // int(plan.largest)
    return [
        f"{counted(least, 'image')} of each rare class at R = {plan.largest:g}. Beside the authors' "
        f"setting: {'; '.join(left)}.",
        *setting.note(
            "Trained in bf16 and compiled on a GPU, in float32 on a CPU; features and decisions are read in float32.",
            quick=False,
        ),
    ]
