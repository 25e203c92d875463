"""The documentation site: `make docs`.

The pages are the Markdown files of this folder as they stand on a code host; what only the site needs (tables of contents,
the reference, the examples as pages) is made here. Everything that is made lies in folders that begin with an underscore.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import layerlaw

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GALLERY, API, SCRIPTS, PAGES = "_gallery", "_api", "_build/examples", "_build/pages"
ACRONYMS = {
    "svsl": "SVSL",
    "optuna": "Optuna",
    "ray": "Ray",
    "tune": "Tune",
    "lightning": "Lightning",
}  # in names of examples

project, author, copyright = "layerlaw", "The layerlaw developers", "The layerlaw developers"
version = release = layerlaw.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
default_role = "code"  # a single backtick means code in our docstrings
highlight_language = "text"  # commands are no Python
smartquotes = False  # the texts have the signs that they mean
nitpicky = False  # types of other packages are links only where their inventories are at hand, and there is no network
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "layerlaw"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = [PAGES]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 8,
    "pygments_light_style": "a11y-high-contrast-light",
}
html_sidebars = {"index": [], "start": []}

# page: what stands below it. On a code host the pages read without these lists.
CONTENTS = {
    "index": ["start", "how_to", f"{GALLERY}/index", "api", "mathematics", "findings", "reproduction", "more"],
    "how_to": ["researchers", "practitioners", "language_model_people"],
    "api": [f"{API}/layerlaw", *(f"{API}/{package}" for package in layerlaw._PACKAGES)],
    "mathematics": ["measures", "law", "modules", "batchnorm", "peeled", "minority_collapse"],
    "findings": ["gallery"],
    "reproduction": sorted(f"reproduction/{page.stem}" for page in (DOCS / "reproduction").glob("*.md")),
    "more": ["failures", "benchmarks", "benchmarks_gpu", "log", f"{API}/changes"],
}
TOPICS = ["training", "movie", "by_name", "lab", "scale", "language_models", "svsl"]  # first, then any new page
_LISTED = {name for below in CONTENTS.values() for name in below}
CONTENTS["how_to"] += [*TOPICS, *sorted({page.stem for page in DOCS.glob("*.md")} - _LISTED - {*TOPICS, "index"})]
TITLES = {  # short, for the bar at the top
    f"{GALLERY}/index": "Examples",
    "api": "Reference",
    "findings": "Findings",
    "reproduction": "Ledger",
}


def contents(page: str) -> str:
    """The hidden table of contents of a page, of those that are there."""
    made = (GALLERY, API)
    there = [name for name in CONTENTS[page] if name.startswith(made) or (DOCS / f"{name}.md").exists()]
    lines = [f"{TITLES[name]} <{name}>" if name in TITLES else name for name in there]
    return "\n".join(["", "", "```{toctree}", ":hidden:", "", *lines, "```", ""])


def read_page(app: Any, name: str, source: list[str]) -> None:
    """Add the table of contents, and point links out of this folder at what the site has instead."""
    if name in CONTENTS:
        source[0] += contents(name)
    source[0] = re.sub(r"\]\(\.\./README\.md\)", "](index.md)", source[0])
    source[0] = re.sub(r"\]\(\.\./examples/?\)", f"]({GALLERY}/index.rst)", source[0])
    source[0] = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", rf"]({GALLERY}/\1.rst)", source[0])
    source[0] = re.sub(r"\]\(\.\./CHANGELOG\.md\)", f"]({API}/changes.md)", source[0])
    source[0] = re.sub(r"\[([^]]*)\]\(reproduction/?\)", r"\1", source[0])  # a folder of records


def write_reference() -> None:
    """A page for every public package: its docstring, then every public name."""
    folder = DOCS / API
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](../")
    (folder / "changes.md").write_text(changes, encoding="utf-8")
    for package in ("layerlaw", *(f"layerlaw.{name}" for name in layerlaw._PACKAGES)):
        module = importlib.import_module(package)
        lines = [f"# {package}", "", *directive(f"automodule:: {package}", "no-members")]
        for name in sorted(name for name in module.__all__ if callable(getattr(module, name))):
            made = getattr(module, name)
            kind = "autoclass" if isinstance(made, type) else "autofunction"
            place = (
                f"{package}.{name}" if made.__name__ == name else f"{made.__module__}.{made.__name__}"
            )  # a second name
            twice = package != "layerlaw" and name in layerlaw.__all__  # links lead to the first description
            lines += ["", f"## {name}", "", *directive(f"{kind}:: {place}", *["no-index"] * twice)]
        (folder / f"{package.rpartition('.')[2]}.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def directive(words: str, *options: str) -> list[str]:
    """A directive of reStructuredText inside Markdown."""
    return ["```{eval-rst}", f".. {words}", *(f"   :{option}:" for option in options), "```"]


HEAD = re.compile(r"(?P<name>\w+(?:, \w+)*) {2,}(?=\S)")  # "model       any nn.Module …", in columns


def read_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written for a terminal: columns of arguments, indented code. What they are to Sphinx."""
    parts = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    paragraphs: list[list[str]] = []
    for part in (part.split("\n") for part in parts):
        if paragraphs and is_indented(part) and is_indented(paragraphs[-1]):
            paragraphs[-1] += ["", *part]  # an empty line within code
        else:
            paragraphs.append(part)
    lines[:] = [line for part in paragraphs for line in [*as_markup(part), ""]]


