"""Normalization: a fresh norm of the model's kind, none, or standardized tokens.

    layerlaw reproduce lm_normalization             SmolLM2-135M on wikitext-2 (seconds on a GPU)
    layerlaw reproduce lm_normalization --quick     a tiny GPT of our own on a Markov chain

Without a norm a few tokens (the first of each piece) are thousands of times larger than the rest and rule the regression.
"""

from __future__ import annotations

from layerlaw.experiments.next_token.language import (
    TARGET_TITLES,
    TARGETS,
    law_panel,
    law_table,
    measured,
    pearson_rows,
)
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome
from layerlaw.sheet import Sheet

TITLE = "The law under three normalizations"
KINDS = {"fresh": "a fresh norm", "none": "none", "standardized": "standardized"}


def run(setting: Setting) -> Outcome:
    """One pass each."""
    records = {kind: measured(setting, normalize=kind, targets="id,embedding") for kind in KINDS}
    pairs = [(kind, record, name, column) for kind, record in records.items() for name, column in TARGETS.items()]
    rows = [one for kind, record, name, column in pairs for one in pearson_rows(f"{kind}/{name}", [record], column)]
    sheets = [
        Sheet(title, [law_panel(KINDS[kind], record, column) for kind, record in records.items()])
        for title, column in TARGET_TITLES.items()
    ]
    laws = {f"{kind}, {name}": (record, column) for kind, record, name, column in pairs}
    return Outcome("lm_normalization", TITLE, rows, sheets, [law_table("Fits", laws)])
