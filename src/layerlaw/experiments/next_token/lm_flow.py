"""Information flow: how well each block tells the previous token, the token itself, the next, and the one after.

    layerlaw reproduce lm_flow             SmolLM2-135M on wikitext-2, trained and untrained (seconds on a GPU)
    layerlaw reproduce lm_flow --quick     a tiny GPT of our own on a Markov chain

The authors find the law for the next token; what a block knows of the token itself and of those before it fades with depth.
Judged: PR of the next token falls from the first block to the last, that of the token itself rises.
"""

from __future__ import annotations

from layerlaw.experiments.next_token.language import PR, curve, law, law_table, measured
from layerlaw.experiments.numbers import Claim, at_least, at_most, row
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row
from layerlaw.record import Record
from layerlaw.sheet import Panel, Sheet

TITLE = "Information flow: previous, current, next and next-but-one token"
COLUMNS = {
    "previous": "residual_previous",
    "current": "residual_current",
    "next": "residual",
    "next-but-one": "residual_next2",
}
CLAIMS = {"next": at_most(0.0, "falls"), "current": at_least(0.0, "rises")}


def run(setting: Setting) -> Outcome:
    """All four in one pass."""
    record = measured(setting, targets="id,previous,current,next2", null=True)
    panels = []
    for title, kind in (("trained", ""), ("untrained", "_untrained")):
        series = [curve(record, f"{column}{kind}", name) for name, column in COLUMNS.items()]
        panels.append(Panel(title, series, xlabel="block", ylabel=PR, log_y=False))
    table = law_table("Fits", {name: (record, column) for name, column in COLUMNS.items()})
    sheet = Sheet("Token id", panels, 2, share_y=True)
    return Outcome("lm_flow", TITLE, _rows(record), [sheet], [table], record.notes)


def _rows(record: Record) -> list[Row]:
    rows = []
    for name, column in COLUMNS.items():
        fit = law(record, column)
        first, last = fit.values[0], fit.values[-1]
        rows += [
            row(f"{name}/change-of-PR", [last - first], CLAIMS.get(name, Claim())),
            row(f"{name}/first-block", [first]),
            row(f"{name}/last-block", [last]),
            row(f"{name}/pearson", [fit.pearson]),
        ]
    return rows