def is_indented(lines: list[str]) -> bool:
    """Whether a paragraph stands four spaces to the right: code, or a formula."""
    return all(line.startswith("    ") for line in lines if line)


def is_python(lines: list[str]) -> bool:
    """Whether indented lines are code, not a formula."""
    try:
        ast.parse(textwrap.dedent("\n".join(lines)))
    except SyntaxError:
        return False
    return True


def as_markup(paragraph: list[str]) -> list[str]:
    """Columns of names and meanings as a list of definitions, indented lines as code; `|` is no markup."""
    if paragraph[0].startswith(">>>"):
        return paragraph
    if is_indented(paragraph):
        return [f".. code-block:: {'python' if is_python(paragraph) else 'text'}", "", *paragraph]
    escaped = [line.replace("|", r"\|") for line in paragraph]
    column = next((found.end() for line in paragraph if (found := HEAD.match(line))), None)
    if column is None or not all(line[column - 1 : column] == " " and line[column] != " " for line in paragraph):
        return escaped
    made: list[str] = []
    for line in escaped:
        term, words = line[:column].strip(), line[column:]
        made += ["", f"``{term}``"] * bool(term) + [f"   {words}"]
    return made


def is_there(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def write_examples() -> re.Pattern[str]:
    """Copies of the examples with a title above their sentence; which of them can be run here, by their imports."""
    folder = DOCS / SCRIPTS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "GALLERY_HEADER.rst").write_text(
        "Examples\n========\n\nScripts of at most 40 lines, run when this site was built; the pictures are what they left.\n"
    )
    run = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        words = (ast.get_docstring(tree) or "").strip()
        title = " ".join(ACRONYMS.get(word, word) for word in path.stem.split("_"))
        title = title[0].upper() + title[1:]
        body = "\n".join(text.splitlines()[tree.body[0].end_lineno :])
        (folder / path.name).write_text(f'"""\n{title}\n{"=" * len(title)}\n\n{words}\n"""\n{body}\n', encoding="utf-8")
        imported = {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        imported |= {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        if all(map(is_there, imported)):
            run.append(re.escape(path.name))
    return re.compile("|".join(run))


def pictures(block: Any, variables: dict[str, Any], gallery: dict[str, Any]) -> str:
    """What a script left behind: pictures into its page, and pages of its own as links."""
    from sphinx_gallery.scrapers import figure_rst

    script = Path(variables["src_file"])
    left, shown = sorted(script.parent.glob("*.png"), key=lambda p: p.stat().st_mtime), []
    for path in left:
        target = variables["image_path_iterator"].next()
        shutil.move(path, target)
        shown.append(target)
    text = figure_rst(shown, gallery["src_dir"])
    for path in sorted(script.parent.glob("*.html")):
        name = f"{script.stem}-{path.name}"
        shutil.move(path, DOCS / PAGES / name)
        text += f'\n.. raw:: html\n\n   <p><a href="../{name}">The page {path.name} that it writes</a></p>\n'
    return text


(DOCS / PAGES).mkdir(parents=True, exist_ok=True)
write_reference()
sphinx_gallery_conf = {
    "examples_dirs": SCRIPTS,
    "gallery_dirs": GALLERY,
    "filename_pattern": write_examples().pattern,
    "image_scrapers": (pictures,),
    "reset_modules": (),
    "capture_repr": (),
    "remove_config_comments": True,
    "show_signature": False,
    "download_all_examples": False,
    "thumbnail_size": (400, 320),
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": False,
    "plot_gallery": not tags.has("unexecuted"),  # noqa: F821 - Sphinx gives it; `-t unexecuted` only shows the scripts
}


def setup(app: Any) -> None:
    """What Sphinx is to call."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring)
