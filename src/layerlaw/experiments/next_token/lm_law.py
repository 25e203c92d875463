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

from layerlaw.experiments.next_token.language import (
    TARGET_TITLES,
    TARGETS,
    block_table,
    law,
    law_panel,
    law_table,
    measured,
    pearson_rows,
    reference,
    residual_panel,
)
from layerlaw.experiments.numbers import at_least, at_most, row
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row
from layerlaw.record import Record
from layerlaw.sheet import Sheet

TITLE = "The law of next-token prediction on SmolLM2-135M"
BLOCKS = {1: 0.902, 27: 0.823, 30: 0.838}  # reference PR
KINDS = {"": "", ", held out": "_held_out", ", untrained": "_untrained"}
COLUMNS = {
    "PR": "residual",
    "PR held out": "residual_held_out",
    "± ln": "residual_held_out_log_se",
    "PR untrained": "residual_untrained",
    "PR embedding": "residual_embedding",
    "PR embedding held out": "residual_embedding_held_out",
}


def run(setting: Setting) -> Outcome:
    """Measure the real model and its untrained twin."""
    record = measured(setting, targets="id,embedding", null=True)
    sheets = [
        Sheet(title, [law_panel("trained", record, c, null=True), residual_panel("what the line leaves", record, c)], 2)
        for title, c in TARGET_TITLES.items()
    ]
    laws = {
        f"{name}{kind}": (record, f"{column}{end}") for name, column in TARGETS.items() for kind, end in KINDS.items()
    }
    tables = [law_table("Fits", laws), block_table("Every block", record, COLUMNS)]
    return Outcome("lm_law", TITLE, _rows(record, setting.quick), sheets, tables, record.notes)


def _rows(record: Record, quick: bool) -> list[Row]:
    blocks = [site.values["residual"] for site in record.sites if site.in_fit]
    known = {} if quick else {f"id/block-{n}": (blocks[n - 1], value, 0.01 * value) for n, value in BLOCKS.items()}
    fit, embedding = law(record), law(record, "residual_embedding")
    references = {
        "id/pearson-as-reference": (fit.pearson, -0.966, 0.01),
        "id/pearson-without-last-as-reference": (law(record, drop_last=1).pearson, -0.980, 0.01),
        "id/pearson-held-out-as-reference": (law(record, "residual_held_out").pearson, -0.955, 0.01),
        "id/rho-as-reference": (fit.rho, 0.9965, 0.0005),
        "embedding/pearson-as-reference": (embedding.pearson, -0.970, 0.01),
        "embedding/rho-as-reference": (embedding.rho, 0.9948, 0.0005),
    }
    rising = at_least(0.0, "rises (reference)")
    return [
        *pearson_rows("id", [record], claim=at_most(-0.983, "−0.983 to −0.997 (other models)")),
        *(row(name, [ours], reference(value, by)) for name, (ours, value, by) in known.items()),
        *pearson_rows("embedding", [record], "residual_embedding"),
        *(row(name, [ours], reference(value, by)) for name, (ours, value, by) in references.items()),
        *(
            row(f"{name}/pearson-untrained", [law(record, f"{c}_untrained").pearson], rising)
            for name, c in TARGETS.items()
        ),
    ]
