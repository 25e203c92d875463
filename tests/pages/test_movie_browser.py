"""The movie in a real browser: slider, play, keyboard, pictures that move, nothing that overflows, calm where asked."""

import functools
import time
from dataclasses import replace

import pytest
from movie_records import training_run, wild_run
from pages_records import NASTIER, NASTY, broken_record, nasty_record, resnet56_record

from layerlaw.pages import movie

pytestmark = pytest.mark.browser
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
INK = "id => (typeof id === 'string' ? document.getElementById(id) : id).toDataURL()"
BLANK = """canvas => { const other = document.createElement('canvas');
    [other.width, other.height] = [canvas.width, canvas.height];
    return other.toDataURL() === canvas.toDataURL(); }"""
BEYOND_THE_PAGE = """[...document.querySelectorAll("body *")].filter(e => { const box = e.getBoundingClientRect();
    return box.width && box.right > innerWidth + 0.5 && !e.closest(".scroll, svg"); }).map(e => e.outerHTML)"""
WATCH = """window.seen = []; const now = document.getElementById('now');
    new MutationObserver(() => window.seen.push(now.textContent)).observe(now, { childList: true })"""
SETTLED = "document.getElementById('play').getAttribute('aria-pressed') === 'false'"


def with_step(make, step):
    record = make()
    record.settings |= {"step": step, "step_unit": NASTIER}
    return record


CASES = {
    "whole": training_run,
    "nasty": lambda: [with_step(nasty_record, t) for t in range(3)],
    "broken": lambda: [with_step(broken_record, t) for t in range(2)],
    "deep": lambda: [with_step(resnet56_record, t) for t in range(2)],
    "alone": lambda: training_run(1),
}


@pytest.fixture(scope="module")
def tabs(watched, tmp_path_factory):
    folder = tmp_path_factory.mktemp("movies")
    return functools.cache(
        lambda name: watched(
            movie(CASES[name](), folder / f"{name}.html", title=NASTY if name == "nasty" else None), 400
        )
    )


@pytest.fixture
def opened(tabs):
    """A tab of the wanted width; at the end nothing may have gone wrong in it."""
    used = []

    def open_page(name, width=1280):
        tab, trouble = tabs(name)
        used.append(trouble)
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate("document.activeElement.blur()")
        tab.keyboard.press("End")
        at(tab, "50" if name == "whole" else None)
        return tab

    yield open_page
    assert not any(used), used


def until(tab, condition):
    """Wait for a condition; asked from here, as the page's policy allows it no text that becomes code."""
    end = time.monotonic() + 30
    while not tab.evaluate(condition):
        assert time.monotonic() < end, f"never came: {condition}"
        time.sleep(0.02)


def at(tab, step=None):
    """Wait until the movie is at a step and rests there."""
    if step is not None:
        until(tab, f"document.getElementById('now').textContent === '{step}'")
    tab.evaluate("new Promise(done => setTimeout(done, 120))")  # the last of a motion


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", CASES)
def test_nothing_overflows_and_every_panel_is_there(opened, name, width):
    tab = opened(name, width)
    assert tab.evaluate(OVERFLOW) <= 0
    assert tab.evaluate(BEYOND_THE_PAGE) == []
    panels = set(tab.eval_on_selector_all("[data-panel]", "all => all.map(e => e.dataset.panel)"))
    assert panels >= {"player", "law"}
    if name == "whole":
        assert panels == {"player", "law", "collapse", "plane", "shares", "ncc", "heat"}
        canvases = tab.query_selector_all("canvas")
        assert len(canvases) == 8 + 2
        assert not any(canvas.evaluate(BLANK) for canvas in canvases)
        assert tab.locator("#curve circle.point:not(.test)").count() == 8


def test_the_arrows_home_and_end_move_all_pictures_together(opened):
    tab = opened("whole")
    seen = []
    for key, step in (("Home", "0"), ("ArrowRight", "10"), ("ArrowRight", "20"), ("ArrowLeft", "10"), ("End", "50")):
        tab.keyboard.press(key)
        at(tab, step)
        plane, view, heat = (
            tab.evaluate(INK, tab.query_selector(box)) for box in (".planes canvas", "#collapse", "#heat")
        )
        curve, bars = (
            tab.get_attribute(box, "d" if "path" in box else "height")
            for box in ("#curve path.curve:not(.test)", "#shares rect >> nth=3")
        )
        seen.append((plane, view, heat, curve, bars, tab.inner_text("#tile-rho .value"), tab.input_value("#slider")))
    first, second, third, back, last = seen
    assert all(len({one[k] for one in (first, second, third, last)}) == 4 for k in range(7)), seen
    assert back == second
    assert last[-1] == "5"


def test_play_goes_from_the_first_step_to_the_last_and_stops(opened):
    tab = opened("whole")
    tab.evaluate(WATCH)
    tab.click("#speed")
    tab.click("#play")
    assert tab.get_attribute("#play", "aria-label") == "pause"
    until(tab, SETTLED)
    at(tab, "50")
    assert list(dict.fromkeys(tab.evaluate("window.seen"))) == ["0", "10", "20", "30", "40", "50"]
    assert tab.get_attribute("#play", "aria-label") == "play"
    tab.click("#speed")
    tab.click("#speed")
    assert tab.inner_text("#speed") == "1×"


