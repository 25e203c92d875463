"""Draw the figures of the Layer-Peeled Model into docs/peeled_*.png: `python scripts/peeled_figures.py`."""

from pathlib import Path

import pictures

from layerlaw.peeled import collapse_sheet, cosine_sheet, phase_sheet, simplex_sheet

DOCS = Path(__file__).resolve().parents[1] / "docs"

if __name__ == "__main__":
    for name, sheet in (
        ("cosine", cosine_sheet()),
        ("phases", phase_sheet()),
        ("simplex", simplex_sheet()),
        ("collapse", collapse_sheet()),
    ):
        pictures.save(sheet.plot(), DOCS / f"peeled_{name}.png")
