"""What tests of training share: a network that draws random numbers, data that do too, and everything that may change."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CLASSES, FEATURES, SAMPLES = 3, 12, 80


class Blobs(Dataset[tuple[Tensor, Tensor]]):
    """Noisy classes; every reading adds noise from four generators: torch, numpy, python and one of its own."""

    def __init__(self, samples: int = SAMPLES) -> None:
        draw = torch.Generator().manual_seed(1)
        self.y = torch.arange(samples) % CLASSES
        self.x = torch.randn(CLASSES, FEATURES, generator=draw)[self.y] + torch.randn(samples, FEATURES, generator=draw)
        self.own = np.random.default_rng(7)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = random.random() + np.random.rand() + float(torch.rand(())) + self.own.random()  # noqa: NPY002
        return self.x[i] + 0.01 * noise, self.y[i]


def network() -> nn.Sequential:
    """Five layers with BatchNorm and Dropout."""
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(FEATURES, CLASSES))


def seed_everything(seed: int) -> None:
    """Every generator of the process."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def draws() -> list[float]:
    """The next number of every generator of the process."""
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002


def everything(model: nn.Module, optimizer: torch.optim.Optimizer | None, losses: list[float]) -> dict[str, Any]:
    """All that a training leaves behind; of generators the next numbers."""
    found: dict[str, Any] = {f"state {name}": value.clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found[f"gradient {name}"] = None if parameter.grad is None else parameter.grad.clone()
    if optimizer is not None:
        for i, state in optimizer.state_dict()["state"].items():
            found |= {f"optimizer {i} {name}": value for name, value in state.items()}
    modes = [module.training for module in model.modules()]
    return found | {"modes": modes, "losses": losses, "draws": draws()}


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What is not the same, bit by bit."""
    assert a.keys() == b.keys()
    same = {key: torch.equal(a[key], b[key]) if isinstance(a[key], Tensor) else a[key] == b[key] for key in a}
    return [key for key, equal in same.items() if not equal]
