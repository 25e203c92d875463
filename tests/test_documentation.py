"""README and docs: links lead somewhere, commands exist, code runs, every public name is described, the site is built."""

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import layerlaw as ll
from layerlaw.cli.app import COMMANDS, loaded_command

markdown_it = pytest.importorskip("markdown_it", reason="needs markdown-it-py")

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted(p for p in (ROOT / "docs").rglob("*.md") if "/_" not in p.as_posix())]
OURS = ("start", "researchers", "practitioners", "language_model_people")  # pages whose code stands alone
NAMES = [str(path.relative_to(ROOT)) for path in TEXTS]


@cache
def tokens(path: Path) -> list[Any]:
    """The parts of a Markdown file, as a code host reads them."""
    return list(markdown_it.MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8")))


def links(path: Path) -> Iterator[str]:
    for token in tokens(path):
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if target:
                yield target


@cache
def anchors(path: Path) -> set[str]:
    """What a code host calls the headings of a file: lower case, spaces as hyphens, no other signs, numbered where twice."""
    parts, seen, found = tokens(path), Counter[str](), set()
    for opening, inline in pairwise(parts):
        if opening.type == "heading_open":
            words = "".join(child.content for child in inline.children if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def wrong(path: Path, link: str) -> str | None:
    """Why a link between files leads nowhere."""
    place, _, anchor = link.partition("#")
    target = (path.parent / place).resolve() if place else path
    if not target.exists():
        return f"{link}: no such file"
    if not target.is_relative_to(ROOT):
        return f"{link}: outside the repository"
    return f"{link}: no such heading" if anchor and anchor not in anchors(target) else None


@pytest.mark.parametrize("path", TEXTS, ids=NAMES)
def test_every_internal_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    inner = [link for link in links(path) if not re.match(r"[a-z]+:", link)]
    assert [why for link in inner if (why := wrong(path, link))] == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    here = ROOT / "docs" / "index.md"
    assert wrong(here, "nowhere.md") == "nowhere.md: no such file"
    assert wrong(here, "law.md#nowhere") == "law.md#nowhere: no such heading"
    assert wrong(here, "../..") == "../..: outside the repository"
    (tmp_path / "page.md").write_text(
        "# A `b`, c: d!\n\n## Two\n\n## Two\n\n[x](y.md) ![z](w.png)\n\n    # no heading\n"
    )
    assert anchors(tmp_path / "page.md") == {"a-b-c-d", "two", "two-1"}
    assert [*links(tmp_path / "page.md")] == ["y.md", "w.png"]


def test_external_links_are_https_and_of_no_invented_host() -> None:
    outer = {link for path in TEXTS for link in links(path) if re.match(r"[a-z]+:", link)}
    assert [link for link in outer if not link.startswith(("https://", "mailto:")) or "example." in link] == []


def commands(path: Path) -> Iterator[list[str]]:
    """Lines of code blocks that call us, without comments."""
    for token in tokens(path):
        if token.type == "fence" and token.info.strip() in ("", "sh", "bash", "console"):
            for line in token.content.splitlines():
                if found := re.match(r"(?:\$ )?(?:torchrun .* -m )?layerlaw (.*)", line):
                    yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize("path", TEXTS, ids=NAMES)
def test_the_commands_that_are_shown_exist_with_their_options(path: Path) -> None:
    for words in commands(path):
        if words[0].startswith("--"):
            continue
        assert words[0] in COMMANDS, f"layerlaw {' '.join(words)}"
        known = {name for option in loaded_command(words[0]).params for name in (*option.opts, *option.secondary_opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
        assert used <= {*known, "--help"}, f"layerlaw {' '.join(words)}: no {', '.join(used - known)}"


@pytest.mark.parametrize("name", OURS)
def test_the_code_of_the_guides_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    blocks = [t.content for t in tokens(ROOT / "docs" / f"{name}.md") if t.type == "fence" and t.info == "python"]
    assert blocks
    script = tmp_path / "guide.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr


def public() -> Iterator[tuple[str, Any]]:
    """Public names that can be called, and the public methods and properties of classes."""
    for package in ("layerlaw", *(f"layerlaw.{name}" for name in ll._PACKAGES)):
        module = importlib.import_module(package)
        for name in module.__all__:
            made = getattr(module, name)
            place = f"{package}.{name}"
            if callable(made):
                place = place if made.__name__ == name else f"{made.__module__}.{made.__name__}"  # a second name of it
                yield place, made
            if isinstance(made, type):
                for part, value in vars(made).items():
                    if not part.startswith("_") and (
                        inspect.isfunction(value) or isinstance(value, property | classmethod)
                    ):
                        yield f"{place}.{part}", value


def test_no_docstring_of_a_public_name_is_empty() -> None:
    generated = re.compile(r"\w+\(.*\)$", re.DOTALL)  # what a dataclass says of itself
    empty = [name for name, made in public() if not (said := inspect.getdoc(made)) or generated.fullmatch(said)]
    assert empty == []


def test_the_readme_renders_as_a_package_index_shows_it() -> None:
    renderer = pytest.importorskip("readme_renderer.markdown", reason="needs readme_renderer (make package has it)")
    if not renderer.variants:
        pytest.skip("needs readme_renderer[md] (make package has it)")
    shown = renderer.render((ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown.count("<h2") == sum(t.type == "heading_open" and t.tag == "h2" for t in tokens(ROOT / "README.md"))
    assert "<table" in shown


def test_the_site_is_built_without_a_warning_and_describes_every_public_name(tmp_path: Path) -> None:
    """Without running the examples, which other tests do."""
    for package in ("sphinx", "myst_parser", "sphinx_gallery", "pydata_sphinx_theme", "sphinx_copybutton"):
        pytest.importorskip(package, reason="needs the extra docs")
    made = shutil.ignore_patterns("_build", "_gallery", "_api", "*.json")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=made)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-t", "unexecuted", "docs", "html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path / "html").as_posix(): path for path in (tmp_path / "html").rglob("*.html")}
    texts = [str(p.relative_to(ROOT / "docs").with_suffix(".html").as_posix()) for p in TEXTS if p.parent != ROOT]
    assert set(texts) <= set(pages)
    assert {f"_gallery/{path.stem}.html" for path in (ROOT / "examples").glob("*.py")} <= set(pages)
    reference = "".join(pages[f"_api/{name}.html"].read_text() for name in ("layerlaw", *ll._PACKAGES))
    twice = tuple(f"layerlaw.{package}.{name}" for package in ll._PACKAGES for name in ll.__all__)
    missing = [name for name, _ in public() if not name.startswith(twice) and f'id="{name}"' not in reference]
    assert missing == []
