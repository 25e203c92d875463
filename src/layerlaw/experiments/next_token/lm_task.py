"""The task and the architecture: next-token prediction against masked tokens, attention against a recurrence.

    layerlaw reproduce lm_task             12 blocks of width 512, 1000 steps, three seeds each (minutes on a GPU)
    layerlaw reproduce lm_task --quick     tiny models on a Markov chain

Three models of one size on the same books: a GPT, its bidirectional twin trained on masked tokens (measured at the masked
positions, where the token's own id is the target), and a causal recurrence without attention, trained like the GPT. The
authors find the law in transformers and state-space models alike, and no law for masked tokens. Judged: r ≤ −0.95 for the
GPT and the recurrence; for the masked twin an r above that of the GPT by at least 0.02.

Found here: the law in the GPTs (−.981 to −.992), nearly in the recurrence (−.924 to −.977), and no difference worth the name
for masked tokens: two of three seeds are as straight as the GPT (−.994, −.990), one is bent (−.854).
"""

from __future__ import annotations

from layerlaw.experiments.next_token.language import (
    TARGET_TITLES,
    TARGETS,
    books,
    embedding_row,
    law,
    law_panel,
    law_table,
    own_records,
    pearson_rows,
    residual_panel,
)
from layerlaw.experiments.numbers import at_least, at_most, minus, row
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome
from layerlaw.sheet import Sheet

TITLE = "The pre-training task matters: next token, masked tokens, and a recurrence"
KINDS = {"gpt": "GPT, next token", "masked": "twin, masked tokens", "recurrent": "recurrence, next token"}
STEPS, QUICK_STEPS = 1000, 40


def run(setting: Setting) -> Outcome:
    """Train the three kinds, measure each on its own task."""
    corpus = books(setting)
    steps, size = (QUICK_STEPS, (5, 32)) if setting.quick else (STEPS, (12, 512))
    records = {kind: own_records(setting, corpus, kind, *size, (steps,))[steps] for kind in KINDS}
    gaps = [minus(law(m).pearson, law(g).pearson) for m, g in zip(records["masked"], records["gpt"], strict=True)]
    rows = [
        *(r for kind in ("gpt", "recurrent") for r in pearson_rows(kind, records[kind], claim=at_most(-0.95, "law"))),
        *pearson_rows("masked", records["masked"]),
        row("masked-minus-gpt/pearson", gaps, at_least(0.02, "no law")),
        *(embedding_row(kind, records[kind]) for kind in KINDS),
    ]
    sheets = [
        Sheet(title, [law_panel(name, records[kind][0], column) for kind, name in KINDS.items()])
        for title, column in TARGET_TITLES.items()
    ]
    left = [residual_panel(name, records[kind][0]) for kind, name in KINDS.items()]
    laws = {
        f"{kind}, {i + 1}, {what}": (r, column)
        for kind in KINDS
        for i, r in enumerate(records[kind])
        for what, column in TARGETS.items()
    }
    table = law_table("Every network", laws)
    return Outcome("lm_task", TITLE, rows, [*sheets, Sheet("What the line leaves", left)], [table])
