"""The page of outcomes as text: what is in it, what is not, how large it is."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from pages_outcomes import bare_outcome, epoch_outcome, law_outcome, nasty_outcome

from layerlaw.errors import InputError
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import outcome_page
from layerlaw.pages.html import outcomes
from layerlaw.pages.html.outcomes import outcome_html
from layerlaw.pages.sheets import draw_sheet

VOID = {"meta", "link"}


class Balance(HTMLParser):
    """Checks that every element is closed in order; collects ids, links and cells of the first table."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.rows = [], [], [], []

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids += [known["id"]] if "id" in known else []
        self.links += [known["href"]] if tag == "a" else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def read(page):
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def page():
    return outcome_html(law_outcome())


@pytest.fixture(scope="module")
def several():
    return outcome_html([law_outcome(quick=True), epoch_outcome(), bare_outcome()])


def test_the_numbers_stand_beside_the_papers(page):
    rows = read(page).rows
    assert rows[0] == ["what", "paper", "ours (mean, range over seeds)", "reproduced?", "accepted"]
    assert rows[1] == ["Adam, 8 layers: Pearson r", "−0.997", "−0.9981 [−0.9987, −0.9972]", "✓ yes", "± 0.005"]
    assert rows[3] == ["SGD, 20 layers: ρ", "0.85", "–diverged in epoch 12", "✗ no", "± 0.01"]
    assert rows[5:7] == [
        ["what", "ours (mean, range over seeds)"], ["Greenwood p (a control)", "0.00026 [< 0.0001, 0.00046]"],
    ]  # fmt: skip
    assert '<details class="table more"><summary>1 more number of ours</summary>' in page
    assert page.index('data-panel="sheet"') < page.index('data-panel="numbers"') < page.index('data-panel="tables"')


def test_title_verdict_notes_and_provenance_are_there(page):
    assert "<h1>Fig. 1 · The law holds</h1>" in page
    assert '<p class="headline">1 of 3 numbers and 1 of 1 direction reproduced.</p>' in page
    assert "1 number of ours without one in the paper" in page
    assert "<li>With running statistics r = −0.985.</li>" in page
    assert "<dd><code>layerlaw reproduce fig1</code></dd>" in page
    assert "<dt>wall time</dt><dd>21 min 24 s</dd>" in page
    assert "<figcaption>Whiskers: range over seeds.</figcaption>" in page
    assert "quick" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)


def test_supporting_tables_are_folded(page):
    (folded,) = re.findall(r"<details class=\"table\">(.*?)</details>", page, re.S)
    assert folded.startswith("<summary>The grid<span>2 rows</span></summary>")
    assert "SGD | Nesterov" in folded
    assert "The best is taken." in folded


def test_where_nothing_is_claimed_the_first_table_is_the_result():
    rows = (Row("a/r", None, -0.9), Row("b/r", None, -0.8))
    first, second = (Table(title, ("network", "r"), (("a", -0.9), ("b", -0.8))) for title in ("The laws", "All"))
    page = outcome_html(Outcome("conv", "x", rows, (), (first, second)))
    assert re.findall(r'<section data-panel="(result|numbers|tables)"', page) == ["result", "numbers", "tables"]
    assert re.findall(r"<summary>(.*?)</summary>", page) == ["2 numbers of ours", "All<span>2 rows</span>"]


def test_drawings_describe_themselves(page):
    (described,) = re.findall(r"<desc [^>]*>(.*?)</desc>", page)
    assert described.startswith("9 panels. SGD, 4 layers: r = −0.998, ρ = 0.53 p = .0003; SGD, 8 layers:")
    assert 'role="img" aria-labelledby="o0s0-title o0s0-desc"' in page


def test_ids_are_unique_and_links_lead_somewhere(several):
    found = read(several)
    assert len(found.ids) == len(set(found.ids)) > 200
    assert found.links == ["#o0", "#o1", "#o2"]
    assert {link[1:] for link in found.links} <= set(found.ids)


def test_several_outcomes_have_contents_and_headings(several):
    assert "1 of 3 numbers and 2 of 2 directions reproduced, in 3 figures" in several
    assert "<h2>Fig. S4 · The law emerges</h2>" in several
    assert "<span>1 of 3 numbers and 1 of 1 direction reproduced, quick run</span>" in several
    assert several.count("This is a quick run") == 1
    assert "compare" not in several
    assert '<nav aria-label="figures">' in several
    assert "<nav" not in outcome_html(epoch_outcome())


def test_a_quick_run_that_is_not_judged_says_so_once():
    rows = [replace(row, reproduced=None) for row in law_outcome().rows]
    page = outcome_html(replace(law_outcome(quick=True), rows=rows))
    assert '<p class="headline">Quick run: numbers shown, not judged.</p>' in page
    assert "This is a quick run" not in page
    assert "reproduced?" not in page
    assert "0 of 0" not in page


def test_one_seed_has_no_range():
    page = outcome_html(Outcome("fig1", "x", [Row("a", 0.5, 0.408, 0.408, 0.408, True)], []))
    assert read(page).rows == [["what", "paper", "ours", "reproduced?"], ["a", "0.5", "0.408", "✓ yes"]]


def test_the_page_asks_for_nothing_and_runs_nothing(several):
    assert "<script" not in several
    assert "default-src 'none'" in several
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", several)
    assert not re.search(r"@import|url\((?!#)", several)


def test_the_page_is_small(page, several):
    assert len(page.encode()) < 400_000
    assert len(several.encode()) < 600_000


def test_text_cannot_be_markup():
    page = outcome_html([nasty_outcome(), nasty_outcome()])
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") > 20
    assert "\x1b" not in page
    read(page)


def test_it_is_written_whole_under_its_title(tmp_path):
    path = outcome_page([epoch_outcome()], tmp_path / "page.html", title="A <title>")
    assert list(tmp_path.iterdir()) == [path]
    assert "<title>A &lt;title&gt;</title>" in path.read_text(encoding="utf-8")


def test_a_kept_drawing_is_not_drawn_again(tmp_path, monkeypatch):
    drawn, folder = [], tmp_path / "kept"
    monkeypatch.setattr(
        outcomes, "draw_sheet", lambda sheet, **how: drawn.append(sheet.title) or draw_sheet(sheet, **how)
    )
    law, epoch = law_outcome(), epoch_outcome()
    first = outcome_html(law, drawings=folder)
    assert first == outcome_html(law)
    drawn.clear()
    both = outcome_html([epoch, law], drawings=folder)  # under other ids
    assert drawn == [sheet.title for sheet in epoch.sheets]
    assert both == outcome_html([epoch, law])
    changed = replace(law, sheets=[replace(sheet, caption="Another.", columns=1) for sheet in law.sheets])
    drawn.clear()
    outcome_html([changed, epoch], drawings=folder)
    assert drawn == [sheet.title for sheet in law.sheets]


@pytest.mark.parametrize(
    "content", ["", "<svg", "<svg><script>1</script></svg>" * 2, '<a href="http://x">', b"\xff\xfe"]
)
def test_a_kept_drawing_that_is_damaged_is_drawn_again(content, tmp_path):
    page = outcome_html(law_outcome(), drawings=tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert outcome_html(law_outcome(), drawings=tmp_path) == page
    assert file.read_bytes() == good


def test_what_is_no_outcome_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected one Outcome or a list of them, got str"):
        outcome_page(["fig1"], tmp_path / "a.html")
    with pytest.raises(InputError, match="at least one outcome, got an empty list"):
        outcome_page([], tmp_path / "a.html")
    assert not list(tmp_path.iterdir())
