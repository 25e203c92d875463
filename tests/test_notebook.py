"""What notebooks show: tables and pictures, in a real Jupyter kernel and in marimo where these are installed."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_records import lm_record
from pages_outcomes import law_outcome
from pages_records import full_record
from torch import nn

import layerlaw as ll
from layerlaw import notebook, progress
from layerlaw.advice.candidates import Candidate, Trial
from layerlaw.advice.choice import Choice
from layerlaw.notebook import View
from layerlaw.outcome import Outcome
from layerlaw.probing.paths import sample_paths
from layerlaw.sheet import Panel, Series, Sheet

EVIL = "<img src=x onerror=alert(1)>&\"'"
TAGS = {"div", "table", "thead", "tbody", "tr", "th", "td", "img"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def data() -> Any:
    return torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


def choice() -> Choice:
    curves = {depth: ((4.0, 2.0 / depth), (4.1, 2.2 / depth)) for depth in (2, 3)}
    trials = {d: Trial(0.001, curve, accuracies=(0.8, 0.82), losses=(0.7, 0.6)) for d, curve in curves.items()}
    return Choice.of("depth", [Candidate(f"depth {d}", (10,) * (d - 1), 130 * d, (t,)) for d, t in trials.items()])


SHOWN: dict[str, Callable[[], Any]] = {
    "record": full_record,
    "record of a language model": lambda: lm_record(blocks=6),
    "plan": lambda: ll.sites(network(), data()),
    "law": lambda: ll.fit_law([8.0, 4.1, 2.0, 1.0]),
    "choice": choice,
    "outcome": law_outcome,
    "sheet": lambda: law_outcome().sheets[0],
    "modules": lambda: ll.find_modules(full_record()),
}


class Seen(HTMLParser):
    """Tags with their attributes, the cells of a table, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] if tag != "img" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.mark.parametrize("name", SHOWN)
def test_a_result_is_a_table_and_a_picture(name: str) -> None:
    thing = SHOWN[name]()
    seen = Seen(thing._repr_html_())
    assert not seen.open
    assert {tag for tag, _ in seen.tags} <= TAGS
    picture = thing._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 300_000
    (source,) = [attrs["src"] for tag, attrs in seen.tags if tag == "img"]
    assert source is not None
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    styles = " ".join(str(attrs.get("style")) for tag, attrs in seen.tags if tag != "img")
    assert not re.search(
        r"(?<![-\w])(color|background):(?!inherit|transparent)", styles
    )  # of the notebook, dark or light


def test_the_numbers_of_a_record_are_in_its_table_with_its_law() -> None:
    record = full_record(separation=[32.0, 16.0, 8.0, 4.0, 2.0])
    text = Seen(record._repr_html_()).text
    assert all(site.name in text for site in record.sites)
    assert "32" in text
    assert str(record.law())[:40] in text
    fit = Seen(record.law()._repr_html_()).text
    assert "share of the drop" in fit
    assert "25%" in fit


def poisoned(name: str) -> Any:
    record = full_record()
    record.name, record.sites[0].name, record.classes[0] = EVIL, EVIL, EVIL
    sheet = Sheet(EVIL, [Panel(EVIL, [Series([0, 1], [1.0, 2.0], EVIL)])], caption=EVIL)
    outcome = law_outcome()
    return {
        "record": record,
        "sheet": sheet,
        "outcome": Outcome(EVIL, EVIL, outcome.rows, [sheet]),
        "law": ll.fit_law([4, 2, 1], quantity=EVIL),
        "view": type("Any", (notebook.Shown,), {"_view": lambda self: View(EVIL, [[EVIL], [EVIL]], [EVIL])})(),
    }[name]


@pytest.mark.parametrize("name", ["record", "sheet", "outcome", "law", "view"])
def test_no_name_becomes_markup(name: str) -> None:
    seen = Seen(poisoned(name)._repr_html_())
    assert {tag for tag, _ in seen.tags} <= TAGS
    assert not any(key.startswith("on") for _, attrs in seen.tags for key in attrs)
    assert all(str(attrs["src"]).startswith("data:image/png;base64,") for tag, attrs in seen.tags if tag == "img")
    assert "<img src=x" in seen.text  # as text


