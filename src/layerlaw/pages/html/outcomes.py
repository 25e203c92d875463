"""The page of reproduced figures: numbers beside the paper's, drawings, how it was run; and the page of a finding.

It holds no script, and its policy allows none: drawings are inline SVG, what is folded unfolds without one.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from layerlaw.files import write_whole
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import outcome_words as said
from layerlaw.pages.html import document, escaped, listed, sentences, settings, table
from layerlaw.pages.sheets import draw_sheet
from layerlaw.sheet import Panel, Sheet
from layerlaw.wording import clean, counted, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {True: ("yes", "✓ yes"), False: ("no", "✗ no"), None: ("none", "–")}  # class and text of a verdict
MANY_ROWS = 30
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
LARGEST = 1.7  # pixels of the screen per point of the paper, at most
SMALLEST = 1.1  # on a narrow screen a wide figure is scrolled, not shrunk beyond reading
NARROW = 420  # points; such a figure fits a telephone
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def outcome_page(
    outcomes: Outcome | Sequence[Outcome], path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write one self-contained page about an outcome, or about several with a table of contents."""
    return write_whole(path, outcome_html(outcomes, title=title))


def outcome_html(outcomes: Outcome | Sequence[Outcome], *, title: str | None = None) -> str:
    """The page as text."""
    chosen = listed(outcomes, Outcome, "outcome_page")
    alone = len(chosen) == 1
    head = clean(title or "") or (said.heading(chosen[0]) if alone else "Reproduced figures")
    count = [line for line in (said.verdict_line(chosen), f"in {counted(len(chosen), 'figure')}") if line]
    facts = said.run_facts(chosen[0]) if alone else ", ".join(count)
    items = "".join(
        f'<li><a href="#o{i}">{escaped(said.heading(outcome))}</a><span>{escaped(said.verdict_line([outcome]))}'
        f"{', quick run' if said.quick_words(outcome) else ''}</span></li>"
        for i, outcome in enumerate(chosen)
    )
    contents = f'<section data-panel="contents"><nav aria-label="figures"><ol>{items}</ol></nav></section>'
    main = "\n".join(_article(outcome, f"o{i}", alone=alone) for i, outcome in enumerate(chosen))
    return document(head, escaped(facts), f"{'' if alone else contents}\n{main}")


