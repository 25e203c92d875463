"""The shell of every HTML page and the pieces it is put together from; one style sheet (page.css), one script (page.js).

A page is one self-contained file: every byte it needs is in it, and its content security policy forbids it to request more.
The policy names the scripts by their hashes: no other script runs, whatever a record is called.

Text is escaped by default: what goes into a page goes through `fill` (of layerlaw.notebook), which takes a template of ours
and escapes every value that is not itself the work of `fill`. `document` writes nothing else, and refuses tags that no page
of ours has.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, TypeVar
from xml.etree import ElementTree

from layerlaw.errors import InputError
from layerlaw.notebook import Markup as Markup
from layerlaw.notebook import fill as fill
from layerlaw.notebook import safe
from layerlaw.pages import theme
from layerlaw.wording import sentence, shortened

One = TypeVar("One")
CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-src 'none'; object-src 'none'"
STATIC = "style-src 'unsafe-inline'; img-src data:"  # the policy of a page without scripts
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
TAGS = {  # of HTML, then of SVG; no meta, form, frame or object, which could lead elsewhere
    "a", "article", "b", "br", "button", "canvas", "code", "dd", "details", "div", "dl", "dt", "figcaption", "figure",
    "h1", "h2", "h3", "header", "i", "input", "li", "main", "nav", "noscript", "ol", "output", "p", "script", "section",
    "span", "sub", "summary", "sup", "table",
    "tbody", "td", "th", "thead", "tr", "ul",
    "circle", "clippath", "defs", "desc", "g", "image", "path", "rect", "svg", "text", "title", "tspan", "use",
}  # fmt: skip
AWAY = (
    "action",
    "formaction",
    "http-equiv",
    "ping",
    "srcdoc",
    "srcset",
    "target",
)  # attributes that no page of ours has
HERE = ("#", "data:image/png;")  # what a reference may begin with
_TAG = re.compile(r"<\s*/?\s*([^\s/>]*)([^>]*)")
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*("[^"]*"|'[^']*'|[^\s>]*)""")
_PLOTLY_TAG = re.compile(r"<(?!/?(?:b|br|sub|sup|extra)>)")
_SYMBOL = re.compile(r"\bD_(reg|lin|perm|k)\b")
_INDEX = re.compile(r"&lt;(/?su[bp])&gt;")


def listed(given: One | Iterable[One], of: type[One], caller: str) -> list[One]:
    """One thing, or several, as a list of at least one; anything else is answered."""
    try:
        out = list(given) if isinstance(given, Iterable) else [given]
    except TypeError:  # an array without sides
        out = [given]
    for one in out:
        if not isinstance(one, of):
            raise InputError(f"{caller}: expected one {of.__name__} or a list of them, got {type(one).__name__}.")
    if not out:
        raise InputError(f"{caller}: expected at least one {of.__name__.lower()}, got an empty list.")
    return out


def symbols(text: str) -> Markup:
    """Words in which a symbol has its index below it; in HTML, in no attribute.

    >>> symbols("final D_reg < 1")
    'final D<sub>reg</sub> &lt; 1'
    """
    return Markup(_indexed(safe(text)))


def _indexed(text: str) -> str:
    return _SYMBOL.sub(r"D<sub>\1</sub>", text)


def formula(text: str) -> Markup:
    """A formula of ours: text in which <sub> and <sup>, and nothing else, are HTML."""
    return Markup(_INDEX.sub(r"<\1>", safe(text)))


def for_plotly(text: str, longest: int = 80) -> str:
    """A name for Plotly, which reads a little HTML in labels and knows &lt; &gt; &amp; but not &quot;, and %{…} on hover."""
    return html.escape(shortened(text, longest), quote=False).replace("%{", "%\u200b{")


def plotly_symbols(text: str) -> str:
    """A label of ours for Plotly, symbols with their indices."""
    return _indexed(text)


def document(
    heading: str,
    subtitle: str,
    main: Markup,
    *,
    data: Iterable[Markup] = (),
    scripts: Iterable[str] = (),
    style: str = "",
) -> str:
    """A whole page; `data` are elements that the scripts read, `style` comes behind the style sheet of all pages."""
    scripts = list(scripts)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = f"script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    body = fill(
        """<header>
<h1>{}</h1>
<p class="subtitle">{}</p>
</header>
<main>
{}
</main>
{}""",
        heading, subtitle, main, data,
    )  # fmt: skip
    check_tags(body)
    return fill(
        """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{}; {}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="layerlaw">
<link rel="icon" href="data:,">
<title>{}</title>
<style>{}{}</style>
</head>
<body>
{}{}</body>
</html>
""",
        Markup(CLOSED), Markup(policy if scripts else STATIC), heading, Markup(theme.variables()),
        Markup(source("page.css") + style), body, [fill("<script>{}</script>\n", Markup(script)) for script in scripts],
    )  # fmt: skip


