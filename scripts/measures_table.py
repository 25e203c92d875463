"""Writes the table of columns in docs/measures.md from the registry: python scripts/measures_table.py"""

from pathlib import Path

from layerlaw.measures.columns import REGISTRY

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measures.md"
BEGIN, END = "<!-- columns: written by scripts/measures_table.py -->", "<!-- end of columns -->"
NEEDS = {
    "classes": "labels",
    "decision": "the network's decisions",
    "groups": "groups of samples",
    "permuted": "permuted labels",
    "classifier": "the classifier's rows",
    "network": "the classifier's rows",
    "imbalance": "its rows, where the largest class has twice the samples of the smallest",
    "small": "the classifier's rows",
    "untrained": "`null=True`",
    "tokens": "a language model",
    "within": "`linear=True`, n ≥ d + K",
    "targets": "targets",
    "lens": "`lens='logit'`",
}
HEADS = ("column", "meaning", "formula", "at collapse", "better", "law", "from")


def table() -> str:
    rows = [
        (f"`{c.name}`", c.meaning, c.formula, c.at_collapse, c.better, "yes" if c.law else "", NEEDS[c.needs])
        for c in REGISTRY.values()
    ]
    cells = [HEADS, ("---",) * len(HEADS), *rows]
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in cells)


def page(text: str) -> str:
    """The page with a fresh table between its two marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
