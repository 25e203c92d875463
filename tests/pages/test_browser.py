"""The page in a real browser: it draws, it asks for nothing, it runs nothing of a record's."""

import functools

import pytest
from pages_records import (
    NASTY,
    broken_record,
    deep_record,
    full_record,
    many_classes_record,
    nasty_record,
    three_records,
)

from layerlaw.pages import report

pytestmark = pytest.mark.browser
PANELS = {"verdict", "law", "shares", "table", "classes", "ncc", "collapse", "plane", "method"}
CASES = {
    "whole": full_record,
    "broken": broken_record,
    "nasty": nasty_record,
    "deep": deep_record,
    "many": many_classes_record,
    "three": three_records,
}
PANEL_SIZES = """[...document.querySelectorAll("[data-panel]")].filter(e => !e.closest("details:not([open])")).map(
    e => [e.dataset.panel, e.getBoundingClientRect().width, e.getBoundingClientRect().height])"""
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
CHART_WIDTHS = """[...document.querySelectorAll(".chart")].filter(e => !e.closest("details:not([open])")).map(
    e => [e.clientWidth, e.querySelector(".main-svg").getBoundingClientRect().width])"""


@pytest.fixture(scope="module")
def tabs(watched, tmp_path_factory):
    """One tab per case, opened as a telephone would, kept for the module: a page of 5 MB takes a while to start."""
    folder = tmp_path_factory.mktemp("pages")
    return functools.cache(lambda name: watched(report(CASES[name](), folder / f"{name}.html"), 400))


@pytest.fixture
def opened(tabs):
    """A tab of the wanted width; at the end nothing may have gone wrong in it."""
    used = []

    def open_page(name, width):
        tab, trouble = tabs(name)
        used.append(trouble)
        resize(tab, width)
        return tab

    yield open_page
    assert not any(used), used


def hover_text(tab, panel):
    """What the chart of a panel says at the pointer."""
    tab.wait_for_selector(f'[data-panel="{panel}"] .hoverlayer text')
    return tab.text_content(f'[data-panel="{panel}"] .hoverlayer')


def resize(tab, width):
    """Change the width and wait two frames: what the change asked for has been drawn."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize(
    ("name", "charts"),
    [("whole", 5), ("broken", 3), ("nasty", 5), ("deep", 6), ("many", 5), ("three", 1)],  # "three" is folded
)
def test_every_panel_is_visible_every_chart_drawn_and_nothing_overflows(opened, name, charts):
    for width in (400, 1280):
        tab = opened(name, width)
        assert tab.evaluate(OVERFLOW) <= 0, f"{name} is wider than {width} pixels"
        sizes = tab.evaluate(PANEL_SIZES)
        assert {panel for panel, *_ in sizes} >= ({"compare", "definitions"} if name == "three" else PANELS)
        assert all(w > 100 and h > 20 for _, w, h in sizes), sizes
        widths = tab.evaluate(CHART_WIDTHS)
        assert len(widths) == charts
        assert all(abs(box - drawn) <= 1 for box, drawn in widths), widths


def test_names_are_text_and_never_run(opened):
    for width in (400, 1280):
        tab = opened("nasty", width)
        tab.hover('[data-panel="law"] .points .point >> nth=-1', force=True)
        tab.hover('[data-panel="shares"] .point >> nth=0', force=True)
        assert "</script><img" in hover_text(tab, "shares")
    assert tab.inner_text("h1") == NASTY
    assert tab.evaluate("window.__pwned") is None
    assert tab.evaluate("document.images.length") == 0


def test_hovering_a_point_names_its_site(opened):
    tab = opened("whole", 1280)
    tab.hover('[data-panel="law"] .points .point >> nth=-3', force=True)
    text = hover_text(tab, "law")
    assert "6 · layers.6.relu" in text
    assert "training data: 0.742 (" in text


def test_the_heat_map_names_class_and_site(opened):
    tab = opened("whole", 1280)
    tab.locator('[data-panel="classes"]').scroll_into_view_if_needed()
    box = tab.locator('[data-panel="classes"] .nsewdrag').bounding_box()
    tab.mouse.move(box["x"] + 8, box["y"] + 8)
    tab.mouse.move(box["x"] + 12, box["y"] + 10)
    assert all(name in hover_text(tab, "classes") for name in ("0 · input", "Pullover"))


def test_folded_records_are_drawn_to_size_when_opened(opened):
    tab = opened("three", 1280)
    before = len(tab.evaluate(CHART_WIDTHS))
    tab.locator("details:not([open]) > summary").first.click()
    tab.wait_for_function(f"document.querySelectorAll('.chart .main-svg:first-child').length >= {before + 5}")
    widths = tab.evaluate(CHART_WIDTHS)
    assert len(widths) == before + 5
    assert all(abs(box - drawn) <= 1 for box, drawn in widths)


def test_printing_unfolds_everything_and_leaves_the_screen_as_it_was(opened):
    tab = opened("three", 1280)
    tab.evaluate("document.querySelectorAll('details').forEach((details, i) => (details.open = i === 0))")
    before = tab.evaluate(CHART_WIDTHS)
    assert tab.pdf(format="A4")[:4] == b"%PDF"
    tab.wait_for_function("document.querySelectorAll('details[open]').length === 1")
    resize(tab, 1280)
    assert tab.evaluate(CHART_WIDTHS) == before
    assert tab.evaluate("document.querySelectorAll('.chart .main-svg:first-child').length") > len(before)


def test_the_first_column_stays_while_the_table_is_scrolled(opened):
    tab = opened("whole", 400)
    left = "document.querySelector('tbody .site').getBoundingClientRect().left"
    before = tab.evaluate(left)
    tab.evaluate("document.querySelector('[data-panel=table] .scroll').scrollLeft = 300")
    assert tab.evaluate("document.querySelector('[data-panel=table] .scroll').scrollLeft") > 100
    assert tab.evaluate(left) == before
