"""D_reg and the residual along depth, for the table in docs/measures.md: python scripts/targets_table.py

Networks of 8 layers (width 100, BatchNorm, ReLU, Adam 1e-3, batches of 64, 100 epochs) on scikit-learn's bundled or generated
data, three quarters to train on, one to test on.
"""

import math
from itertools import pairwise

import torch
from sklearn.datasets import load_diabetes, load_digits, make_friedman1
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.wording import correlation, p_value

DIGITS = load_digits()


def turned(seed: int) -> tuple[Tensor, Tensor]:
    """1,200 digits, each turned by an angle between −60° and 60°, which is to be predicted."""
    g = torch.Generator().manual_seed(seed)
    images = torch.tensor(DIGITS.images[:1200], dtype=torch.float32).unsqueeze(1) / 16
    angle = (2 * torch.rand(len(images), generator=g) - 1) * math.pi / 3
    zero = torch.zeros_like(angle)
    turn = torch.stack([angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero], 1).view(-1, 2, 3)
    grid = nn.functional.affine_grid(turn, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False).flatten(1), angle.unsqueeze(1)


def friedman(seed: int) -> tuple[Tensor, Tensor]:
    x, y = make_friedman1(1000, noise=0.5, random_state=seed)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(1)


def diabetes(seed: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True, scaled=False))
    return x, y.unsqueeze(1)


def attributes(seed: int) -> tuple[Tensor, Tensor]:
    """Six labels of a digit."""
    x, digit = torch.tensor(DIGITS.data[:1200], dtype=torch.float32), torch.tensor(DIGITS.target[:1200])
    groups = ([0, 2, 4, 6, 8], [5, 6, 7, 8, 9], [0, 6, 8, 9], [2, 3, 5, 7], [1, 4, 7], [3, 6, 9])
    return x, torch.stack([torch.isin(digit, torch.tensor(group)) for group in groups], 1).float()


def record(x: Tensor, y: Tensor, seed: int, epochs: int) -> ll.Record:
    torch.manual_seed(seed)
    labels = bool(((y == 0) | (y == 1)).all())
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    y = y if labels else (y - y.mean(0)) / y.std(0)
    widths = [x.shape[1], *[100] * 7]
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(100, y.shape[1]))
    loss = nn.BCEWithLogitsLoss() if labels else nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    (x, held), (y, wanted) = ((part[order[: 3 * len(x) // 4]], part[order[3 * len(x) // 4 :]]) for part in (x, y))
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            if len(rows) > 1:
                optimizer.zero_grad()
                loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
    return ll.probe(model, (x, y), test=(held, wanted), null=True, progress=False)


if __name__ == "__main__":
    print(
        "| targets | seed | D_reg | r | effective layers | Greenwood p | law | 1 − R² held out | on test data | untrained D_reg |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    tasks = {
        "angle of turned digits": turned,
        "friedman1": friedman,
        "diabetes": diabetes,
        "six labels of digits": attributes,
    }
    for what, make in tasks.items():
        for seed in range(3):
            found = record(*make(seed), seed, epochs=100)
            law, columns = found.law(), ("residual_held_out", "test_residual", "target_separation_untrained")
            cells = [what, str(seed), f"{law.values[0]:.3g} → {law.values[-1]:.3g}", correlation(law.pearson)]
            even = "–" if law.effective_layers is None else f"{law.effective_layers:.1f} of {law.layers}"
            ends = [f"{found.column(name)[0]:.3g} → {found.column(name)[-1]:.3g}" for name in columns]
            holds = {True: "holds", False: "no", None: "–"}[law.holds]
            print(f"| {' | '.join([*cells, even, p_value(law.greenwood_p), holds, *ends])} |", flush=True)
