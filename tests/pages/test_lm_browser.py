"""A language model's page in a real browser: it draws, names its blocks, fits a telephone, and asks for nothing."""

import functools

import pytest
from lm_records import lm_record
from pages_records import NASTIER, NASTY

from layerlaw.pages import report

pytestmark = pytest.mark.browser
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
CHARTS = """[...document.querySelectorAll(".chart")].filter(e => !e.closest("details:not([open])")).map(
    e => [e.clientWidth, e.querySelector(".main-svg").getBoundingClientRect().width])"""


def nasty():
    record = lm_record(NASTY, stem=NASTIER, blocks=5, words=False)
    record.settings["task"] = NASTY
    return record


CASES = {
    "whole": (lm_record, 6),
    "lens": (lambda: lm_record(blocks=12, lens=True, words=False), 8),
    "deep": (lambda: lm_record(blocks=96, words=False), 6),
    "two": (
        lambda: [lm_record("B", blocks=12, words=False), nasty()],
        2,
    ),  # by block and relative depth; records are folded
}


@pytest.fixture(scope="module")
def tabs(watched, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    return functools.cache(lambda name: watched(report(CASES[name][0](), folder / f"{name}.html"), 420))


def widened(tab, width):
    tab.set_viewport_size({"width": width, "height": 900})
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return tab


@pytest.mark.parametrize("name", CASES)
def test_every_chart_is_drawn_to_its_box_and_nothing_overflows(tabs, name):
    tab, trouble = tabs(name)
    for width in (420, 1280):
        widened(tab, width)
        assert tab.evaluate(OVERFLOW) <= 0
        widths = tab.evaluate(CHARTS)
        assert len(widths) == CASES[name][1]
        assert all(abs(box - drawn) <= 1 for box, drawn in widths), widths
    assert tab.evaluate("window.__pwned") is None
    assert trouble == []


def test_hovering_a_point_names_its_block_and_its_interval(tabs):
    tab, trouble = tabs("whole")
    widened(tab, 1280)
    tab.hover('[data-panel="law"] .points .point >> nth=-2', force=True)
    tab.wait_for_selector('[data-panel="law"] .hoverlayer text')
    text = tab.text_content('[data-panel="law"] .hoverlayer')
    assert "30 · model.layers.29" in text
    assert "held out: 0.848" in text
    assert "…" in text
    assert trouble == []


def test_hovering_a_shuffled_line_names_a_block(tabs):
    tab, _ = tabs("whole")
    widened(tab, 1280)
    tab.locator('[data-panel="codes"]').scroll_into_view_if_needed()
    names = tab.evaluate("document.querySelector('#r0-codes').data[0].text")
    assert len(names) == 8 * 31
    assert names[0] == names[31] == "<b>1 · model.layers.0</b>"