def finding_page(
    path: str | os.PathLike[str],
    title: str,
    lines: Sequence[str],
    *,
    sheets: Sequence[Sheet] = (),
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained page about an answer: its sentences, the first of them large, drawings, tables, caveats."""
    first, *others = lines
    about = [(name, str(value)) for name, value in (provenance or {}).items() if value is not None]
    parts = [
        ("verdict", "", f'<p class="headline">{escaped(first)}</p>{sentences(others, "notes plain")}'),
        *(("sheet", sheet.title, _drawing(sheet, f"s{i}")) for i, sheet in enumerate(sheets)),
        *(("tables", one.title, _table_of(one)) for one in tables),
        ("notes", "Notes", sentences(notes, "notes plain")),
        ("provenance", "How it was run", settings(about) if about else ""),
    ]
    return write_whole(path, document(title, "", "".join(_section(*part) for part in parts if part[-1])))


def _article(outcome: Outcome, key: str, *, alone: bool) -> str:
    """Everything about one outcome; `key` makes ids unique on the page."""
    label = escaped(said.heading(outcome))
    notes = "".join(f"<li>{escaped(sentence(note))}</li>" for note in outcome.notes)
    sections = [
        ("verdict", "", _verdict(outcome)),
        *(("sheet", sheet.title, _drawing(sheet, f"{key}s{i}")) for i, sheet in enumerate(outcome.sheets)),
        ("numbers", "Numbers", _numbers(outcome.rows)),
        ("tables", "Supporting tables", "".join(map(_folded, outcome.tables))),
        ("notes", "Notes", f'<ul class="notes plain">{notes}</ul>' if notes else ""),
        ("provenance", "How it was run", settings(said.provenance_items(outcome)) if outcome.provenance else ""),
    ]
    parts = "".join(_section(*parts) for parts in sections if parts[-1])
    return f'<article id="{key}" aria-label="{label}">{"" if alone else f"<h2>{label}</h2>"}{parts}</article>'


def _verdict(outcome: Outcome) -> str:
    line, own = said.verdict_line([outcome]), sum(row.paper is None for row in outcome.rows)
    lines = {
        "headline": f"{line[:1].upper()}{line[1:]}." if line else "",
        "facts": f"{counted(own, 'number')} of ours without one in the paper" if own else "",
        "facts quick": said.quick_words(outcome),
    }
    return "".join(f'<p class="{kind}">{escaped(words)}</p>' for kind, words in lines.items() if words)


def _numbers(rows: Sequence[Row]) -> str:
    """What the paper has stands open; our further numbers are folded."""
    beside = [row for row in rows if row.paper is not None or row.reproduced is not None]
    further = [row for row in rows if row not in beside]
    if not beside or not further:
        return _number_table(rows) if rows else ""
    more = f"<summary>{counted(len(further), 'more number')} of ours</summary>{_number_table(further)}"
    return f'{_number_table(beside)}<details class="table more">{more}</details>'


def _number_table(rows: Sequence[Row]) -> str:
    """Paper, ours, reproduced? What was accepted comes last: on a telephone the verdict should be seen first."""
    texts = [said.written_row(row) for row in rows]
    ours = "ours (mean, range over seeds)" if any(text.range for text in texts) else "ours"
    heads = {"what": "site"} | ({"paper": "paper"} if any(row.paper is not None for row in rows) else {})
    heads |= {ours: "value"} | ({"reproduced?": "verdict"} if any(row.reproduced is not None for row in rows) else {})
    heads |= {"accepted": "tolerance"} if any(text.tolerance for text in texts) else {}
    lines = []
    for row, text in zip(rows, texts, strict=True):
        reason = f'<span class="reason">{escaped(text.reason)}</span>' if text.reason else ""
        here, there = ("", reason) if row.ours is None else (reason, "")  # where a missing number would stand
        kind, word = WORDS[row.reproduced]
        word += "" if row.counted or row.reproduced is None else " (not counted)"
        accepted = "; ".join(filter(None, (text.tolerance, text.kind, text.chance and f"by chance {text.chance}")))
        span = f' <span class="range">{escaped(text.range)}</span>' if text.range else ""
        cells = {
            "site": f'<th scope="row" class="site">{escaped(text.name)}{here}</th>',
            "paper": f'<td class="paper">{escaped(text.paper)}</td>',
            "value": f'<td class="value"><span class="ours">{escaped(text.ours)}</span>{span}{there}</td>',
            "verdict": f'<td class="verdict {kind}">{word}</td>',
            "tolerance": f'<td class="tolerance">{escaped(accepted)}</td>',
        }
        lines.append("".join(cells[column] for column in heads.values()))
    head = "".join(f'<th scope="col" class="{kind}">{words}</th>' for words, kind in heads.items())
    return table("numbers beside the paper’s", head, lines, kind="beside")


def _drawing(sheet: Sheet, key: str) -> str:
    panels = [f"{p.title}: {p.note}" if isinstance(p, Panel) and p.note else p.title for p in sheet.panels]
    description, title = (
        f"{counted(len(panels), 'panel')}. {'; '.join(panels)}. {sheet.caption}",
        sheet.title or "figure",
    )
    svg = inline_svg(draw_sheet(sheet, heading=False), key, title=title, description=description)
    caption = f"<figcaption>{escaped(sentence(sheet.caption))}</figcaption>" if sheet.caption else ""
    scroll = f'<div class="drawing" tabindex="0" role="region" aria-label="{escaped(title)}">'
    return f'<figure class="sheet">{scroll}{svg}</div>{caption}</figure>'


def inline_svg(figure: Figure, key: str, *, title: str, description: str = "") -> str:
    """The figure as an `<svg>` element with a title and a description.

    Text stays text, so it can be found, copied and read aloud; every id begins with `key`, since those of a page must be
    unique; what speaks to the whole document (its style sheet, its metadata) is left out.
    """
    import matplotlib

    drawn = io.BytesIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "layerlaw"}
    ):  # text as text; the same ids again
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(drawn.getvalue())
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style")]:
            parent.remove(child)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{key}-{value}")
            elif name in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
                element.set(name, f"#{key}-{value[1:]}")
            else:
                element.set(name, _REFERENCE.sub(rf"url(#{key}-\1)", value))
    width = 72 * float(figure.get_size_inches()[0])
    least = 0 if width < NARROW else SMALLEST * width
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    words = {what: text for what, text in (("title", clean(title)), ("desc", clean(description))) if text}
    style = f"max-width:{LARGEST * width:.0f}px;min-width:{least:.0f}px"
    root.attrib |= {"role": "img", "aria-labelledby": " ".join(f"{key}-{what}" for what in words), "style": style}
    for i, (what, text) in enumerate(words.items()):
        element = ElementTree.Element(f"{{{SVG}}}{what}", {"id": f"{key}-{what}"})
        element.text = text
        root.insert(i, element)
    # Registered names keep the prefixes short: a parser of HTML knows `xlink:href`, not `ns1:href`.
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _folded(folded: Table) -> str:
    """A supporting table, closed until somebody opens it."""
    summary = f"{escaped(sentence(folded.title))}<span>{counted(len(folded.rows), 'row')}</span>"
    return f'<details class="table"><summary>{summary}</summary>{_table_of(folded)}</details>'


def _table_of(folded: Table) -> str:
    """A table with its note; columns of numbers are set flush right."""
    words = [any(isinstance(row[i], str) for row in folded.rows) for i in range(len(folded.columns))]
    kinds = [' class="site"' if i == 0 else ' class="words"' if w else "" for i, w in enumerate(words)]
    columns = list(zip(kinds, folded.columns, strict=True))
    heads = "".join(f'<th scope="col"{kind}>{escaped(column)}</th>' for kind, column in columns)
    written = ([(kind, said.written(v, c)) for (kind, c), v in zip(columns, row, strict=True)] for row in folded.rows)
    rows = ("".join(f"<td{kind}>{escaped(text)}</td>" for kind, text in row) for row in written)
    note = f'<p class="note">{escaped(sentence(folded.note))}</p>' if folded.note else ""
    return f"{table(folded.title, heads, rows, tall=len(folded.rows) > MANY_ROWS)}{note}"


def _section(panel: str, title: str, body: str) -> str:
    head = f"<h3>{escaped(sentence(title))}</h3>" if title else ""
    kind = ' class="provenance"' if panel == "provenance" else ""
    return f'<section data-panel="{panel}"{kind}>{head}{body}</section>'
