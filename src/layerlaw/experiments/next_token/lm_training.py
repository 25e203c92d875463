"""Training step: when does the law of next-token prediction emerge? A GPT of our own on classic books, step by step.

    layerlaw reproduce lm_training             GPT of 12 blocks, width 512, 1000 steps, three seeds (minutes on a GPU)
    layerlaw reproduce lm_training --quick     a tiny GPT on a Markov chain

The authors follow Pythia's checkpoints: no law at the start, and one that grows clearer with training. Judged: PR of the
untrained model does not fall with depth (r ≥ 0), that of the trained one does, and its r is at most −0.95.
"""

from __future__ import annotations

from layerlaw.experiments.language import Shaped, books, measured_own, trained
from layerlaw.experiments.numbers import at_least, at_most, row
from layerlaw.experiments.residuals import curves_panel, law, law_panel, mean_curve, pearson_rows
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "The law of next-token prediction emerges during training"
STEPS = (0, 20, 50, 100, 200, 400, 700, 1000)
QUICK = (0, 20, 60)


def run(setting: Setting) -> Outcome:
    """Train, measure at chosen steps on held-out books."""
    corpus = books(setting)
    steps = QUICK if setting.quick else STEPS
    depth, width = (5, 32) if setting.quick else (12, 512)
    records: dict[int, list[Record]] = {step: [] for step in steps}
    for seed in setting.seeds():
        models = trained(setting, Shaped("gpt", depth, width, seed, steps[-1]), corpus, steps)
        for step in steps:
            records[step].append(measured_own(setting, models[step], corpus, targets="id,embedding"))
    rows = []
    for step, found in records.items():
        paper, holds, tolerance = None, None, ""
        if step == 0:
            paper, (holds, tolerance) = "no law", at_least(0.0)
        elif step == steps[-1]:
            paper, (holds, tolerance) = "law", at_most(-0.95)
        rows += pearson_rows(f"step-{step}", found, paper=paper, holds=holds, tolerance=tolerance)
        rows.append(row(f"step-{step}/embedding/pearson", [law(r, "residual_embedding").pearson for r in found]))
    return Outcome("lm_training", TITLE, rows, _sheets(records), [_table(records)])


def _sheets(records: dict[int, list[Record]]) -> list[Sheet]:
    last = records[max(records)][0]
    curves = {f"step {step}": mean_curve(found) for step, found in records.items()}
    x = [max(step, 1) for step in records]
    series = []
    for name, column in (("token id", "residual"), ("output embedding", "residual_embedding")):
        rs = [[law(r, column).pearson or 0.0 for r in found] for found in records.values()]
        mean = [sum(v) / len(v) for v in rs]
        series.append(Series(x, mean, name, low=[min(v) for v in rs], high=[max(v) for v in rs]))
    over_steps = Panel(
        "correlation with depth", series, xlabel="step (0 drawn at 1)", ylabel="r", log_x=True, log_y=False
    )
    return [
        Sheet("During training", [curves_panel("PR along depth", curves), over_steps, law_panel("at the end", last)])
    ]


def _table(records: dict[int, list[Record]]) -> Table:
    rows = []
    for step, found in records.items():
        for record in found:
            fit, embedding = law(record), law(record, "residual_embedding")
            rows.append((step, fit.values[0], fit.values[-1], fit.pearson, fit.rho, embedding.pearson, embedding.rho))
    heads = ("step", "PR, first block", "PR, last block", "r", "ρ", "r embedding", "ρ embedding")
    return Table("Every network", heads, tuple(rows))