def test_space_plays_and_pauses_and_a_focused_button_does_so_once(opened):
    tab = opened("whole")
    tab.keyboard.press("Space")
    until(tab, "document.getElementById('now').textContent === '10'")
    tab.keyboard.press("Space")
    until(tab, SETTLED)
    at(tab)
    now = tab.inner_text("#now")
    at(tab)
    assert tab.inner_text("#now") == now != "50"
    tab.focus("#play")
    tab.keyboard.press("Space")
    assert tab.get_attribute("#play", "aria-pressed") == "true"
    tab.keyboard.press("Space")
    assert tab.get_attribute("#play", "aria-pressed") == "false"


def test_the_slider_and_the_heat_map_lead_to_a_step(opened):
    tab = opened("whole")
    tab.locator("#slider").fill("2")
    at(tab, "20")
    assert "20" in tab.get_attribute("#slider", "aria-valuetext")
    tab.locator("#heat").scroll_into_view_if_needed()
    box = tab.locator("#heat").bounding_box()
    tab.mouse.click(box["x"] + box["width"] - 12, box["y"] + 20)
    at(tab, "50")
    tab.focus("#slider")
    tab.keyboard.press("PageUp")
    at(tab, "40")


def test_the_tiles_say_what_the_law_of_the_step_is(opened):
    tab, records = opened("whole"), training_run()
    for k in (5, 0):
        tab.locator("#slider").fill(str(k))
        at(tab, str(10 * k))
        fit = records[k].law()
        assert tab.inner_text("#tile-holds .value") == ("yes" if fit.holds else "no")
        assert float(tab.inner_text("#tile-rho .value")) == pytest.approx(fit.rho, abs=6e-4)
        mark = tab.inner_text("#tile-evenness .mark") if fit.evenness is not None else "–"
        assert mark == ("–" if fit.evenness is None else "✓" if fit.evenness >= 0.8 else "✗")


def test_the_three_classes_can_be_turned(opened):
    tab = opened("whole")
    tab.locator("#collapse").scroll_into_view_if_needed()
    before = tab.evaluate(INK, "collapse")
    box = tab.locator("#collapse").bounding_box()
    tab.mouse.move(box["x"] + 100, box["y"] + 100)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 160, box["y"] + 120)
    tab.mouse.up()
    at(tab)
    assert tab.evaluate(INK, "collapse") != before


def test_names_are_text_and_never_run(opened):
    tab = opened("nasty")
    assert tab.inner_text("h1") == NASTY
    assert tab.evaluate("window.__pwned") is None
    assert tab.evaluate("document.images.length") == 0


def test_one_step_has_nothing_to_play(opened):
    assert opened("alone").is_disabled("#play")


def test_where_less_motion_is_asked_for_it_steps_instead_of_gliding(browser, tmp_path):
    page = movie(training_run(), tmp_path / "calm.html")
    tab = browser.new_page(viewport={"width": 800, "height": 900}, reduced_motion="reduce")
    tab.goto(page.as_uri())
    tab.evaluate(
        """window.seen = []; const path = document.querySelector('#curve path.curve:not(.test)');
        new MutationObserver(() => window.seen.push(path.getAttribute('d'))).observe(path, { attributes: true })"""
    )
    tab.click("#speed")
    tab.click("#play")
    until(tab, f"window.seen.length && {SETTLED}")
    assert tab.evaluate("new Set(window.seen).size") == 6  # one drawing for each of six steps, none between them
    tab.close()


@pytest.mark.parametrize("width", [400, 1280])
def test_bars_beyond_the_axis_are_marked_with_their_number(watched, tmp_path, width):
    records = wild_run()
    tab, trouble = watched(movie(records, tmp_path / "wild.html"), width)
    at(tab, "10")
    shares = records[-1].law().shares
    arrows = tab.locator("#shares path.cut:visible")
    assert arrows.count() == sum(share > 2.08 or share < -1 for share in shares) > 1
    if width > 400:  # on a telephone eight numbers have no room
        said = tab.locator("#shares text.cut:visible").all_text_contents()
        assert said == [f"{100 * s:.0f}%".replace("-", "−") for s in shares if s > 2.08 or s < -1]
    tab.close()
    assert not trouble


def test_names_below_a_chart_are_not_cut_off_on_a_telephone(watched, tmp_path):
    records = training_run(2)
    for record in records:
        record.sites[0] = replace(record.sites[0], name="embedded input")
        for k, site in enumerate(record.sites[1:]):
            record.sites[k + 1] = replace(site, name=f"encoder.layer.{k}")
    tab, trouble = watched(movie(records, tmp_path / "names.html"), 400)
    at(tab, "10")
    for chart in ("curve", "shares", "mismatch"):
        left = tab.evaluate(f"""(() => {{ const svg = document.querySelector('#{chart} svg');
            return Math.min(...[...svg.querySelectorAll('text')].filter(t => t.textContent && t.style.display !== 'none')
                .map(t => t.getBoundingClientRect().left)) - svg.getBoundingClientRect().left; }})()""")
        assert left >= 0, chart
    tab.close()
    assert not trouble


def test_a_page_that_has_no_width_yet_is_drawn_when_it_gets_one(watched, tmp_path):
    tab, trouble = watched(movie(training_run(3), tmp_path / "narrow.html"), 60)
    tab.set_viewport_size({"width": 900, "height": 900})
    until(tab, "document.querySelectorAll('#shares rect').length === 8")
    at(tab, "20")
    assert not any(canvas.evaluate(BLANK) for canvas in tab.query_selector_all("canvas"))
    assert not trouble
