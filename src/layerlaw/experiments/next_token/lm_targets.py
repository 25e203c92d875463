"""Other targets: does the law hang on the token's id? Embedding, one-hot, shuffled vocabularies, frequency rank, separation.

    layerlaw reproduce lm_targets             SmolLM2-135M on wikitext-2 (seconds on a GPU)
    layerlaw reproduce lm_targets --quick     a tiny GPT of our own on a Markov chain

A token's id is an arbitrary number, so the law must hold for others. The one-hot target is sketched by 256 random signs per
token. Separation fuzziness takes the 100 most frequent next tokens as classes. Reference values of r on this model, measured
earlier: one-hot −.932, rank −.973, eight shuffled vocabularies −.868 to −.950, separation −.895.
"""

from __future__ import annotations

from layerlaw.experiments.language import measured
from layerlaw.experiments.numbers import row, within
from layerlaw.experiments.residuals import curve, law, law_panel, law_table, pearson_rows
from layerlaw.experiments.setting import Setting
from layerlaw.lm.targets import SHUFFLES
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
SHUFFLED = (-0.950, -0.868)


def run(setting: Setting) -> Outcome:
    """Measure all targets in one pass."""
    record = measured(setting, targets="id,embedding,onehot,shuffled,rank", classes=CLASSES)
    shuffled = [f"residual_shuffled_{i + 1}" for i in range(SHUFFLES)]
    panels = [law_panel(name, record, column) for name, column in COLUMNS.items() if name != "separation"]
    panels.append(Panel("eight shuffled vocabularies", [curve(record, c, "", style="faint") for c in shuffled],
                        xlabel="block", ylabel="prediction residual", tight=True))  # fmt: skip
    panels.append(
        Panel(f"separation of {CLASSES} frequent next tokens", [curve(record, "separation", "D")], xlabel="block")
    )
    laws = {name: (record, column) for name, column in COLUMNS.items()} | {
        f"shuffled {i + 1}": (record, column) for i, column in enumerate(shuffled)
    }
    return Outcome(
        "lm_targets",
        TITLE,
        _rows(record, shuffled),
        [Sheet("Targets", panels)],
        [law_table("Fits", laws)],
        record.notes,
    )


def _rows(record: Record, shuffled: list[str]) -> list[Row]:
    rows = []
    for name, column in COLUMNS.items():
        same, tolerance = within(REFERENCE[name], 0.02)
        paper = f"{REFERENCE[name]} (reference)".replace("-", "−")
        if name == "separation":
            rows.append(
                row(f"{name}/pearson", [law(record, column).pearson], paper=paper, holds=same, tolerance=tolerance)
            )
        else:
            rows += pearson_rows(name, [record], column, paper=paper, holds=same, tolerance=tolerance)
    low, high = SHUFFLED
    rs = [law(record, column).pearson for column in shuffled]
    rows.append(
        row("shuffled/pearson", rs, paper=f"{low} to {high} (reference)".replace("-", "−"),
            holds=lambda r: low - 0.02 <= r <= high + 0.02, tolerance="mean within the range, ± 0.02")
    )  # fmt: skip
    return rows
