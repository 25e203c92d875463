"""Figures 7, 8 and 10: residual and dense networks, whose module is the block, on images of 32×32 pixels.

Images, training and learning rates as in `convolutions`. The authors drop the raw input of these networks and reduce
wide features to 100 principal components; D needs no reduction, so the exact one is judged and stands beside that of
the components. D with the raw input stands beside, too. All levels are measured in one training: every ReLU, those
that end a block, the input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from layerlaw.errors import LayerlawError
from layerlaw.experiments.numbers import Claim, above, below, does_not_hold, holds, law_along, minus, of_laws, row
from layerlaw.experiments.runs import (
    COMPONENTS,
    ENDS,
    FLAT,
    NO_RUN,
    PROTOCOLS,
    Runs,
    law_of,
    principal,
    protocol_words,
    record_of,
    site_features,
)
from layerlaw.experiments.separation.convolutions import (
    BESIDE,
    QUICK_RATES,
    Cell,
    Cells,
    Claims,
    at_one_rate,
    drawn,
    grids,
    images_of,
    law_rows,
    lowest_loss,
    more_notes,
    name_of,
    rate_row,
    read_at_one_rate,
    titles_of,
)
from layerlaw.experiments.setting import ADAM, Images, Setting
from layerlaw.lab import ResidualNetwork, Run, Samples
from layerlaw.lab.schedule import BatchNormMode, Measurement
from layerlaw.law import LawFit
from layerlaw.measures import measure
from layerlaw.outcome import Outcome, Row
from layerlaw.record import Record
from layerlaw.sheet import Panel, Sheet
from layerlaw.verdict.levels import find_modules

TITLES = {
    "fig7": "Residual networks: the law of blocks, not of layers",
    "fig8": "The law of the blocks of a dense network",
    "fig10": "A deeper residual network: a weaker law",
}
FOUR_BLOCKS = ("resnet_2layer", "resnet_3layer", "resnet_mixed")
RELUS = replace(PROTOCOLS, sites=("input", "*relu*"))
DENSE = replace(PROTOCOLS, sites=("input", "conv", "stage?"))
MIXED = Claim("law", tolerance="not judged: blocks of two sizes are also said to have two slopes")
MORE = above(0.0, "blocks with more layers reduce D more")
WEAKER = below(0.0, "not as pronounced")
COMPONENT_NUMBERS = ("holds", "pearson", "rho", "evenness")
Keep = Callable[[str], bool]
Reduced = dict[str, float | None]  # D by the name of a site


def is_block(site: str) -> bool:
    """The end of a residual block, or what enters the first one."""
    return re.fullmatch(r"relu|stage\d+\.\d+\.relu", site) is not None


def is_block_or_input(site: str) -> bool:
    """Blocks, and the raw input."""
    return site == "input" or is_block(site)


def is_layer(site: str) -> bool:
    """Every ReLU, also those inside of blocks."""
    return site != "input"


is_stage = partial(is_layer)  # not the same: of a dense network only its first convolution and its blocks are measured
OF_BLOCKS = (is_block, is_block_or_input, is_stage)
LEVELS: Mapping[str, Keep] = {"block": is_block, "layer": is_layer}


def fig7(setting: Setting) -> Outcome:
    """Figure 7: residual networks of four blocks with two layers each, with three, and with both.

        layerlaw reproduce fig7            3 networks × 2 data sets × 5 learning rates: 30 networks per seed (on a GPU)
        layerlaw reproduce fig7 --quick    16×16 pixels, 200 images, two learning rates, 10 epochs

    8 channels, input channels repeated 8 times, filters of 5×5 in blocks of three layers. The paper: where the law is
    lost in residual networks, it comes back once a block, not a layer, is the module; and blocks with more layers
    reduce D more. Judged: `LawFit.holds` of blocks in every seed; that it does not hold of layers; and in the mixed
    network the mean drop of log D of a 3-layer block minus that of a 2-layer block, above 0 by a t test over seeds
    (whether blocks of the mixed network have one slope is not judged then; its 3-layer blocks also come first, so
    this may be their place and not their layers).

    As the paper chose: at the rate with the best law of blocks among the trained networks, anew for every seed. Four
    blocks without the raw input leave three steps; were the test of each seed to allow for a choice among five rates,
    equal steps with noise of 20 % would pass it in 28 % of cases. So it does not, and the chance beside the row does:
    how often most seeds have a random split that passes among five. Beside, without any choice: the rate whose
    training loss is lowest on the first seed.
    """
    data = images_of(setting, 16 if setting.quick else 32)
    cells = [(name, network) for network in FOUR_BLOCKS for name in data]
    grid = grids(setting, data, cells, RELUS, quick_epochs=10)
    shown = {cell: best_blocks(some, setting) for cell, some in grid.items()}
    choices = len(QUICK_RATES if setting.quick else ADAM)
    found: list[Row] = []
    claims: Claims = {}
    for cell, some in shown.items():
        name, title = name_of(cell), titles_of([cell])[cell]
        blocks, layers = seen(some, is_block), seen(some, is_layer)
        mixed = cell[1] == "resnet_mixed"
        found += law_rows(f"{name}/block", blocks, {"holds": MIXED if mixed else holds(best_of=choices)})
        found.append(row(f"{name}/block/holds-allowing-for-the-choice", blocks.values("holds", choices), reason=NO_RUN))
        no_law = does_not_hold(len(layers[0].measurement().separation) - 1) if layers else Claim("no law")
        found += law_rows(f"{name}/layer", layers, {"holds": no_law})
        found += levels_beside(name, some, components_of(setting, some, data), input_too=is_block_or_input)
        lowest = lowest_loss(grid[cell])
        for level, keep in LEVELS.items():
            found += seen(lowest, keep).rows(f"{name}/{level}-lowest-loss", BESIDE)
        found += [rate_row(f"{name}/learning-rate", some), rate_row(f"{name}/lowest-loss/learning-rate", lowest)]
        if mixed:
            found += [larger_drop(some, mode, f"{name}/3-layer-minus-2-layer-drop{end}") for mode, end in ENDS.items()]
            both = some.values(partial(drop_gap, keep=is_block_or_input))
            found.append(row(f"{name}/3-layer-minus-2-layer-drop-from-input", both, reason=NO_RUN))
            found.append(row(f"{name}/3-layer-minus-2-layer-drop-lowest-loss", lowest.values(drop_gap), reason=NO_RUN))
            claims[f"Fig. 7: blocks with more layers reduce D more, {title}"] = partial(_more, some)
        else:
            claims[f"Fig. 7: the law of blocks, {title}"] = blocks.mostly_hold
        claims[f"Fig. 7: no law of layers, {title}"] = partial(_no_law, layers)
    notes = [f"Claims that survive, {protocol_words(claims)}.", *answers(records_of(setting, shown, data))]
    sheets, tables = _drawn(shown, grid, claims)
    return Outcome("fig7", TITLES["fig7"], found, sheets, tables, [*notes, *more_notes(setting, grid)])


def fig8(setting: Setting) -> Outcome:
    """Figure 8: the blocks of a DenseNet161.

        layerlaw reproduce fig8            2 networks per seed, after 10 short ones (on a GPU: hours on a CPU)
        layerlaw reproduce fig8 --quick    four blocks of two layers, 16×16 pixels, 200 images, 20 epochs

    The CIFAR form. The paper: the law holds of densely connected networks with the block as the module. Points: the
    output of the first convolution and of each of the four dense blocks, in front of the transition; the raw input is
    dropped. Judged by `LawFit.holds` in every seed. One learning rate per data set, that of the lowest training loss
    after a tenth of the epochs on the first seed. On a GPU trained in bf16, where other figures have TF32 (whether that
    changes D is a row of `conv_grid`), and measured in float32. What is needed of each network is kept in small files:
    with --seeds 1, then 2, then 3, the networks of the seeds before (100 MB each) need not be there any more.
    """
    data = images_of(setting, 16 if setting.quick else 32)
    cells, what = [(name, "densenet161") for name in data], ["run", "components", "record"]
    read = partial(_dense_reading, setting, data)
    kept = read_at_one_rate(setting, data, cells, DENSE, read, what=what, quick_epochs=20)
    shown = {cell: Runs(Run.from_dict(one["run"]) for one in some) for cell, some in kept.items()}
    found: list[Row] = []
    for cell, some in shown.items():
        name, reduced = name_of(cell), [one["components"] for one in kept[cell]]
        found += law_rows(f"{name}/block", seen(some, is_stage), {"holds": holds()})
        found += levels_beside(name, some, reduced, levels={"block": is_stage}, input_too=lambda _: True)
        found.append(rate_row(f"{name}/learning-rate", some))
    claims: Claims = {
        f"Fig. 8: the law of blocks, {title}": seen(shown[cell], is_stage).mostly_hold
        for cell, title in titles_of(shown).items()
    }
    notes = [f"Data sets with a law of blocks in most seeds, {protocol_words(claims)}."]
    records = {cell: [Record.from_dict(one["record"]) for one in some if one["record"]] for cell, some in kept.items()}
    notes += answers(records)
    sheets, tables = drawn({cell: seen(some, is_stage) for cell, some in shown.items()}, {}, claims)
    sheets = list(map(_of_blocks, sheets))
    return Outcome("fig8", TITLES["fig8"], found, sheets, tables, [*notes, *more_notes(setting, shown)])


def fig10(setting: Setting) -> Outcome:
    """Figure 10: ResNet18, in which the law is weaker than in the shallow residual networks of Fig. 7.

        layerlaw reproduce fig10            2 networks per seed, after 10 short ones, and those of Fig. 7 with 2-layer blocks
        layerlaw reproduce fig10 --quick    few channels, 16×16 pixels, 200 images, 10 to 20 epochs

    The CIFAR form. The paper: the law is less pronounced, less clear in deeper residual networks. Points: the output
    of the stem and of the eight blocks. Judged: evenness minus that of the network of four 2-layer blocks (Fig. 7,
    the same seed and images), below 0 by a t test over seeds (evenness is 0 where D does not fall). A random split of
    the drop over m steps has an evenness of about (m + 1) / 2m, .56 at 8 steps and .67 at 3: so the difference is
    given again with that subtracted, and for r. One learning rate per network: that of the lowest training loss on
    the first seed, of ResNet18 after a tenth of the epochs, of the shallow one after all; beside, the shallow one at
    the rate with its best law.
    """
    data = images_of(setting, 16 if setting.quick else 32)
    shallow = grids(setting, data, [(name, "resnet_2layer") for name in data], RELUS, quick_epochs=10, shared="fig7")
    shown, short = at_one_rate(setting, data, [(name, "resnet18") for name in data], RELUS, quick_epochs=20)
    found: list[Row] = []
    claims: Claims = {}
    for (cell, some), others in zip(shown.items(), shallow.values(), strict=True):
        name, title = name_of(cell), titles_of([cell])[cell]
        blocks, other = (seen(runs, is_block) for runs in (some, lowest_loss(others)))
        found += [weaker(blocks, other, mode, f"{name}-minus-2layer/evenness{end}") for mode, end in ENDS.items()]
        why = blocks.trouble() or FLAT
        found.append(row(f"{name}-minus-2layer/evenness-above-chance", blocks.minus(other, above_chance), reason=why))
        found.append(row(f"{name}-minus-2layer/pearson", blocks.minus(other, "pearson"), reason=why))
        best = seen(best_blocks(others, setting), is_block)
        found.append(row(f"{name}-minus-2layer-best/evenness", blocks.minus(best, evenness), reason=why))
        found += law_rows(f"{name}/block", blocks)
        found += other.rows(f"{cell[0]}-resnet_2layer/block", BESIDE)
        found += seen(some, is_layer).rows(f"{name}/layer", BESIDE)
        found += levels_beside(name, some, components_of(setting, some, data), input_too=is_block_or_input)
        found.append(rate_row(f"{name}/learning-rate", some))
        claims[f"Fig. 10: the law weaker than in four blocks, {title}"] = partial(_weaker, blocks, other)
    notes = [f"Data sets with a weaker law, {protocol_words(claims)}.", *answers(records_of(setting, shown, data))]
    beside = {cell: lowest_loss(some) for cell, some in shallow.items()}
    sheets, tables = _drawn({**shown, **beside}, {**short, **shallow}, claims)
    return Outcome("fig10", TITLES["fig10"], found, sheets, tables, [*notes, *more_notes(setting, shown)])


def seen(runs: Runs, keep: Keep) -> Runs:
    """The same runs, measured at some of their sites alone."""

    def at(found: Measurement) -> Measurement:
        places = [i for i, site in enumerate(found.sites) if keep(site)]
        lists = {n: getattr(found, n) for n in ("separation", "nearest", "rank", "sites", "widths", "by_class")}
        kept: dict[str, Any] = {name: some and tuple(some[i] for i in places) for name, some in lists.items()}
        return replace(found, **kept, step="block" if keep in OF_BLOCKS else found.step)

    return Runs(replace(run, measurements=tuple(map(at, run.measurements))) for run in runs)


def best_blocks(runs: Runs, setting: Setting) -> Runs:
    """Per seed the run with the best law of blocks among the trained ones, with all its sites."""

    def law(run: Run) -> LawFit | None:
        (one,) = seen(Runs([run]), is_block)
        return law_of(one)

    return runs.best(law, trained=not setting.quick)


def levels_beside(
    name: str, runs: Runs, reduced: Sequence[Reduced], *, levels: Mapping[str, Keep] = LEVELS, input_too: Keep
) -> list[Row]:
    """The law of blocks with the raw input, and that of 100 principal components at every level without it."""
    found = seen(runs, input_too).rows(f"{name}/block-from-input", BESIDE)
    why = runs.trouble() or FLAT
    for level, keep in levels.items():
        laws = [law_along([D for site, D in some.items() if keep(site)]) if some else None for some in reduced]
        rows = f"{name}/{level}-{COMPONENTS}-components"
        found += [row(f"{rows}/{what}", of_laws(laws, what), reason=why) for what in COMPONENT_NUMBERS]
    return found


def components_of(setting: Setting, runs: Runs, data: Mapping[str, Images]) -> list[Reduced]:
    """D of the components of every network."""
    return [principal_separation(run, data[run.recipe.data](run.recipe.seed), setting.device) for run in runs]


def principal_separation(run: Run, data: Samples, device: str = "cpu") -> Reduced:
    """D of the first principal components at every site but the input, in the authors' BatchNorm mode; none if diverged."""
    found: Reduced = {}
    for site in site_features(run, data, device):
        try:
            found[site.name] = measure(principal(site.features.flatten(1)), site.labels)["separation"]
        except LayerlawError:  # features that are not finite, or huge
            found[site.name] = None
    return found


