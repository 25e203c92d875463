"""What a dry run decides: the sites, and everything a probe must know of the network."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Site:
    """One place: the input or output of one call of one module, and how it becomes one row per sample.

    `axis` and `fold` say where the samples are, `channels_last` where the features are; `shape` is that of one sample,
    `features` its width after the reduction, `itemsize` the bytes of one number, `pick` which of several tensors that a
    module returns.
    """

    name: str
    module: str
    at: Literal["input", "output", "logits"]
    call: int
    type: str
    axis: int
    fold: int
    channels_last: bool
    shape: tuple[int, ...]
    features: int
    itemsize: int = 4
    in_fit: bool = True
    pick: int = 0


@dataclass(frozen=True)
class Plan:
    """Which sites are measured, by which rule and why, what was left out, and which layer is the classifier.

    `reads` names the site whose features the classifier reads; `classes` is the number of logits (2 for a single one,
    which means class 1 above the `threshold`); `calls` says how often each module with a site is called.
    """

    sites: tuple[Site, ...]
    rule: str
    why: str
    dropped: tuple[str, ...] = ()
    classifier: str | None = None
    classifier_why: str = ""
    reads: str | None = None
    classes: int | None = None
    threshold: float = 0.0
    overwrites_input: bool = False
    calls: dict[str, int] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """The dry-run table as plain data; `memory` is what a probe keeps per site (bytes)."""
        return [
            {
                "name": site.name,
                "type": site.type,
                "at": site.at,
                "shape": list(site.shape),
                "features": site.features,
                "memory": statistic_bytes(self.classes or 10, site.features),
                "in_fit": site.in_fit,
            }
            for site in self.sites
        ]

    def __str__(self) -> str:
        lines = [f"{len(self.sites)} sites ({self.why})"]
        width = max(len(site.name) for site in self.sites)
        for i, row in enumerate(self.rows()):
            shape = "×".join(map(str, row["shape"]))
            lines.append(
                f"{i:3d}  {row['name']:{width}}  {row['type']:12}  {row['at']:6}  {shape:>14}  "
                f"{row['features']:8d} features  {row['memory'] / 2**20:8.2f} MiB"
            )
        lines += [f"left out: {text}" for text in self.dropped]
        lines.append(f"classifier: {self.classifier or 'none: ' + self.classifier_why}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def statistic_bytes(classes: int, features: int) -> int:
    """Memory of the statistics of one site: sums, means and basis in float64, means and basis again in float32."""
    return 40 * classes * features
