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

from layerlaw.experiments.language import Shaped, books, measured_own, trained
from layerlaw.experiments.numbers import at_least, at_most, minus, row
from layerlaw.experiments.residuals import law, law_panel, law_table, pearson_rows, residual_panel
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome
from layerlaw.record import Record
from layerlaw.sheet import Sheet

TITLE = "The pre-training task matters: next token, masked tokens, and a recurrence"
KINDS = {"gpt": "GPT, next token", "masked": "twin, masked tokens", "recurrent": "recurrence, next token"}
STEPS, QUICK_STEPS = 1000, 40


def run(setting: Setting) -> Outcome:
    """Train the three kinds, measure each on its own task."""
    corpus = books(setting)
    steps, (depth, width) = (QUICK_STEPS, (5, 32)) if setting.quick else (STEPS, (12, 512))
    records: dict[str, list[Record]] = {}
    for kind in KINDS:
        records[kind] = [
            measured_own(setting, trained(setting, Shaped(kind, depth, width, seed, steps), corpus)[steps], corpus,
                         targets="id,embedding")
            for seed in setting.seeds()
        ]  # fmt: skip
    holds, tolerance = at_most(-0.95)
    rows = []
    for kind in ("gpt", "recurrent"):
        rows += pearson_rows(kind, records[kind], paper="law", holds=holds, tolerance=tolerance)
    rows += pearson_rows("masked", records["masked"])
    weaker, said = at_least(0.02)
    gaps = [minus(law(m).pearson, law(g).pearson) for m, g in zip(records["masked"], records["gpt"], strict=True)]
    rows.append(row("masked-minus-gpt/pearson", gaps, paper="no law", holds=weaker, tolerance=said))
    for kind in KINDS:
        rows.append(row(f"{kind}/embedding/pearson", [law(r, "residual_embedding").pearson for r in records[kind]]))
    sheets = [
        Sheet("Token id", [law_panel(name, records[kind][0]) for kind, name in KINDS.items()]),
        Sheet(
            "Output embedding",
            [law_panel(name, records[kind][0], "residual_embedding") for kind, name in KINDS.items()],
        ),
        Sheet("What the line leaves", [residual_panel(name, records[kind][0]) for kind, name in KINDS.items()]),
    ]
    laws = {f"{kind}, {i + 1}, {what}": (r, column) for kind in KINDS for i, r in enumerate(records[kind])
            for what, column in (("id", "residual"), ("embedding", "residual_embedding"))}  # fmt: skip
    return Outcome("lm_task", TITLE, rows, sheets, [law_table("Every network", laws)])
