"""Training step: when does the law of next-token prediction emerge? A GPT of our own on classic books, step by step.

    layerlaw reproduce lm_training             GPT of 12 blocks, width 512, 1000 steps, three seeds (minutes on a GPU)
    layerlaw reproduce lm_training --quick     a tiny GPT on a Markov chain

The authors follow Pythia's checkpoints: no law at the start, and one that grows clearer with training. Judged: PR of the
untrained model does not fall with depth (r ≥ 0), that of the trained one does, and its r is at most −0.95.
"""

from __future__ import annotations

from layerlaw.experiments.drawing import curve_mean
from layerlaw.experiments.next_token.language import (
    PR,
    TARGET_TITLES,
    books,
    embedding_row,
    law,
    law_panel,
    own_records,
    pearson_rows,
    values_of,
)
from layerlaw.experiments.numbers import Claim, at_least, at_most
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "The law of next-token prediction emerges during training"
STEPS = (0, 20, 50, 100, 200, 400, 700, 1000)
QUICK = (0, 20, 60)


def run(setting: Setting) -> Outcome:
    """Train, measure at chosen steps on held-out books."""
    steps, size = (QUICK, (5, 32)) if setting.quick else (STEPS, (12, 512))
    records = own_records(setting, books(setting), "gpt", *size, steps)
    claims = {0: at_least(0.0, "no law"), steps[-1]: at_most(-0.95, "law")}
    rows: list[Row] = []
    for step, found in records.items():
        name = f"step-{step}"
        rows += [*pearson_rows(name, found, claim=claims.get(step, Claim())), embedding_row(name, found)]
    return Outcome("lm_training", TITLE, rows, [_sheet(records)], [_table(records)])


def _sheet(records: dict[int, list[Record]]) -> Sheet:
    curves = []
    for step, found in records.items():
        mean = curve_mean([values_of(record) for record in found])
        curves.append(Series(range(1, len(mean) + 1), mean, f"step {step}"))
    x = [max(step, 1) for step in records]
    series = []
    for title, column in TARGET_TITLES.items():
        rs = [[law(r, column).pearson or 0.0 for r in found] for found in records.values()]
        mean_r = [sum(v) / len(v) for v in rs]
        series.append(Series(x, mean_r, title.lower(), low=[min(v) for v in rs], high=[max(v) for v in rs]))
    panels = [
        Panel("PR along depth", curves, xlabel="block", ylabel=PR, tight=True),
        Panel("correlation with depth", series, "step (0 drawn at 1)", "r", log_x=True, log_y=False),
        law_panel("at the end", records[max(records)][0]),
    ]
    return Sheet("During training", panels)


def _table(records: dict[int, list[Record]]) -> Table:
    lines = []
    for step, found in records.items():
        for record in found:
            fit, embedding = law(record), law(record, "residual_embedding")
            lines.append((step, fit.values[0], fit.values[-1], fit.pearson, fit.rho, embedding.pearson, embedding.rho))
    heads = ("step", "PR, first block", "PR, last block", "r", "ρ", "r embedding", "ρ embedding")
    return Table("Every network", heads, tuple(lines))
