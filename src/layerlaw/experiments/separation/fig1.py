"""Figure 1: the law in networks of 4, 8 and 20 layers trained with SGD, momentum and Adam on Fashion-MNIST.

    layerlaw reproduce fig1            the whole grid of learning rates: 57 networks per seed
    layerlaw reproduce fig1 --quick    the nine networks shown, 100 epochs

Rows at the learning rates that the authors show, in their BatchNorm mode; the rate with the best law (how the paper
chose), eval mode and the whole grid beside them. The paper's nine r lie between −0.997 and −1.000: ours agree when the
mean over seeds is at most −0.990.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from layerlaw.experiments.drawing import EVAL_LONG_TITLE, grid_table, law_sheet
from layerlaw.experiments.numbers import (
    LAW,
    Claim,
    at_most,
    best_of_seeds,
    grouped,
    number,
    record_of,
    row,
    rows,
    within,
)
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.law import CHANCE, STRAIGHT
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import PlanePanel, Sheet

TITLE = "The law of equi-separation over depths and optimizers"
RATES = {
    "sgd": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "momentum": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "adam": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
}
SHOWN = {  # the learning rate of the authors' panels, and their r
    ("sgd", 4): (0.3, -1.000),
    ("sgd", 8): (0.03, -0.998),
    ("sgd", 20): (0.01, -0.997),
    ("momentum", 4): (0.3, -0.999),
    ("momentum", 8): (0.01, -0.998),
    ("momentum", 20): (0.001, -0.998),
    ("adam", 4): (3e-3, -1.000),
    ("adam", 8): (1e-3, -0.997),
    ("adam", 20): (3e-4, -0.999),
}
FACTORS = {("adam", 8): (0.53, 1.1), ("adam", 20): (0.818, 3.45)}  # the authors' ρ and half-life
Optimizer = tuple[str, int]  # and depth


def run(setting: Setting) -> Outcome:
    """Train the grid, report what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=100))
    recipes = []
    for (optimizer, depth), (rate, _) in SHOWN.items():
        rates = (rate,) if setting.quick else RATES[optimizer]
        grid = {"optimizer": (optimizer,), "network": (Shape.even(depth),), "learning_rate": rates}
        recipes += base.grid(**grid, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    cells = grouped(runs, lambda r: (str(r.recipe.optimizer), r.recipe.network.depth))
    shown = {cell: [r for r in cells[cell] if r.recipe.learning_rate == rate] for cell, (rate, _) in SHOWN.items()}
    best = {cell: best_of_seeds(cells[cell]) for cell in SHOWN}
    found = [one for cell in SHOWN for one in _rows(cell, shown[cell], best[cell], cells[cell])]
    titles = {cell: f"{cell[0]}, {cell[1]} layers, lr {rate:g}" for cell, (rate, _) in SHOWN.items()}
    panels = {title: shown[cell] for cell, title in titles.items()}
    behind = {title: cells[cell] for cell, title in titles.items()}
    chosen = {f"{optimizer}, {depth} layers, best of the grid": best[optimizer, depth] for optimizer, depth in SHOWN}
    words = ("BatchNorm as the authors had it (batches of 100).",)
    sheets = [
        law_sheet("D at the authors' learning rates", panels, faint=behind, words=words),
        law_sheet(EVAL_LONG_TITLE, panels, batchnorm="running"),
        *([] if setting.quick else [law_sheet("The learning rate with the best law, as the paper chose it", chosen)]),
        _planes(cells["adam", 8], data["fashion_mnist"]),
    ]
    return Outcome("fig1", TITLE, found, sheets, [grid_table("Every network of the grid", runs)], _notes(found, runs))


def _rows(cell: Optimizer, shown: Sequence[Run], best: Sequence[Run], grid: Sequence[Run]) -> list[Row]:
    name, paper = f"{cell[0]}-{cell[1]}", SHOWN[cell][1]
    claims = {"pearson": at_most(STRAIGHT, paper)}
    names: tuple[str, ...] = LAW
    if cell in FACTORS:
        rho, half_life = FACTORS[cell]
        claims |= {"rho": within(rho, 0.03), "half-life": within(half_life, round(0.2 * half_life, 3))}
        names = (*LAW[:2], "half-life", *LAW[2:])
    found = rows(name, shown, names, claims)
    choices = len({r.recipe.learning_rate for r in grid})
    if choices > 1:
        ps = [number(r, "greenwood-p", choices) for r in best]
        rates = [r.recipe.learning_rate for r in best]
        found += [
            row(f"{name}/pearson-best-of-grid", [number(r, "pearson") for r in best], Claim(paper)),
            row(f"{name}/greenwood-p-best-of-grid", ps),
            Row(f"{name}/learning-rate-best-of-grid", SHOWN[cell][0], median(rates), min(rates), max(rates)),
        ]
    return found


def _notes(found: Sequence[Row], runs: Sequence[Run]) -> list[str]:
    """What held, counted."""

    def count(end: str, limit: float) -> int:
        return sum(r.ours is not None and r.ours <= limit for r in found if r.name.endswith(end))

    lost = {
        f"{r.recipe.optimizer}-{r.recipe.network.depth} at {r.recipe.learning_rate:g}"
        for r in runs
        if r.diverged is not None
    }
    return [
        f"At the authors' learning rates the mean r is at most −0.990 in {count('/pearson', STRAIGHT)} of 9 cells with "
        f"batch statistics, in {count('/pearson-eval', STRAIGHT)} of 9 with running statistics.",
        f"In {count('/greenwood-p', CHANCE)} of 9 cells the layers share the drop more evenly than a random split would "
        "(mean Greenwood p < 0.05).",
        f"Diverged: {', '.join(sorted(lost))}." if lost else "No network diverged.",
    ]


def _planes(runs: Sequence[Run], data: Samples) -> Sheet:
    """The principal plane of every layer of the 8-layer network trained with Adam."""
    shown = next((r for r in runs if r.recipe.learning_rate == 1e-3 and r.diverged is None), None)
    if shown is None:
        return Sheet("Principal planes of the 8-layer network", [])
    record = record_of(shown, data)
    sites = [site for site in record.sites if site.plane and site.in_fit]
    panels = [
        PlanePanel(
            f"layer {i}" if i else "input", [(a, b) for a, b in site.plane], record.plane_labels, data.class_names
        )
        for i, site in enumerate(sites)
    ]
    who = f"Adam, seed {shown.recipe.seed}, batch statistics"
    return Sheet(f"Principal planes of the 8-layer network ({who})", panels, columns=4)
