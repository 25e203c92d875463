"""The ledger of reproductions as Markdown: one row per figure, then every number, table and note of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from layerlaw.errors import InputError
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages.outcome_words import (
    figure_label,
    heading,
    paper_text,
    provenance_items,
    quick_words,
    verdict_line,
    written,
    written_row,
)
from layerlaw.wording import ABSENT, clean, counted, sentence

SUMMARY = ("figure", "what", "paper", "ours", "reproduced", "command", "device", "wall time")
_SPECIAL = re.compile(r"([\\`*|$~]|\](?=[(\[:])|(?<!\w)_|_(?!\w)|^[#>+-](?=\s))")  # "[0.1, 0.2]" is no link, and stays
_ENTITY = re.compile(r"&(?=#?\w+;)")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def ledger(outcomes: Sequence[Outcome], *, intro: str = "") -> str:
    """Markdown of all outcomes, for docs/reproduction.md; `intro` is Markdown and goes in as it is.

    >>> text = ledger([Outcome("fig1", "The law", (Row("r, Adam", -0.997, -0.99812, reproduced=True),), ())])
    >>> [line for line in text.splitlines() if line.startswith("| r")]
    ['| r, Adam | −0.997 | −0.9981 | ✓ |']
    """
    outcomes = list(outcomes)
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise InputError(f"ledger: expected a list of outcomes, got {type(outcome).__name__} in it.")
    verdict = verdict_line(outcomes)
    total = f"In all, {verdict}, in {counted(len(outcomes), 'figure')}." if verdict else ""
    blocks = [intro.strip(), _summary(outcomes) if outcomes else "Nothing has been run yet.", total]
    return "\n\n".join(block for block in [*blocks, *map(_section, outcomes)] if block) + "\n"


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        known = dict(provenance_items(outcome))
        row, count = _telling(outcome.rows), outcome.reproduced
        paper = ABSENT if row is None else f"{_text(paper_text(row.paper, row.name))} ({_text(written_row(row).name)})"
        quick = ", quick run" if outcome.provenance.get("quick") else ""
        rows.append(
            [
                _text(figure_label(outcome.name)),
                f"[{_text(sentence(outcome.title))}](#{_anchor(outcome)})",
                paper,
                ABSENT if row is None else _text(_ours(row)),
                (f"{count.reproduced} of {count.judged}" if count.judged else ABSENT) + quick,
                _code(known.get("command", "")),
                _text(known.get("device", ABSENT)),
                _text(known.get("wall time", ABSENT)),
            ]
        )
    return _table(SUMMARY, rows)


def _section(outcome: Outcome) -> str:
    line, quick = verdict_line([outcome]), quick_words(outcome)
    parts = [f'<a id="{_anchor(outcome)}"></a>\n\n## {_text(heading(outcome))}']
    parts += [f"{line[:1].upper()}{line[1:]}."] if line else []
    parts += [f"**{quick}**"] if quick else []
    if outcome.rows:
        parts.append(_numbers(outcome.rows))
    parts += map(_folded, outcome.tables)
    if outcome.notes:
        parts.append("\n".join(f"- {_text(sentence(note))}" for note in outcome.notes))
    items = provenance_items(outcome)
    if items:
        run = [_code(words) if what == "command" else f"{_text(what)}: {_text(words)}" for what, words in items]
        parts.append(" · ".join(run))
    return "\n\n".join(parts)


def _numbers(rows: Sequence[Row]) -> str:
    bounds = any(row.tolerance for row in rows)
    ranged = any(written_row(row).range for row in rows)
    heads = ["", "paper", "ours (mean, range over seeds)" if ranged else "ours", "reproduced"]
    body = []
    for row in rows:
        text = written_row(row)
        why = f" ({_text(text.reason)})" if text.reason and row.ours is not None else ""
        cells = [_text(text.name) + why, _text(text.paper), _text(_ours(row))]
        body.append([*cells, text.mark, *([_text(text.tolerance)] if bounds else [])])
    return _table([*heads, *(["accepted"] if bounds else [])], body)


def _ours(row: Row) -> str:
    """The mean with its range, or why there is none."""
    text = written_row(row)
    return f"{text.ours} ({text.reason})" if row.ours is None else text.ours_and_range


def _telling(rows: Sequence[Row]) -> Row | None:
    """The row that stands for a figure: the first with both numbers, or the first the paper has, or the first."""
    full = [row for row in rows if row.paper is not None and row.ours is not None]
    return next(iter([*full, *(row for row in rows if row.paper is not None), *rows]), None)


def _folded(table: Table) -> str:
    body = [[_text(written(v, c)) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
    title = _text(sentence(table.title))
    note = f"{_text(sentence(table.note))}\n\n" if table.note else ""
    return (
        f"<details><summary>{title} ({counted(len(table.rows), 'row')})</summary>\n\n"
        f"{_table([_text(column) for column in table.columns], body)}\n\n{note}</details>"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _anchor(outcome: Outcome) -> str:
    return re.sub(r"[^a-z0-9]+", "-", outcome.name.lower()).strip("-") or "figure"


def _text(text: str) -> str:
    """Words in which nothing is Markdown, HTML or the end of a cell."""
    text = _TAG.sub("&lt;", _ENTITY.sub("&amp;", clean(text)))
    return _SPECIAL.sub(r"\\\1", text)


def _code(text: str) -> str:
    """A command as code; a pipe would end the cell even there."""
    text = clean(text)
    if not text:
        return ABSENT
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text.replace('|', chr(92) + '|')}{pad}{fence}"
