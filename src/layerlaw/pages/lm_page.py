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
from layerlaw.pages.record_view import RecordView
from layerlaw.pages.sections import chart, section
from layerlaw.pages.words import method_html, verdict_html


def lm_sections(view: RecordView, key: str, points: int) -> str:
    """All sections; what was not measured has none (`key` makes ids unique, `points` is the most dots of a plane)."""
    pair = section(
        "deviations",
        key,
        "Off the line",
        chart(f"{key}-deviations", deviations_figure(view)),
        deviations_caption(view),
    ) + section("gains", key, "Who does the work", chart(f"{key}-gains", gains_figure(view)), gains_caption(view))
    parts = [
        section("verdict", key, "", verdict_html(view)),
        section(
            "law",
            key,
            "Prediction residual along depth",
            residual_cards(view) + chart(f"{key}-law", residual_figure(view)),
            residual_caption(view),
        ),
        f'<div class="pair">{pair}</div>',
        section("table", key, "Block by block", layers_html(view)),
        *_others(view, key),
    ]
    if plane_positions(view):
        parts.append(section("plane", key, "Words in the plane", planes_html(view, points), planes_note(view, points)))
    return "\n".join([*parts, section("method", key, "How it was measured", method_html(view))])


def _others(view: RecordView, key: str) -> list[str]:
    """Other targets and the separation, two in a row."""
    found = []
    if codes(view):
        found.append(
            section(
                "codes", key, "Other codes of the next token", chart(f"{key}-codes", codes_figure(view)),
                "The residual of each target over its value at the first block: only the shapes compare.",
            )
        )  # fmt: skip
    if other_tokens(view):
        found.append(
            section(
                "tokens", key, "Other tokens", chart(f"{key}-tokens", other_tokens_figure(view)),
                "The residual of the ids of tokens around: what a block keeps of the past and knows of the future.",
            )
        )  # fmt: skip
    if view.has("separation"):
        found.append(
            section(
                "separation", key, "Separation of frequent tokens", chart(f"{key}-separation", separation_figure(view)),
                "Fuzziness D with the most frequent predicted tokens as classes. Lower is better separated.",
            )
        )  # fmt: skip
    rows = [found[i : i + 2] for i in range(0, len(found), 2)]
    return [f'<div class="pair">{"".join(row)}</div>' if len(row) == 2 else row[0] for row in rows]