def drop_gap(run: Run, batchnorm: BatchNormMode = "batch", keep: Keep = is_block) -> float | None:
    """The mean drop of log D over blocks with more layers minus that over blocks with fewer."""
    if run.diverged is not None:
        return None
    network = run.recipe.network
    assert isinstance(network, ResidualNetwork)
    lengths = [len(k) for count, k in zip(network.blocks, network.kernels, strict=True) for _ in range(count)]
    (one,) = seen(Runs([run]), keep)
    D = one.measurement(batchnorm=batchnorm).separation
    if any(value is None or value <= 0 for value in D):
        return None
    drops = [math.log((a or 1) / (b or 1)) for a, b in pairwise(D)]
    lengths = lengths[len(lengths) - len(drops) :]
    long, short = ([d for d, n in zip(drops, lengths, strict=True) if n == of] for of in (max(lengths), min(lengths)))
    return fmean(long) - fmean(short)


def larger_drop(runs: Runs, batchnorm: BatchNormMode = "batch", name: str = "") -> Row:
    """Whether blocks with more layers reduce D more; judged in the authors' protocol."""
    claim = Claim() if name and batchnorm != "batch" else MORE
    return row(name, runs.values(lambda run: drop_gap(run, batchnorm)), claim, reason=NO_RUN)


