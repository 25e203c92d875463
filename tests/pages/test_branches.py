"""Rows that are no points of the law: they bend no line, stretch no axis, wash out no colors."""

import functools
import itertools
import math

import numpy as np
import pytest
from pages_records import falling, full_record, gated_record, resnet56_record, three_records

from layerlaw.pages import plot, report
from layerlaw.pages.classifier.charts import classes_figure, law_figure, shares_figure
from layerlaw.pages.html.compared import compare_figure
from layerlaw.pages.html.records import page_html
from layerlaw.pages.record_view import read, read_all, site_places

GATE = "stage1.0.se.fc2"


def named(figure):
    return {trace.name: trace for trace in figure.data}


def is_straight(x, y):
    slopes = np.diff(np.log(y)) / np.diff(x)
    return bool(np.allclose(slopes, slopes[0], rtol=1e-3))


def test_the_fitted_law_is_a_straight_line_and_its_points_are_at_equal_distances():
    view = read(gated_record())
    assert len({b - a for a, b in itertools.pairwise(view.fit_positions)}) > 1  # rows between them
    (law,) = (trace for name, trace in named(law_figure(view)).items() if name.startswith("law"))
    assert is_straight(law.x, law.y)
    assert set(np.diff(law.x)) == {1.0}
    assert list(shares_figure(view).data[0].x) == list(law.x[:-1])


def test_rows_between_two_points_stand_between_them_in_their_order():
    record = gated_record()
    assert site_places(record.sites)[:6] == [0.0, 1.0, 1.25, 1.5, 1.75, 2.0]
    for site in record.sites:
        site.in_fit = False
    assert site_places(record.sites) == [*range(12)]


def test_ticks_name_what_stands_above_them():
    view = read(gated_record())
    axis = law_figure(view).layout.xaxis
    assert [view.sites[view.places.index(at)].name for at in axis.tickvals] == list(axis.ticktext)
    grid = classes_figure(view).layout.xaxis
    assert [view.sites[int(at)].name for at in grid.tickvals] == list(grid.ticktext)


def test_a_row_far_off_is_drawn_at_the_edge_of_the_axis_of_the_law():
    view = read(gated_record())
    figure = law_figure(view)
    low, high = (10**end for end in figure.layout.yaxis.range)
    assert high < 300
    branches = named(figure)["side branches"]
    i = list(branches.x).index(view.places[view.record.position(GATE)])
    assert low < branches.y[i] < high
    assert branches.marker.symbol[i] == "triangle-up-open"
    assert branches.customdata[i] == "15,470"  # on hover as it is
    assert branches.marker.symbol[i - 1] == "circle-open"
    assert "Triangles at the edge" in page_html(gated_record())
    assert "Triangles at the edge" not in page_html(full_record())


def test_an_interval_beyond_the_axis_goes_with_its_point():
    record = gated_record()
    record.sites[3].branch = False  # on the trunk, and set aside
    points = next(trace for trace in law_figure(read(record)).data if trace.legendrank == 1)
    i = list(points.marker.symbol).index("triangle-up")
    assert (points.error_y.array[i], points.error_y.arrayminus[i]) == (0, 0)


def test_colors_span_the_classes_at_points_of_the_law():
    record = gated_record()
    record.sites[3].by_class["separation"] = [1e5] * 10
    heat = classes_figure(read(record)).data[0]
    inside = [math.log(v) for s in record.sites if s.in_fit for v in s.by_class["separation"]]
    assert (heat.zmin, heat.zmax) == pytest.approx((min(inside), max(inside)), abs=1e-3)
    assert heat.text[0][3] == "100,000"


def test_the_same_in_print():
    record = gated_record()
    (ax,) = plot(record).axes
    law = next(line for line in ax.lines if line.get_linestyle() == "--")
    assert is_straight(law.get_xdata(), law.get_ydata())
    assert ax.get_ylim()[1] < 200
    (beyond,) = (line for line in ax.lines if line.get_marker() == "^")
    assert list(beyond.get_xdata()) == [1.5]
    places = dict(zip(site_places(record.sites), record.numbers, strict=True))
    assert [text.get_text() for text in ax.get_xticklabels()] == [places[tick] for tick in ax.get_xticks()]


def test_records_with_other_branches_share_an_axis_that_counts_points():
    plain = full_record(separation=falling(8), logits=False)
    (ax,) = plot([gated_record(), plain]).axes
    assert ax.get_xlabel() == "step, side branches not counted"
    assert [text.get_text() for text in ax.get_xticklabels()] == list("01234567")
    (ax,) = plot([plain, plain]).axes
    assert ax.get_xlabel() == "layer index"


def test_charts_call_the_steps_of_blocks_blocks():
    blocks = full_record()
    blocks.settings["sites"] = "blocks"
    assert "law: ρ = 0.541 per block" in named(law_figure(read(blocks)))
    assert "law: ρ = 0.541 per layer" in named(law_figure(read(full_record())))
    titles = [
        compare_figure(read_all(pair)).layout.xaxis.title.text
        for pair in ([blocks, blocks], [full_record()] * 2, [blocks, full_record()])
    ]
    assert titles == [f"{what}, counted along the fit" for what in ("block", "layer", "points")]
    assert "per layer" not in page_html([blocks, blocks])


def test_a_comparison_shows_its_dashed_lines_whole():
    bent = full_record(separation=[8.9, 8.8, 8.5, 8.0, 6.0, 2.0, 0.4, 0.05])
    figure = compare_figure(read_all([bent, *three_records()]))
    low, high = figure.layout.yaxis.range
    for trace in figure.data:
        assert all(low < math.log10(v) < high for v in trace.y)


PAGES = {"gates": gated_record, "blocks": resnet56_record}


@pytest.fixture(scope="module")
def page(watched, tmp_path_factory):
    """A tab with a page, at any width."""
    folder = tmp_path_factory.mktemp("branches")
    tabs = functools.cache(lambda name: watched(report(PAGES[name](), folder / f"{name}.html"), 1280))

    def at(name, width):
        tab, trouble = tabs(name)
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert trouble == []
        return tab

    return at


TICKS = """panel => [...document.querySelectorAll(`[data-panel=${panel}] .xtick text`)].map(e => {
    const angle = /rotate\\((-?\\d+)/.exec(e.getAttribute("transform") || ""), box = e.getBoundingClientRect();
    const x = +/translate\\((-?[\\d.]+)/.exec(e.getAttribute("transform"))[1];
    return [x, angle ? +angle[1] : 0, box.width, e.textContent]; })"""
APART = {-90: 12, -45: 17}  # between the lines of 12 pixels that leaning and upright names are


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400, 340, 1279])
@pytest.mark.parametrize("panel", ["law", "shares", "classes", "ncc", "collapse"])
@pytest.mark.parametrize("name", PAGES)
def test_no_name_below_a_chart_overprints_another(page, name, panel, width):
    ticks = page(name, width).evaluate(TICKS, panel)
    assert len(ticks) > 5
    for (x, angle, wide, _), (after, *_) in itertools.pairwise(ticks):
        assert after - x >= APART.get(angle, wide)
    assert ticks[-1][-1] in ("fc", "classifier")


@pytest.mark.browser
def test_on_hover_a_row_between_two_points_has_its_own_name(page):
    texts = page("gates", 1280).evaluate(
        "document.querySelector('[data-panel=law] .chart').data.find(t => t.name === 'side branches').text"
    )
    assert texts == [f"<b>{i} · {gated_record().sites[i].name}</b>" for i in (2, 3, 4, 7)]
