"""Figures 4, S2 and S3: the law in convolutional networks, layer by layer, on images of 32×32 pixels.

1000 training images (100 per class), drawn by the seed, of Fashion-MNIST and of CIFAR-10; Adam, 600 epochs. D at the
input and behind every ReLU, before it is pooled, as the authors measured. `grids` trains the whole grid of learning
rates; `at_one_rate` the rate that has the lowest training loss after a tenth of the epochs, on the first seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from layerlaw.experiments.drawing import across_table, both_modes, ends_table, floor_sheet, grid_table
from layerlaw.experiments.numbers import Claim, above, holds, row
from layerlaw.experiments.runs import (
    ANEW,
    ENDS,
    LAW,
    NO_RUN,
    PROTOCOLS,
    Runs,
    number,
    protocol_table,
    protocol_words,
)
from layerlaw.experiments.separation.fig6 import ratio_row
from layerlaw.experiments.separation.s8 import FUZZY
from layerlaw.experiments.setting import ADAM, Images, Setting, samples
from layerlaw.experiments.setting import TITLES as DATA_TITLES
from layerlaw.lab import Architecture, Recipe, Run, Schedule
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet
from layerlaw.wording import joined

TITLES = {
    "fig4": "The law in convolutional networks",
    "s2": "A fuzzy law in VGG networks of four depths",
    "s3": "Convolutions alone: the law, with a larger final D",
}
SETS = ("fashion_mnist", "cifar10")
CONVOLUTIONAL = ("alexnet_5x5", "vgg13_5x5")
VGG = ("vgg11", "vgg13", "vgg16", "vgg19")
PURE = {"fashion_mnist": "pure_cnn_64", "cifar10": "pure_cnn_16"}
NETWORK_TITLES = {
    **{"alexnet_5x5": "AlexNet 5×5", "vgg13_5x5": "VGG13 5×5", "resnet18": "ResNet18", "densenet161": "DenseNet161"},
    **{name: name.upper() for name in VGG},
    **{f"pure_cnn_{n}": f"{n} channels" for n in (64, 16)},
    **{"resnet_2layer": "2-layer blocks", "resnet_3layer": "3-layer blocks", "resnet_mixed": "mixed blocks"},
}
LAYERS = replace(PROTOCOLS, sites=("input", "relu*"))
HALF = ("densenet161",)  # trained in bf16 on a GPU: in TF32 the six networks of three seeds take 21 minutes of an H200
SHORT = 10  # the epochs of the sweep that chooses a rate: so many times fewer
ENDS_OF = ("final-D", "final-D-over-permuted", "train-loss", "test-accuracy")
BESIDE = ("holds", "pearson", "rho", "evenness", "trend", "holds-eval", "train-loss")
QUICK_RATES = (1e-3, 3e-3)
QUICK_COUNT, QUICK_TESTS, QUICK_BATCH = 20, 10, 25  # images per class, and per batch
SHARP = Claim("fuzzy law", tolerance="not judged: a fuzzy law need not pass it")
LARGER = above(1.0, "considerably larger", ratio=True)
QUICK: dict[str, dict[str, Any]] = {  # what is smaller in quick runs
    "alexnet_5x5": {"stages": ((8,), (16,), (24, 16, 16)), "hidden": (64, 64), "repeat": 2},
    "vgg13_5x5": {"stages": ((4,) * 2, (8,) * 2, (16,) * 2, (16,) * 2, (16,) * 2), "hidden": (64, 64), "repeat": 2},
    "vgg11": {"stages": ((4,), (8,), (16,) * 2, (16,) * 2, (16,) * 2)},
    "vgg13": {"stages": ((4,) * 2, (8,) * 2, (16,) * 2, (16,) * 2, (16,) * 2)},
    "vgg16": {"stages": ((4,) * 2, (8,) * 2, (16,) * 3, (16,) * 3, (16,) * 3)},
    "vgg19": {"stages": ((4,) * 2, (8,) * 2, (16,) * 4, (16,) * 4, (16,) * 4)},
    "pure_cnn_64": {"stages": ((8,) * 8,)},
    "pure_cnn_16": {"stages": ((4,) * 8,)},
    "resnet_2layer": {"side": 16},
    "resnet_3layer": {"side": 16},
    "resnet_mixed": {"side": 16},
    "resnet18": {"widths": (8, 8, 16, 16)},
    "densenet161": {"layers": (2, 2, 2, 2), "growth": 8},
}
Cell = tuple[str, str]  # a data set and the name of a network
Member = tuple[Cell, int]  # of a seed
Cells = Mapping[Cell, Runs]
Claims = dict[str, Callable[[BatchNormMode], bool | None]]
ShapeOf = Callable[[Setting, str, int], Architecture]  # by the name of a network and the channels of the images


def fig4(setting: Setting) -> Outcome:
    """Figure 4: the law in the authors' variants of AlexNet and VGG13, on Fashion-MNIST and CIFAR-10.

        layerlaw reproduce fig4            2 networks × 2 data sets × 5 learning rates: 20 networks per seed (on a GPU)
        layerlaw reproduce fig4 --quick    few channels, 200 images of Fashion-MNIST, two learning rates, 20 epochs

    Filters of 5×5, input channels repeated 32 and 16 times, two linear layers of 4096 units. The paper takes both as
    further examples of the law; it gives no r, and no learning rate. Judged by `LawFit.holds` in every seed at the
    rate with the best law among the trained networks, chosen anew for every seed (how the paper chose); the choice
    among five is repeated in the test. Beside it, without a choice: the rate whose training loss is lowest on the
    first seed. The other protocols, permuted labels (wide layers look separated by noise alone) and the whole grid
    stand beside.
    """
    data = images_of(setting)
    cells = [(name, network) for network in CONVOLUTIONAL for name in data]
    grid = grids(setting, data, cells, LAYERS, quick_epochs=20, networks=False)
    best = {cell: some.best(trained=not setting.quick) for cell, some in grid.items()}
    choices = len(QUICK_RATES if setting.quick else ADAM)
    found = []
    for cell, some in best.items():
        name = name_of(cell)
        found += law_rows(name, some, {"holds": holds()}, choices=choices)
        found += [rate_row(f"{name}/learning-rate", some), *lowest_loss(grid[cell]).rows(f"{name}/lowest-loss", BESIDE)]
    titles = titles_of(best)
    claims: Claims = {
        f"Fig. 4: the law holds, {title}": partial(best[cell].mostly_hold, choices=choices)
        for cell, title in titles.items()
    }
    anew: Claims = {f"{claim}, {ANEW}": some.holds_anew for claim, some in zip(claims, grid.values(), strict=True)}
    notes = [f"Networks in which the law holds in most seeds, {protocol_words(claims)}.", *more_notes(setting, grid)]
    sheets, tables = drawn(best, grid, claims | anew)
    return Outcome("fig4", TITLES["fig4"], found, sheets, tables, notes)


def s2(setting: Setting) -> Outcome:
    """Figure S2: a fuzzy law in VGG11, VGG13, VGG16 and VGG19, on Fashion-MNIST and CIFAR-10.

        layerlaw reproduce s2            8 networks per seed, after 40 short ones (on a GPU)
        layerlaw reproduce s2 --quick    few channels, 200 images of Fashion-MNIST, 15 epochs

    The usual filters of 3×3. The paper says "fuzzy" in the caption and "approximate" in the text, and that larger
    filters and more input channels make it sharper (Fig. 4). As in Fig. S8 a fuzzy law need not pass the rule of the
    other figures but is more than chance: judged by Greenwood's test alone, p < .05 in most seeds; `LawFit.holds`
    stands beside. One learning rate per network, that of the lowest training loss after a tenth of the epochs on the
    first seed.
    """
    data = images_of(setting)
    shown, short = at_one_rate(
        setting, data, [(name, network) for network in VGG for name in data], LAYERS, quick_epochs=15
    )
    found = []
    for cell, some in shown.items():
        found += law_rows(name_of(cell), some, {"below-chance": FUZZY, "holds": SHARP})
        found += [rate_row(f"{name_of(cell)}/learning-rate", some), row_below_chance(cell, some)]
    claims: Claims = {
        f"Fig. S2: a fuzzy law, {title}": partial(_mostly_even, shown[cell]) for cell, title in titles_of(shown).items()
    }
    notes = [f"Networks with steps more even than chance in most seeds, {protocol_words(claims)}."]
    sharp = sum(some.mostly_hold() for some in shown.values())
    notes.append(f"The law itself holds in most seeds in {sharp} of {len(shown)}.")
    sheets, tables = drawn(shown, short, claims)
    return Outcome("s2", TITLES["s2"], found, sheets, tables, [*notes, *more_notes(setting, shown)])


def s3(setting: Setting) -> Outcome:
    """Figure S3: convolutions alone ("pure CNNs"): VGG11 without pools, all layers equally wide, and one linear layer.

        layerlaw reproduce s3            2 networks per seed and the VGG11 of Fig. S2 (on a GPU)
        layerlaw reproduce s3 --quick    few channels, 200 images of Fashion-MNIST, 15 epochs

    64 channels on Fashion-MNIST, 16 on CIFAR-10. The paper: the law is there if the number of channels is right, but
    D of the last layer is considerably higher than in feed-forward networks, AlexNet or VGG. Judged: `LawFit.holds`
    in every seed; and the final D over that of VGG11 (Fig. S2, the same seed and images), above 1 by a t test of
    logs. With 64 channels the last layer has 65,536 features, that of VGG11 2,048: so the ratio is given again for D
    over that of permuted labels. One learning rate per network, that of the lowest training loss after a tenth of the
    epochs on the first seed.
    """
    data = images_of(setting)
    others, _ = at_one_rate(setting, data, [(name, "vgg11") for name in data], LAYERS, quick_epochs=15, shared="s2")
    shown, short = at_one_rate(setting, data, [(name, PURE[name]) for name in data], LAYERS, quick_epochs=15)
    found = []
    claims: Claims = {}
    for (cell, some), other in zip(shown.items(), others.values(), strict=True):
        name, title = name_of(cell), titles_of([cell])[cell]
        found += law_rows(name, some, {"holds": holds()})
        found.append(rate_row(f"{name}/learning-rate", some))
        found += [final_over(some, other, mode, f"{name}-over-vgg11/final-D{end}") for mode, end in ENDS.items()]
        floor = some.over(other, "final-D-over-permuted")
        found.append(ratio_row(f"{name}-over-vgg11/final-D-over-permuted", floor, reason=NO_RUN))
        claims[f"Fig. S3: the law holds, {title}"] = some.mostly_hold
        claims[f"Fig. S3: a larger final D than VGG11, {title}"] = partial(_larger, some, other)
    notes = [
        f"{titles_of([cell])[cell]}: the final D is {found_row.ours:.3g} times that of VGG11."
        for cell in shown
        if (found_row := next(r for r in found if r.name == f"{name_of(cell)}-over-vgg11/final-D")).ours is not None
    ]
    sheets, tables = drawn({**shown, **others}, short, claims)
    return Outcome("s3", TITLES["s3"], found, sheets, tables, [*notes, *more_notes(setting, shown)])


def images_of(setting: Setting, size: int = 32) -> dict[str, Images]:
    """Both data sets (in a quick run the first), in the shape of images."""
    counts, tests = (QUICK_COUNT, QUICK_TESTS) if setting.quick else (100, 200)
    names = SETS[:1] if setting.quick else SETS
    return {name: samples(setting, name, counts, size=size, tests=tests, flat=False) for name in names}


def grids(
    setting: Setting,
    data: Mapping[str, Images],
    cells: Sequence[Cell],
    schedule: Schedule,
    *,
    quick_epochs: int,
    shared: str = "",
    networks: bool = True,
) -> dict[Cell, Runs]:
    """Every learning rate and every seed; `networks`: whether they are kept, to be looked into once more."""
    rates, seeds = QUICK_RATES if setting.quick else ADAM, setting.seeds()
    bases = bases_of(setting, data, cells, setting.epochs(quick=quick_epochs))
    recipes = [r for base in bases.values() for r in base.grid(learning_rate=rates, seed=seeds)]
    return _by_cell(setting.train("grid", recipes, data, schedule, shared=shared, networks=networks), bases)


def at_one_rate(
    setting: Setting,
    data: Mapping[str, Images],
    cells: Sequence[Cell],
    schedule: Schedule,
    *,
    quick_epochs: int,
    shared: str = "",
    shape: ShapeOf | None = None,
    networks: bool = True,
    only: Container[Member] | None = None,
) -> tuple[dict[Cell, Runs], dict[Cell, Runs]]:
    """A short sweep over the rates on the first seed, then every seed at the rate that it chose; both are returned.

    `shape`: what a cell's name stands for, where it is no network of that name; `networks`: whether they are kept;
    `only`: of which cells and seeds.
    """
    rates, (first, *_) = QUICK_RATES if setting.quick else ADAM, setting.seeds()
    epochs = setting.epochs(quick=quick_epochs)
    bases = bases_of(setting, data, cells, max(1, epochs // SHORT), shape)
    recipes = [r for base in bases.values() for r in base.grid(learning_rate=rates, seed=[first])]
    loss_alone = Schedule(batchnorm=("running", "batch"), sites=schedule.sites)
    short = _by_cell(setting.train("rates", recipes, data, loss_alone, shared=shared, networks=False), bases)
    bases = bases_of(setting, data, cells, epochs, shape)
    chosen = {cell: lowest_loss(some)[0].recipe.learning_rate for cell, some in short.items()}
    recipes = [
        r
        for c, base in bases.items()
        for r in base.grid(learning_rate=[chosen[c]], seed=setting.seeds())
        if only is None or (c, r.seed) in only
    ]
    runs = setting.train("seeds", recipes, data, schedule, shared=shared, networks=networks)
    return _by_cell(runs, bases), short


def read_at_one_rate(
    setting: Setting,
    data: Mapping[str, Images],
    cells: Sequence[Cell],
    schedule: Schedule,
    read: Callable[[Cell, Run], dict[str, Any]],
    *,
    what: Any,
    quick_epochs: int,
    shared: str = "",
) -> dict[Cell, list[dict[str, Any]]]:
    """What `read` takes of the networks of `at_one_rate`, seed by seed; kept, so that they need not be.

    `what`: which reading it is, for the names of its files.
    """
    bases = bases_of(setting, data, cells, setting.epochs(quick=quick_epochs))
    recipes = {(cell, r.seed): r for cell, base in bases.items() for r in base.grid(seed=setting.seeds())}
    trained: set[Member] = set()
    keys = {
        member: [r.to_dict(), schedule.to_dict(), data[r.data](r.seed).checksum, what] for member, r in recipes.items()
    }  # of the rate that is chosen, whatever it is

    def make(missing: list[Member]) -> Iterator[tuple[Member, dict[str, Any]]]:
        trained.update(missing)
        some = list(dict.fromkeys(cell for cell, _ in missing))
        runs, _ = at_one_rate(setting, data, some, schedule, quick_epochs=quick_epochs, shared=shared, only=trained)
        return (((cell, run.recipe.seed), read(cell, run)) for cell, found in runs.items() for run in found)

    found = setting.remembered(keys, make)
    setting.used([r for member, r in recipes.items() if member not in trained], data)
    return {cell: [found[cell, seed] for seed in setting.seeds()] for cell in cells}


def bases_of(
    setting: Setting, data: Mapping[str, Images], cells: Iterable[Cell], epochs: int, shape: ShapeOf | None = None
) -> dict[Cell, Recipe]:
    """What the networks of every cell have in common."""
    found = {}
    for name, network in cells:
        channels = data[name](setting.seeds()[0]).inputs.shape[1]
        made = (shape or _named)(setting, network, channels)
        batch = QUICK_BATCH if setting.quick else Recipe.batch_size
        precision = setting.on_gpu("bf16") if network in HALF else None
        found[name, network] = Recipe(made, data=name, epochs=epochs, batch_size=batch, precision=precision)
    return found


def _named(setting: Setting, network: str, channels: int) -> Architecture:
    return Architecture.named(network, inputs=channels, **(QUICK[network] if setting.quick else {}))


def _by_cell(runs: Runs, bases: Mapping[Cell, Recipe]) -> dict[Cell, Runs]:
    cells = {(base.data, base.network): cell for cell, base in bases.items()}
    return runs.by(lambda run: cells[run.recipe.data, run.recipe.network])


def lowest_loss(runs: Runs) -> Runs:
    """All seeds at the rate whose training loss, in eval mode, is lowest on the first seed."""

    def loss(run: Any) -> float:
        found = number(run, "train-loss")
        return math.inf if found is None else found

    first = runs.at(seed=runs[0].recipe.seed)
    return runs.at(learning_rate=min(first, key=loss).recipe.learning_rate)


def name_of(cell: Cell) -> str:
    """How rows call it."""
    return "-".join(cell)


def titles_of(cells: Iterable[Cell]) -> dict[Cell, str]:
    """How panels and sentences call them."""
    return {(name, network): f"{DATA_TITLES[name]}, {NETWORK_TITLES[network]}" for name, network in cells}


def law_rows(name: str, runs: Runs, claims: Mapping[str, Claim] | None = None, *, choices: int = 1) -> list[Row]:
    """The law in all protocols, and what comes out at the end."""
    return runs.rows(name, (*LAW, *ENDS_OF), claims, choices=choices)


def rate_row(name: str, runs: Runs) -> Row:
    """The learning rates that were chosen."""
    return row(name, [run.recipe.learning_rate for run in runs], reason=NO_RUN)


def row_below_chance(cell: Cell, runs: Runs) -> Row:
    """In eval mode: the steps are more even than chance."""
    return runs.row(f"{name_of(cell)}/below-chance-eval", "below-chance-eval", reason=NO_RUN)


def _mostly_even(runs: Runs, batchnorm: BatchNormMode) -> bool:
    return 2 * sum(map(bool, runs.values(f"below-chance{ENDS[batchnorm]}"))) > len(runs)


def final_over(runs: Runs, others: Runs, batchnorm: BatchNormMode = "batch", name: str = "") -> Row:
    """The final D over that of other networks, seed by seed; judged in the authors' protocol."""
    end = ENDS[batchnorm]
    claim = Claim() if end and name else LARGER
    return ratio_row(name, runs.over(others, f"final-D{end}"), claim, reason=NO_RUN)


