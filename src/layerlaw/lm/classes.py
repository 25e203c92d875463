"""Separation of the most frequent next tokens: those tokens as classes, D = Tr(SSw SSb⁺) at every block."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from layerlaw.stats.moments import gram


@dataclass
class FrequentTokens:
    """The chosen tokens, and at every site the sums of each class (K, d) and the Gram matrix of all of them (d, d).

    From the features of a site the mean of its first batch is taken off, which does not change D: some lie a thousand times
    their spread away from 0, and float32 products would keep little of it.
    """

    ids: Tensor
    sums: list[Tensor | None] = field(default_factory=list)
    grams: list[Tensor | None] = field(default_factory=list)
    references: dict[int, Tensor] = field(default_factory=dict)
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, counts: Tensor, classes: int) -> FrequentTokens:
        """The most frequent of the tokens that are told, by how often each is."""
        order = torch.argsort(counts, descending=True, stable=True)
        return cls(order[: min(classes, int((counts > 1).sum()))].sort().values)

    def fresh(self, sites: int) -> FrequentTokens:
        """Nothing seen yet."""
        none: list[Tensor | None] = [None] * sites
        return FrequentTokens(self.ids, none, none.copy(), counts=torch.zeros(len(self.ids), dtype=torch.float64))

    def begin(self, tokens: Tensor) -> None:
        """The next tokens (n,) of a batch."""
        place = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        known = self.ids[place] == tokens
        self._rows = known.nonzero().flatten()
        self._labels = place[self._rows]
        self.counts += torch.bincount(self._labels, minlength=len(self.ids))

    def update(self, site: int, X: Tensor) -> None:
        """Features (n, d) of one site."""
        rows, labels = self._rows.to(X.device), self._labels.to(X.device)
        part = X.index_select(0, rows)
        if part.element_size() > 2 and len(part):  # half precision has lost it before
            if site not in self.references:
                self.references[site] = part.mean(0, dtype=torch.float64)
            part = part - self.references[site].to(part.dtype)
        sums = torch.zeros(len(self.ids), X.shape[1], dtype=torch.float64, device=X.device)
        sums.index_add_(0, labels, part.double())
        product = gram(part).double()
        before, known = self.sums[site], self.grams[site]
        self.sums[site] = sums if before is None else before + sums
        self.grams[site] = product if known is None else known + product

    def tensors(self, d: int) -> list[Tensor]:
        """What is added up over ranks, about 0, since each has taken off a mean of its own."""
        n = self.counts.sum().item()
        for site, reference in self.references.items():
            sums, G = self.sums[site], self.grams[site]
            if sums is not None and G is not None:
                r = reference.to(G.dtype)
                turned = torch.outer(sums.sum(0), r)
                self.grams[site] = G + turned + turned.mT + n * torch.outer(r, r)
                self.sums[site] = sums + self.counts.to(r.device)[:, None] * r
        self.references = {}
        K = len(self.ids)
        self.sums = [torch.zeros(K, d, dtype=torch.float64) if s is None else s for s in self.sums]
        self.grams = [torch.zeros(d, d, dtype=torch.float64) if G is None else G for G in self.grams]
        return [self.counts, *(t for t in (*self.sums, *self.grams) if t is not None)]

    def separation(self, site: int) -> float | None:
        """D of one site, of the classes that came; `None` where all means coincide."""
        sums, G = self.sums[site], self.grams[site]
        came = self.counts > 0
        if sums is None or G is None or int(came.sum()) < 2:
            return None
        sums, counts = sums[came.to(sums.device)], self.counts[came].to(sums.device)
        means = sums / counts[:, None]
        weighted = means * counts.sqrt()[:, None]
        within = G - weighted.mT @ weighted  # SSw, times n
        mean = sums.sum(0) / counts.sum()
        _, s, V = torch.linalg.svd((means - mean) * (counts / counts.sum()).sqrt()[:, None], full_matrices=False)
        kept = s > 1e-7 * s[0]
        if not bool(kept.any()):
            return None
        basis = V[kept]
        spread = (basis @ within * basis).sum(1) / counts.sum()
        return float((spread / s[kept].square()).sum())
