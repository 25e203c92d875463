"""How a regression and several labels are shown: page, terminal, comparison, figure."""

import functools
import re

import pytest
import torch
from capture_networks import FNN, clouds, seeded
from rich.console import Console

import layerlaw as ll
from layerlaw.errors import InputError
from layerlaw.pages import plot_planes, print_comparison, print_record, report
from layerlaw.pages.html.records import page_html
from layerlaw.verdict import judge


@functools.cache
def numbers() -> ll.Record:
    x = clouds(300, 12)[0]
    y = torch.stack([x[:, 0] * x[:, 1], 100 * x[:, 2].sin()], 1)
    record = ll.probe(
        seeded(FNN, (12, 20, 16, 16, 16, 2)),
        (x, y),
        test=(x[:90], y[:90]),
        classes=["a <b>", "c"],
        null=True,
        progress=False,
    )
    record.name = "numbers"
    return record


@functools.cache
def labels() -> ll.Record:
    x = clouds(300, 12)[0]
    record = ll.probe(seeded(FNN, (12, 20, 16, 16, 3)), (x, x[:, :3] > 0), progress=False)
    record.name = "labels"
    return record


def printed(record: ll.Record, width: int = 100) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as said:
        print_record(record, console)
    return said.get()


def test_the_terminal_shows_d_reg_and_residuals() -> None:
    text = printed(numbers())
    assert "300 training samples · 90 test samples · 2 targets · 5 sites" in text
    assert "train R²" in text
    for head in ("D_reg", "1 − R²", "in-sample", "test D_reg"):
        assert head in text, head
    assert "NCC" not in text
    assert "of labels right" in printed(labels())
    assert max(map(len, printed(numbers(), 60).splitlines())) <= 60


def test_the_page_has_the_panels_of_a_regression() -> None:
    page = page_html(numbers())
    for panel in ("verdict", "law", "shares", "table", "residual", "plane", "method"):
        assert f'data-panel="{panel}"' in page, panel
    for panel in ("ncc", "collapse", "classes"):
        assert f'data-panel="{panel}"' not in page, panel
    assert "a <b>" not in page.split("</style>")[1].split("<script>")[0]
    assert "final D<sub>reg</sub>" in page
    assert "permuted targets (chance)" in page
    assert "H. He and W. J. Su" in page


def test_several_are_compared_and_other_kinds_refused(tmp_path) -> None:
    page = page_html([numbers(), labels()])
    assert "final 1 − R²" in page
    assert "% right" in page
    console = Console(width=120, force_terminal=False)
    with console.capture() as said:
        print_comparison([numbers(), labels()], console)
    assert "final D_reg" in said.get()
    x, y = clouds(300, 12)
    other = ll.probe(seeded(FNN), (x, y), progress=False)
    with pytest.raises(
        InputError, match=r"expected records of one kind, got a regression \('numbers'\) and a classifier"
    ):
        report([numbers(), other], tmp_path / "page.html")


def test_figures_are_drawn() -> None:
    figure = ll.plot(numbers())
    assert figure.axes[0].get_ylabel() == "separation fuzziness D_reg"
    assert ll.plot(numbers(), "residual_held_out").axes[0].get_ylabel() == "prediction residual (held out)"
    assert len(plot_planes(labels()).axes) == 4


def test_without_residuals_the_chart_says_why() -> None:
    x = clouds(40, 60)[0]
    record = ll.probe(seeded(FNN, (60, 50, 50, 1)), (x, x[:, 0]), progress=False)
    assert "needs more samples than features" in page_html(record)


@pytest.mark.browser
@pytest.mark.parametrize("make", [numbers, labels])
def test_the_page_draws_in_a_browser(make, watched, tmp_path) -> None:
    for width in (400, 1280):
        tab, trouble = watched(report(make(), tmp_path / "page.html"), width)
        tab.wait_for_selector("#r0-residual .main-svg")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert trouble == []


def test_parts_have_their_panel_and_data_their_name() -> None:
    x = clouds(300, 12)[0]
    how = {"parts": True, "data_name": "clouds of May", "progress": False}
    record = ll.probe(seeded(FNN, (12, 20, 16, 16, 2)), (x, x[:, :2].sin()), **how)
    page = page_html(record)
    assert 'data-panel="parts"' in page
    assert "change of ln D<sub>reg</sub>" in page
    assert "300 samples of clouds of May" in printed(record)


def test_symbols_have_their_index_below_them_on_the_page_and_not_in_the_terminal() -> None:
    record = numbers()
    page = page_html([record, record])
    shown = re.sub(r'title="[^"]*"', "", page.split("</style>")[1])
    assert "D_reg" not in re.sub(r"<script>.*", "", shown, flags=re.S)
    assert "separation fuzziness D\\u003csub\\u003ereg" in page
    assert "D_reg" in str(judge(record))
