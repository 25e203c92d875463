"""A control of the authors' repository: networks without an activation have no law. 8 and 20 layers, Fashion-MNIST, Adam.

    layerlaw reproduce linearized            60 networks at 3 seeds: five learning rates, linear and ReLU
    layerlaw reproduce linearized --quick    8 networks, 10 epochs instead of 600

Half a minute on a GPU. Linear → BatchNorm per layer, everything else as in Fig. 1; per seed the rate with the best law, for
both kinds alike. Agreement: a clear law (r ≤ −0.99 and Greenwood's p < 0.05, the choice among the rates repeated inside its
null) in fewer than half the seeds of the linear networks. D is not invariant under linear maps, so a linear network can
lower it: at most to the linear floor of the input, Σ 1/λ_i of SS_w⁻¹ SS_b, which stands beside (exact in eval mode, where
the whole network is one affine map).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerlaw.experiments.drawing import caption, grid_table, law_panel
from layerlaw.experiments.fig1 import RATES
from layerlaw.experiments.images import samples
from layerlaw.experiments.numbers import (
    best_of_seeds,
    final_separation,
    is_clear,
    law_of,
    law_row,
    mean_of,
    row,
    selected_p,
    trouble,
)
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Panel, Sheet

TITLE = "Linearized networks have no law"
DEPTHS = (8, 20)
KINDS = {"none": "linear", "relu": "relu"}
Cell = tuple[str, int]


def run(setting: Setting) -> Outcome:
    """Train both kinds, tell what came out."""
    data = {"fashion_mnist": samples(setting, "fashion_mnist")}
    rates = (3e-4, 1e-3) if setting.quick else RATES["adam"]
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=10))
    shapes = [Shape.even(depth, activation=kind) for kind in ("none", "relu") for depth in DEPTHS]
    recipes = base.grid(network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("activations", recipes, data, Schedule(test=True))
    cells: dict[Cell, list[Run]] = {(kind, depth): [] for kind in KINDS for depth in DEPTHS}
    for r in runs:
        cells[r.recipe.network.activation, r.recipe.network.depth].append(r)
    floor = linear_floor(data["fashion_mnist"].inputs, data["fashion_mnist"].labels)
    return Outcome(
        "linearized",
        TITLE,
        [
            *(one for cell in cells for one in _rows(cell, cells[cell], len(rates))),
            row("input/D", [mean_of(r.measurement(batchnorm="running").separation[0] for r in runs)]),
            row("input/linear-floor", [floor]),
        ],
        _sheets(cells),
        [grid_table("Every network of the grid", runs)],
        _notes(cells, floor),
    )


def linear_floor(x: Tensor, y: Tensor) -> float:
    """The least D that a linear map of these samples can reach while their class means span K−1 dimensions.

    Σ 1/λ_i over the K−1 nonzero eigenvalues of SS_w⁻¹ SS_b. Whitened by the total scatter, SS_b has eigenvalues
    μ = λ/(1+λ), and directions in which nothing varies (an empty pixel) drop out.

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 5.0], [12.0, 5.0]])
    >>> round(linear_floor(x, torch.tensor([0, 0, 1, 1])), 9)  # the second pixel tells the classes apart without error
    0.0
    """
    x = x.double() - x.double().mean(0)
    K = int(y.max()) + 1
    means = torch.stack([x[y == k].mean(0) for k in range(K)])
    total = x.T @ x / len(x)
    between = (means.T * torch.bincount(y, minlength=K) / len(x)) @ means
    sizes, axes = torch.linalg.eigh(total)
    kept = sizes > 1e-10 * sizes.max()
    whitener = axes[:, kept] / sizes[kept].sqrt()
    mu = torch.linalg.eigvalsh(whitener.T @ between @ whitener)[-(K - 1) :]
    return float(((1 - mu) / mu).sum())


def _rows(cell: Cell, runs: Sequence[Run], choices: int) -> list[Row]:
    kind, depth = cell
    name, linear = f"{KINDS[kind]}-{depth}", kind == "none"
    best = best_of_seeds(runs)
    seeds = {r.recipe.seed for r in runs}
    clear = [float(is_clear(law_of(r), choices)) for r in best] + [0.0] * (len(seeds) - len(best))
    told: dict[str, Any] = {"paper": "no law"} if linear else {"paper": "law"}
    how: dict[str, Any] = {"holds": lambda share: share < 0.5, "tolerance": "< 0.5 of the seeds"}
    if not linear:
        how = {"holds": lambda share: share > 0.5, "tolerance": "> 0.5 of the seeds"}
    why = trouble(runs) if not best else "D does not fall with depth"
    return [
        row(f"{name}/seeds-with-clear-law", clear, **told, **how),
        law_row(f"{name}/pearson", best, "pearson", **told),
        law_row(f"{name}/rho", best, "rho"),
        law_row(f"{name}/effective-layers", best, "effective_layers"),
        row(f"{name}/greenwood-p", [_p(r, choices) for r in best], reason=why),
        law_row(f"{name}/pearson-eval", best, "pearson", batchnorm="running"),
        law_row(f"{name}/rho-eval", best, "rho", batchnorm="running"),
        law_row(f"{name}/effective-layers-eval", best, "effective_layers", batchnorm="running"),
        row(f"{name}/last-D", [final_separation(r) for r in best], reason=why),
        row(f"{name}/last-D-eval", [final_separation(r, batchnorm="running") for r in best], reason=why),
        row(f"{name}/train-accuracy", [r.measurement(batchnorm="running").accuracy for r in best], reason=why),
    ]


def _p(run: Run, choices: int) -> float | None:
    law = law_of(run)
    return None if law is None else selected_p(law.effective_layers, law.layers, choices)


def _sheets(cells: dict[Cell, list[Run]]) -> list[Sheet]:
    def panels(batchnorm: Any) -> list[Panel]:
        return [
            law_panel(f"{KINDS[kind]}, {depth} layers", best_of_seeds(runs), faint=runs, batchnorm=batchnorm)
            for (kind, depth), runs in cells.items()
        ]

    best, rest = "The rate with the best law of each seed.", "the rest of the grid faint"
    train = panels("batch")
    return [
        Sheet("D without and with an activation, train mode", train, 2, caption(train, best, faint=rest)),
        Sheet("The same networks with running statistics (eval mode)", panels("running"), 2),
    ]


def _notes(cells: dict[Cell, list[Run]], floor: float) -> list[str]:
    notes = []
    for depth in DEPTHS:
        best = best_of_seeds(cells["none", depth])
        shares = [law.shares for r in best if (law := law_of(r, batchnorm="running")) and law.shares]
        last = mean_of(final_separation(r, batchnorm="running") for r in best)
        first = mean_of(share[0] for share in shares)
        if last is None or first is None:
            continue
        words = (
            f"Linear, {depth} layers, eval mode: the first layer takes {first:.0%} of the drop of log D; the last D is "
            f"{last:.3g}, {last / floor:.2f} times the least that a linear map can reach ({floor:.3g})."
        )
        notes.append(words.replace(" -", " −"))
    return notes