def above_chance(run: Run) -> float | None:
    """Evenness minus that of a random split of the drop over so many steps."""
    m = len(run.measurement().separation) - 1
    return minus(evenness(run), (m + 1) / (2 * m))


def evenness(run: Run, batchnorm: BatchNormMode = "batch") -> float | None:
    """Of the law; 0 where D does not fall from the first site to the last: there is none, and nothing is weaker."""
    law = law_along(run.measurement(batchnorm=batchnorm).separation) if run.diverged is None else None
    return None if law is None else law.evenness or 0.0


def weaker(runs: Runs, others: Runs, batchnorm: BatchNormMode = "batch", name: str = "") -> Row:
    """Evenness minus that of the other network of the same seed; judged in the authors' protocol."""
    claim = Claim() if name and batchnorm != "batch" else WEAKER
    gaps = runs.minus(others, partial(evenness, batchnorm=batchnorm))
    return row(name, gaps, claim, reason=runs.trouble() or NO_RUN)


def _more(runs: Runs, batchnorm: BatchNormMode) -> bool | None:
    return larger_drop(runs, batchnorm).reproduced


def _weaker(runs: Runs, others: Runs, batchnorm: BatchNormMode) -> bool | None:
    return weaker(runs, others, batchnorm).reproduced


def _no_law(runs: Runs, batchnorm: BatchNormMode) -> bool:
    return not runs.mostly_hold(batchnorm)


