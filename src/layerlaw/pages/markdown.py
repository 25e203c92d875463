"""The ledger of reproductions as Markdown: an index with a line per figure, and a page with every number of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from layerlaw.errors import InputError
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import outcome_words as said
from layerlaw.wording import ABSENT, clean, counted, sentence

INDEX = ("figure", "what", "numbers", "directions", "other model", "remarks", "self-checks", "not counted", "run")
_SPECIAL = re.compile(r"([\\`*|$~]|\](?=[(\[:])|(?<!\w)_|_(?!\w)|^[#>+-](?=\s))")  # "[0.1, 0.2]" is no link, and stays
_ENTITY = re.compile(r"&(?=#?\w+;)")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def ledger_index(outcomes: Sequence[Outcome], *, folder: str = "") -> str:
    """A Markdown table with a line per figure: what it shows, how much came out, where; then the sum.

    `folder` is where the pages of the figures are (NAME.md), seen from the index.

    >>> rows = (Row("r, Adam", -0.997, -0.99812, reproduced=True), Row("D", "falls", 1.0, reproduced=False))
    >>> print(ledger_index([Outcome("fig1", "The law", rows, ())], folder="figures"))
    | figure | what | numbers | directions | other model | remarks | self-checks | not counted | run |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | [Fig. 1](figures/fig1.md) | The law | 1 of 1 | 0 of 1 | – | – | – | – | – |
    <BLANKLINE>
    In all, 1 of 1 number and 0 of 1 direction reproduced, in 1 figure.
    """
    lines = []
    for outcome in outcomes:
        if not isinstance(outcome, Outcome):
            raise InputError(f"ledger_index: expected a list of outcomes, got {type(outcome).__name__} in it.")
        known = dict(said.provenance_items(outcome))
        judged = said.by_kind(outcome.rows)
        shares = [_share(judged.get(kind, [])) for kind in said.KINDS]
        easy = sum(row.reproduced is not None and not row.counted for row in outcome.rows)
        how = [known[what] for what in ("device", "wall time") if what in known]
        how += ["quick run"] if outcome.provenance.get("quick") else []
        place = "/".join(filter(None, (folder, f"{_file(outcome)}.md")))
        link = f"[{_text(said.figure_label(outcome.name))}]({place})"
        words = _text(sentence(outcome.title)), *shares, str(easy) if easy else ABSENT, _text(", ".join(how)) or ABSENT
        lines.append([link, *words])
    if not lines:
        return "Nothing has been run yet."
    verdict = said.verdict_line(outcomes)
    total = f"\n\nIn all, {verdict}, in {counted(len(outcomes), 'figure')}." if verdict else ""
    return markdown_table(INDEX, lines) + total


def ledger_page(outcome: Outcome, *, intro: str = "", tried: Mapping[str, str] | None = None, picture: str = "") -> str:
    """A figure as Markdown: what did not come out and what was tried, what is compared with the paper, all else folded.

    `intro` is Markdown and goes in as it is; `tried` are words for the names of rows; `picture` is a file beside it. Where
    nothing is compared with a paper the first table is the result, and stands open.
    """
    line, quick = said.verdict_line([outcome]), said.quick_words(outcome)
    parts = [f"# {_text(said.heading(outcome))}"]
    parts += [f"{line[:1].upper()}{line[1:]}."] if line else []
    parts += [f"**{quick}**"] if quick else []
    parts += [f"![{_text(said.figure_label(outcome.name))}]({picture})"] if picture else []
    parts += [_text(outcome.sheets[0].caption)] if picture and outcome.sheets else []
    parts += [intro.strip(), _misses(outcome.rows, tried or {})]
    rows, further, tables = said.standing_open(outcome)
    parts += [_numbers(rows)] if rows else []
    parts += map(_table, outcome.tables[:tables])
    parts += [_folded(table.title, len(table.rows), _tabled(table)) for table in outcome.tables[tables:]]
    parts += [_folded("Every number", len(outcome.rows), _numbers(outcome.rows))] if further else []
    parts.append("\n".join(f"- {_text(sentence(note))}" for note in outcome.notes))
    items = said.provenance_items(outcome)
    parts.append(" · ".join(_code(w) if what == "command" else f"{_text(what)}: {_text(w)}" for what, w in items))
    return "\n\n".join(part for part in parts if part) + "\n"


def _misses(rows: Sequence[Row], tried: Mapping[str, str]) -> str:
    lines = []
    for row in rows:
        if row.reproduced is False and row.counted:
            text = said.written_row(row)
            ours = "none" if row.ours is None else text.ours
            beside = f"paper {_text(text.paper)}, ours {_text(ours)} (accepted {_text(text.tolerance)})"
            lines.append(f"- **{_text(text.name)}**: {beside}. {tried.get(row.name, '')}".rstrip())
    return "\n".join(["What did not come out:", "", *lines]) if lines else ""


def _share(rows: Sequence[Row]) -> str:
    return f"{sum(bool(row.reproduced) for row in rows)} of {len(rows)}" if rows else ABSENT


def _numbers(rows: Sequence[Row]) -> str:
    """Every row; beside its mean the range, or why there is none."""
    texts = [said.written_row(row) for row in rows]
    bounds = any(row.tolerance for row in rows)
    ours = "ours (mean, range over seeds)" if any(text.range for text in texts) else "ours"
    heads, body = ["", "paper", ours, "reproduced"], []
    for row, text in zip(rows, texts, strict=True):
        name, ours = text.name, text.ours_and_range
        if row.ours is None:
            ours = f"{text.ours} ({text.reason})"
        elif text.reason:
            name += f" ({text.reason})"
        cells = [_text(name), _text(text.paper), _text(ours), text.mark]
        body.append([*cells, *[_text(text.tolerance), text.kind, text.chance] * bounds])
    return markdown_table([*heads, *["accepted", "kind", "by chance"] * bounds], body)


def _table(table: Table) -> str:
    return f"**{_text(sentence(table.title))}**\n\n{_tabled(table)}"


def _tabled(table: Table) -> str:
    body = [[_text(said.written(v, c)) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
    text = markdown_table(list(map(_text, table.columns)), body)
    return f"{text}\n\n{_text(sentence(table.note))}" if table.note else text


def _folded(title: str, rows: int, text: str) -> str:
    summary = f"<summary>{_text(sentence(title))} ({counted(rows, 'row')})</summary>"
    return f"<details>{summary}\n\n{text}\n\n</details>"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as they are, which must be Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _file(outcome: Outcome) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", outcome.name.lower()).strip("-") or "figure"


def _text(text: str) -> str:
    """Words in which nothing is Markdown, HTML or the end of a cell."""
    text = _TAG.sub("&lt;", _ENTITY.sub("&amp;", clean(text)))
    return _SPECIAL.sub(r"\\\1", text)


def _code(text: str) -> str:
    """A command as code, between more backticks than it has in a row; a pipe would end the cell even there."""
    text = clean(text).replace("|", r"\|")
    if not text:
        return ABSENT
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"
