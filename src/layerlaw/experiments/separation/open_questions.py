"""What the law's authors leave open of convolutional networks: other measures, what makes the law sharp, tied weights.

Images, training and learning rates as in `convolutions`: one rate per network, that of the lowest training loss after
a tenth of the epochs on the first seed. The raw input is left out: of its one or three channels no class means span
the dimensions that those of a layer do. Nothing here is a claim of the paper but the remark on filters and input channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from layerlaw.experiments.drawing import EVAL_TITLE, across_table, grid_table, law_sheet
from layerlaw.experiments.numbers import UNCLAIMED, Claim, below, mean_of, row
from layerlaw.experiments.runs import FLAT, PROTOCOLS, Runs
from layerlaw.experiments.separation.blocks import (
    is_layer,
    seen,
)
from layerlaw.experiments.separation.conv_measures import Laws, MeasuredNetwork, laws_of, measure_rows, measures_table
from layerlaw.experiments.separation.convolutions import (
    BESIDE,
    LAYERS,
    QUICK_COUNT,
    QUICK_TESTS,
    SETS,
    Cell,
    at_one_rate,
    images_of,
    name_of,
    rate_row,
)
from layerlaw.experiments.separation.fig6 import ratio_row
from layerlaw.experiments.setting import TITLES as DATA_TITLES
from layerlaw.experiments.setting import Images, Setting, samples
from layerlaw.lab import Architecture, ConvolutionalNetwork, ResidualNetwork
from layerlaw.outcome import Cell as TableCell
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Sheet
from layerlaw.wording import joined

TITLES = {
    "conv_grid": "Filters, pooling, image size, channels: what makes the law of convolutions sharp?",
    "weight_tied": "One residual block applied again and again: does the law hold along its steps?",
}
SHARPER = replace(below(0.0, "sharper with larger filters and more input channels"), kind="remark")
GRID: dict[str, dict[str, Any]] = {  # eight convolutions in four stages; one thing changed at a time
    "base": {},
    "kernel-5": {"kernel": 5},
    "kernel-7": {"kernel": 7},
    "pool-overlapping": {"pool": 3},
    "pool-none": {"pool": 0},
    "pixels-16": {"side": 16},
    "pixels-64": {"side": 64},
    "channels-16": {"channels": 16},
    "channels-256": {"channels": 256},
    "input-repeated-16": {"repeat": 16},
}
GRID_TITLES = {
    **{
        "base": "3×3 filters, pools of 2, 32 px, 64 channels",
        "kernel-5": "filters of 5×5",
        "kernel-7": "filters of 7×7",
    },
    **{"pool-overlapping": "pools of 3 that overlap", "pool-none": "no pools", "pixels-16": "16×16 pixels"},
    **{"pixels-64": "64×64 pixels", "channels-16": "16 channels", "channels-256": "256 channels"},
    **{"input-repeated-16": "input repeated 16 times"},
}
QUICK_SCALE = 8  # so many times fewer channels
REMARKED = ("kernel-5", "kernel-7", "input-repeated-16")
STEPS = replace(PROTOCOLS, sites=("input", "norm", "change"))
ENDS_OF_BLOCKS = replace(PROTOCOLS, sites=("input", "relu", "stage1.*.relu"))
TIED = {
    "tied_resnet": "8 steps, tied",
    "tied_resnet_group": "8 steps, tied, GroupNorm shared",
    "tied_16": "16 half steps, tied",
    "untied": "8 blocks, not tied",
}


def conv_grid(setting: Setting) -> Outcome:
    """Filters, pooling, image size and channels, one at a time: what makes the law of convolutions sharp?

        layerlaw reproduce conv_grid            10 networks × 2 data sets per seed, after 5 short ones each (on a GPU)
        layerlaw reproduce conv_grid --quick    an eighth of the channels, 200 images of Fashion-MNIST, 10 epochs

    Eight convolutions in four stages and one linear layer; 3×3 filters, pools of 2, 32×32 pixels, 64 channels, and one
    of these changed at a time: filters of 5×5 and 7×7, pools that overlap and none, images of 16 and 64 pixels (resized,
    so 64 hold nothing new), 16 and 256 channels, the input repeated 16 times. D of flattened features behind every ReLU,
    without the raw input. The paper remarks that larger filters and more input channels make the law sharper: judged by r
    minus that of the unchanged network of the same seed, below 0 by a t test over seeds; the other differences are shown.
    On a GPU the unchanged network is trained once more in bf16 instead of TF32, at the same rate: does D change?
    """
    data, names = grid_images(setting), SETS[:1] if setting.quick else SETS
    cells = {(name, variant): (_sized(name, changes), variant) for name in names for variant, changes in GRID.items()}
    how: dict[str, Any] = {"quick_epochs": 10, "shape": grid_shape, "networks": False}
    found_cells, _ = at_one_rate(setting, data, list(cells.values()), LAYERS, **how)
    bases = {name: found_cells[cells[name, "base"]] for name in names}
    halves = in_half_precision(setting, bases, data)
    shown = {cell: seen(found_cells[key], is_layer) for cell, key in cells.items()}
    found: list[Row] = []
    lines: list[tuple[TableCell, ...]] = []
    for (name, variant), runs in shown.items():
        base = shown[name, "base"]
        found += runs.rows(f"{name}-{variant}", BESIDE)
        found.append(rate_row(f"{name}-{variant}/learning-rate", runs))
        gaps = {what: runs.minus(base, what) if variant != "base" else [] for what in ("pearson", "evenness", "rho")}
        for what, values in gaps.items() if variant != "base" else ():
            claim: Claim = SHARPER if what == "pearson" and variant in REMARKED else UNCLAIMED
            reason = runs.trouble() or base.trouble() or FLAT
            found.append(row(f"{name}-{variant}-minus-base/{what}", values, claim, reason=reason))
        held = f"{sum(map(bool, runs.values('holds')))} of {len(runs)}"
        numbers = [runs.mean(what) for what in ("pearson", "evenness", "rho", "test-accuracy")]
        lines.append((DATA_TITLES[name], GRID_TITLES[variant], held, *numbers, *map(mean_of, gaps.values())))
    columns = (
        "data",
        "changed",
        "law holds in",
        "r",
        "evenness",
        "ρ",
        "test acc.",
        "r − base",
        "evenness − base",
        "ρ − base",
    )
    found += [r for name, runs in halves.items() for r in half_rows(name, runs, shown[name, "base"])]
    tables = [Table("One factor at a time", columns, lines, "Means over seeds.")]
    titles = {cell: f"{DATA_TITLES[cell[0]]}, {GRID_TITLES[cell[1]]}" for cell in shown}
    panels = {titles[cell]: some for cell, some in shown.items()}
    tables += [across_table("Over seeds and images", panels), _every(shown, titles)]
    notes = [f"Law in most seeds: {_holding(shown, titles) or 'nowhere'}."]
    return Outcome("conv_grid", TITLES["conv_grid"], found, _sheets(panels), tables, [*notes, *_how(setting, shown)])


def weight_tied(setting: Setting) -> Outcome:
    """A residual network whose blocks share their weights, as an ODE is solved: does the law hold along its steps?

        layerlaw reproduce weight_tied            4 networks × 2 data sets per seed, after 5 short ones each (on a GPU)
        layerlaw reproduce weight_tied --quick    8 channels, 16×16 pixels, 200 images, 10 epochs

    The paper's outlook. x → x + (4 / steps)·f(x), f the same two convolutions of 32 channels at every step: 8 steps with
    a BatchNorm of each step's own, 8 with a GroupNorm that is shared too (f is then the same function every time), and
    16 half steps; beside them eight residual blocks of the same width that share nothing. D of flattened features in front
    of the first step and behind every one; the other measures of `conv_measures` stand beside. No claim of the paper.
    """
    data = images_of(setting, 16 if setting.quick else 32)
    tied = [(name, network) for network in TIED if network != "untied" for name in data]
    how: dict[str, Any] = {"quick_epochs": 10, "shape": tied_shape}
    shown, _ = at_one_rate(setting, data, tied, STEPS, **how)
    beside = [(name, "untied") for name in data]
    shown |= at_one_rate(setting, data, beside, ENDS_OF_BLOCKS, shared="weight_tied/untied", **how)[0]
    steps = {cell: seen(runs, is_layer) for cell, runs in shown.items()}
    titles = {cell: f"{DATA_TITLES[cell[0]]}, {TIED[cell[1]]}" for cell in shown}
    found: list[Row] = []
    others: dict[str, Laws] = {}
    for cell, runs in steps.items():
        found += runs.rows(name_of(cell), (*BESIDE, "greenwood-p", "equal-steps", "final-D", "test-accuracy"))
        found.append(rate_row(f"{name_of(cell)}/learning-rate", runs))
        networks = [MeasuredNetwork.of(run, data[cell[0]], setting.device, is_layer) for run in runs]
        others[titles[cell]], why = laws_of(networks)
        found += measure_rows(name_of(cell), others[titles[cell]], why)
    panels = {titles[cell]: some for cell, some in steps.items()}
    measures = measures_table("Other measures along the steps", others)
    tables = [across_table("Over seeds and images", panels), measures, _every(steps, titles)]
    sheets = [
        replace(s, panels=[replace(p, xlabel="step") for p in s.panels if isinstance(p, Panel)])
        for s in _sheets(panels)
    ]
    notes = [f"Law along the steps in most seeds: {_holding(steps, titles) or 'nowhere'}."]
    return Outcome("weight_tied", TITLES["weight_tied"], found, sheets, tables, [*notes, *_how(setting, steps)])


def in_half_precision(setting: Setting, bases: Mapping[str, Runs], data: Mapping[str, Images]) -> dict[str, Runs]:
    """The same networks of each data set, at the same rates, trained in bf16; none on a CPU, some of which die of it."""
    if torch.device(setting.device).type != "cuda":
        return dict.fromkeys(bases, Runs())
    recipes = [replace(run.recipe, precision="bf16") for base in bases.values() for run in base]
    runs = setting.train("bf16", recipes, data, LAYERS, networks=False)
    return {name: seen(runs.at(data=base[0].recipe.data), is_layer) for name, base in bases.items()}


def half_rows(name: str, runs: Runs, base: Runs) -> list[Row]:
    """Whether D and the law change when a network is trained in bf16 instead of TF32."""
    reason = runs.trouble() or "trained on a GPU alone"
    ratio = ratio_row(f"{name}-base-bf16-over-tf32/final-D", runs.over(base, "final-D"), reason=reason)
    return [
        ratio,
        *(
            row(f"{name}-base-bf16-minus-tf32/{what}", runs.minus(base, what), reason=reason)
            for what in ("pearson", "evenness", "rho", "test-accuracy")
        ),
    ]


def grid_images(setting: Setting) -> dict[str, Images]:
    """Images of every size of the grid, by the name of the data set and the size."""
    counts, tests = (QUICK_COUNT, QUICK_TESTS) if setting.quick else (100, 200)
    return {
        f"{name}_{size}": samples(setting, name, counts, size=size, tests=tests, flat=False)
        for name in (SETS[:1] if setting.quick else SETS)
        for size in sorted({changes.get("side", 32) for changes in GRID.values()})
    }


def _sized(name: str, changes: Mapping[str, Any]) -> str:
    return f"{name}_{changes.get('side', 32)}"


def grid_shape(setting: Setting, variant: str, inputs: int) -> ConvolutionalNetwork:
    """The network of a variant of the grid."""
    changes = dict(GRID[variant])
    channels = changes.pop("channels", 64) // (QUICK_SCALE if setting.quick else 1)
    return ConvolutionalNetwork(stages=((channels,) * 2,) * 4, inputs=inputs, **changes)


def tied_shape(setting: Setting, name: str, inputs: int) -> Architecture:
    """A network with tied weights, or the one without them that stands beside."""
    channels = 8 if setting.quick else 32
    if name == "untied":
        return ResidualNetwork(blocks=(8,), widths=(channels,), kernels=((3, 3),), inputs=inputs)
    preset, steps = ("tied_resnet", 16) if name == "tied_16" else (name, 8)
    return Architecture.named(preset, inputs=inputs, channels=channels, steps=steps)


def _holding(cells: Mapping[Cell, Runs], titles: Mapping[Cell, str]) -> str:
    return joined([titles[cell] for cell, runs in cells.items() if runs.mostly_hold()])


def _sheets(panels: Mapping[str, Runs]) -> list[Sheet]:
    """D along depth in the authors' protocol, then in eval mode."""
    return [law_sheet("D along depth", panels, words=()), law_sheet(EVAL_TITLE, panels, batchnorm="running")]


def _every(cells: Mapping[Cell, Runs], titles: Mapping[Cell, str]) -> Table:
    names = [titles[cell] for cell, runs in cells.items() for _ in runs]
    return grid_table("Every network", [run for runs in cells.values() for run in runs], names=names)


def _how(setting: Setting, cells: Mapping[Cell, Runs]) -> list[str]:
    how = sorted({way for runs in cells.values() for run in runs for way in run.how})
    few = f"{10 * QUICK_COUNT} images of Fashion-MNIST, few channels; no CIFAR-10"
    return [f"Trained: {'; '.join(how)}.", *setting.note(f"Quick run: {few}.")]
