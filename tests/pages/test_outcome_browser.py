"""The page of outcomes in a real browser: it fits, it asks for nothing, it unfolds on paper without a script."""

import functools

import pytest
from pages_outcomes import bare_outcome, epoch_outcome, law_outcome, nasty_outcome
from pages_records import NASTY

from layerlaw.advice import course_report
from layerlaw.pages import outcome_page
from layerlaw.verdict.conjectures import TrainingCourse

pytestmark = pytest.mark.browser


def nasty_courses():
    """Trainings with and without a name that would run, at epochs and sites of odd names."""
    rows = tuple(tuple(0.8 / (1 + i + j) for j in range(12)) for i in range(5))
    sites = (NASTY, *(f"encoder.layers.{j}.attention.output.dense" for j in range(11)))
    mismatch, right = {"train": rows, "test": rows}, {"train": (0.5, 0.9, 1.0, 1.0, 1.0), "test": (0.4,) * 5}
    course = TrainingCourse((1, 2, 40, 80, 350), sites, mismatch, right, {"train": 1000, "test": 500})
    return course_report({NASTY: [course, course], "SVSL": [course, course]}, plain=NASTY)


CASES = {
    "several": lambda: [law_outcome(quick=True), epoch_outcome(), bare_outcome()],
    "one": law_outcome,
    "nasty": lambda: [nasty_outcome(), nasty_outcome()],
    "courses": nasty_courses,
}
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
SIZES = """[...document.querySelectorAll("section")].map(
    e => [e.dataset.panel, e.getBoundingClientRect().width, e.getBoundingClientRect().height])"""
DRAWINGS = """[...document.querySelectorAll(".sheet svg")].map(e => [e.getBoundingClientRect().width,
    e.getBoundingClientRect().height, e.querySelectorAll("path, use").length])"""
TEXT_OUTSIDE = """[...document.querySelectorAll(".sheet svg")].flatMap(svg => { const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter(t => { const b = t.getBoundingClientRect();
    return b.left < box.left - 2 || b.right > box.right + 2 || b.top < box.top - 2 || b.bottom > box.bottom + 2; })
    .map(t => t.textContent); })"""
STRAYS = """[...document.querySelectorAll(".sheet svg")].flatMap(svg =>
    [...svg.querySelectorAll("[clip-path], use")].filter(e => {
    const id = (e.getAttribute("clip-path") || e.getAttribute("xlink:href")).match(/#([^)]+)/)[1];
    return !svg.contains(document.getElementById(id)); }).map(e => e.outerHTML))"""  # each reference leads into its own
CELL_IS_SHOWN = "document.querySelector('details.table td').checkVisibility()"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One file per case, written when first asked for."""
    folder = tmp_path_factory.mktemp("outcomes")

    def written(name):
        found, path = CASES[name](), folder / f"{name}.html"
        return found.page(path) if name == "courses" else outcome_page(found, path)

    return functools.cache(written)


@pytest.fixture
def opened(watched, pages):
    """Opens a case in a tab; at the end nothing may have gone wrong in it."""
    tabs = []

    def open_page(name):
        tabs.append(watched(pages(name), 1280))
        return tabs[-1][0]

    yield open_page
    for tab, _ in tabs:
        tab.close()
    assert [line for _, trouble in tabs for line in trouble] == []


@pytest.mark.parametrize("name", list(CASES))
def test_everything_is_visible_and_nothing_overflows(opened, name):
    tab = opened(name)
    for width in (400, 1280):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate(OVERFLOW) <= 0, f"{name} is wider than {width} pixels"
        sizes = tab.evaluate(SIZES)
        assert {"verdict", "sheet"} <= {panel for panel, *_ in sizes}
        assert all(w > 100 and h > 20 for _, w, h in sizes), sizes
        drawings = tab.evaluate(DRAWINGS)
        assert len(drawings) == {"several": 3, "one": 1, "nasty": 2, "courses": 2}[name]
        assert all(w > 250 and h > 150 and ink > 10 for w, h, ink in drawings), drawings


@pytest.mark.parametrize("name", ["several", "courses"])
def test_all_words_of_a_drawing_are_within_it(opened, name):
    assert opened(name).evaluate(TEXT_OUTSIDE) == []


def test_a_table_unfolds_when_asked_and_on_paper(opened):
    tab = opened("one")
    assert not tab.evaluate(CELL_IS_SHOWN)
    tab.click("details.table summary")
    assert tab.evaluate(CELL_IS_SHOWN)
    tab.click("details.table summary")
    assert not tab.evaluate(CELL_IS_SHOWN)
    tab.emulate_media(media="print")
    assert tab.evaluate(CELL_IS_SHOWN)
    assert tab.evaluate("document.querySelector('details.table').open") is False
    tab.emulate_media(media="screen")
    assert tab.pdf(format="A4")[:4] == b"%PDF"


def test_contents_lead_to_their_figure(opened):
    tab = opened("several")
    tab.click("nav a >> nth=1")
    tab.wait_for_function("scrollY > 400")
    assert abs(tab.evaluate("document.getElementById('o1').getBoundingClientRect().top")) < 900
    assert tab.inner_text("#o1 h2") == "Fig. S4 · The law emerges"


def test_drawings_of_one_page_do_not_clip_one_another(opened):
    assert opened("several").evaluate(STRAYS) == []


@pytest.mark.parametrize(("name", "where"), [("nasty", "h2 >> nth=0"), ("courses", ".notes")])
def test_text_is_shown_and_never_run(opened, name, where):
    tab = opened(name)
    assert NASTY in tab.inner_text(where)
    assert tab.evaluate("window.__pwned") is None
    assert tab.evaluate("document.images.length + document.scripts.length") == 0
    assert any(NASTY[:8] in text for text in tab.locator("svg text").all_text_contents())
