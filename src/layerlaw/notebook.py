"""What a notebook shows of a result: a small table, and the picture that its `plot` draws, as HTML and as PNG.

Text becomes HTML in one place: `fill`, which pages are made by too. The HTML takes its colors from the notebook, so that it
can be read on a dark ground and on a light one.
"""

from __future__ import annotations

import base64
import html
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from layerlaw.errors import LayerlawError
from layerlaw.wording import clean

DOTS = 110  # per inch of a picture
LINE = "border-bottom:1px solid rgba(128,128,128,.35)"


class Markup(str):
    """HTML that was made here. Any other text is escaped wherever it goes into a page."""

    __slots__ = ()


def fill(template: str, *values: object) -> Markup:
    """A template, which is a literal in our source, with a value for each {}: text is escaped, several values follow one
    another. The only way to HTML: a test reads the source of all pages for it.

    >>> fill('<p title="{}">{}</p>', 'a"b', [fill("<b>{}</b>", "<i>"), 3])
    '<p title="a&quot;b"><b>&lt;i&gt;</b>3</p>'
    """
    return Markup(template.format(*map(safe, values)))


def safe(value: object) -> str:
    """Text in which nothing is HTML, but for what `fill` has made."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "".join(map(safe, value))
    return html.escape(clean(str(value)))


@dataclass(frozen=True)
class View:
    """What is shown: a title, rows of a table below their heads, and lines below that."""

    title: str
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()

    def html(self, picture: bytes | None = None) -> str:
        """As a fragment of a page; numbers stand to the right, names to the left."""
        parts = [fill('<div style="font-weight:600;margin:.2em 0 .4em">{}</div>', self.title)]
        if self.rows:
            heads, *body = self.rows
            head = [
                fill('<th style="text-align:{};{};padding:2px 9px">{}</th>', _side(i), LINE, h)
                for i, h in enumerate(heads)
            ]
            rows = [fill("<tr>{}</tr>", [_cell(i, cell) for i, cell in enumerate(row)]) for row in body]
            parts.append(
                fill(
                    '<div style="max-height:420px;overflow:auto"><table style="border-collapse:collapse;font-size:90%;'
                    'background:transparent;color:inherit"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>',
                    head,
                    rows,
                )
            )
        parts += [fill('<div style="margin:.35em 0;max-width:52em">{}</div>', line) for line in self.lines]
        if picture is not None:
            code = base64.b64encode(picture).decode()
            look = "max-width:min(100%,640px);background:#fff;border-radius:4px;margin-top:.4em"
            parts.append(fill('<img alt="{}" style="{}" src="data:image/png;base64,{}">', self.title, look, code))
        return str(fill('<div class="layerlaw" style="color:inherit">{}</div>', parts))


def _side(column: int) -> str:
    return "right" if column else "left"


def _cell(column: int, value: str) -> Markup:
    style = "text-align:{};padding:1px 9px;white-space:nowrap;font-variant-numeric:tabular-nums"
    return fill('<td style="{}">{}</td>', style.format(_side(column)), value)


class Shown(ABC):
    """For what a cell of a notebook may end with: `_view` says what is shown; `plot`, if there is one, draws the picture."""

    @abstractmethod
    def _view(self) -> View: ...

    def _repr_html_(self) -> str:
        return self._view().html(self._repr_png_())

    def _repr_png_(self) -> bytes | None:
        """The picture; `None` where there is nothing to be drawn, or nobody who draws."""
        draw: Any = getattr(self, "plot", None)
        try:
            figure = None if draw is None else draw()
        except LayerlawError:
            return None
        if figure is None:
            return None
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DOTS, facecolor="white")
        return content.getvalue()
