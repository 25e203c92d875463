"""Other targets: does the law hang on the token's id? Embedding, one-hot, shuffled vocabularies, frequency rank, separation.

    layerlaw reproduce lm_targets             SmolLM2-135M on wikitext-2 (seconds on a GPU)
    layerlaw reproduce lm_targets --quick     a tiny GPT of our own on a Markov chain

A token's id is an arbitrary number, so the law must hold for others. The one-hot target is sketched by 256 random signs per
token. Separation fuzziness takes the 100 most frequent next tokens as classes. Reference values of r on this model, measured
earlier: one-hot −.932, rank −.973, eight shuffled vocabularies −.868 to −.950, separation −.895.
"""

from __future__ import annotations

from layerlaw.experiments.next_token.language import (
    PR,
    curve,
    law,
    law_panel,
    law_table,
    measured,
    pearson_rows,
    reference,
)
from layerlaw.experiments.numbers import Claim, row
from layerlaw.experiments.setting import Setting
from layerlaw.lm.tasks import SHUFFLES
from layerlaw.outcome import Outcome, Row
from layerlaw.record import Record
from layerlaw.sheet import Panel, Sheet

TITLE = "The law for other targets than the token's id"
CLASSES = 100
COLUMNS = {
    "id": "residual",
    "embedding": "residual_embedding",
    "one-hot": "residual_onehot",
    "rank": "residual_rank",
    "separation": "separation",
}
REFERENCE = {"id": -0.966, "embedding": -0.970, "one-hot": -0.932, "rank": -0.973, "separation": -0.895}
LOW, HIGH = -0.950, -0.868  # reference r of the shuffled vocabularies
SHUFFLED = {f"shuffled {i + 1}": f"residual_shuffled_{i + 1}" for i in range(SHUFFLES)}


def run(setting: Setting) -> Outcome:
    """Measure all targets in one pass."""
    record = measured(setting, targets="id,embedding,onehot,shuffled,rank", classes=CLASSES)
    shuffled = [curve(record, column, "", style="faint") for column in SHUFFLED.values()]
    separation = [curve(record, "separation", "D")]
    panels = [
        *(law_panel(name, record, column) for name, column in COLUMNS.items() if name != "separation"),
        Panel("eight shuffled vocabularies", shuffled, xlabel="block", ylabel=PR, tight=True),
        Panel(f"separation of {CLASSES} frequent next tokens", separation, xlabel="block"),
    ]
    table = law_table("Fits", {name: (record, column) for name, column in (COLUMNS | SHUFFLED).items()})
    return Outcome("lm_targets", TITLE, _rows(record), [Sheet("Targets", panels)], [table], record.notes)


def _rows(record: Record) -> list[Row]:
    rows = []
    for name, column in COLUMNS.items():
        found = pearson_rows(name, [record], column, reference(REFERENCE[name], 0.02))
        rows += found[:1] if name == "separation" else found
    paper = f"{LOW} to {HIGH} (reference)".replace("-", "−")
    agrees = Claim(paper, lambda r: LOW - 0.02 <= r <= HIGH + 0.02, "mean within the range, ± 0.02")
    return [*rows, row("shuffled/pearson", [law(record, column).pearson for column in SHUFFLED.values()], agrees)]
