"""The sections of a language model's page."""

from __future__ import annotations

from layerlaw.pages.layers import layers_html
from layerlaw.pages.lm_charts import deviations_figure, gains_figure, residual_figure
from layerlaw.pages.lm_targets import (
    codes,
    codes_figure,
    other_tokens,
    other_tokens_figure,
    separation_figure,
)
from layerlaw.pages.lm_words import deviations_caption, gains_caption, residual_caption, residual_cards
from layerlaw.pages.planes import plane_positions, planes_html, planes_note
from layerlaw.pages.reading import Reading
from layerlaw.pages.sections import chart, section
from layerlaw.pages.words import method_html, verdict_html


def lm_sections(reading: Reading, key: str, points: int) -> str:
    """All sections; what was not measured has none (`key` makes ids unique, `points` is the most dots of a plane)."""
    pair = section(
        "deviations",
        key,
        "Off the line",
        chart(f"{key}-deviations", deviations_figure(reading)),
        deviations_caption(reading),
    ) + section("gains", key, "Who does the work", chart(f"{key}-gains", gains_figure(reading)), gains_caption(reading))
    parts = [
        section("verdict", key, "", verdict_html(reading)),
        section(
            "law",
            key,
            "Prediction residual along depth",
            residual_cards(reading) + chart(f"{key}-law", residual_figure(reading)),
            residual_caption(reading),
        ),
        f'<div class="pair">{pair}</div>',
        section("table", key, "Block by block", layers_html(reading)),
        *_others(reading, key),
    ]
    if plane_positions(reading):
        parts.append(
            section("plane", key, "Words in the plane", planes_html(reading, points), planes_note(reading, points))
        )
    return "\n".join([*parts, section("method", key, "How it was measured", method_html(reading))])


def _others(reading: Reading, key: str) -> list[str]:
    """Other targets and the separation, two in a row."""
    found = []
    if codes(reading):
        found.append(
            section(
                "codes", key, "Other codes of the next token", chart(f"{key}-codes", codes_figure(reading)),
                "The residual of each target over its value at the first block: only the shapes compare.",
            )
        )  # fmt: skip
    if other_tokens(reading):
        found.append(
            section(
                "tokens", key, "Other tokens", chart(f"{key}-tokens", other_tokens_figure(reading)),
                "The residual of the ids of tokens around: what a block keeps of the past and knows of the future.",
            )
        )  # fmt: skip
    if reading.has("separation"):
        found.append(
            section(
                "separation", key, "Separation of frequent tokens", chart(f"{key}-separation", separation_figure(reading)),
                "Fuzziness D with the most frequent predicted tokens as classes. Lower is better separated.",
            )
        )  # fmt: skip
    rows = [found[i : i + 2] for i in range(0, len(found), 2)]
    return [f'<div class="pair">{"".join(row)}</div>' if len(row) == 2 else row[0] for row in rows]