def _larger(runs: Runs, others: Runs, batchnorm: BatchNormMode) -> bool | None:
    return final_over(runs, others, batchnorm).reproduced


def drawn(shown: Cells, grid: Cells, claims: Claims) -> tuple[list[Sheet], list[Any]]:
    """D along depth in both modes and beside its floor; laws over seeds, protocols, every network."""
    titles = titles_of(shown)
    panels = {titles[cell]: some for cell, some in shown.items()}
    behind = {titles[cell]: some for cell, some in grid.items() if cell in shown and _alike(some, shown[cell])}
    train, other = both_modes(panels, behind)
    every = {**shown, **{c: s for c, s in grid.items() if titles[c] in behind}}
    runs = [run for some in every.values() for run in some]
    names = [titles[cell] for cell, some in every.items() for _ in some]
    tables = [
        across_table("Over seeds and images", panels),
        protocol_table(claims),
        grid_table("Every network", runs, names=names),
        ends_table("What comes out at the end", runs, names=names),
    ]
    return [train, floor_sheet(panels), other], tables


def _alike(some: Runs, others: Runs) -> bool:
    """Whether they were trained equally long: short sweeps are not drawn behind whole trainings."""
    return {run.recipe.epochs for run in some} == {run.recipe.epochs for run in others}


def more_notes(setting: Setting, cells: Cells) -> list[str]:
    """How they were trained, what diverged, what a quick run leaves out."""
    runs = Runs(run for some in cells.values() for run in some)
    lost = [f"{titles_of([cell])[cell]}" for cell, some in cells.items() if len(some.sound) < len(some)]
    raw = [f"Diverged at some learning rate: {joined(lost)}."] if lost else []
    how = sorted({way for run in runs for way in run.how})
    few = f"{10 * QUICK_COUNT} images of Fashion-MNIST, small networks, {len(QUICK_RATES)} learning rates; no CIFAR-10"
    return [*raw, f"Trained: {'; '.join(how)}.", *setting.note(f"Quick run: {few}.")]
