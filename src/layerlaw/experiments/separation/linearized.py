"""Networks without an activation have no law: 8 and 20 layers, Fashion-MNIST, Adam.

    layerlaw reproduce linearized            60 networks at 3 seeds: five learning rates, linear and ReLU
    layerlaw reproduce linearized --quick    8 networks, 10 epochs instead of 600

The paper says in its discussion: "the non-linearity of activation functions is crucial to this law because the
separation fuzziness is roughly unchanged by linear transformations". It shows no network for this; the networks here
are those of a script in the authors' repository, so it is a check of our own. Linear → BatchNorm per layer, everything
else as in Fig. 1; per seed the rate with the best law, for both kinds alike and among all networks: the loss of a
linear one does not come down to 0.1, where others count as trained. Judged by `LawFit.holds`, the choice among the
rates repeated in its test: in at most half of the seeds of the linear networks. The ReLU networks beside them are those
of Fig. 1 and do not count again. D is not invariant under linear maps, so a linear network can lower it: at most to the
linear floor of the input, Σ 1/λ_i of SS_w⁻¹ SS_b, which stands beside (exact in eval mode, where the whole network is
one affine map).
"""

import torch
from torch import Tensor

from layerlaw.experiments.drawing import (
    BEST_RATE,
    EVAL_LONG_TITLE,
    REST_FAINT,
    across_table,
    grid_table,
    law_sheet,
)
from layerlaw.experiments.numbers import Claim, does_not_hold, mean_of, over, row
from layerlaw.experiments.runs import LAW, OURS, PROTOCOLS, Runs, number, protocol_table
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Shape
from layerlaw.outcome import Outcome, Row

TITLE = "Linearized networks have no law"
DEPTHS = (8, 20)
KINDS = {"none": "linear", "relu": "relu"}
NUMBERS = (*LAW, "last-D", "last-D-eval", "train-loss", "train-accuracy")


def _cell(run: Run) -> tuple[str, int]:
    network = run.recipe.network
    assert isinstance(network, Shape)
    return KINDS[network.activation], network.depth


def run(setting: Setting) -> Outcome:
    """Train both kinds, report what came out."""
    images = samples(setting, "fashion_mnist")
    rates = (3e-4, 1e-3) if setting.quick else ADAM
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=10))
    shapes = [Shape.even(depth, activation=kind) for kind in ("none", "relu") for depth in DEPTHS]
    recipes = base.grid(network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("activations", recipes, {"fashion_mnist": images}, PROTOCOLS)
    cells = runs.by(_cell)
    best = {cell: some.best(trained=False) for cell, some in cells.items()}
    floors = {seed: linear_floor((data := images(seed)).inputs, data.labels) for seed in runs.seeds}
    inputs = [some[0].measurement(batchnorm="running").separation[0] for some in runs.sound.seeds.values()]
    found = [
        *(one for cell in cells for one in _rows(cell, cells[cell], best[cell], len(rates))),
        row("input/D", inputs, reason="every network diverged"),
        row("input/linear-floor", list(floors.values())),
    ]
    titles = {cell: f"{cell[0]}, {cell[1]} layers" for cell in cells}
    shown, behind = ({title: some[cell] for cell, title in titles.items()} for some in (best, cells))
    title, words = "D without and with an activation, train mode", [BEST_RATE]
    sheets = [
        law_sheet(title, shown, faint=behind, words=words, faint_words=REST_FAINT, columns=2),
        law_sheet(EVAL_LONG_TITLE, shown, faint=behind, batchnorm="running", columns=2),
    ]
    survives = {
        f"{OURS}no law without an activation, {depth} layers": (
            lambda mode, some=best["linear", depth]: not some.mostly_hold(mode, len(rates))
        )
        for depth in DEPTHS
    }
    tables = [
        across_table("Over seeds and images", shown),
        protocol_table(survives),
        grid_table("Every network of the grid", runs),
    ]
    notes = [note for depth in DEPTHS for note in _notes(depth, cells, best["linear", depth], floors)]
    return Outcome("linearized", TITLE, found, sheets, tables, notes)


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


def _rows(cell: tuple[str, int], runs: Runs, best: Runs, choices: int) -> list[Row]:
    kind, depth = cell
    claim = does_not_hold(depth - 1, choices, kind="remark") if kind == "linear" else Claim()
    why = "" if best else runs.trouble()
    return best.rows(f"{kind}-{depth}", NUMBERS, {"holds": claim}, choices=choices, reason=why)


def _notes(depth: int, cells: dict[tuple[str, int], Runs], best: Runs, floors: dict[int, float]) -> list[str]:
    shares = []
    for kind in KINDS.values():
        runs = cells[kind, depth]
        held = sum(map(bool, runs.values("holds")))
        shares.append(f"{held} of {len(runs)} {kind} networks ({len(runs.trained)} with a loss of at most 0.1)")
    notes = [f"{depth} layers: over the whole grid the law holds in {' and '.join(shares)}."]
    last = mean_of(over(number(r, "last-D-eval"), floors[r.recipe.seed]) for r in best)
    first = mean_of(law.shares[0] for law in best.laws(batchnorm="running") if law.shares)
    if last is not None and first is not None:
        notes.append(
            f"Linear, {depth} layers, eval mode: the first layer takes {first:.0%} of the drop of log D; the last D is "
            f"{last:.2f} times the least that a linear map of the input can reach.".replace("-", "−")
        )
    return notes
