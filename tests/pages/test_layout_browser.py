"""Every page in a narrow and in a wide family of fonts: nothing is wider than the page, what does not fit is scrolled."""

import functools

import pytest
from lm_records import lm_record
from movie_records import training_run
from pages_outcomes import bare_outcome, epoch_outcome, law_outcome, nasty_outcome
from pages_records import full_record, nasty_record, parts_record, resnet50_record, resnet56_record, three_records

from layerlaw.pages import movie, outcome_page, report

pytestmark = pytest.mark.browser
LONG_NAME = "a-rather-long-name-of-a-model/by-someone"
PAGES = {
    "classifier": lambda path: report(full_record(), path),
    "deep classifier": lambda path: report(resnet50_record(), path),
    "classifier with side branches": lambda path: report(resnet56_record(), path),
    "parts of layers": lambda path: report(parts_record(), path),
    "nasty classifier": lambda path: report(nasty_record(), path),
    "classifiers compared": lambda path: report(three_records(), path),
    "language model": lambda path: report(lm_record(), path),
    "language models compared": lambda path: report([lm_record("B", blocks=12), lm_record(LONG_NAME, blocks=6)], path),
    "movie": lambda path: movie(training_run(12), path, title="The law of equi-separation, epoch by epoch"),
    "outcomes": lambda path: outcome_page([law_outcome(), epoch_outcome(), bare_outcome()], path),
    "nasty outcome": lambda path: outcome_page(nasty_outcome(), path),
}
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
BEYOND_THE_PAGE = """[...document.querySelectorAll("body *")].filter(e => { const box = e.getBoundingClientRect();
    return box.width && box.right > innerWidth + 0.5 && !e.closest(".scroll, .drawing, .chart"); }).map(e => e.outerHTML)"""
CUT_OFF = """[...document.querySelectorAll("h1, h2, h3, p, dt, dd, li, summary, figcaption")].filter(
    e => e.clientWidth && e.scrollWidth > e.clientWidth + 1 && !e.closest(".scroll")).map(e => e.textContent)"""
BOXES = """[...document.querySelectorAll(".scroll, .drawing")].filter(e => e.clientWidth).map(
    e => [e.scrollWidth > e.clientWidth + 1, e.tabIndex, getComputedStyle(e).overflowX,
    getComputedStyle(e).backgroundAttachment])"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file of a page, written once for all families."""
    folder = tmp_path_factory.mktemp("layout")
    return functools.cache(lambda name: PAGES[name](folder / f"{name}.html"))


@pytest.fixture(scope="module")
def opened(browser_of_one_family, written):
    """Opens a page at a width, with everything unfolded; one tab per page and family."""
    tabs = {}

    def open_page(name, width):
        if name not in tabs:
            tabs[name] = browser_of_one_family.new_page(viewport={"width": 420, "height": 900})
            tabs[name].goto(written(name).as_uri())
            tabs[name].evaluate("document.querySelectorAll('details').forEach(details => (details.open = true))")
        tabs[name].set_viewport_size({"width": width, "height": 900})
        tabs[name].evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return tabs[name]

    return open_page


@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_page_and_what_does_not_fit_is_seen_to_scroll(opened, name, width):
    tab = opened(name, width)
    assert tab.evaluate(OVERFLOW) <= 0
    assert tab.evaluate(BEYOND_THE_PAGE) == []
    assert tab.evaluate(CUT_OFF) == []
    boxes = tab.evaluate(BOXES)
    assert boxes
    for (
        _,
        tab_index,
        overflow,
        shadow,
    ) in boxes:  # the keyboard reaches it, it scrolls, a shadow says that there is more
        assert (tab_index, overflow, shadow) == (0, "auto", "local, scroll")


@pytest.mark.parametrize("name", [name for name in PAGES if "nasty" not in name])
def test_on_a_desk_every_table_fits(opened, name):
    assert not any(scrolled for scrolled, *_ in opened(name, 1280).evaluate(BOXES))


def test_the_residual_and_its_gain_are_in_sight_on_a_telephone(opened):
    tab = opened("language model", 420)
    for column in range(3):
        cell = tab.locator('[data-panel="table"] tbody tr >> nth=12').locator(f"td >> nth={column}")
        box = cell.bounding_box()
        assert box["x"] + box["width"] < 420 - 16
    name = tab.locator('[data-panel="table"] tbody tr >> nth=30').locator("th")
    assert name.evaluate("e => e.scrollWidth <= e.clientWidth")  # the number of the block is not cut off


def test_the_separation_and_its_interval_are_in_sight_on_a_telephone(opened):
    tab = opened("classifier", 420)
    for column in range(2, 4):
        cell = tab.locator('[data-panel="table"] tbody tr >> nth=4').locator(f"td >> nth={column}")
        box = cell.bounding_box()
        assert box["x"] + box["width"] < 420 - 16


def test_the_verdict_on_a_number_is_in_sight_on_a_telephone(opened):
    box = opened("outcomes", 420).locator("#o0 td.verdict >> nth=0").bounding_box()
    assert box["x"] + 0.6 * box["width"] < 420 - 16  # the mark and the word stand at its left


@pytest.mark.parametrize("width", [400, 1280])
def test_56_sites_are_told_apart_in_the_table_and_below_the_charts(opened, width):
    tab = opened("deep classifier", width)
    names = tab.locator('[data-panel="table"] tbody th').all_inner_texts()
    assert len({name.lstrip("0123456789") for name in names}) == 56
    cut = "[...document.querySelectorAll('[data-panel=table] tbody th')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert tab.evaluate(f"{cut}.length") == 0
    for panel in ("law", "shares", "ncc", "collapse", "classes"):
        ticks = tab.locator(f'[data-panel="{panel}"] .xtick text').all_text_contents()
        assert len(set(ticks)) == len(ticks)
        assert ticks[-1] == "classifier"


@pytest.mark.parametrize("width", [400, 1280])
def test_the_parts_of_54_layers_are_drawn_and_summed(opened, width):
    tab = opened("parts of layers", width)
    assert tab.locator('[data-panel="parts"] .barlayer .trace').count() == 4
    ticks = tab.locator('[data-panel="parts"] .xtick text').all_text_contents()
    assert (ticks[0], ticks[-1]) == ("conv1", "fc")
    assert len(set(ticks)) == len(ticks)
    assert tab.locator('[data-panel="parts"] tbody tr').count() == 4
