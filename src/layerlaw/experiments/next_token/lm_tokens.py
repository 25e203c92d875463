"""How many tokens? PR and its correlation with depth against n/d, in-sample and held out.

    layerlaw reproduce lm_tokens             SmolLM2-135M on wikitext-2, 7 to 213 tokens per feature (a minute on a GPU)
    layerlaw reproduce lm_tokens --quick     a tiny GPT of our own on a Markov chain

In-sample PR is too low when there are few tokens for d features: d coefficients fit noise. Reference values of r
(in-sample), measured earlier on the first tokens of the text: −.848 at n/d = 7, −.898 at 14, −.968 at 87, −.966 at 213. Few
tokens from the beginning are also few subjects, so every number of tokens is taken twice: from the beginning, and in
pieces spread over the whole text.
"""

from __future__ import annotations

from typing import Any

from layerlaw.experiments.next_token.language import PR, law, measured, reference
from layerlaw.experiments.numbers import Claim, row
from layerlaw.experiments.setting import Setting
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.record import Record
from layerlaw.sheet import Panel, Series, Sheet

TITLE = "How many tokens the measurement needs"
RATIOS = (7, 14, 28, 57, 87, 213)
QUICK = (7, 28, 87)
WAYS = {"first": "From the beginning of the text", "spread": "Spread over the text"}
REFERENCE = {7: (-0.848, 0.05), 14: (-0.898, 0.05), 87: (-0.968, 0.01), 213: (-0.966, 0.01)}


def run(setting: Setting) -> Outcome:
    """One pass for each number of tokens and each way to take them."""
    ratios = QUICK if setting.quick else RATIOS
    width = 32 if setting.quick else 576
    tokens = {ratio: round(ratio * width * 512 / 511) for ratio in ratios}  # the last token of a piece has no next
    taken = {
        "first": {ratio: measured(setting, first=n) for ratio, n in tokens.items()},
        "spread": {ratio: measured(setting, tokens=n) for ratio, n in tokens.items()},
    }
    rows = [one for way, records in taken.items() for ratio, r in records.items() for one in _rows(way, ratio, r)]
    sheets = [Sheet(WAYS[way], _panels(records), 2) for way, records in taken.items()]
    return Outcome("lm_tokens", TITLE, rows, sheets, [_table(WAYS[way], records) for way, records in taken.items()])


def _rows(way: str, ratio: int, record: Record) -> list[Row]:
    claim = reference(*REFERENCE[ratio]) if way == "first" and ratio in REFERENCE else Claim()
    inside, held, name = law(record), law(record, "residual_held_out"), f"{way}/{ratio}-per-feature"
    return [
        row(f"{name}/pearson", [inside.pearson], claim),
        row(f"{name}/pearson-held-out", [held.pearson]),
        row(f"{name}/last-block", [inside.values[-1]]),
        row(f"{name}/last-block-held-out", [held.values[-1]]),
    ]


def _panels(records: dict[int, Record]) -> list[Panel]:
    x = list(records)
    kinds = {"in-sample": "residual", "held out": "residual_held_out"}
    laws = {name: [law(record, column) for record in records.values()] for name, column in kinds.items()}
    r = [Series(x, [fit.pearson for fit in fits], name) for name, fits in laws.items()]
    last = [Series(x, [fit.values[-1] for fit in fits], name) for name, fits in laws.items()]
    about: dict[str, Any] = {"xlabel": "tokens per feature", "log_x": True, "log_y": False}
    return [
        Panel("correlation with depth", r, ylabel="r", **about),
        Panel("PR at the last block", last, ylabel=PR, **about),
    ]


def _table(title: str, records: dict[int, Record]) -> Table:
    rows = []
    for ratio, record in records.items():
        inside, held = law(record), law(record, "residual_held_out")
        ends = (inside.values[-1], held.values[-1])
        rows.append((ratio, record.counts[0], inside.pearson, held.pearson, *ends, inside.rho))
    heads = ("n/d", "tokens", "r", "r held out", "PR last block", "PR last block, held out", "ρ")
    return Table(title, heads, tuple(rows))
