"""Normalization: a fresh norm of the model's kind, none, or standardized tokens.

    layerlaw reproduce lm_normalization             SmolLM2-135M on wikitext-2 (seconds on a GPU)
    layerlaw reproduce lm_normalization --quick     a tiny GPT of our own on a Markov chain

Without a norm a few tokens (the first of each piece) are thousands of times larger than the rest and rule the regression.
"""

from __future__ import annotations

from layerlaw.experiments.language import measured
from layerlaw.experiments.residuals import law_panel, law_table, pearson_rows
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome
from layerlaw.sheet import Sheet

TITLE = "The law under three normalizations"
KINDS = {"fresh": "a fresh norm", "none": "none", "standardized": "standardized"}


def run(setting: Setting) -> Outcome:
    """One pass each."""
    records = {kind: measured(setting, normalize=kind, targets="id,embedding") for kind in KINDS}
    rows = []
    for kind, record in records.items():
        rows += pearson_rows(f"{kind}/id", [record])
        rows += pearson_rows(f"{kind}/embedding", [record], "residual_embedding")
    sheets = [
        Sheet(title, [law_panel(KINDS[kind], record, column) for kind, record in records.items()])
        for title, column in (("Token id", "residual"), ("Output embedding", "residual_embedding"))
    ]
    laws = {f"{kind}, {name}": (record, column) for kind, record in records.items()
            for name, column in (("id", "residual"), ("embedding", "residual_embedding"))}  # fmt: skip
    return Outcome("lm_normalization", TITLE, rows, sheets, [law_table("Fits", laws)])
