"""Losses that a recipe can name: settings as a frozen dataclass, and a criterion that is made from them.

To add one: a subclass of `Loss` here. `Recipe(loss="cross_entropy")` is short for a loss without settings of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture import SiteChoice
from layerlaw.lab.description import Description


class Loss(Description):
    """What training minimizes: a frozen dataclass of settings with a `kind` and `build`.

    A loss that looks into the network says where: `sites` as for `probe` ("auto", "blocks", names, …). Their features
    come from the same forward as the logits, with gradients.
    """

    what: ClassVar[str] = "loss"

    @property
    def sites(self) -> SiteChoice | None:
        """Whose features the criterion gets; `None`: it needs none."""
        return None

    @abstractmethod
    def build(self) -> nn.Module:
        """A fresh criterion: called with logits (n, K), labels (n,) and {site: features (n, d)}, gives a number.

        Its parameters are trained along with the network's; they and its buffers (a step count, moving means) are part
        of what a sweep saves.
        """


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The mean over the batch of −log p(label)."""

    kind: ClassVar[str] = "cross_entropy"

    def build(self) -> nn.Module:
        """Without state."""
        return _MeanCrossEntropy()

    def __str__(self) -> str:
        return "cross-entropy"


class _MeanCrossEntropy(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(logits, labels)
