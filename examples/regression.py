"""Numbers to be predicted, and several labels at once: D_reg carries the law, a held-out regression stands beside it."""

from itertools import pairwise

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

import layerlaw as ll


def trained(x: torch.Tensor, y: torch.Tensor, loss: nn.Module, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    widths = [x.shape[1], *[32] * 7]
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(32, y.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True, scaled=False))
x, y = (x - x.mean(0)) / x.std(0), ((y - y.mean()) / y.std()).unsqueeze(1)
model = trained(x[:342], y[:342], nn.MSELoss(), epochs=200)
record = ll.probe(model, (x[:342], y[:342]), test=(x[342:], y[342:]), classes=["progression"], null=True)
print(ll.verdict.judge(record))
ll.report(record, "regression.html")
ll.plot(record).savefig("regression.png")

digits = load_digits()
x, digit = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
labels = torch.stack([digit % 2 == 0, digit >= 5, digit < 2], 1)  # zeros and ones (n, 3)
model = trained(x[:1200], labels[:1200].float(), nn.BCEWithLogitsLoss(), epochs=20)
record = ll.probe(model, (x[:1200], labels[:1200]), test=(x[1200:], labels[1200:]), classes=["even", "large", "tiny"])
print(ll.verdict.judge(record))
