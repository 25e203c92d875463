"""A control of the authors' repository: networks without an activation have no law. 8 and 20 layers, Fashion-MNIST, Adam.

    layerlaw reproduce linearized            60 networks at 3 seeds: five learning rates, linear and ReLU
    layerlaw reproduce linearized --quick    8 networks, 10 epochs instead of 600

Half a minute on a GPU. Linear → BatchNorm per layer, everything else as in Fig. 1; per seed the rate with the best law, for
both kinds alike. Agreement: a clear law (law_holds, the choice among the rates repeated inside the null of Greenwood's p) in
fewer than half the seeds of the linear networks. D is not invariant under linear maps, so a linear network can lower it: at
most to the linear floor of the input, Σ 1/λ_i of SS_w⁻¹ SS_b, which stands beside (exact in eval mode, where the whole
network is one affine map).
"""

import torch
from torch import Tensor

from layerlaw.experiments.drawing import BEST_RATE, EVAL_LONG_TITLE, REST_FAINT, grid_table, law_sheet
from layerlaw.experiments.numbers import Claim, above, below, mean_of, row
from layerlaw.experiments.runs import LAW, Runs
from layerlaw.experiments.setting import ADAM, Setting, samples
from layerlaw.lab import Recipe, Run, Schedule, Shape
from layerlaw.outcome import Outcome, Row

TITLE = "Linearized networks have no law"
DEPTHS = (8, 20)
KINDS = {"none": "linear", "relu": "relu"}
CLAIMS = {"linear": below(0.5, "no law", "the seeds"), "relu": above(0.5, "law", "the seeds")}
NUMBERS = (*LAW, "effective-layers-eval", "last-D", "last-D-eval", "train-accuracy")


def _cell(run: Run) -> tuple[str, int]:
    network = run.recipe.network
    assert isinstance(network, Shape)
    return KINDS[network.activation], network.depth


def run(setting: Setting) -> Outcome:
    """Train both kinds, report what came out."""
    data = samples(setting, "fashion_mnist")
    rates = (3e-4, 1e-3) if setting.quick else ADAM
    base = Recipe(data="fashion_mnist", epochs=setting.epochs(quick=10))
    shapes = [Shape.even(depth, activation=kind) for kind in ("none", "relu") for depth in DEPTHS]
    recipes = base.grid(network=shapes, learning_rate=rates, seed=setting.seeds())
    runs = setting.train("activations", recipes, {"fashion_mnist": data}, Schedule(test=True))
    cells = runs.by(_cell)
    floor = linear_floor(data.inputs, data.labels)
    found = [
        *(one for (kind, depth), some in cells.items() for one in _rows(kind, depth, some, len(rates))),
        row("input/D", [mean_of(r.measurement(batchnorm="running").separation[0] for r in runs)]),
        row("input/linear-floor", [floor]),
    ]
    behind = {f"{kind}, {depth} layers": some for (kind, depth), some in cells.items()}
    best = {title: some.best() for title, some in behind.items()}
    title, words = "D without and with an activation, train mode", [BEST_RATE]
    sheets = [
        law_sheet(title, best, faint=behind, words=words, faint_words=REST_FAINT, columns=2),
        law_sheet(EVAL_LONG_TITLE, best, faint=behind, batchnorm="running", columns=2),
    ]
    notes = [note for depth in DEPTHS for note in _notes(depth, cells["linear", depth].best(), floor)]
    return Outcome("linearized", TITLE, found, sheets, [grid_table("Every network of the grid", runs)], notes)


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


def _rows(kind: str, depth: int, runs: Runs, choices: int) -> list[Row]:
    name, best, claim = f"{kind}-{depth}", runs.best(), CLAIMS[kind]
    why = "" if best else runs.trouble()
    return [
        row(f"{name}/seeds-with-clear-law", runs.clear(choices), claim),
        *best.rows(name, NUMBERS, {"pearson": Claim(claim.paper)}, choices=choices, reason=why),
    ]


def _notes(depth: int, best: Runs, floor: float) -> list[str]:
    last = best.mean("last-D-eval")
    first = mean_of(law.shares[0] for law in best.laws(batchnorm="running") if law.shares)
    if last is None or first is None:
        return []
    return [
        f"Linear, {depth} layers, eval mode: the first layer takes {first:.0%} of the drop of log D; the last D is "
        f"{last:.3g}, {last / floor:.2f} times the least that a linear map can reach ({floor:.3g})."
    ]
