"""Reactivating the law: a penalty on uneven steps of log D, in a recipe (`EvenCrossEntropy`) or in a loop of your own.

He & Su: "one can fine-tune the parameters to reactivate the law with about the same or better test performance." What that
does to test accuracy is in docs/reproduction/reactivation.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture
from layerlaw.capture.plan import Site
from layerlaw.capture.site_rules import SiteChoice
from layerlaw.errors import InputError
from layerlaw.lab.losses import Loss, plan_sites
from layerlaw.stats.centers import helmert_contrasts
from layerlaw.stats.labels import one_hot
from layerlaw.threads import on_cpu

LEAST_DROP = 0.1  # of ln D over all layers: below, shares of the drop mean nothing and their gradients explode


def batch_separation(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """D of a batch with gradients: features (…, n, d), labels (n,) → (…), in float64; classes may be absent.

    With B (K−1, d) the contrasts of the class means, SS_b = BᵀB and D = ‖(BBᵀ)⁻¹ B Rᵀ‖²/n, R the residuals (n, d).

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    >>> round(float(batch_separation(x, torch.tensor([0, 0, 1, 1]), 3)), 12)  # within 1², between 5²
    0.04
    """
    x = features.double()
    hot = one_hot(labels, classes, x.dtype)  # (K, n)
    counts = hot.sum(-1)
    means = hot @ x / counts.clamp_min(1).unsqueeze(-1)
    B = helmert_contrasts(means, counts / counts.sum())
    gram = B @ B.mT
    size = gram.diagonal(dim1=-2, dim2=-1)
    # Where a class is absent the row is 0: any diagonal will do. The rest is rounding, for coinciding means.
    gram = gram + torch.diag_embed((size == 0).to(x.dtype) + 1e-14 * size.amax(-1, keepdim=True).detach())
    weights = torch.linalg.solve(gram, B)
    inside: Tensor = (x - hot.mT @ means) @ weights.mT  # of the residuals, in the span of the class means
    return inside.square().sum((-2, -1)) / x.shape[-2]


def unevenness(separations: Tensor) -> Tensor:
    """1/evenness − 1 of D along depth (m+1,): m ΣΔ²/(ΣΔ)² − 1 over the drops Δ of ln D, ≥ 0, 0 when all are equal.

    Where ln D hardly falls in all, there are no shares of a drop: then a number of m and more that asks for a larger drop.

    >>> float(unevenness(torch.tensor([8.0, 4.0, 2.0, 1.0]))), float(unevenness(torch.tensor([8.0, 8.0, 1.0])))
    (0.0, 1.0)
    """
    drops = -separations.log().diff()
    m, drop = len(drops), drops.sum()
    even = m * drops.square().sum() / drop.clamp_min(LEAST_DROP).square() - 1
    return torch.where(drop > LEAST_DROP, even, m * (2 - drop / LEAST_DROP))


def _along_depth(features: Iterable[Tensor], labels: Tensor, classes: int) -> Tensor:
    """D at every site, those of equal width together."""
    groups: dict[int, list[tuple[int, Tensor]]] = defaultdict(list)
    for place, rows in enumerate(features):
        groups[rows.shape[1]].append((place, rows))
    found: dict[int, Tensor] = {}
    for group in groups.values():
        values = batch_separation(torch.stack([rows for _, rows in group]), labels, classes)
        found |= dict(zip((place for place, _ in group), values.unbind(), strict=True))
    return torch.stack([found[place] for place in sorted(found)])


@dataclass(frozen=True)
class EvenCrossEntropy(Loss):
    """Cross-entropy + `weight` · (1/evenness − 1) of log D over the sites `where` of the batch.

    Batches should have several samples of every class (500 of 10 classes were used).
    """

    weight: float = 1.0
    where: str | tuple[str, ...] = "auto"

    kind: ClassVar[str] = "even_cross_entropy"

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise InputError(f"weight: expected a number ≥ 0, got {self.weight!r}.")

    @property
    def sites(self) -> SiteChoice:
        """Along which the steps are to be even."""
        return self.where if isinstance(self.where, str) else list(self.where)

    def build(self) -> nn.Module:
        """Without state."""
        return _EvenCriterion(self.weight)

    def __str__(self) -> str:
        return f"cross-entropy with even steps (weight {self.weight:g})"


class _EvenCriterion(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        loss = F.cross_entropy(logits, labels)
        if not self.weight:  # the same fine-tuning without the penalty
            return loss
        return loss + self.weight * unevenness(_along_depth(features.values(), labels, logits.shape[1])).to(loss.dtype)


class EvenSteps:
    """The penalty in a loop of your own: one forward gives the model's output and how uneven its steps are.

        even = ll.EvenSteps(model, x[:8])
        for x, y in loader:
            logits, penalty = even(x, y)
            loss = F.cross_entropy(logits, y) + 1.0 * penalty

    `sites` as for `probe`; `example` are a few inputs for a dry run. Hooks are there during a call only.
    """

    @on_cpu
    def __init__(self, model: nn.Module, example: Tensor, *, sites: SiteChoice = "auto") -> None:
        self.model = model
        self._plan = plan_sites(model, Batch((example,), {}, torch.zeros(len(example), dtype=torch.long)), sites)
        if len(self._plan.along_depth) < 3:
            raise InputError(
                f"sites: expected at least 3 along depth, got {len(self._plan.along_depth)}: steps to be compared."
            )

    @property
    def sites(self) -> list[str]:
        """Where D is measured, along depth."""
        return [site.name for site in self._plan.along_depth]

    @on_cpu
    def __call__(self, x: Tensor, labels: Tensor, classes: int | None = None) -> tuple[Any, Tensor]:
        """The model's output for x, and 1/evenness − 1 of this batch; `classes` where the batch may lack the last ones."""
        found: list[Tensor] = []

        def consume(site: Site, features: Tensor) -> None:
            found.append(features)

        plan = self._plan
        with Capture(self.model, plan, plan.along_depth, reduce="flatten", consume=consume, gradients=True) as capture:
            output = capture.run(Batch((x,), {}, labels), where="this batch")
        K = classes if classes is not None else int(labels.max()) + 1
        return output, unevenness(_along_depth(found, labels, K))