def _dense_reading(setting: Setting, data: Mapping[str, Images], _: Cell, run: Run) -> dict[str, Any]:
    """All that Figure 8 needs of a network: of 100 MB each, they are not kept with what else is."""
    (reduced,) = components_of(setting, Runs([run]), data)
    how: dict[str, Any] = {"sites": "blocks", "device": setting.device}
    record = None if run.diverged else record_of(run, data[run.recipe.data](run.recipe.seed), **how).to_dict()
    return {"run": run.to_dict(), "components": reduced, "record": record}


def records_of(setting: Setting, cells: Cells, data: Mapping[str, Images]) -> dict[Cell, list[Record]]:
    """Records of the networks by their layers, for the module finder."""
    how: dict[str, Any] = {"sites": "layers", "device": setting.device}
    return {
        cell: [record_of(run, data[cell[0]](run.recipe.seed), **how) for run in runs.sound]
        for cell, runs in cells.items()
    }


def answers(found_records: Mapping[Cell, Sequence[Record]]) -> list[str]:
    """What the module finder says of each network, its seeds pooled, side branches taken in."""
    found = []
    for cell, records in found_records.items():
        if records:
            try:
                words = find_modules(*records, branches=True).sentence
            except LayerlawError as error:
                words = f"no answer: {error}"
            found.append(f"Module finder, {titles_of([cell])[cell]}: {words}")
    return found


def _drawn(shown: Cells, grid: Cells, claims: Claims) -> tuple[list[Sheet], list[Any]]:
    """Blocks in all ways, and layers once."""
    blocks, behind = ({c: seen(some, is_block) for c, some in cells.items()} for cells in (shown, grid))
    sheets, tables = drawn(blocks, behind, claims)
    layers, others = ({c: seen(some, is_layer) for c, some in cells.items()} for cells in (shown, grid))
    by_layer, *_ = drawn(layers, others, claims)[0]
    along, *others_of = map(_of_blocks, sheets)
    return [replace(along, title="D along blocks"), replace(by_layer, title="D along layers"), *others_of], tables


def _of_blocks(sheet: Sheet) -> Sheet:
    """The same with blocks along the axis."""
    curves = [panel for panel in sheet.panels if isinstance(panel, Panel)]
    return replace(sheet, panels=[replace(panel, xlabel="block") for panel in curves])
