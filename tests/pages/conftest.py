"""What the tests of pages share: a real browser, with the fonts of the machine or with one family alone."""

import os
import shutil
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NARROW, WIDE = "Liberation Sans", "DejaVu Sans"  # the same words in WIDE are about 15 % longer


@pytest.fixture(scope="session")
def playwright():
    """Playwright's entry, or a skip where it or Chromium is missing."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as entry:
        yield entry


@pytest.fixture(scope="module")
def browser(playwright):
    """Chromium with the fonts of the machine."""
    opened = launched(playwright)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def watched(browser):
    """Opens a file in a tab of some width; gives the tab, and the list of all that will go wrong in it."""

    def open_file(path, width):
        tab, trouble = browser.new_page(viewport={"width": width, "height": 900}), []
        own = ("data:", path.as_uri())
        tab.on("console", lambda m: trouble.append(f"console: {m.text}"))
        tab.on("pageerror", lambda error: trouble.append(f"page error: {error}"))
        tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", lambda r: r.url.startswith(own) or trouble.append(f"request: {r.url}"))
        tab.goto(path.as_uri())
        return tab, trouble

    return open_file


@pytest.fixture(scope="module", params=[NARROW, WIDE])
def browser_of_one_family(request, playwright, tmp_path_factory):
    """Chromium that knows one family of fonts, whatever a page names."""
    config = one_family(request.param, tmp_path_factory.mktemp("fonts"))
    opened = launched(playwright, FONTCONFIG_FILE=str(config))
    yield opened
    opened.close()


def launched(playwright, **environment):
    return playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox"], env={**os.environ, **environment}
    )


def one_family(family, folder):
    """A fontconfig file under which this family is all there is; a skip where the machine lacks it."""
    fonts = pytest.importorskip("matplotlib.font_manager")
    own = Path(fonts.__file__).parent / "mpl-data" / "fonts" / "ttf"  # DejaVu comes with matplotlib
    for path in map(Path, [*fonts.findSystemFonts(), *own.glob("*.ttf")]):
        if path.stem.startswith(family.replace(" ", "")) and path.suffix == ".ttf":
            named = fonts.get_font(path)
            if named.family_name == family and "ondensed" not in named.style_name and "Light" not in named.style_name:
                shutil.copy(path, folder)
    if not list(folder.glob("*.ttf")):
        pytest.skip(f"the family {family} is not installed")
    config = folder / "fonts.conf"
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f"<dir>{folder}</dir><cachedir>{folder / 'cache'}</cachedir></fontconfig>"
    )
    return config