def test_all_html_outside_pages_is_made_by_the_one_template() -> None:
    """`html.escape` stands in one file beside the pages, and nobody else makes `Markup`."""
    package = Path(ll.__file__).parent
    for path in package.rglob("*.py"):
        if "pages" in path.relative_to(package).parts or path.name == "notebook.py":
            continue
        source = path.read_text(encoding="utf-8")
        assert "html.escape" not in source, path
        assert "Markup(" not in source, path


def test_without_matplotlib_there_is_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    record = full_record()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert record._repr_png_() is None
    assert "<img" not in record._repr_html_()


def test_a_record_with_nothing_to_draw_is_shown() -> None:
    record = full_record()
    for site in record.sites:
        site.values = {}
    assert record._repr_png_() is None
    assert record.sites[0].name in record._repr_html_()


def test_paths_of_predictions_are_shown_also_where_inputs_are_no_images() -> None:
    paths = sample_paths(network(), data(), progress=False)
    assert "decided at" in paths._repr_html_()


def test_a_terminal_is_no_notebook() -> None:
    assert progress.notebook() == ""


RUN = """
import json, sys
import nbclient, nbformat
from jupyter_client.manager import KernelManager
cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(open("cells.json"))]
manager = KernelManager()
manager.kernel_spec.argv[0] = sys.executable  # this environment, whatever kernels are installed
book = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(book, timeout=120, km=manager).execute()
json.dump([[dict(output) for output in cell.outputs] for cell in book.cells], open("outputs.json", "w"))
"""


def in_kernel(folder: Path, *cells: str) -> list[Any]:
    """The outputs of the cells in a kernel of its own, run by a client in a process of its own."""
    for package in ("nbclient", "nbformat", "ipykernel"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    (folder / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", RUN], cwd=folder, capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "outputs.json").read_text(encoding="utf-8"))


SETUP = """
import torch, layerlaw as ll
torch.manual_seed(0)
torch.set_num_threads(1)
x, y = torch.randn(90, 8), torch.arange(90) % 3
net = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(8, 8), torch.nn.ReLU())], torch.nn.Linear(8, 3))
"""


@pytest.mark.timeout(180)
def test_a_jupyter_kernel_shows_records_laws_plans_and_bars(tmp_path: Path) -> None:
    slow = (
        "import time\nfrom layerlaw.progress import bar\nfor _ in bar(range(8), 'measuring', 8):\n    time.sleep(.15)"
    )
    cells = (SETUP, "record = ll.probe(net, (x, y)); record", "record.law()", "ll.sites(net, x)", slow)
    setup, *shown, bar = in_kernel(tmp_path, *cells)
    assert setup == []
    for outputs in shown:
        (data,) = [output["data"] for output in outputs if output["output_type"] == "execute_result"]
        assert data["text/html"].startswith('<div class="layerlaw"')
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    told = json.dumps(bar)
    widgets = importlib.util.find_spec("ipywidgets") is not None
    assert ("application/vnd.jupyter.widget-view+json" if widgets else "measuring") in told
    assert "Warning" not in json.dumps([shown, bar])


@pytest.mark.timeout(180)
def test_marimo_shows_records_and_runs_bars(tmp_path: Path) -> None:
    if importlib.util.find_spec("marimo") is None:
        pytest.skip("marimo is not installed")
    body = SETUP.strip().replace("\n", "\n    ")
    (tmp_path / "book.py").write_text(
        "import marimo\napp = marimo.App()\n\n"
        f"@app.cell\ndef _():\n    {body}\n    return ll, net, x, y\n\n"
        "@app.cell\ndef _(ll, net, x, y):\n    import time\n    from layerlaw.progress import bar, notebook\n"
        "    for _ in bar(range(8), 'measuring', 8):\n        time.sleep(0.1)\n"
        "    where = notebook()\n    record = ll.probe(net, (x, y))\n    record\n    return record, where\n\n"
        "@app.cell\ndef _(record, where):\n    open('where.txt', 'w').write(where)\n    record.law()\n    return\n\n"
        "if __name__ == '__main__':\n    app.run()\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "marimo",
        "-q",
        "export",
        "html",
        "book.py",
        "-o",
        "book.html",
        "--no-include-code",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=160, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "book.html").read_text(encoding="utf-8")
    assert (tmp_path / "where.txt").read_text() == "marimo"
    assert "Sequential" in page
    assert re.search(r"data:image/png;base64,", page)
    assert "Traceback" not in page
