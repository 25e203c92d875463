"""Whatever a file is called: no text of it becomes markup on a page, in a terminal, or in the ledger."""

import ast
import io
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest
from lm_records import lm_record
from pages_outcomes import bare_outcome, law_outcome, nasty_outcome, plane_sheet
from pages_records import full_record, minimal_record, parts_record, resnet56_record
from payloads import AWAY, FIXED, TRIES, poisoned
from rich.console import Console

import layerlaw.pages
from layerlaw.errors import DataError, InputError
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import html, ledger_index, ledger_page, print_comparison, print_outcome, print_record
from layerlaw.pages.html import fill
from layerlaw.pages.html.outcomes import outcome_html
from layerlaw.pages.html.records import page_html
from layerlaw.record import LANGUAGE_MODEL, REGRESSION, PartRow, Record, SiteRow
from layerlaw.sheet import ImagePanel, Panel, PlanePanel, Series, Sheet

PAGES = Path(layerlaw.pages.__file__).parent


def regression_record() -> Record:
    record = full_record(separation=[9.0, 5.0, 3.0, 2.0, 1.0])
    record.kind = REGRESSION
    for site in record.sites:
        D = site.values.pop("separation")
        site.values = {"target_separation": D, "residual": 0.4, "residual_held_out": 0.5}
        site.by_class = {"residual_held_out": [0.5] * 10}
    return record


RECORDS = {
    "classifier": full_record,
    "parts": parts_record,
    "branches": resnet56_record,
    "language model": lambda: lm_record(blocks=6, shuffled=2),
    "regression": regression_record,
}


def with_a_picture() -> Outcome:
    shown = Sheet("image", (ImagePanel("digit", [[0.0, 1.0], [1.0, 0.0]], "a note"), *plane_sheet().panels), 3, "both")
    named = PlanePanel("with classes", ((0.0, 1.0), (1.0, 1.0)), (0, 1), ("a", "b"))
    outcome = law_outcome()
    return Outcome(
        outcome.name, outcome.title, outcome.rows, (*outcome.sheets, shown, Sheet("named", (named,), 1)),
        outcome.tables, outcome.notes, outcome.provenance,
    )  # fmt: skip


def poisoned_record(kind: str, *, keys: bool = False) -> tuple[Record, set[str]]:
    data, touched = poisoned(RECORDS[kind]().to_dict(), keys=keys)
    return Record.from_dict(data), touched


