"""A matplotlib figure as SVG that can live inside an HTML page, beside others.

Text stays text, so it can be found, copied and read aloud; ids carry a key, since those of a page must be unique; what
speaks to the whole document (its style sheet, its metadata) is left out.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from layerlaw.wording import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
LARGEST = 1.7  # pixels of the screen per point of the paper, at most
SMALLEST = 1.1  # on a narrow screen a wide figure is scrolled, not shrunk beyond reading
NARROW = 420  # points; such a figure fits a telephone
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(figure: Figure, key: str, *, title: str, description: str = "") -> str:
    """The figure as an `<svg>` element with a title and a description, every id beginning with `key`."""
    root = ElementTree.fromstring(_source(figure))
    for tag in ("metadata", "style"):
        for parent in list(root.iter()):
            for child in parent.findall(f"{{{SVG}}}{tag}"):
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
    words = [(what, text) for what, text in (("title", clean(title)), ("desc", clean(description))) if text]
    root.set("role", "img")
    root.set("aria-labelledby", " ".join(f"{key}-{what}" for what, _ in words))
    root.set("style", f"max-width:{LARGEST * width:.0f}px;min-width:{least:.0f}px")
    for i, (what, text) in enumerate(words):
        element = ElementTree.Element(f"{{{SVG}}}{what}", {"id": f"{key}-{what}"})
        element.text = text
        root.insert(i, element)
    # Registered names keep the prefixes short: a parser of HTML knows `xlink:href`, not `ns1:href`.
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _source(figure: Figure) -> bytes:
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "layerlaw"}
    ):  # text as text; the same ids again
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()
