"""The shell of every HTML page and the pieces it is put together from; one style sheet (page.css), one script (page.js).

A page is one self-contained file: every byte it needs is in it, and its content security policy forbids it to request more.
The policy names the scripts by their hashes: no other script runs, whatever a record is called.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, TypeVar

from layerlaw.errors import InputError
from layerlaw.pages import theme
from layerlaw.wording import clean, sentence, shortened

One = TypeVar("One")
STATIC = "style-src 'unsafe-inline'; img-src data:"  # the policy of a page without scripts


def listed(given: One | Iterable[One], of: type[One], caller: str) -> list[One]:
    """One thing, or several, as a list of at least one; anything else is answered."""
    out = list(given) if isinstance(given, Iterable) else [given]
    for one in out:
        if not isinstance(one, of):
            raise InputError(f"{caller}: expected one {of.__name__} or a list of them, got {type(one).__name__}.")
    if not out:
        raise InputError(f"{caller}: expected at least one {of.__name__.lower()}, got an empty list.")
    return out


def escaped(text: str) -> str:
    """A name or sentence for HTML text and attributes."""
    return html.escape(clean(text))


def symbols(text: str) -> str:
    """Words in which a symbol has its index below it; in HTML and in Plotly's labels, in no attribute.

    >>> symbols("final D_reg")
    'final D<sub>reg</sub>'
    """
    return re.sub(r"\bD_(reg|lin)\b", r"D<sub>\1</sub>", text)


def for_plotly(text: str, longest: int = 80) -> str:
    """A name for Plotly, which reads a little HTML in labels and knows &lt; &gt; &amp; but not &quot;."""
    return html.escape(shortened(text, longest), quote=False)


def document(heading: str, subtitle: str, main: str, *, data: str = "", scripts: Iterable[str] = ()) -> str:
    """A whole page; `subtitle` and `main` are HTML, `data` are elements that the scripts read."""
    scripts = list(scripts)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = f"script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    run = "".join(f"<script>{script}</script>\n" for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {policy if scripts else STATIC}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="layerlaw">
<link rel="icon" href="data:,">
<title>{escaped(heading)}</title>
<style>{theme.variables()}{source("page.css")}</style>
</head>
<body>
<header>
<h1>{escaped(heading)}</h1>
<p class="subtitle">{subtitle}</p>
</header>
<main>
{main}
</main>
{data}{run}</body>
</html>
"""


def source(name: str) -> str:
    """A file of this folder: the style sheet or the script."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def section(panel: str, key: str, heading: str, body: str, caption: str = "") -> str:
    """A section; `key` makes its id unique on the page, `caption` stands below the heading."""
    head = f"<h2>{heading}</h2>" if heading else ""
    note = f'<p class="caption">{symbols(caption)}</p>' if caption else ""
    return f'<section id="{key}-{panel}-panel" data-panel="{panel}">{head}{note}{body}</section>'


def empty(words: str) -> str:
    """What stands where something could not be shown."""
    return f'<p class="empty">{symbols(escaped(words))}</p>'


def chart(key: str, figure: Any) -> str:
    """A Plotly figure as an empty box and its JSON, drawn by page.js; or the sentence that stands in its place."""
    if isinstance(figure, str):
        return empty(figure)
    box = f'<div class="chart" id="{key}" style="height:{int(figure.layout.height)}px"></div>'
    return f'{box}<script type="application/json" data-figure="{key}">{inert(figure.to_json())}</script>'


def inert(text: str) -> str:
    """JSON in which no tag, no comment and no end of a script can stand."""
    return text.replace("<", "\\u003c")


def table(label: str, heads: str, rows: Iterable[str], *, kind: str = "", tall: bool = False) -> str:
    """A table in a box that scrolls where the page is too narrow; heads and rows are cells of HTML."""
    body = "".join(row if row.startswith("<tr") else f"<tr>{row}</tr>" for row in rows)
    inner = f'<table class="layers{kind and f" {kind}"}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    size = "scroll tall" if tall else "scroll"
    return f'<div class="{size}" tabindex="0" role="region" aria-label="{escaped(label)}">{inner}</div>'


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """A strip of numbers: (what, number, in other words)."""
    inner = "".join(
        f"<div><dt>{symbols(what)}</dt><dd>{escaped(value)}</dd><dd class='tail'>{symbols(tail)}</dd></div>"
        for what, value, tail in items
    )
    return f'<dl class="cards">{inner}</dl>' if inner else ""


def settings(items: Iterable[tuple[str, str]]) -> str:
    """What was set to what; a command is code."""
    written = ((what, escaped(words)) for what, words in items)
    shown = ((what, f"<code>{words}</code>" if what == "command" else words) for what, words in written)
    rows = "".join(f"<dt>{escaped(what)}</dt><dd>{words}</dd>" for what, words in shown)
    return f'<dl class="settings">{rows}</dl>'


def definitions(formulas: Iterable[tuple[str, str, str]], citations: Iterable[str]) -> str:
    """What each symbol is, and who said so."""
    rows = "".join(f"<dt>{what}</dt><dd><span class='formula'>{how}</span>{why}</dd>" for what, how, why in formulas)
    papers = "".join(f"<li>{escaped(line)}</li>" for line in citations)
    return f"<dl class='formulas'>{rows}</dl><h3>Sources</h3><ul class='papers'>{papers}</ul>"


def sentences(lines: Iterable[str], kind: str) -> str:
    """A list of sentences."""
    items = "".join(f"<li>{unbroken(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def paragraph(*lines: str | bool) -> str:
    """The sentences one after the other; what is `False` is left out."""
    return " ".join(line for line in lines if isinstance(line, str))


def unbroken(text: str) -> str:
    """A sentence in which no line ends at an equals sign."""
    return symbols(escaped(sentence(text)).replace(" = ", "&nbsp;=&nbsp;"))
