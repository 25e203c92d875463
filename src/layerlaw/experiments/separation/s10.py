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

from layerlaw.experiments.drawing import BEST_RATE, LOSS, REST_FAINT, grid_table, law_panel, law_sheet
from layerlaw.experiments.numbers import (
    FLAT,
    Claim,
    below,
    best_of_seeds,
    clear_seeds,
    grouped,
    is_clear,
    law_of,
    mean_of,
    number,
    of_laws,
    record_of,
    row,
    rows,
    selected_p,
)
from layerlaw.experiments.separation.fig1 import RATES
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Without BatchNorm the law is not clear"
DEPTHS = (4, 8, 20)
GRID = {"adam": RATES["adam"], "sgd": (0.01, 0.03, 0.1, 0.3)}
QUICK_GRID = {"adam": (3e-4, 1e-3), "sgd": (0.1,)}
NAMES = {True: "norm", False: "no-norm"}
WELL_TRAINED = 0.99  # training accuracy
Network = tuple[str, int, bool]  # optimizer, depth, with BatchNorm
Cells = dict[Network, list[Run]]


def run(setting: Setting) -> Outcome:
    """Train both grids, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    grid = QUICK_GRID if setting.quick else GRID
    recipes = []
    for optimizer, rates in grid.items():
        shapes = [Shape.even(depth, norm=norm) for norm in (False, True) for depth in DEPTHS]
        recipes += base.grid(optimizer=(optimizer,), network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("norms", recipes, data, Schedule(test=True))
    cells = grouped(runs, network_of)
    bare = [(o, depth) for o in grid for depth in DEPTHS]
    chosen = [r for o, depth in bare for r in best_of_seeds(cells[o, depth, False])]
    short = {r.recipe: short_layers(r, data["fashion_mnist"], device=setting.device) for r in chosen}
    found = [one for o, depth in bare for one in _rows(o, depth, cells, len(grid[o]), short)]
    found += [one for depth in DEPTHS for one in _training_rows(depth, runs)]
    notes = [*_notes(runs), *_rank_notes(chosen, short)]
    return Outcome("s10", TITLE, found, _sheets(cells, bare), [grid_table("Every network of the grid", runs)], notes)


def network_of(run: Run) -> Network:
    """The cell of the grid."""
    return run.recipe.optimizer, run.recipe.network.depth, run.recipe.network.norm


def is_well_trained(run: Run) -> bool:
    """Whether the network as it would be used has learnt nearly all training samples."""
    accuracy = number(run, "train-accuracy")
    return accuracy is not None and accuracy >= WELL_TRAINED


def lowest_loss(runs: Sequence[Run]) -> list[Run]:
    """The run with the lowest last loss, once per seed; diverged ones do not count."""
    sound = grouped((r for r in runs if r.diverged is None), lambda r: r.recipe.seed)
    return [min(cell, key=lambda r: r.losses[-1]) for cell in sound.values()]


def short_layers(run: Run, data: Samples, *, device: str = "cpu") -> int:
    """Places at which the class means span fewer than K−1 dimensions: there D is a sum of fewer terms, and falls."""
    return sum(site.values["full_rank"] == 0 for site in record_of(run, data, device=device).sites if site.in_fit)


def _rows(optimizer: str, depth: int, cells: Cells, choices: int, short: dict[Recipe, int]) -> list[Row]:
    """The chosen runs without BatchNorm, then their twins."""
    bare, twins = (cells[optimizer, depth, norm] for norm in (False, True))
    name, adam = f"{optimizer}-{depth}", optimizer == "adam"
    best = best_of_seeds(bare) if adam else []
    found = _law_rows(f"{name}/no-norm", bare, choices, judged=adam)
    if best:
        found += [
            *rows(f"{name}/no-norm", best, ("rho", "effective-layers")),
            row(f"{name}/no-norm/places-short-of-rank", [short[r.recipe] for r in best]),
            row(f"{name}/no-norm/loss", [r.losses[-1] for r in best]),
            *rows(f"{name}/no-norm", best, ["train-accuracy"]),
        ]
    found += _law_rows(f"{name}/norm", twins, choices, judged=False)
    return found + rows(f"{name}/norm", best_of_seeds(twins), ("pearson-eval", "rho-eval")[: 1 + adam])


def _law_rows(name: str, runs: Sequence[Run], choices: int, *, judged: bool) -> list[Row]:
    """Of the run with the best law of every seed; a seed without any law counts as one without a clear law."""
    best = best_of_seeds(runs)
    claim = below(0.5, "no clear law", "the seeds") if judged else Claim()
    lost = sum(r.diverged is not None for r in runs)
    dead = len(runs) - lost
    none = f"no D at every layer in {len(runs)} runs: {lost} diverged, in {dead} class means coincide at some layer"
    laws = [law_of(r) for r in best]
    ps = [selected_p(law.effective_layers, law.layers, choices) if law else None for law in laws]
    return [
        row(f"{name}/seeds-with-clear-law", clear_seeds(runs, choices), claim),
        row(f"{name}/pearson", of_laws(laws, "pearson"), Claim(claim.paper), reason=none),
        row(f"{name}/greenwood-p", ps, reason=FLAT if best else none),
        row(f"{name}/lowest-loss", [r.losses[-1] for r in lowest_loss(runs)], reason=f"all {lost} runs diverged"),
    ]


def _training_rows(depth: int, runs: Sequence[Run]) -> list[Row]:
    """Over the whole grid of a depth: how many are well trained, and how many of those have a clear law."""
    clear, shares = [], {}
    for norm in (False, True):
        of_depth = [r for r in runs if r.recipe.network.depth == depth and r.recipe.network.norm is norm]
        well = [r for r in of_depth if is_well_trained(r)]
        shares[norm] = len(well) / len(of_depth)
        claim = (
            Claim() if norm else below(0.5, "often not clear", "the well trained") if well else Claim("often not clear")
        )
        share = fmean(is_clear(law_of(r)) for r in well) if well else None
        none = f"none of {len(of_depth)} networks is well trained"
        clear.append(row(f"all-{depth}/{NAMES[norm]}/clear-law-among-well-trained", [share], claim, reason=none))
    hard = Claim("difficult to optimize", lambda share: share < shares[True], "fewer than with BatchNorm")
    return [
        row(f"all-{depth}/no-norm/well-trained", [shares[False]], hard),
        row(f"all-{depth}/norm/well-trained", [shares[True]]),
        *clear,
    ]


def _sheets(cells: Cells, networks: Sequence[tuple[str, int]]) -> list[Sheet]:
    titles = {cell: f"{cell[0]}, {cell[1]} layers" for cell in networks}
    bare, twins = ({title: cells[*cell, norm] for cell, title in titles.items()} for norm in (False, True))
    best, best_twins = ({title: best_of_seeds(runs) for title, runs in some.items()} for some in (bare, twins))
    lowest = [
        law_panel(title, chosen, note=f"{LOSS} {mean_of(r.losses[-1] for r in chosen) or 0:.2g}")
        for title, runs in bare.items()
        if (chosen := lowest_loss(runs))
    ]
    words: dict[str, Any] = {"words": [BEST_RATE], "faint_words": REST_FAINT}
    return [
        law_sheet("Without BatchNorm", best, faint=bare, **words),
        law_sheet("The twins with BatchNorm, train mode", best_twins, faint=twins, **words),
        law_sheet("The twins with BatchNorm, eval mode", best_twins, faint=twins, batchnorm="running"),
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
