"""Other measures for convolutional features: which gives the straightest law, per architecture?

    layerlaw reproduce conv_measures            9 networks × 2 data sets per seed, after 5 short ones each (on a GPU)
    layerlaw reproduce conv_measures --quick    4 small networks, 200 images, 10 to 20 epochs

The paper asks for measures that suit convolutions better than D of flattened features. Measured on the same trained
networks in the authors' protocol, behind every ReLU, of residual and dense networks at the ends of blocks: D of
flattened features, of their 100 first principal components, of features averaged over all positions, and with every
position a sample of its own; CDNV and the mismatch of the nearest class center with the network's decision, of
flattened and of pooled features; and the share of the labels' variance that a linear read-out (least squares on
one-hot labels, at most 100 components) leaves unexplained. Straightest: the most negative r of its logarithm
along depth, as a mean over seeds, among measures that are above 0 at every layer in every seed; ten are compared,
so the best of them is no test. VGG, pure convolutions, ResNet18 and DenseNet161 are those of Figs. S2, S3, 10 and 8
where the folder holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import LayerlawError
from layerlaw.experiments.drawing import fit_note, fit_series
from layerlaw.experiments.numbers import law_along, mean_of, of_laws, row
from layerlaw.experiments.runs import COMPONENTS, FLAT, NO_RUN, AtSite, Runs, principal, site_features
from layerlaw.experiments.separation.blocks import DENSE, RELUS, Keep, is_block, is_layer
from layerlaw.experiments.separation.convolutions import (
    LAYERS,
    PURE,
    QUICK_COUNT,
    Cell,
    images_of,
    name_of,
    read_at_one_rate,
    titles_of,
)
from layerlaw.experiments.setting import Images, Setting
from layerlaw.lab import Run
from layerlaw.law import LawFit
from layerlaw.measures import measure
from layerlaw.outcome import Cell as TableCell
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.sheet import Panel, Sheet
from layerlaw.wording import counted, finite, joined

TITLE = "Other measures for convolutional features: which gives the straightest law?"
MEASURES = {  # by their names in rows
    "D": "D",
    "D-components": f"D of {COMPONENTS} components",
    "D-pooled": "D of pooled features",
    "D-positions": "D over all positions",
    "cdnv": "CDNV",
    "cdnv-pooled": "CDNV of pooled features",
    "mismatch": "NCC mismatch",
    "mismatch-pooled": "NCC mismatch of pooled features",
    "readout": f"residual of a read-out from {COMPONENTS} components",
    "readout-pooled": f"residual of a read-out from pooled features (at most {COMPONENTS} components)",
}
NUMBERS = ("holds", "pearson", "evenness", "rho")
FAMILIES = {  # the figure whose folder holds the networks ("": this one), how they are measured, their epochs in quick runs
    ("alexnet_5x5", "vgg13_5x5"): ("", LAYERS, 15),
    ("vgg11", "vgg19"): ("s2", LAYERS, 15),
    ("pure",): ("s3", LAYERS, 15),
    ("resnet_2layer", "resnet_3layer"): ("conv_measures/blocks", RELUS, 10),
    ("resnet18",): ("fig10", RELUS, 20),
    ("densenet161",): ("fig8", DENSE, 20),
}
QUICK_LEFT_OUT = ("vgg13_5x5", "vgg19", "pure", "resnet_3layer", "resnet18")
Numbers = Mapping[str, float | None]  # by the names of measures
Laws = Mapping[str, Sequence[LawFit | None]]  # one of every run


@dataclass(frozen=True)
class MeasuredNetwork:
    """What is left of a network: every measure at every layer, its rate, how it was trained, whether it diverged."""

    curve: list[Numbers]
    rate: float
    how: list[str]
    lost: str = ""

    @classmethod
    def of(cls, run: Run, images: Images, device: str, keep: Keep) -> MeasuredNetwork:
        """Measured at the sites that are points of the law."""
        curve = [conv_numbers(at) for at in site_features(run, images(run.recipe.seed), device) if keep(at.name)]
        lost = Runs([run]).trouble() if run.diverged is not None else ""
        return cls(curve, run.recipe.learning_rate, list(run.how), lost)


def laws_of(networks: Sequence[MeasuredNetwork]) -> tuple[Laws, dict[str, str]]:
    """Of every measure the law of every network; and why there may be none."""
    curves = [network.curve for network in networks]
    found = {name: [law_along([at[name] for at in some]) if some else None for some in curves] for name in MEASURES}
    holes = {name: max((sum(not at[name] for at in some) for some in curves), default=0) for name in MEASURES}
    words = {name: f"0 or not defined at {counted(count, 'layer')}" if count else FLAT for name, count in holes.items()}
    return found, {name: lost_of(networks) or why for name, why in words.items()}


def lost_of(networks: Sequence[MeasuredNetwork]) -> str:
    """Which of them diverged."""
    return "; ".join(network.lost for network in networks if network.lost)


def run(setting: Setting) -> Outcome:
    """Run the experiment."""
    shown = measured_cells(setting)
    titles, found = titles_of(shown), list[Row]()
    laws: dict[str, Laws] = {}
    panels: dict[str, list[Panel]] = {name: [] for name in MEASURES}
    straightest: dict[str, list[str]] = {name: [] for name in MEASURES}
    for cell, measured in shown.items():
        some, why = laws_of(measured)
        found += measure_rows(name_of(cell), some, why)
        found.append(row(f"{name_of(cell)}/learning-rate", [network.rate for network in measured], reason=NO_RUN))
        laws[titles[cell]] = some
        if (best := straightest_of(some)) is not None:
            straightest[best].append(titles[cell])
        for name in MEASURES:
            panels[name].append(measure_panel(titles[cell], name, some[name], why[name], along=depth_of(cell)))
    notes = [
        f"Straightest by r: {MEASURES[name]} in {counted(len(some), 'network')} ({joined(some)})."
        for name, some in straightest.items()
        if some
    ]
    lost = [f"{titles[cell]}: {words}." for cell, measured in shown.items() if (words := lost_of(measured))]
    ways = {way for measured in shown.values() for network in measured for way in network.how}
    how = f"Trained: {'; '.join(sorted(ways))}."
    few = setting.note(f"Quick run: {10 * QUICK_COUNT} images of Fashion-MNIST, small networks; no CIFAR-10.")
    sheets = [Sheet(f"{MEASURES[name]} along depth", some) for name, some in panels.items()]
    tables = [measures_table("Which measure gives the straightest law", laws)]
    return Outcome("conv_measures", TITLE, found, sheets, tables, [*notes, *lost, how, *few])


def measured_cells(setting: Setting) -> dict[Cell, list[MeasuredNetwork]]:
    """Every network at one rate, those of other figures from their folders.

    What was measured is kept: small files, with which the experiment goes on where the networks are gone.
    """
    found: dict[Cell, list[MeasuredNetwork]] = {}
    for networks, (shared, schedule, epochs) in FAMILIES.items():
        data = images_of(setting, 16 if setting.quick and schedule is not LAYERS else 32)
        kept = [one for one in networks if not (setting.quick and one in QUICK_LEFT_OUT)]
        cells = [(name, PURE[name] if one == "pure" else one) for one in kept for name in data]
        how: dict[str, Any] = {"what": list(MEASURES), "quick_epochs": epochs, "shared": shared}
        some = read_at_one_rate(setting, data, cells, schedule, partial(_reading, setting, data), **how)
        found |= {cell: [MeasuredNetwork(**one) for one in some[cell]] for cell in cells}
    return found


def _reading(setting: Setting, data: Mapping[str, Images], cell: Cell, run: Run) -> dict[str, Any]:
    keep = is_block if cell[1].startswith("resnet") else is_layer
    return asdict(MeasuredNetwork.of(run, data[cell[0]], setting.device, keep))


def measures_table(title: str, laws: Mapping[str, Laws]) -> Table:
    """A line per network: every measure, and which is the straightest."""
    lines: list[tuple[TableCell, ...]] = []
    for name, some in laws.items():
        best = straightest_of(some)
        lines.append((name, *map(_words, some.values()), MEASURES[best] if best else None))
    note = (
        "Mean r over seeds, and in how many of them the law holds; nothing where it is 0 or not defined at some layer."
    )
    return Table(title, ("network", *MEASURES.values(), "straightest"), lines, note)


def conv_numbers(at: AtSite) -> Numbers:
    """Every measure of the features (n, channels, …) of one site; `None` where one is not defined.

    >>> x, y = torch.tensor([[0.0], [2.0], [10.0], [12.0]]), torch.tensor([0, 0, 1, 1])
    >>> found = conv_numbers(AtSite("relu1", x, y, decisions=y))
    >>> round(found["D"], 12), found["mismatch"]
    (0.04, 0.0)
    """
    flat, pooled = at.features.flatten(1), at.features.flatten(2).mean(2) if at.features.dim() > 2 else at.features
    x = at.features if at.features.dim() == 2 else at.features.flatten(2).mT.flatten(0, 1)  # (n · positions, channels)

    def defined(of: Callable[[], float | None]) -> float | None:
        """Each by itself: at features that are huge, not finite or without any spread some are not defined."""
        try:
            value = of()
        except (LayerlawError, RuntimeError):
            return None
        return None if value is None else finite(value)

    whole, averaged = (cache(partial(measure, some, at.labels, decision=at.decisions)) for some in (flat, pooled))
    few, few_pooled = (cache(partial(principal, some)) for some in (flat, pooled))
    positions = at.labels.repeat_interleave(len(x) // len(flat))
    found: dict[str, Callable[[], float | None]] = {
        "D": lambda: whole()["separation"],
        "D-components": lambda: measure(few(), at.labels)["separation"],
        "D-pooled": lambda: averaged()["separation"],
        "D-positions": lambda: measure(x, positions)["separation"],
        "cdnv": lambda: whole()["cdnv"],
        "cdnv-pooled": lambda: averaged()["cdnv"],
        "mismatch": lambda: whole()["ncc_mismatch"],
        "mismatch-pooled": lambda: averaged()["ncc_mismatch"],
        "readout": lambda: readout_residual(few(), at.labels),
        "readout-pooled": lambda: readout_residual(few_pooled(), at.labels),
    }
    return {name: defined(of) for name, of in found.items()}


def readout_residual(features: Tensor, labels: Tensor) -> float:
    """Share of the variance of one-hot labels that least squares on features (n, d), with an intercept, leaves unexplained.

    Between 0 (a linear read-out tells all classes) and 1; needs more samples than features to say anything.

    >>> readout_residual(torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([0, 0, 1, 1])) < 1e-12
    True
    """
    X, Y = (t - t.mean(0) for t in (features.double(), torch.nn.functional.one_hot(labels).double()))
    U, s, _ = torch.linalg.svd(X, full_matrices=False)
    U = U[:, s > s[:1] * len(X) * torch.finfo(features.dtype).eps]  # directions of the features, not of their rounding
    return float((Y - U @ (U.mT @ Y)).square().sum() / Y.square().sum())


def measure_rows(name: str, laws: Laws, reasons: Mapping[str, str]) -> list[Row]:
    """The law of every measure over the seeds, with a reason where there is none."""
    return [
        row(f"{name}/{measure}/{what}", of_laws(some, what), reason=reasons[measure])
        for measure, some in laws.items()
        for what in NUMBERS
    ]


def straightest_of(laws: Laws) -> str | None:
    """The measure with the lowest mean r, among those that have one in every seed; `None` if there is none that falls."""
    known = {name: _r(some) for name, some in laws.items()}
    falling = {name: r for name, r in known.items() if r is not None and r < 0}
    return min(falling, key=falling.__getitem__) if falling else None


def _r(laws: Sequence[LawFit | None]) -> float | None:
    values = of_laws(laws, "pearson")
    return None if None in values else mean_of(values)


def _words(laws: Sequence[LawFit | None]) -> str | None:
    """The mean r and in how many seeds the law holds."""
    r, held = _r(laws), sum(map(bool, of_laws(laws, "holds")))
    return None if r is None else f"{r:.3f}, {held} of {len(laws)}".replace("-", "−")


def depth_of(cell: Cell) -> str:
    """What the points of a network are, as its figure has them."""
    return "block" if cell[1].startswith(("resnet", "densenet")) else "layer"


def measure_panel(title: str, name: str, laws: Sequence[LawFit | None], reason: str, *, along: str) -> Panel:
    """A measure along depth, or why it has no law."""
    known = [law for law in laws if law is not None]
    note = fit_note(known) if len(known) == len(laws) else reason
    return Panel(title, fit_series(known), note=note, xlabel=along, ylabel=MEASURES[name])