def check_tags(body: str) -> None:
    """The last wall: raise where a tag or attribute stands that no page of ours has, or that leads to another page."""
    for name, attributes in _TAG.findall(body):
        given = [(key.lower().rpartition(":")[2], value.strip("\"'")) for key, value in _ATTRIBUTE.findall(attributes)]
        away = any(key.startswith("on") or key in AWAY for key, _ in given)
        away |= any(key in ("href", "src") and not value.startswith(HERE) for key, value in given)
        if away or name.lower() not in TAGS:
            raise InputError(f"page: expected no element that leads elsewhere, got <{name}{attributes[:80]}>.")


def source(name: str) -> str:
    """A file of this folder: the style sheet or the script."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def section(panel: str, key: str, heading: str, body: Markup, caption: str = "") -> Markup:
    """A section; `key` makes its id unique on the page, `caption` stands below the heading."""
    head = fill("<h2>{}</h2>", heading) if heading else ""
    note = fill('<p class="caption">{}</p>', symbols(caption)) if caption else ""
    return fill('<section id="{}-{}-panel" data-panel="{}">{}{}{}</section>', key, panel, panel, head, note, body)


def empty(words: str) -> Markup:
    """What stands where something could not be shown."""
    return fill('<p class="empty">{}</p>', symbols(words))


def chart(key: str, figure: Any) -> Markup:
    """A Plotly figure as an empty box and its JSON, drawn by page.js; or the sentence that stands in its place."""
    if isinstance(figure, str):
        return empty(figure)
    box = fill('<div class="chart" id="{}" style="height:{}px"></div>', key, int(figure.layout.height))
    shown = json.dumps(_labels(json.loads(figure.to_json())), ensure_ascii=False, separators=(",", ":"))
    return fill('{}<script type="application/json" data-figure="{}">{}</script>', box, key, inert(shown))


def _labels(figure: Any) -> Any:
    """A figure in whose labels Plotly finds no link and no style: it knows <a> and <span>, and reads every text for them."""
    if isinstance(figure, str):
        return _PLOTLY_TAG.sub("&lt;", figure)
    if isinstance(figure, dict):
        return {name: _labels(value) for name, value in figure.items()}
    return [_labels(value) for value in figure] if isinstance(figure, list) else figure


def inert(text: str) -> Markup:
    """JSON in which no tag, no comment and no end of a script can stand."""
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e"))


def svg(root: ElementTree.Element) -> Markup:
    """A drawing as an element of the page. Registered names keep prefixes short: HTML knows `xlink:href`, not `ns1:href`."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def table(label: str, heads: Iterable[Markup], rows: Iterable[object], *, kind: str = "", tall: bool = False) -> Markup:
    """A table in a box that scrolls where the page is too narrow; a row is its cells, or a whole <tr>."""
    lines = [row if isinstance(row, Markup) and row.startswith("<tr") else fill("<tr>{}</tr>", row) for row in rows]
    return fill(
        '<div class="{}" tabindex="0" role="region" aria-label="{}">'
        '<table class="{}"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>',
        "scroll tall" if tall else "scroll", label, f"layers {kind}".rstrip(), heads, lines,
    )  # fmt: skip


def cards(items: Iterable[tuple[str, str, str]]) -> Markup:
    """A strip of numbers: (what, number, in other words, which may have several lines)."""
    inner = [
        fill("<div><dt>{}</dt><dd>{}</dd><dd class='tail'>{}</dd></div>", symbols(what), value, _broken(tail))
        for what, value, tail in items
    ]
    return fill('<dl class="cards">{}</dl>', inner) if inner else fill("")


def _broken(text: str) -> list[Markup]:
    first, *others = text.split("\n")
    return [symbols(first), *(fill("<br>{}", symbols(line)) for line in others)]


def settings(items: Iterable[tuple[str, str]]) -> Markup:
    """What was set to what; a command is code."""
    rows = [
        fill("<dt>{}</dt><dd>{}</dd>", what, fill("<code>{}</code>", words) if what == "command" else words)
        for what, words in items
    ]
    return fill('<dl class="settings">{}</dl>', rows)


def definitions(formulas: Iterable[tuple[str, str, str]], citations: Iterable[str]) -> Markup:
    """What each symbol is, and who said so."""
    rows = [
        fill("<dt>{}</dt><dd><span class='formula'>{}</span>{}</dd>", what, formula(how), formula(why))
        for what, how, why in formulas
    ]
    papers = [fill("<li>{}</li>", line) for line in citations]
    return fill("<dl class='formulas'>{}</dl><h3>Sources</h3><ul class='papers'>{}</ul>", rows, papers)


def sentences(lines: Iterable[str], kind: str) -> Markup:
    """A list of sentences."""
    items = [fill("<li>{}</li>", unbroken(line)) for line in lines]
    return fill('<ul class="{}">{}</ul>', kind, items) if items else fill("")


def paragraph(*lines: str | bool) -> str:
    """The sentences one after the other; what is `False` is left out."""
    return " ".join(line for line in lines if isinstance(line, str))


def unbroken(text: str) -> Markup:
    """A sentence in which no line ends at an equals sign."""
    return Markup(symbols(sentence(text)).replace(" = ", "&nbsp;=&nbsp;"))
