"""Write docs/gallery.md and its pictures: `python scripts/gallery.py [FOLDER …]`.

One picture per architecture, D along its layers and along its blocks, on every data set, drawn from the records of the figures:
those in docs/reproduction/ (see ledger.py) or, where folders are named, what `layerlaw reproduce … --out FOLDER` left there.
Architectures without a record are named with the command that makes it; without any record nothing is written.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pictures

from layerlaw.errors import LayerlawError
from layerlaw.experiments.separation.convolutions import NETWORK_TITLES
from layerlaw.experiments.separation.open_questions import TIED
from layerlaw.outcome import Outcome
from layerlaw.pages import draw_sheet
from layerlaw.sheet import Panel, Sheet

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORDS = DOCS / "reproduction"
ALONG = (
    "D along layers",
    "D along blocks",
    "D along depth",
)  # titles of sheets that show D, not its floor or eval mode
FIGURES = {  # where each architecture is shown first; the module that the figure is about comes with the record
    **dict.fromkeys(("alexnet_5x5", "vgg13_5x5"), "fig4"),
    **dict.fromkeys(("vgg11", "vgg13", "vgg16", "vgg19"), "s2"),
    **dict.fromkeys(("pure_cnn_64", "pure_cnn_16"), "s3"),
    **dict.fromkeys(("resnet_2layer", "resnet_3layer", "resnet_mixed"), "fig7"),
    **{"resnet18": "fig10", "densenet161": "fig8"},
    **dict.fromkeys(TIED, "weight_tied"),
}
TITLES = {**NETWORK_TITLES, **TIED}
LONG = {
    "pure_cnn_64": "convolutions alone, 64 channels",
    "pure_cnn_16": "convolutions alone, 16 channels",
    **{name: f"one residual block again and again ({TIED[name]})" for name in TIED if name != "untied"},
    "untied": "eight residual blocks that share nothing",
}
NOTES = {  # below a picture
    "alexnet_5x5": "The rows of the figure allow for the choice among five rates: with that the law holds in none of three seeds on CIFAR-10.",
    "resnet_2layer": "Counted without allowing for the choice among five rates: with that (rows holds-allowing-for-the-choice of the figure) the blocks have the law in none of three seeds, on either set.",
    "resnet_3layer": "Counted without allowing for the choice among five rates: with that (rows holds-allowing-for-the-choice of the figure) the blocks have the law in 0 and 1 of three seeds.",
    "resnet_mixed": "Counted without allowing for the choice among five rates: with that (rows holds-allowing-for-the-choice of the figure) the blocks have the law in none of three seeds, on either set.",
    "densenet161": "0 is the first convolution, 1 to 4 are the dense blocks.",
    "untied": "Other networks than the tied ones in more than the sharing: 149,162 parameters instead of 20,138, a ReLU behind every block, and no factor on the change.",
}
INTRO = """# Gallery

Separation fuzziness D along depth, one picture per architecture: the geometric mean over seeds with its range, the line that is fitted to
it, and, where several were trained, other learning rates in gray. Layers and, where a network has them, blocks. How often the law holds is counted over three seeds. Drawn by `python scripts/gallery.py` from the records of the figures; numbers,
protocols and what is judged are on the page of each figure ([reproduction.md](reproduction.md))."""


def load(folders: list[Path]) -> dict[str, Outcome]:
    """The records of these figures by name; a later folder's take the place of an earlier one's."""
    found = {}
    for folder in folders:
        if not folder.is_dir():
            raise SystemExit(f"{folder}: expected a folder with records of `layerlaw reproduce`, found none.")
        for name in dict.fromkeys(FIGURES.values()):
            if (folder / f"{name}.json").exists():
                try:
                    found[name] = Outcome.load(folder / f"{name}.json")
                except LayerlawError as error:
                    raise SystemExit(str(error)) from None
    return found


def sheets(outcomes: Mapping[str, Outcome]) -> dict[str, Sheet]:
    """A drawing of every architecture that has a record: layers first, then blocks."""
    drawn = {}
    for name, figure in FIGURES.items():
        if figure not in outcomes:
            continue
        panels = []
        for sheet in sorted(
            (sheet for sheet in outcomes[figure].sheets if sheet.title in ALONG), key=lambda s: ALONG.index(s.title)
        ):
            for panel in sheet.panels:
                data, _, network = panel.title.partition(", ")
                if isinstance(panel, Panel) and network == TITLES[name] and panel.series:
                    panels.append(replace(panel, title=f"{data}, {panel.xlabel}s"))
        if panels:
            title = LONG.get(name, TITLES[name])
            if name == "untied":  # drawn beside steps
                panels = [
                    replace(panel, title=panel.title.replace("steps", "blocks"), xlabel="block") for panel in panels
                ]
            drawn[name] = Sheet(f"{title[:1].upper()}{title[1:]}", panels, columns=2)
    return drawn


def page(outcomes: Mapping[str, Outcome]) -> str:
    """The page as text; empty where nothing is recorded."""
    drawn = sheets(outcomes)
    if not drawn:
        return ""
    parts = [INTRO]
    for name, sheet in drawn.items():
        figure = FIGURES[name]
        quick = " Quick run: it only shows that everything works." if outcomes[figure].provenance.get("quick") else ""
        words = f"From [{figure}](reproduction/{figure}.md), `layerlaw reproduce {figure}`.{quick} {NOTES.get(name, '')}".rstrip()
        parts += [f"## {sheet.title}", f"![{sheet.title}: D along depth](gallery/{name}.png)", words]
    absent: dict[str, list[str]] = {}
    for name, figure in FIGURES.items():
        if name not in drawn:
            absent.setdefault(figure, []).append(LONG.get(name, TITLES[name]))
    if absent:
        lines = [f"- {'; '.join(names)}: `layerlaw reproduce {figure}`" for figure, names in absent.items()]
        parts += ["## Not recorded yet", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def write(outcomes: Mapping[str, Outcome], docs: Path = DOCS) -> list[str]:
    """The page and its pictures; gives the names of the architectures on it."""
    text, drawn = page(outcomes), sheets(outcomes)
    if text:
        (docs / "gallery").mkdir(exist_ok=True)
        for name, sheet in drawn.items():
            pictures.save(draw_sheet(sheet), docs / "gallery" / f"{name}.png")
        (docs / "gallery.md").write_text(text, encoding="utf-8")
    return list(drawn)


def main() -> None:
    shown = write(load([Path(folder) for folder in sys.argv[1:]] or [RECORDS]))
    print(f"{len(shown)} of {len(FIGURES)} architectures" + (f": {', '.join(shown)}" if shown else "; nothing written"))


if __name__ == "__main__":
    main()
