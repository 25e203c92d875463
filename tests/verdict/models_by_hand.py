"""Records of language models made by hand, for the tests of their verdicts."""

import numpy as np

from layerlaw.record import Record, SiteRow

LINE = [0.9 * 0.9965**i for i in range(30)]
SHAPE = [0.9] * 8 + [0.9 * 0.993**i for i in range(1, 20)] + [0.9 * 0.993**19 * 1.01**i for i in range(1, 4)]
G = 8


def model(
    values: list[float],
    *,
    groups: float | None = 0.001,
    settings: dict | None = None,
    notes: list[str] | None = None,
    **columns,
) -> Record:
    """Blocks h.0, h.1, … with these residuals, held out with errors of about `groups` unless that is None."""
    rng = np.random.default_rng(0)
    sites = [SiteRow("embedded input", "input", (16,), 16, in_fit=False, at="input", values={"residual": 0.95})]
    for i, value in enumerate(values):
        site = SiteRow(f"h.{i}", "Block", (16,), 16, at="output", values={"residual": value * 0.98})
        if groups is not None:
            site.values["residual_held_out"] = value
            site.left_out["residual_held_out"] = [
                float(v) for v in value * np.exp(rng.normal(0, groups / np.sqrt(G), G))
            ]
        site.values |= {name: column[i] for name, column in columns.items()}
        sites.append(site)
    known = {"task": "next", "tokens_per_feature": 200.0} | (settings or {})
    return Record(
        name="m", kind="language model", sites=sites, classes=[], counts=[3200], settings=known, notes=notes or []
    )
