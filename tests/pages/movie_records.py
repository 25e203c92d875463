"""Records of one training run, made in milliseconds: what a movie is made of."""

from __future__ import annotations

import numpy as np
from pages_records import falling, full_record

from layerlaw.record import Record

CORNERS = np.array([[0.0, 1.0, 0.0], [-(0.75**0.5), -0.5, 0.0], [0.75**0.5, -0.5, 0.0]])


def view_of(spread: float, seed: int = 0, samples: int = 20) -> dict[str, object]:
    """Three classes on their way to collapse."""
    rng = np.random.default_rng(seed)
    labels = [k for k in range(3) for _ in range(samples)]
    features = CORNERS[labels] + rng.normal(0, spread, (3 * samples, 3))
    parts = {"features": features, "means": CORNERS, "rows": CORNERS * (1 - spread)}
    return {"classes": [0, 1, 2], "labels": labels, **{k: v.round(4).tolist() for k, v in parts.items()}}


def training_run(steps: int = 6, sites: int = 8, *, unit: str = "epoch", name: str = "epoch {}") -> list[Record]:
    """The law comes slowly: D falls more from step to step, samples move a little."""
    records = []
    for t in range(steps):
        D = falling(sites, 36.8, 36.8 * 0.8 ** (1 + 8 * t / max(1, steps - 1)), seed=t)
        names = ["input", *(f"layers.{i}.relu" for i in range(1, sites))]
        record = full_record(name.format(10 * t), separation=D, sites=names, logits=False)
        record.settings |= {"step": 10 * t, "step_unit": unit}
        record.collapse_view = view_of(1 / (1 + t), seed=t)
        record.accuracy, record.test_accuracy = 0.5 + 0.08 * t, 0.5 + 0.05 * t
        records.append(record)
    return records


def wild_run() -> list[Record]:
    """D falls far and rises again: shares of the drop of several hundred percent, of both signs."""
    records = training_run(2)
    for record in records:
        for site, D in zip(record.sites, (10.0, 40.0, 30.0, 2.0, 1.5, 30.0, 9.0, 5.0), strict=True):
            site.values["separation"] = D
    return records
