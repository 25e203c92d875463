"""Figure S10: without BatchNorm the law is not clear. 4, 8 and 20 layers on Fashion-MNIST.

    layerlaw reproduce s10            162 networks at 3 seeds: Adam at five rates, SGD at four, with and without BatchNorm
    layerlaw reproduce s10 --quick    18 networks, 6 epochs instead of 600

Two minutes on a GPU. The paper names neither optimizer nor rate: its default is Adam at the rate with the best law, chosen
here per seed, with and without BatchNorm alike; SGD is beside it. A law is clear when it holds (law_holds), with the choice
among the rates repeated inside the null of Greenwood's p (of five random splits of a drop the straightest has r ≤ −0.99 in
43, 23 and 75 of 100 cases at 4, 8 and 20 layers). Agreement: with Adam, clear in fewer than half the seeds; of all networks
of a depth that are well trained without BatchNorm (training accuracy ≥ 0.99), fewer than half have a clear law ("even when
the network is well-optimized, the law is often not clear"); and fewer are well trained without BatchNorm than with it ("it
is difficult to optimize"). Without BatchNorm train and eval mode are the same; and deep class means can come so close that
some of their directions drown in rounding, which lowers D by itself: places-short-of-rank counts where.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from layerlaw.experiments.drawing import BEST_RATE, LOSS, REST_FAINT, grid_table, law_panel, law_sheet
from layerlaw.experiments.numbers import Claim, below, is_clear, mean_of, of_laws, row
from layerlaw.experiments.runs import FLAT, Runs, law_of, number, record_of
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Without BatchNorm the law is not clear"
DEPTHS = (4, 8, 20)
GRID = {"adam": ADAM, "sgd": (0.01, 0.03, 0.1, 0.3)}
QUICK_GRID = {"adam": (3e-4, 1e-3), "sgd": (0.1,)}
WELL_TRAINED = 0.99  # training accuracy
Network = tuple[str, int, bool]  # optimizer, depth, with BatchNorm
Cells = dict[Network, Runs]


def run(setting: Setting) -> Outcome:
    """Train both grids, report what came out."""
    data = samples(setting, "fashion_mnist")
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    grid = QUICK_GRID if setting.quick else GRID
    shapes = [Shape.even(depth, norm=norm) for norm in (False, True) for depth in DEPTHS]
    recipes = []
    for optimizer, rates in grid.items():
        recipes += base.grid(optimizer=(optimizer,), network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("norms", recipes, {"fashion_mnist": data}, Schedule(test=True))
    cells = runs.by(network_of)
    bare = [(o, depth) for o in grid for depth in DEPTHS]
    chosen = [r for o, depth in bare for r in cells[o, depth, False].best()]
    short = {r.recipe: short_layers(r, data, device=setting.device) for r in chosen}
    found = [one for o, depth in bare for one in _rows(o, depth, cells, len(grid[o]), short)]
    found += [one for depth in DEPTHS for one in _training_rows(depth, runs)]
    tables = [grid_table("Every network of the grid", runs)]
    return Outcome("s10", TITLE, found, _sheets(cells, bare), tables, _notes(runs, list(short.values())))


def network_of(run: Run) -> Network:
    """The cell of the grid."""
    return run.recipe.optimizer, run.recipe.network.depth, run.recipe.network.norm


def well_trained(runs: Sequence[Run]) -> Runs:
    """Those that, as they would be used, have learnt nearly all training samples."""
    return Runs(r for r in runs if (number(r, "train-accuracy") or 0) >= WELL_TRAINED)


def lowest_loss(runs: Runs) -> Runs:
    """The run with the lowest last loss, once per seed; diverged ones do not count."""
    return Runs(min(cell, key=_loss) for cell in runs.sound.seeds.values())


def _loss(run: Run) -> float:
    return run.losses[-1]


def short_layers(run: Run, data: Samples, *, device: str = "cpu") -> int:
    """Places at which the class means span fewer than K−1 dimensions: there D is a sum of fewer terms, and falls."""
    return sum(site.values["full_rank"] == 0 for site in record_of(run, data, device=device).sites if site.in_fit)


def _rows(optimizer: str, depth: int, cells: Cells, choices: int, short: dict[Recipe, int]) -> list[Row]:
    """The chosen runs without BatchNorm, then their twins."""
    bare, twins = (cells[optimizer, depth, norm] for norm in (False, True))
    name, adam = f"{optimizer}-{depth}", optimizer == "adam"
    best = bare.best() if adam else Runs()
    found = _law_rows(f"{name}/no-norm", bare, choices, judged=adam)
    if best:
        found += [
            *best.rows(f"{name}/no-norm", ("rho", "effective-layers")),
            best.row(f"{name}/no-norm/places-short-of-rank", lambda r: short[r.recipe]),
            best.row(f"{name}/no-norm/loss", _loss),
            *best.rows(f"{name}/no-norm", ["train-accuracy"]),
        ]
    found += _law_rows(f"{name}/norm", twins, choices, judged=False)
    return found + twins.best().rows(f"{name}/norm", ("pearson-eval", "rho-eval")[: 1 + adam])


def _law_rows(name: str, runs: Runs, choices: int, *, judged: bool) -> list[Row]:
    """Of the run with the best law of every seed; a seed without any law counts as one without a clear law."""
    best = runs.best()
    claim = below(0.5, "no clear law", "the seeds") if judged else Claim()
    lost = len(runs) - len(runs.sound)
    dead = len(runs) - lost
    none = f"no D at every layer in {len(runs)} runs: {lost} diverged, in {dead} class means coincide at some layer"
    return [
        row(f"{name}/seeds-with-clear-law", runs.clear(choices), claim),
        best.row(f"{name}/pearson", "pearson", Claim(claim.paper), reason=none),
        row(f"{name}/greenwood-p", of_laws(best.laws(), "greenwood-p", choices), reason=FLAT if best else none),
        lowest_loss(runs).row(f"{name}/lowest-loss", _loss, reason=f"all {lost} runs diverged"),
    ]


def _training_rows(depth: int, runs: Runs) -> list[Row]:
    """Over the whole grid of a depth: how many are well trained, and how many of those have a clear law."""
    cells = {norm: [r for r in runs if network_of(r)[1:] == (depth, norm)] for norm in (False, True)}
    well = {norm: well_trained(cell) for norm, cell in cells.items()}
    share = {norm: len(well[norm]) / len(cells[norm]) for norm in cells}
    often = below(0.5, "often not clear", "the well trained") if well[False] else Claim("often not clear")
    hard = Claim("difficult to optimize", lambda bare: bare < share[True], "fewer than with BatchNorm")
    found = [
        row(f"all-{depth}/no-norm/well-trained", [share[False]], hard),
        row(f"all-{depth}/norm/well-trained", [share[True]]),
    ]
    for norm, name, claim in ((False, "no-norm", often), (True, "norm", Claim())):
        clear = [fmean(is_clear(law_of(r)) for r in well[norm]) if well[norm] else None]
        none = f"none of {len(cells[norm])} networks is well trained"
        found.append(row(f"all-{depth}/{name}/clear-law-among-well-trained", clear, claim, reason=none))
    return found


def _sheets(cells: Cells, networks: Sequence[tuple[str, int]]) -> list[Sheet]:
    titles = {cell: f"{cell[0]}, {cell[1]} layers" for cell in networks}
    bare, twins = ({title: cells[*cell, norm] for cell, title in titles.items()} for norm in (False, True))
    best, best_twins = ({title: runs.best() for title, runs in some.items()} for some in (bare, twins))
    lowest = [
        law_panel(title, chosen, note=f"{LOSS} {mean_of(map(_loss, chosen)) or 0:.2g}")
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


def _notes(runs: Runs, short: Sequence[int]) -> list[str]:
    """What is well trained and clear; `short`: of each chosen network, at how many places its class means lack rank."""
    notes = []
    for norm, words in ((False, "Without"), (True, "With")):
        group = Runs(r for r in runs if r.recipe.network.norm is norm)
        well, sound = well_trained(group), group.sound
        clear = sum(is_clear(law_of(r)) for r in well)
        notes.append(
            f"{words} BatchNorm {len(well)} of {len(group)} networks are well trained (training accuracy ≥ 0.99), "
            f"{len(group) - len(sound)} diverged and {len(sound) - len(sound.laws())} have a layer at which D is not "
            f"defined; {clear} of the well trained have a clear law."
        )
    if any(short):
        notes.append(
            f"In {sum(map(bool, short))} of the {len(short)} chosen networks without BatchNorm the class means span fewer "
            "than 9 dimensions at some layer (the others drown in rounding): D is then a sum of fewer terms, and its fall "
            "says little."
        )
    return notes
