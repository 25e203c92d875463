"""Model size: the law of next-token prediction in GPTs of our own, over depth and width.

    layerlaw reproduce lm_sizes             6, 12 and 24 blocks, widths 256 and 512, 1000 steps (minutes on a GPU)
    layerlaw reproduce lm_sizes --quick     two tiny GPTs on a Markov chain

The authors find the law in models of every size. Judged for each size: r ≤ −0.95 in the mean over seeds.
"""

from __future__ import annotations

from layerlaw.experiments.next_token.language import (
    books,
    embedding_row,
    law_panel,
    law_table,
    own_records,
    pearson_rows,
)
from layerlaw.experiments.numbers import at_most
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row
from layerlaw.sheet import Sheet

TITLE = "The law of next-token prediction over model sizes"
SIZES = ((6, 256), (12, 256), (24, 256), (6, 512), (12, 512), (24, 512))
QUICK = ((4, 32), (6, 32))
STEPS, QUICK_STEPS = 1000, 40


def run(setting: Setting) -> Outcome:
    """Train every size, measure it at the end on held-out books."""
    corpus = books(setting)
    steps = QUICK_STEPS if setting.quick else STEPS
    records = {
        f"{depth}-blocks-of-{width}": own_records(setting, corpus, "gpt", depth, width, (steps,))[steps]
        for depth, width in (QUICK if setting.quick else SIZES)
    }
    rows: list[Row] = []
    for name, found in records.items():
        rows += [*pearson_rows(name, found, claim=at_most(-0.95, "law")), embedding_row(name, found)]
    panels = [law_panel(name.replace("-", " "), found[0]) for name, found in records.items()]
    laws = {f"{name}, {i + 1}": (r, "residual") for name, found in records.items() for i, r in enumerate(found)}
    return Outcome("lm_sizes", TITLE, rows, [Sheet("Sizes", panels)], [law_table("Every network", laws)])
