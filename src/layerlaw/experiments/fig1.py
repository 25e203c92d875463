"""Figure 1: the law in networks of 4, 8 and 20 layers trained with SGD, momentum and Adam on Fashion-MNIST.

    layerlaw reproduce fig1            the whole grid of learning rates: 57 networks per seed
    layerlaw reproduce fig1 --quick    the nine networks shown, 100 epochs

Rows at the learning rates that the authors show, in their BatchNorm mode; the rate with the best law (how the paper
chose), eval mode and the whole grid beside them. The paper's nine r lie between −0.997 and −1.000: ours agree when the
mean over seeds is at most −0.990.
"""

from __future__ import annotations

from statistics import median

from layerlaw.experiments.drawing import caption, grid_table, law_panel
from layerlaw.experiments.images import samples
from layerlaw.experiments.numbers import at_most, best_law, law_of, row, selected_p, within
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.probing import probe
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


def run(setting: Setting) -> Outcome:
    """Train the grid, tell what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=100))
    recipes = []
    for (optimizer, depth), (rate, _) in SHOWN.items():
        rates = (rate,) if setting.quick else RATES[optimizer]
        grid = {"optimizer": (optimizer,), "network": (Shape.even(depth),), "learning_rate": rates}
        recipes += base.grid(**grid, seed=setting.seeds())
    runs = setting.train("grid", recipes, data, Schedule(test=True, permuted=True))
    cells = {cell: [r for r in runs if (r.recipe.optimizer, r.recipe.network.depth) == cell] for cell in SHOWN}
    rows: list[Row] = []
    panels, panels_eval, panels_best = [], [], []
    for cell, (rate, paper) in SHOWN.items():
        shown = [r for r in cells[cell] if r.recipe.learning_rate == rate]
        best = [b for seed in setting.seeds() if (b := best_law(r for r in cells[cell] if r.recipe.seed == seed))]
        rows += _rows(cell, shown, best, paper, len({r.recipe.learning_rate for r in cells[cell]}))
        title = f"{cell[0]}, {cell[1]} layers, lr {rate:g}"
        panels.append(law_panel(title, shown, faint=cells[cell]))
        panels_eval.append(law_panel(title, shown, batchnorm="running"))
        panels_best.append(law_panel(f"{cell[0]}, {cell[1]} layers, best of the grid", best))
    return Outcome(
        "fig1",
        TITLE,
        rows,
        [
            Sheet(
                "D at the authors' learning rates",
                panels,
                caption=caption(panels, "BatchNorm as the authors had it (batches of 100)."),
            ),
            Sheet("The same networks with running statistics (eval mode)", panels_eval),
            *(
                []
                if setting.quick
                else [Sheet("The learning rate with the best law, as the paper chose it", panels_best)]
            ),
            _planes(cells["adam", 8], data["fashion_mnist"]),
        ],
        [grid_table("Every network of the grid", runs)],
        _notes(rows, cells),
    )


def _notes(rows: list[Row], cells: dict[tuple[str, int], list[Run]]) -> list[str]:
    """What held, counted."""
    straight = {
        batchnorm: [r for r in rows if r.name.endswith(batchnorm)] for batchnorm in ("/pearson", "/pearson-eval")
    }
    held = {
        batchnorm: sum(r.ours is not None and r.ours <= -0.990 for r in found) for batchnorm, found in straight.items()
    }
    ps = [r for r in rows if r.name.endswith("/greenwood-p")]
    even = sum(r.ours is not None and r.ours < 0.05 for r in ps)
    lost = [
        f"{run.recipe.optimizer}-{run.recipe.network.depth} at {run.recipe.learning_rate:g}"
        for found in cells.values()
        for run in found
        if run.diverged is not None
    ]
    return [
        f"At the authors' learning rates the mean r is at most −0.990 in {held['/pearson']} of 9 cells with batch "
        f"statistics, in {held['/pearson-eval']} of 9 with running statistics.",
        f"In {even} of 9 cells the layers share the drop more evenly than a random split would (mean Greenwood p < 0.05).",
        f"Diverged: {', '.join(sorted(set(lost)))}." if lost else "No network diverged.",
    ]


def _rows(cell: tuple[str, int], shown: list[Run], best: list[Run], paper: float, choices: int) -> list[Row]:
    name = f"{cell[0]}-{cell[1]}"
    laws, evals = [law_of(r) for r in shown], [law_of(r, batchnorm="running") for r in shown]
    ends = ", ".join(f"epoch {r.diverged}" for r in shown if r.diverged is not None)
    reason = f"diverged in {ends}" if ends else ""
    holds, tolerance = at_most(-0.990)
    rows = [
        row(
            f"{name}/pearson",
            [law.pearson if law else None for law in laws],
            paper=paper,
            holds=holds,
            tolerance=tolerance,
            reason=reason,
        )
    ]
    if cell[0] == "adam" and cell[1] in (8, 20):
        rho, half_life = {8: (0.53, 1.1), 20: (0.818, 3.45)}[cell[1]]
        for what, target, by in (("rho", rho, 0.03), ("half_life", half_life, 0.2 * half_life)):
            agrees, words = within(target, round(by, 3))
            values = [getattr(law, what) if law else None for law in laws]
            rows.append(row(f"{name}/{what.replace('_', '-')}", values, paper=target, holds=agrees, tolerance=words))
    else:
        rows.append(row(f"{name}/rho", [law.rho if law else None for law in laws], reason=reason))
    rows.append(row(f"{name}/effective-layers", [law.effective_layers if law else None for law in laws], reason=reason))
    rows.append(row(f"{name}/greenwood-p", [law.greenwood_p if law else None for law in laws], reason=reason))
    rows.append(row(f"{name}/pearson-eval", [law.pearson if law else None for law in evals], reason=reason))
    rows.append(row(f"{name}/rho-eval", [law.rho if law else None for law in evals], reason=reason))
    if choices > 1:
        chosen = [law_of(r) for r in best]
        rows.append(row(f"{name}/pearson-best-of-grid", [law.pearson if law else None for law in chosen], paper=paper))
        ps = [selected_p(law.effective_layers, law.layers, choices) if law else None for law in chosen]
        rows.append(row(f"{name}/greenwood-p-best-of-grid", ps))
        rates = [r.recipe.learning_rate for r in best]
        rows.append(Row(f"{name}/learning-rate-best-of-grid", SHOWN[cell][0], median(rates), min(rates), max(rates)))
    return rows


def _planes(runs: list[Run], data: Samples) -> Sheet:
    """The principal plane of every layer of the 8-layer network trained with Adam."""
    shown = next((r for r in runs if r.recipe.learning_rate == 1e-3 and r.diverged is None), None)
    if shown is None:
        return Sheet("Principal planes of the 8-layer network", [])
    record = probe(shown.network(), (data.inputs, data.labels), batchnorm="batch", uncertainty=False, progress=False)
    sites = [site for site in record.sites if site.plane and site.in_fit]
    panels = [
        PlanePanel(
            "input" if i == 0 else f"layer {i}",
            tuple((a, b) for a, b in site.plane),
            tuple(record.plane_labels),
            data.class_names,
        )
        for i, site in enumerate(sites)
    ]
    who = f"Adam, seed {shown.recipe.seed}, batch statistics"
    return Sheet(f"Principal planes of the 8-layer network ({who})", panels, columns=4)
