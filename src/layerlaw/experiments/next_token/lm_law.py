"""The law of next-token prediction on a real model: SmolLM2-135M on wikitext-2.

    layerlaw reproduce lm_law             122,640 predicted tokens, trained and untrained (seconds on a GPU, half an hour on
                                          two cores); wants the model in LAYERLAW_DATA/smollm2 and LAYERLAW_DATA/wikitext-2
    layerlaw reproduce lm_law --quick     a tiny GPT of our own on a Markov chain

The authors report r between about −0.983 and −0.997 on models of 100 million to 14 billion parameters, in-sample, with the
token's id as target. Reference numbers of this very model (4-bit weights, dequantized) come from an earlier, independent
measurement of ours: PR .902 at block 1, .823 at block 27, .838 at block 30, r −.966 and −.980 without the last block, ρ
.9965 per block; output embedding r −.970 and −.985, ρ .9948; the untrained model r +.78 (id) and +.87 (embedding).
"""

from __future__ import annotations

from layerlaw.experiments.language import measured
from layerlaw.experiments.numbers import at_least, at_most, row, within
from layerlaw.experiments.residuals import block_table, law, law_panel, law_table, pearson_rows, residual_panel
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row
from layerlaw.record import Record
from layerlaw.sheet import Sheet

TITLE = "The law of next-token prediction on SmolLM2-135M"
REFERENCE = {1: 0.902, 27: 0.823, 30: 0.838}


def run(setting: Setting) -> Outcome:
    """Measure the real model and its untrained twin."""
    record = measured(setting, targets="id,embedding", null=True)
    columns = {
        "PR": "residual", "PR held out": "residual_held_out", "± ln": "residual_held_out_log_se",
        "PR untrained": "residual_untrained", "PR embedding": "residual_embedding",
        "PR embedding held out": "residual_embedding_held_out",
    }  # fmt: skip
    sheets = [
        Sheet("Token id", [law_panel("trained", record, null=True), residual_panel("what the line leaves", record)], 2),
        Sheet("Output embedding", [law_panel("trained", record, "residual_embedding", null=True),
                                   residual_panel("what the line leaves", record, "residual_embedding")], 2),
    ]  # fmt: skip
    laws = {
        f"{name}{kind}": (record, f"{column}{kind_of}")
        for name, column in COLUMNS.items()
        for kind, kind_of in KINDS.items()
    }
    tables = [law_table("Fits", laws), block_table("Every block", record, columns)]
    return Outcome("lm_law", TITLE, _rows(record, setting.quick), sheets, tables, record.notes)


COLUMNS = {"id": "residual", "embedding": "residual_embedding"}
KINDS = {"": "", ", held out": "_held_out", ", untrained": "_untrained"}


def _rows(record: Record, quick: bool) -> list[Row]:
    holds, tolerance = at_most(-0.983)
    rows = pearson_rows("id", [record], paper="−0.983 to −0.997 (other models)", holds=holds, tolerance=tolerance)
    blocks = [site for site in record.sites if site.in_fit]
    for number, value in REFERENCE.items():
        if not quick:
            same, by = within(value, 0.01 * value)
            ours = blocks[number - 1].values["residual"]
            rows.append(row(f"id/block-{number}", [ours], paper=f"{value} (reference)", holds=same, tolerance=by))
    rows += pearson_rows("embedding", [record], "residual_embedding")
    references = (
        ("id/pearson-as-reference", law(record).pearson, -0.966, 0.01),
        ("id/pearson-without-last-as-reference", law(record, drop_last=1).pearson, -0.980, 0.01),
        ("id/pearson-held-out-as-reference", law(record, "residual_held_out").pearson, -0.955, 0.01),
        ("id/rho-as-reference", law(record).rho, 0.9965, 0.0005),
        ("embedding/pearson-as-reference", law(record, "residual_embedding").pearson, -0.970, 0.01),
        ("embedding/rho-as-reference", law(record, "residual_embedding").rho, 0.9948, 0.0005),
    )
    for name, ours, value, limit in references:
        same, tolerance = within(value, limit)
        rows.append(
            row(name, [ours], paper=f"{value:g} (reference)".replace("-", "−"), holds=same, tolerance=tolerance)
        )
    rising, said = at_least(0.0)
    for name, column in COLUMNS.items():
        null = law(record, f"{column}_untrained")
        rows.append(
            row(f"{name}/pearson-untrained", [null.pearson], paper="rises (reference)", holds=rising, tolerance=said)
        )
    return rows
