"""Payloads in every text of every kind of record, in a real browser: nothing runs, is asked for, or navigates."""

from dataclasses import replace

import pytest
from pages_outcomes import epoch_sheet, law_outcome
from payloads import poisoned
from test_escaping import RECORDS, poisoned_record

from layerlaw.outcome import Outcome
from layerlaw.pages import outcome_page, report

pytestmark = pytest.mark.browser
LEADING_AWAY = "form, iframe, object, embed, base, img, meta[http-equiv=refresh], a[href]:not([href^='#']), svg a"


def check_tab(tab, trouble, path):
    tab.wait_for_timeout(150)  # a refresh of zero seconds would have gone
    for details in tab.locator("details > summary").all()[:4]:
        details.click()
    for box in tab.locator(".chart").all()[:8]:
        if box.is_visible():
            box.scroll_into_view_if_needed()
            where = box.bounding_box()
            for share in (0.2, 0.5, 0.8):
                tab.mouse.move(where["x"] + share * where["width"], where["y"] + where["height"] / 2)
    tab.mouse.click(30, 200)
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.evaluate("window.__pwned") is None
    assert tab.evaluate(f'document.querySelectorAll("{LEADING_AWAY}").length') == 0
    assert tab.url.split("#")[0] == path.as_uri()
    assert trouble == []


@pytest.mark.parametrize("kind", RECORDS)
def test_a_hostile_record_does_nothing(watched, tmp_path, kind):
    path = report(poisoned_record(kind, keys=True)[0], tmp_path / "page.html")
    check_tab(*watched(path, 900), path)


def test_hostile_records_side_by_side_do_nothing(watched, tmp_path):
    hostile = poisoned_record("classifier")[0]
    path = report([hostile, hostile], tmp_path / "page.html", title=hostile.name)
    check_tab(*watched(path, 900), path)


def test_a_hostile_outcome_does_nothing(watched, tmp_path):
    small = replace(law_outcome(), sheets=(epoch_sheet(),))
    hostile = Outcome.from_dict(poisoned(small.to_dict(), keys=True)[0])
    path = outcome_page([hostile, hostile], tmp_path / "page.html")
    check_tab(*watched(path, 900), path)
