"""Figure S10: without BatchNorm the law is not clear. 4, 8 and 20 layers on Fashion-MNIST.

    layerlaw reproduce s10            162 networks at 3 seeds: Adam at five rates, SGD at four, with and without BatchNorm
    layerlaw reproduce s10 --quick    18 networks, 6 epochs instead of 600

Two minutes on a GPU. The paper names neither optimizer nor rate: its default is Adam at the rate with the best law, chosen
here per seed, with and without BatchNorm alike; SGD is beside it. A law is clear when r ≤ −0.99 and Greenwood's p < 0.05,
with the choice among the rates repeated inside its null (of five random splits of a drop the straightest has r ≤ −0.99 in
43, 23 and 75 of 100 cases at 4, 8 and 20 layers). Agreement: with Adam, clear in fewer than half the seeds; of all networks
of a depth that are well trained without BatchNorm (training accuracy ≥ 0.99), fewer than half have a clear law ("even when
the network is well-optimized, the law is often not clear"); and fewer are well trained without BatchNorm than with it ("it
is difficult to optimize"). Without BatchNorm train and eval mode are the same; and deep class means can come so close that
some of their directions drown in rounding, which lowers D by itself: places-short-of-rank counts where.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from layerlaw.experiments.drawing import caption, grid_table, law_panel
from layerlaw.experiments.fig1 import RATES
from layerlaw.experiments.images import samples
from layerlaw.experiments.numbers import best_of_seeds, is_clear, law_of, law_row, mean_of, row, selected_p
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.lab.schedule import CHUNK
from layerlaw.outcome import Outcome, Row
from layerlaw.probing import probe
from layerlaw.sheet import Panel, Sheet

TITLE = "Without BatchNorm the law is not clear"
DEPTHS = (4, 8, 20)
GRID = {"adam": RATES["adam"], "sgd": (0.01, 0.03, 0.1, 0.3)}
QUICK_GRID = {"adam": (3e-4, 1e-3), "sgd": (0.1,)}
NAMES = {True: "norm", False: "no-norm"}
WELL_TRAINED = 0.99  # training accuracy
Cell = tuple[str, int, bool]


def run(setting: Setting) -> Outcome:
    """Train both grids, tell what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    grid = QUICK_GRID if setting.quick else GRID
    recipes = []
    for optimizer, rates in grid.items():
        shapes = [Shape.even(depth, norm=norm) for norm in (False, True) for depth in DEPTHS]
        recipes += base.grid(optimizer=(optimizer,), network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("norms", recipes, data, Schedule(test=True))
    cells = {(o, d, n): [r for r in runs if _cell(r) == (o, d, n)] for o in grid for d in DEPTHS for n in (False, True)}
    chosen = [r for (_, _, norm), group in cells.items() if not norm for r in best_of_seeds(group)]
    short = {r.recipe: short_layers(r, data["fashion_mnist"], device=setting.device) for r in chosen}
    rows = [one for cell in cells if not cell[2] for one in _rows(cell, cells, len(grid[cell[0]]), short)]
    return Outcome(
        "s10",
        TITLE,
        [*rows, *(one for depth in DEPTHS for one in _training_rows(depth, runs))],
        _sheets(cells),
        [grid_table("Every network of the grid", runs)],
        [*_notes(runs), *_rank_notes(chosen, short)],
    )


def _cell(run: Run) -> Cell:
    return run.recipe.optimizer, run.recipe.network.depth, run.recipe.network.norm


def is_well_trained(run: Run) -> bool:
    """Whether the network as it would be used has learnt nearly all training samples."""
    accuracy = None if run.diverged is not None else run.measurement(batchnorm="running").accuracy
    return accuracy is not None and accuracy >= WELL_TRAINED


def lowest_loss(runs: Sequence[Run]) -> list[Run]:
    """The run with the lowest last loss, once per seed; diverged ones do not count."""
    sound = [r for r in runs if r.diverged is None]
    seeds = dict.fromkeys(r.recipe.seed for r in sound)
    return [min((r for r in sound if r.recipe.seed == seed), key=lambda r: r.losses[-1]) for seed in seeds]


def short_layers(run: Run, data: Samples, *, device: str = "cpu") -> int:
    """Places at which the class means span fewer than K−1 dimensions: there D is a sum of fewer terms, and falls."""
    how: dict[str, Any] = {"batchnorm": "batch", "batch_size": CHUNK, "jackknife": False, "permuted": False}
    record = probe(run.network(), (data.inputs, data.labels), progress=False, device=device, **how)
    return sum(site.values["full_rank"] == 0 for site in record.sites if site.in_fit)


def _rows(cell: Cell, cells: dict[Cell, list[Run]], choices: int, short: dict[Recipe, int]) -> list[Row]:
    """The chosen runs without BatchNorm, then their twins."""
    optimizer, depth, _ = cell
    bare, twins = cells[optimizer, depth, False], cells[optimizer, depth, True]
    name, adam = f"{optimizer}-{depth}", optimizer == "adam"
    best, best_twins = best_of_seeds(bare), best_of_seeds(twins)
    rows = [
        *_law_rows(f"{name}/no-norm", bare, choices, judged=adam),
        *(_further_rows(f"{name}/no-norm", best, short) if adam else []),
        *_law_rows(f"{name}/norm", twins, choices, judged=False),
        law_row(f"{name}/norm/pearson-eval", best_twins, "pearson", batchnorm="running"),
    ]
    return [*rows, law_row(f"{name}/norm/rho-eval", best_twins, "rho", batchnorm="running")] if adam else rows


def _law_rows(name: str, runs: Sequence[Run], choices: int, *, judged: bool) -> list[Row]:
    """Of the run with the best law of every seed; a seed without any law counts as one without a clear law."""
    best, seeds = best_of_seeds(runs), {r.recipe.seed for r in runs}
    clear = [float(is_clear(law_of(r), choices)) for r in best] + [0.0] * (len(seeds) - len(best))
    told: dict[str, Any] = {"paper": "no clear law"} if judged else {}
    how: dict[str, Any] = {"holds": lambda share: share < 0.5, "tolerance": "< 0.5 of the seeds"} if judged else {}
    lost = sum(r.diverged is not None for r in runs)
    dead = len(runs) - lost
    none = f"no D at every layer in {len(runs)} runs: {lost} diverged, in {dead} class means coincide at some layer"
    laws = [law_of(r) for r in best]
    ps = [selected_p(law.effective_layers, law.layers, choices) if law else None for law in laws]
    pearson = [law.pearson if law else None for law in laws]
    return [
        row(f"{name}/seeds-with-clear-law", clear, **told, **how),
        row(f"{name}/pearson", pearson, **told, reason=none),
        row(f"{name}/greenwood-p", ps, reason="D does not fall with depth" if best else none),
        row(f"{name}/lowest-loss", [r.losses[-1] for r in lowest_loss(runs)], reason=f"all {lost} runs diverged"),
    ]


def _further_rows(name: str, best: Sequence[Run], short: dict[Recipe, int]) -> list[Row]:
    if not best:
        return []
    return [
        law_row(f"{name}/rho", best, "rho"),
        law_row(f"{name}/effective-layers", best, "effective_layers"),
        row(f"{name}/places-short-of-rank", [short[r.recipe] for r in best]),
        row(f"{name}/loss", [r.losses[-1] for r in best]),
        row(f"{name}/train-accuracy", [r.measurement(batchnorm="running").accuracy for r in best]),
    ]


def _training_rows(depth: int, runs: Sequence[Run]) -> list[Row]:
    """Over the whole grid of a depth: how many are well trained, and how many of those have a clear law."""
    rows = []
    shares = {}
    for norm in (False, True):
        of_depth = [r for r in runs if r.recipe.network.depth == depth and r.recipe.network.norm is norm]
        well = [r for r in of_depth if is_well_trained(r)]
        shares[norm] = len(well) / len(of_depth)
        clear = [fmean(is_clear(law_of(r)) for r in well)] if well else [None]
        none = f"none of {len(of_depth)} networks is well trained"
        how: dict[str, Any] = {"reason": none}
        if not norm:
            how |= {"paper": "often not clear"}
            how |= {"holds": lambda share: share < 0.5, "tolerance": "< 0.5 of the well trained"} if well else {}
        rows.append(row(f"all-{depth}/{NAMES[norm]}/clear-law-among-well-trained", clear, **how))
    fewer = {"holds": lambda share: share < shares[True], "tolerance": "fewer than with BatchNorm"}
    bare = row(f"all-{depth}/no-norm/well-trained", [shares[False]], paper="difficult to optimize", **fewer)  # type: ignore[arg-type]
    return [bare, row(f"all-{depth}/norm/well-trained", [shares[True]]), *rows]


def _sheets(cells: dict[Cell, list[Run]]) -> list[Sheet]:
    optimizers = list(dict.fromkeys(cell[0] for cell in cells))

    def panels(norm: bool, batchnorm: Any = "batch") -> list[Panel]:
        return [
            law_panel(
                f"{o}, {d} layers", best_of_seeds(cells[o, d, norm]), faint=cells[o, d, norm], batchnorm=batchnorm
            )
            for o in optimizers
            for d in DEPTHS
        ]

    lowest = [
        law_panel(
            f"{o}, {d} layers", chosen, note=f"last epoch's loss {mean_of(r.losses[-1] for r in chosen) or 0:.2g}"
        )
        for o in optimizers
        for d in DEPTHS
        if (chosen := lowest_loss(cells[o, d, False]))
    ]
    best, rest = "The rate with the best law of each seed.", "the rest of the grid faint"
    bare, twins = panels(norm=False), panels(norm=True)
    return [
        Sheet("Without BatchNorm", bare, caption=caption(bare, best, faint=rest)),
        Sheet("The twins with BatchNorm, train mode", twins, caption=caption(twins, best, faint=rest)),
        Sheet("The twins with BatchNorm, eval mode", panels(norm=True, batchnorm="running")),
        Sheet("Without BatchNorm, the rate with the lowest training loss", lowest),
    ]


def _notes(runs: Sequence[Run]) -> list[str]:
    notes = []
    for norm, words in ((False, "Without"), (True, "With")):
        group = [r for r in runs if r.recipe.network.norm is norm]
        well = [r for r in group if is_well_trained(r)]
        lost = sum(r.diverged is not None for r in group)
        dead = sum(r.diverged is None and r.law() is None for r in group)
        clear = sum(is_clear(law_of(r)) for r in well)
        notes.append(
            f"{words} BatchNorm {len(well)} of {len(group)} networks are well trained (training accuracy ≥ 0.99), {lost} "
            f"diverged and {dead} have a layer at which D is not defined; {clear} of the well trained have a clear law."
        )
    return notes


def _rank_notes(chosen: Sequence[Run], short: dict[Recipe, int]) -> list[str]:
    lacking = [r for r in chosen if short[r.recipe]]
    if not lacking:
        return []
    return [
        f"In {len(lacking)} of the {len(chosen)} chosen networks without BatchNorm the class means span fewer than 9 "
        "dimensions at some layer (the others drown in rounding): D is then a sum of fewer terms, and its fall says little."
    ]