class Tags(HTMLParser):
    """What a browser would find: every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def check_page(page: str) -> None:
    """Only our own tags; nothing that runs, is sent, or leads elsewhere."""
    found = Tags(re.sub(r"<script>.*?</script>", "", page, flags=re.S)).found  # those are ours, by their hashes
    assert {tag for tag, _ in found} <= html.TAGS | {"html", "head", "body", "meta", "link", "style"}
    assert sum(tag == "meta" for tag, _ in found) == 4
    assert [a["http-equiv"] for tag, a in found if "http-equiv" in a] == ["Content-Security-Policy"]
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on") or (name in html.AWAY and tag != "meta")]
        for name in ("href", "src", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


@pytest.mark.parametrize("kind", RECORDS)
def test_no_text_of_a_record_becomes_markup_on_its_page(kind: str) -> None:
    page = page_html(poisoned_record(kind, keys=True)[0])
    check_page(page)
    assert "&lt;meta http-equiv" in page
    assert "\x1b" not in page


def test_a_page_that_compares_has_no_markup_of_theirs_either() -> None:
    check_page(page_html([poisoned_record("classifier")[0], full_record(), poisoned_record("branches")[0]]))
    check_page(page_html([poisoned_record("language model")[0], lm_record(blocks=9)], title=TRIES[0]))


def test_no_text_of_an_outcome_becomes_markup_on_its_page() -> None:
    outcome = Outcome.from_dict(poisoned(with_a_picture().to_dict(), keys=True)[0])
    check_page(outcome_html([outcome, nasty_outcome()]))


def test_the_walk_reaches_every_field_that_holds_text() -> None:
    """A field that is added to a kind of record is poisoned too, or this test says so."""
    touched = set().union(*(poisoned(make().to_dict())[1] for make in RECORDS.values()))
    touched |= poisoned(with_a_picture().to_dict())[1]
    kinds = (Record, SiteRow, PartRow, Outcome, Row, Table, Sheet, Panel, PlanePanel, ImagePanel, Series)
    texts = {
        f.name for kind in kinds for f in fields(kind) if re.search(r"\bstr\b", re.sub(r"dict\[str", "", str(f.type)))
    }
    assert texts - touched - FIXED == set()


def test_a_column_that_tries_to_be_markup_is_refused_in_a_file_and_escaped_where_it_was_made_here() -> None:
    record = lm_record(blocks=5, shuffled=0)
    for site in record.sites:
        site.values[f"residual_{TRIES[0]}"] = 0.5
    check_page(page_html(record))
    with pytest.raises(DataError, match=r"sites\[0\]\.values: expected names of at most 100 letters, digits"):
        Record.from_dict(record.to_dict())


# --- the template ---------------------------------------------------------------------------------------------------


def test_only_the_template_makes_html() -> None:
    """Templates are literals, `Markup` is named nowhere else to be called, and no tag stands in another string."""
    for path in PAGES.rglob("*.py"):
        home = path == PAGES / "html" / "__init__.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "fill":
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: a template is a literal"
            assert name != "Markup" or home, f"{path}:{node.lineno}: HTML is made by fill"


def test_what_is_added_to_html_by_hand_is_escaped() -> None:
    head = fill("<b>{}</b>", "x")
    assert fill("{}", head) == "<b>x</b>"
    assert fill("{}", head + "<i>") == "&lt;b&gt;x&lt;/b&gt;&lt;i&gt;"
    assert fill("{}", "".join([head])) == "&lt;b&gt;x&lt;/b&gt;"
    assert fill("{}", "{0}{") == "{0}{"


@pytest.mark.parametrize(
    "body",
    ['<meta http-equiv="refresh">', "<form>", "<iframe>", '<a href="https://x.invalid">', "<p onclick='x'>",
     '<p target="x">', "<object>", '<image xlink:href="https://x.invalid/a.png"/>', "< embed>", '<svg><use href="http://x.invalid#a"/></svg>'],
)  # fmt: skip
def test_the_document_refuses_elements_that_lead_elsewhere(body: str) -> None:
    with pytest.raises(InputError, match="expected no element that leads elsewhere"):
        html.document("title", "", html.Markup(body))


def test_the_policy_forbids_forms_frames_and_another_base() -> None:
    for page in (page_html(minimal_record()), outcome_html(bare_outcome())):
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
        for rule in ("default-src", "base-uri", "form-action", "frame-src", "object-src"):
            assert f"{rule} 'none'" in policy


def test_labels_of_charts_hold_no_links() -> None:
    page = page_html(poisoned_record("classifier")[0])
    figures = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, flags=re.S)
    assert len(figures) > 4
    for tag in re.findall(r"\\u003c(/?\w*)", "".join(figures)):
        assert tag.strip("/") in ("b", "br", "sub", "sup", "extra")


# --- the terminal and the ledger ------------------------------------------------------------------------------------


def shown(print_it, *what: object, width: int = 100) -> str:
    console = Console(file=(written := io.StringIO()), width=width, force_terminal=False)
    print_it(*what, console)
    return written.getvalue()


def check_terminal(text: str) -> None:
    assert not [c for c in text if not c.isprintable() and c != "\n" and c != "\u00a0"]
    assert "\\x1b[31m" in text
    assert "[/zz]" in text


@pytest.mark.parametrize("kind", RECORDS)
def test_no_text_of_a_record_steers_the_terminal_or_is_markup_of_rich(kind: str) -> None:
    record, _ = poisoned_record(kind, keys=True)
    for width in (50, 200):
        check_terminal(shown(print_record, record, width=width))
        check_terminal(shown(print_comparison, [record, record], width=width))
    for text in (str(record), repr(record), record._repr_html_()):
        assert not [c for c in text if not c.isprintable() and c != "\n"]


def test_an_outcome_and_an_error_steer_no_terminal() -> None:
    outcome = Outcome.from_dict(poisoned(law_outcome().to_dict(), keys=True)[0])
    check_terminal(shown(print_outcome, outcome))
    with pytest.raises(InputError) as caught:
        full_record(name="\x1b[2J\r").column("\x9b31m")
    assert "\\x1b[2J\\r" in str(caught.value)
    assert not [c for c in str(caught.value) if not c.isprintable()]


def test_a_heading_of_a_table_is_no_markup_of_rich() -> None:
    record = lm_record(blocks=4, shuffled=0, targets=())
    for site in record.sites:
        site.values["residual_[/zz]"] = site.values["residual_[bold]"] = 0.5
    assert record.kind is LANGUAGE_MODEL
    text = shown(print_record, record, width=240)
    assert "[/zz]" in text
    assert "[bold]" in text


@pytest.mark.parametrize("ticks", ["`", "``", "a``b", "```x`"])
def test_backticks_do_not_end_the_code_of_a_command_in_the_ledger(ticks: str) -> None:
    outcome = Outcome("fig1", "t", (), (), provenance={"command": f"layerlaw {ticks}<b>"})
    line = next(line for line in ledger_page(outcome).splitlines() if "layerlaw" in line)
    fence = re.match("`+", line)[0]
    assert line.endswith(fence)
    assert fence not in line[len(fence) : -len(fence)].strip()


def test_no_text_of_an_outcome_becomes_markup_in_the_ledger() -> None:
    outcome = Outcome.from_dict(poisoned(law_outcome().to_dict(), keys=True)[0])
    text = ledger_page(outcome) + ledger_index([outcome])
    bare = re.sub(r"(`+).*?\1", "", text, flags=re.S)  # in code a tag is text
    tags = set(re.findall(r"(?<!\\)<(/?[a-z]+)", bare))
    assert tags <= {"details", "/details", "summary", "/summary"}
    assert f"]({AWAY}" not in text
