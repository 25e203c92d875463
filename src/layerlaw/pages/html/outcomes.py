"""The page of reproduced figures: numbers beside the paper's, drawings, how it was run; and the page of a finding.

It holds no script, and its policy allows none: drawings are inline SVG, what is folded unfolds without one.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from layerlaw.errors import InputError
from layerlaw.files import as_path, made_folder, sha256, write_whole
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import outcome_words as said
from layerlaw.pages import theme
from layerlaw.pages.html import SVG, XLINK, Markup, check_tags, document, fill, listed, sentences, settings, svg, table
from layerlaw.pages.sheets import curves, draw_sheet
from layerlaw.sheet import Panel, Sheet
from layerlaw.wording import clean, counted, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {True: ("yes", "✓ yes"), False: ("no", "✗ no"), None: ("none", "–")}  # class and text of a verdict
MANY_ROWS = 30
LARGEST = 1.7  # pixels of the screen per point of the paper, at most
SMALLEST = 1.1  # on a narrow screen a wide figure is scrolled, not shrunk beyond reading
NARROW = 420  # points; such a figure fits a telephone
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def outcome_page(
    outcomes: Outcome | Sequence[Outcome],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    drawings: str | os.PathLike[str] | None = None,
) -> Path:
    """Write one self-contained page about an outcome, or about several with a table of contents.

    `drawings` is a folder in which drawings are kept, so that pages draw each sheet once.
    """
    return write_whole(path, outcome_html(outcomes, title=title, drawings=drawings))


def outcome_html(
    outcomes: Outcome | Sequence[Outcome],
    *,
    title: str | None = None,
    drawings: str | os.PathLike[str] | None = None,
) -> str:
    """The page as text."""
    kept = None if drawings is None else made_folder(as_path(drawings, "drawings"))
    chosen = listed(outcomes, Outcome, "outcome_page")
    alone = len(chosen) == 1
    head = clean(title or "") or (said.heading(chosen[0]) if alone else "Reproduced figures")
    count = [line for line in (said.verdict_line(chosen), f"in {counted(len(chosen), 'figure')}") if line]
    facts = said.run_facts(chosen[0]) if alone else ", ".join(count)
    items = [
        fill(
            '<li><a href="#o{}">{}</a><span>{}{}</span></li>',
            i, said.heading(outcome), said.verdict_line([outcome]), ", quick run" * bool(said.quick_words(outcome)),
        )
        for i, outcome in enumerate(chosen)
    ]  # fmt: skip
    contents = fill('<section data-panel="contents"><nav aria-label="figures"><ol>{}</ol></nav></section>\n', items)
    articles = [fill("{}\n", _article(outcome, f"o{i}", alone=alone, kept=kept)) for i, outcome in enumerate(chosen)]
    return document(head, facts, fill("{}{}", "" if alone else contents, articles))


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
        ("verdict", "", fill('<p class="headline">{}</p>{}', first, sentences(others, "notes plain"))),
        *(("sheet", sheet.title, _drawing(sheet, f"s{i}")) for i, sheet in enumerate(sheets)),
        *(("tables", one.title, _table_of(one)) for one in tables),
        ("notes", "Notes", sentences(notes, "notes plain")),
        ("provenance", "How it was run", settings(about) if about else fill("")),
    ]
    return write_whole(path, document(title, "", fill("{}", [_section(*part) for part in parts if part[-1]])))


def _article(outcome: Outcome, key: str, *, alone: bool, kept: Path | None) -> Markup:
    """Everything about one outcome; `key` makes ids unique on the page."""
    label = said.heading(outcome)
    notes = [fill("<li>{}</li>", sentence(note)) for note in outcome.notes]
    opened = said.standing_open(outcome)[-1]
    sections = [
        ("verdict", "", _verdict(outcome)),
        *(("result", one.title, _table_of(one)) for one in outcome.tables[:opened]),
        *(("sheet", sheet.title, _drawing(sheet, f"{key}s{i}", kept)) for i, sheet in enumerate(outcome.sheets)),
        ("numbers", "Numbers", _numbers(outcome)),
        ("tables", "Supporting tables", fill("{}", map(_folded, outcome.tables[opened:]))),
        ("notes", "Notes", fill('<ul class="notes plain">{}</ul>', notes) if notes else fill("")),
        ("provenance", "How it was run", settings(said.provenance_items(outcome)) if outcome.provenance else fill("")),
    ]
    parts = [_section(*parts) for parts in sections if parts[-1]]
    head = "" if alone else fill("<h2>{}</h2>", label)
    return fill('<article id="{}" aria-label="{}">{}{}</article>', key, label, head, parts)


def _verdict(outcome: Outcome) -> Markup:
    line, own = said.verdict_line([outcome]), sum(row.paper is None for row in outcome.rows)
    lines = {
        "headline": f"{line[:1].upper()}{line[1:]}." if line else "",
        "facts": f"{counted(own, 'number')} of ours without one in the paper" if own else "",
        "facts quick": said.quick_words(outcome),
    }
    return fill("{}", [fill('<p class="{}">{}</p>', kind, words) for kind, words in lines.items() if words])


def _numbers(outcome: Outcome) -> Markup:
    """What the paper has stands open; our further numbers are folded."""
    beside, further, _ = said.standing_open(outcome)
    more = f"{counted(len(further), 'more number' if beside else 'number')} of ours"
    parts = [_number_table(beside)] if beside else []
    if further:
        parts += [fill('<details class="table more"><summary>{}</summary>{}</details>', more, _number_table(further))]
    return fill("{}", parts)


def _number_table(rows: Sequence[Row]) -> Markup:
    """Paper, ours, reproduced? What was accepted comes last: on a telephone the verdict should be seen first."""
    texts = [said.written_row(row) for row in rows]
    ours = "ours (mean, range over seeds)" if any(text.range for text in texts) else "ours"
    heads = {"what": "site"} | ({"paper": "paper"} if any(row.paper is not None for row in rows) else {})
    heads |= {ours: "value"} | ({"reproduced?": "verdict"} if any(row.reproduced is not None for row in rows) else {})
    heads |= {"accepted": "tolerance"} if any(text.tolerance for text in texts) else {}
    lines = []
    for row, text in zip(rows, texts, strict=True):
        reason = fill('<span class="reason">{}</span>', text.reason) if text.reason else ""
        here, there = ("", reason) if row.ours is None else (reason, "")  # where a missing number would stand
        kind, word = WORDS[row.reproduced]
        word += "" if row.counted or row.reproduced is None else " (not counted)"
        accepted = "; ".join(filter(None, (text.tolerance, text.kind, text.chance and f"by chance {text.chance}")))
        span = fill(' <span class="range">{}</span>', text.range) if text.range else ""
        cells = {
            "site": fill('<th scope="row" class="site">{}{}</th>', text.name, here),
            "paper": fill('<td class="paper">{}</td>', text.paper),
            "value": fill('<td class="value"><span class="ours">{}</span>{}{}</td>', text.ours, span, there),
            "verdict": fill('<td class="verdict {}">{}</td>', kind, word),
            "tolerance": fill('<td class="tolerance">{}</td>', accepted),
        }
        lines.append([cells[column] for column in heads.values()])
    head = [fill('<th scope="col" class="{}">{}</th>', kind, words) for words, kind in heads.items()]
    return table("numbers beside the paper’s", head, lines, kind="beside")


def _drawing(sheet: Sheet, key: str, kept: Path | None = None) -> Markup:
    panels = [f"{p.title}: {p.note}" if isinstance(p, Panel) and p.note else p.title for p in sheet.panels]
    description, title = (
        f"{counted(len(panels), 'panel')}. {'; '.join(panels)}. {sheet.caption}",
        sheet.title or "figure",
    )
    drawn = inline_svg(_svg_of(sheet, kept), key, title=title, description=description)
    caption = fill("<figcaption>{}</figcaption>", sentence(sheet.caption)) if sheet.caption else ""
    return fill(
        '<figure class="sheet"><div class="drawing" tabindex="0" role="region" aria-label="{}">{}</div>{}</figure>',
        title, drawn, caption,
    )  # fmt: skip


def _svg_of(sheet: Sheet, kept: Path | None) -> ElementTree.Element:
    """A sheet as SVG; drawn, unless the folder holds what the present code has drawn of the same sheet."""
    if kept is None:
        return _as_svg(draw_sheet(sheet, heading=False))
    file = kept / f"{sha256([_drawing_code(), repr(sheet).encode()])[:16]}.svg"
    with suppress(OSError, UnicodeDecodeError, ElementTree.ParseError, InputError):  # none yet, or damaged
        text = file.read_text(encoding="utf-8")
        check_tags(text)
        return ElementTree.fromstring(text)
    drawn = _as_svg(draw_sheet(sheet, heading=False))
    write_whole(file, svg(drawn))
    return drawn


@cache
def _drawing_code() -> bytes:
    """What a drawing depends on beside its sheet."""
    import matplotlib

    files = [*sorted(Path(curves.__file__).parent.glob("*.py")), Path(theme.__file__)]
    return b"".join([matplotlib.__version__.encode(), *(file.read_bytes() for file in files)])


def _as_svg(figure: Figure) -> ElementTree.Element:
    """The figure without what speaks to the whole document: its style sheet, its metadata."""
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
    return root


def inline_svg(drawn: Figure | ElementTree.Element, key: str, *, title: str, description: str = "") -> Markup:
    """A figure, or the SVG that was made of it, as an `<svg>` element with a title and a description.

    Text stays text, so it can be found, copied and read aloud; every id begins with `key`, since those of a page must be
    unique.
    """
    root = drawn if isinstance(drawn, ElementTree.Element) else _as_svg(drawn)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{key}-{value}")
            elif name in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
                element.set(name, f"#{key}-{value[1:]}")
            else:
                element.set(name, _REFERENCE.sub(rf"url(#{key}-\1)", value))
    width = float(root.attrib["width"].removesuffix("pt"))
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
    return svg(root)


def _folded(folded: Table) -> Markup:
    """A supporting table, closed until somebody opens it."""
    return fill(
        '<details class="table"><summary>{}<span>{}</span></summary>{}</details>',
        sentence(folded.title), counted(len(folded.rows), "row"), _table_of(folded),
    )  # fmt: skip


def _table_of(folded: Table) -> Markup:
    """A table with its note; columns of numbers are set flush right."""
    words = [any(isinstance(row[i], str) for row in folded.rows) for i in range(len(folded.columns))]
    kinds = ["words" if w and i else "" if i else "site" for i, w in enumerate(words)]
    columns = list(zip(kinds, folded.columns, strict=True))
    heads = [fill('<th scope="col" class="{}">{}</th>', kind, column) for kind, column in columns]
    written = ([(kind, said.written(v, c)) for (kind, c), v in zip(columns, row, strict=True)] for row in folded.rows)
    rows = [[fill('<td class="{}">{}</td>', kind, text) for kind, text in row] for row in written]
    note = fill('<p class="note">{}</p>', sentence(folded.note)) if folded.note else ""
    return fill("{}{}", table(folded.title, heads, rows, tall=len(folded.rows) > MANY_ROWS), note)


def _section(panel: str, title: str, body: Markup) -> Markup:
    head = fill("<h3>{}</h3>", sentence(title)) if title else ""
    kind = "provenance" if panel == "provenance" else ""
    return fill('<section data-panel="{}" class="{}">{}{}</section>', panel, kind, head, body)
