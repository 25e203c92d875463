"""Text from outside, made safe for HTML and for Plotly's labels."""

import html

from layerlaw.wording import clean, shortened


def escaped(text: str) -> str:
    """A name or sentence for HTML text and attributes."""
    return html.escape(clean(text))


def for_plotly(text: str, longest: int = 80) -> str:
    """A name for Plotly, which reads a little HTML in labels and knows &lt; &gt; &amp; but not &quot;."""
    return html.escape(shortened(text, longest), quote=False)
