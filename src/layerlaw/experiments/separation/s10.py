"""Figure S10: without BatchNorm the law is not clear. 4, 8 and 20 layers on Fashion-MNIST.

    layerlaw reproduce s10            162 networks at 3 seeds: Adam at five rates, SGD at four, with and without BatchNorm
    layerlaw reproduce s10 --quick    18 networks, 6 epochs instead of 600

One criterion, `LawFit.holds`, for networks with and without BatchNorm. The paper names neither optimizer nor rate: its
default is Adam at the rate with the best law, chosen here per seed among the trained networks (training loss ≤ 0.1),
the choice repeated in the test; SGD is beside it. What the paper says, and how it is judged: "it is difficult to
optimize a neural network without batch normalization": a smaller share of the grid is trained without BatchNorm than
with it (t test over seeds); "Even when the network is well-optimized, the law is often not clear": it holds in at most
half of the trained networks of a depth, at all rates of both optimizers (not judged where none is trained: no law of an
untrained network proves nothing). The network with the best law of each seed and optimizer is among them and does not
count again. How often the law holds in trained networks with BatchNorm stands beside, and the difference is tested
likewise (a check of ours). Without BatchNorm all protocols are the same; and deep class means can come so close that
some of their directions drown in rounding, which lowers D by itself: places-short-of-rank counts where.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layerlaw.experiments.drawing import BEST_RATE, LOSS, REST_FAINT, grid_table, law_panel, law_sheet
from layerlaw.experiments.numbers import Claim, Values, below, does_not_hold, mean_of, minus, row
from layerlaw.experiments.runs import ENDS, LAW, OURS, PROTOCOLS, Runs, holds, protocol_table
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "Without BatchNorm the law is not clear"
DEPTHS = (4, 8, 20)
GRID = {"adam": ADAM, "sgd": (0.01, 0.03, 0.1, 0.3)}
QUICK_GRID = {"adam": (3e-4, 1e-3), "sgd": (0.1,)}
NAMES = {False: "no-norm", True: "norm"}
RARER = below(0, "less often than with it").of("self-check")
OFTEN, NONE = "often not clear", "no network is trained"
Network = tuple[str, int, bool]  # optimizer, depth, with BatchNorm
Cells = dict[Network, Runs]


def run(setting: Setting) -> Outcome:
    """Train both grids, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=6))
    grid = QUICK_GRID if setting.quick else GRID
    shapes = [Shape.even(depth, norm=norm) for norm in NAMES for depth in DEPTHS]
    recipes = []
    for optimizer, rates in grid.items():
        recipes += base.grid(optimizer=(optimizer,), network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("norms", recipes, data, PROTOCOLS)
    cells = runs.by(network_of)
    best = {cell: some.best(trained=not setting.quick) for cell, some in cells.items()}
    pairs = [(optimizer, depth) for optimizer in grid for depth in DEPTHS]
    found = [
        one
        for o, depth in pairs
        for norm in NAMES
        for one in law_rows((o, depth, norm), cells[o, depth, norm], best[o, depth, norm], len(grid[o]))
    ]
    found += [one for depth in DEPTHS for one in grid_rows(depth, runs)]
    survives = {
        f"Fig. S10: no clear law in most trained networks without BatchNorm, {depth} layers": (
            lambda mode, depth=depth: unclear(depth, runs, mode).reproduced
        )
        for depth in DEPTHS
    } | {
        f"{OURS}fewer trained networks obey the law without BatchNorm than with it, {depth} layers": (
            lambda mode, depth=depth: rarer(depth, runs, mode).reproduced
        )
        for depth in DEPTHS
    }
    tables = [protocol_table(survives), grid_table("Every network of the grid", runs)]
    bare = Runs(r for cell, some in best.items() if not cell[-1] for r in some)
    return Outcome("s10", TITLE, found, _sheets(cells, best, pairs), tables, _notes(runs, bare))


def network_of(run: Run) -> Network:
    """The cell of the grid."""
    return run.recipe.optimizer, run.recipe.network.depth, run.recipe.network.norm


def _depth(run: Run) -> int:
    return run.recipe.network.depth


def lowest_loss(runs: Runs) -> Runs:
    """The run with the lowest last loss, once per seed; diverged ones do not count."""
    return Runs(min(cell, key=_loss) for cell in runs.sound.seeds.values())


def _loss(run: Run) -> float:
    return run.losses[-1]


def law_rows(cell: Network, runs: Runs, best: Runs, choices: int) -> list[Row]:
    """Of the run with the best law of every seed in which one is trained."""
    optimizer, depth, norm = cell
    name = f"{optimizer}-{depth}/{NAMES[norm]}"
    claim = Claim("no clear law", tolerance=f"judged in all-{depth}: the same networks")
    lost, sound = len(runs) - len(runs.sound), len(runs.sound)
    none = f"of {len(runs)} runs {lost} diverged, {sound - len(runs.trained)} are not trained"
    names = LAW if norm else LAW[:6]  # without BatchNorm the protocols do not differ
    claims = None if norm else {"holds": claim}
    found = [
        *best.rows(name, names, claims, choices=choices, reason="" if best else none),
        lowest_loss(runs).row(f"{name}/lowest-loss", _loss, reason=f"all {lost} runs diverged"),
    ]
    if not norm:
        found.append(best.row(f"{name}/places-short-of-rank", lambda r: len(r.lost_rank()), reason=none))
    return found


def _of_depth(depth: int, runs: Runs) -> dict[bool, Runs]:
    return {norm: Runs(r for r in runs if network_of(r)[1:] == (depth, norm)) for norm in NAMES}


def grid_rows(depth: int, runs: Runs) -> list[Row]:
    """Over the whole grid of a depth: how many networks are trained, and in how many of those the law holds."""
    groups = _of_depth(depth, runs)
    trained = {norm: [len(some.trained) / len(some) for some in group.seeds.values()] for norm, group in groups.items()}
    hard = [bare - twin for bare, twin in zip(*trained.values(), strict=True)]
    found = [row(f"all-{depth}/{NAMES[norm]}/trained", shares) for norm, shares in trained.items()]
    found.append(row(f"all-{depth}/no-norm-minus-norm/trained", hard, below(0, "difficult to optimize")))
    found.append(unclear(depth, runs, name=f"all-{depth}/{NAMES[False]}/holds-among-trained"))
    for mode, end in ENDS.items():  # without BatchNorm all are the same
        held: Values = [float(holds(r, batchnorm=mode)) for r in groups[True].trained]
        found.append(row(f"all-{depth}/{NAMES[True]}/holds-among-trained{end}", held, reason=NONE))
    return [*found, rarer(depth, runs)]


def unclear(depth: int, runs: Runs, batchnorm: BatchNormMode = "batch", name: str = "") -> Row:
    """Whether the law holds in each of the trained networks without BatchNorm."""
    laws: Values = [float(holds(r, batchnorm=batchnorm)) for r in _of_depth(depth, runs)[False].trained]
    often = replace(does_not_hold(depth - 1, paper=OFTEN), tolerance="≤ half of the trained networks")
    return row(name, laws, often if laws else Claim(OFTEN), reason=NONE)


def rarer(depth: int, runs: Runs, batchnorm: BatchNormMode = "batch") -> Row:
    """Per seed the share of trained networks in which the law holds, without BatchNorm less with it."""
    shares = [
        {s: mean_of(float(holds(r, batchnorm=batchnorm)) for r in some.trained) for s, some in group.seeds.items()}
        for group in _of_depth(depth, runs).values()
    ]
    gaps = [minus(share, shares[1].get(seed)) for seed, share in shares[0].items()]
    claim = RARER if any(gap is not None for gap in gaps) else Claim(RARER.paper)
    why = "no seed has trained networks of both kinds"
    return row(f"all-{depth}/no-norm-minus-norm/holds-among-trained", gaps, claim, reason=why)


def _sheets(cells: Cells, best: Cells, pairs: Sequence[tuple[str, int]]) -> list[Sheet]:
    titles = {cell: f"{cell[0]}, {cell[1]} layers" for cell in pairs}
    (bare, twins), (best_bare, best_twins) = (
        [{title: some[*cell, norm] for cell, title in titles.items()} for norm in NAMES] for some in (cells, best)
    )
    lowest = [
        law_panel(title, chosen, note=f"{LOSS} {mean_of(map(_loss, chosen)) or 0:.2g}")
        for title, runs in bare.items()
        if (chosen := lowest_loss(runs))
    ]
    words: dict[str, Any] = {"words": [BEST_RATE], "faint_words": REST_FAINT}
    return [
        law_sheet("Without BatchNorm", best_bare, faint=bare, **words),
        law_sheet("The twins with BatchNorm, train mode", best_twins, faint=twins, **words),
        law_sheet("The twins with BatchNorm, eval mode", best_twins, faint=twins, batchnorm="running"),
        Sheet("Without BatchNorm, the rate with the lowest training loss", lowest),
    ]


def _notes(runs: Runs, bare: Runs) -> list[str]:
    """What is trained and in how many the law holds; `bare`: the chosen networks without BatchNorm."""
    notes = []
    for norm, words in ((False, "Without"), (True, "With")):
        group = Runs(r for r in runs if r.recipe.network.norm is norm)
        shares = []
        for depth, some in sorted(group.by(_depth).items()):
            held = sum(holds(r) for r in some.trained)
            shares.append(f"{depth} layers {held} of {len(some.trained)}")
        evals = sum(holds(r, batchnorm="running") for r in group.trained)
        notes.append(
            f"{words} BatchNorm {len(group.trained)} of {len(group)} networks of the grid are trained (loss ≤ 0.1), "
            f"{len(group) - len(group.sound)} diverged; of the trained ones the law holds in: {', '.join(shares)}"
            + (f"; with running statistics in {evals} in all." if norm else ".")
        )
    seeds = {depth: len(some.seeds) for depth, some in bare.trained.at(optimizer="adam").by(_depth).items()}
    every = len(runs.seeds)
    none = ", ".join(
        f"{depth} layers in {every - seeds.get(depth, 0)}" for depth in DEPTHS if seeds.get(depth, 0) < every
    )
    if none:
        notes.append(f"With Adam no rate trains a network without BatchNorm, of {every} seeds: {none}.")
    short = [len(r.lost_rank()) for r in bare]
    if any(short):
        notes.append(
            f"In {sum(map(bool, short))} of the {len(short)} chosen networks without BatchNorm the class means span fewer "
            "than 9 dimensions at some layer (the others drown in rounding): D is then a sum of fewer terms, and its fall "
            "says little."
        )
    return notes
