"""Sheets: the paper's arrangement, readable ticks, notes beside the data, and no harm around them."""

import io
import json
import math
import re
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from pages_outcomes import epoch_sheet, law_outcome, law_panel, law_sheet, nasty_outcome, plane_sheet

from layerlaw.errors import InputError
from layerlaw.pages import draw_sheet, theme
from layerlaw.pages.html.outcomes import inline_svg
from layerlaw.pages.sheets.curves import along, corner_box, emptiest
from layerlaw.pages.sheets.scales import Scale, y_scale
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet, sheet_from_dict

INF = math.inf


def drawn(figure):
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=40)
    return out.getbuffer().nbytes


def alone(*series, **options):
    """The axes of a sheet with one panel."""
    return draw_sheet(Sheet("", (Panel("p", series, **options),))).axes[0]


def labels(axis):
    """Tick labels within the limits."""
    low, high = axis.get_view_interval()
    return [t.get_text() for t, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True) if low <= at <= high]


def curves(ax, style="-"):
    return [line for line in ax.lines if line.get_linestyle() == style and len(line.get_xdata()) > 1]


@pytest.fixture(scope="module")
def nine():
    return draw_sheet(law_sheet())


def test_panels_stand_row_by_row_as_in_the_paper(nine):
    assert [ax.get_title() for ax in nine.axes[:4]] == [
        "SGD, 4 layers", "SGD, 8 layers", "SGD, 20 layers", "momentum, 4 layers",
    ]  # fmt: skip
    nine.draw_without_rendering()
    boxes = [ax.get_position() for ax in nine.axes]
    assert len(boxes) == 9
    assert boxes[0].x0 == pytest.approx(boxes[3].x0)
    assert boxes[0].y0 == pytest.approx(boxes[2].y0)
    assert boxes[0].y0 > boxes[3].y1
    assert all(box.width > 0.22 and box.height > 0.18 for box in boxes)


def test_axis_labels_stand_once_where_all_panels_agree(nine):
    assert [ax.get_ylabel() for ax in nine.axes] == ["D", "", ""] * 3
    assert [ax.get_xlabel() for ax in nine.axes] == [""] * 6 + ["layer"] * 3


def test_axis_labels_stand_everywhere_where_they_differ():
    one = Series((0, 1), (1, 2))
    figure = draw_sheet(Sheet("", (Panel("", (one,), "layer", "D"), Panel("", (one,), "epoch", "r")), 2))
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes] == [("layer", "D"), ("epoch", "r")]


def test_rows_are_as_even_as_can_be():
    """Four panels of at most three columns are two and two; five are three and two, the last row short."""
    four, five = (draw_sheet(Sheet("", tuple(law_panel(str(i), 4) for i in range(n)), 3)) for n in (4, 5))
    assert [ax.get_xlabel() for ax in four.axes] == ["", "", "layer", "layer"]
    assert [ax.get_xlabel() for ax in five.axes] == ["", "", "layer", "layer", "layer"]


def test_words_that_make_room_bring_no_ticks_that_no_share_has():
    """A note where curves fill the panel stretches its axis: beyond 0 and 1 nothing is labeled."""
    filled = Series(tuple(range(12)), tuple(float(k % 2) for k in range(12)))
    panel = Panel("", [filled], log_y=False, note="\n".join(["words that find no place"] * 6))
    ax = draw_sheet(Sheet("", [panel, panel], 2)).axes[0]
    low, high = ax.get_ylim()
    assert low < -0.5 or high > 1.5
    assert list(ax.get_yticks()) == [0, 0.5, 1]


def test_labels_that_repeat_are_explained_once(nine):
    (legend,) = nine.legends
    assert [t.get_text() for t in legend.get_texts()] == ["other learning rates", "least squares", "mean of 3 seeds"]
    assert all(ax.get_legend() is None for ax in nine.axes)


def test_labels_of_one_panel_are_explained_in_it():
    a, b = Series((0, 1), (1, 2), "a"), Series((0, 1), (1, 2), "b")
    figure = draw_sheet(Sheet("", (Panel("", (a,)), Panel("", (b,))), 2))
    assert not figure.legends
    assert [ax.get_legend().get_texts()[0].get_text() for ax in figure.axes] == ["a", "b"]


def test_many_labels_of_one_panel_go_below_it():
    figure = draw_sheet(Sheet("", (Panel("", tuple(Series((0, 1), (1, k + 2), f"k = {k}") for k in range(7))),)))
    assert len(figure.legends[0].get_texts()) == 7
    assert figure.axes[0].get_legend() is None


def test_a_label_has_one_color_in_all_panels():
    a, b = Series((0, 1), (1, 2), "a"), Series((0, 1), (1, 2), "b")
    figure = draw_sheet(Sheet("", (Panel("", (a, b)), Panel("", (b, a)), Panel("", (b,)))))
    inks = [[line.get_color() for line in curves(ax)] for ax in figure.axes]
    assert inks == [[theme.TRAIN, theme.TEST], [theme.TEST, theme.TRAIN], [theme.TEST]]


def test_styles_are_told_apart():
    x = (0, 1, 2)
    ax = alone(
        Series(x, (3, 2, 1), "points"), Series(x, (3, 2, 1), style="fit"), Series(x, (9, 9, 9), style="null"),
        Series(x, (8, 4, 5), style="faint"), Series(x, (3, 2, 1), style="line", color=2),
    )  # fmt: skip
    points, fit, null, faint, line = [each for each in ax.lines if len(each.get_xdata()) == 3]
    assert points.get_marker() == "o"
    assert [each.get_linestyle() for each in (points, fit, null, faint, line)] == ["-", "--", "--", "-", "-"]
    assert null.get_color() == theme.NULL
    assert faint.get_linewidth() < line.get_linewidth()
    assert to_hex(line.get_color()) == theme.QUALITATIVE[1]
    assert fit.get_zorder() > faint.get_zorder()


def test_where_several_curves_are_fitted_a_fit_has_its_curves_color():
    a, b, fit = Series((0, 1), (4, 2)), Series((0, 1), (3, 1)), Series((0, 1), (4, 1), style="fit")
    assert [line.get_color() for line in curves(alone(a, fit, b, fit), "--")] == [theme.TRAIN, theme.TEST]
    assert [line.get_color() for line in curves(alone(a, fit), "--")] == [theme.RISE]


def test_ranges_are_whiskers_at_points_and_bands_along_lines():
    x, y, low, high = (0, 1, 2), (3, 2, 1), (2, 1, 0.5), (4, 3, None)
    whiskers = alone(Series(x, y, "", low, high)).collections[0].get_segments()
    assert [tuple(w[:, 1]) for w in whiskers] == [(2, 4), (1, 3), (0.5, 1)]
    (band,) = alone(Series(x, y, "", low, high, "line")).collections
    assert band.get_paths()[0].get_extents().y0 == pytest.approx(0.5)


def test_a_hole_is_a_gap_and_a_lonely_point_is_seen():
    ax = alone(Series((0, 1, 2, 3, 4), (5.0, None, 3.0, None, 1.0), style="line"))
    line, dots = ax.lines
    assert [math.isnan(v) for v in line.get_ydata()] == [False, True, False, True, False]
    assert list(dots.get_xdata()) == [0, 2, 4]


def test_what_a_log_axis_cannot_show_is_left_out():
    ax = alone(Series((0, 1, 2, 3), (10.0, 0.0, -2.0, 1.0), "", (5.0, 0, -3, -1.0), (20.0, 1, 1, 2.0)))
    assert ax.get_yscale() == "log"
    assert [v for v in ax.lines[0].get_ydata() if not math.isnan(v)] == [10, 1]
    low, high = ax.get_ylim()
    assert 0.3 < low < 1
    assert 20 < high < 40
    assert ax.collections[0].get_segments()[1][0, 1] > 0


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.4, 36.0, ["1", "10"]),
        (5.0, 5.4, ["5"]),
        (7.2, 9.8, ["8", "10"]),
        (3.1, 6.9, ["3", "5", "7"]),
        (1e-9, 1e3, ["10⁻⁸"]),
        (900, 45_000, ["1,000", "10,000"]),
    ],
)
def test_a_log_axis_always_has_readable_ticks(low, high, wanted):
    words = labels(alone(Series((0, 1, 2), (high, math.sqrt(low * high), low))).yaxis)
    assert 3 <= len(words) <= 9
    assert all(words)
    assert set(wanted) <= set(words), words


def test_zeros_have_a_place_of_their_own_on_a_log_axis_that_is_to_show_them():
    series = Series(
        range(5), (0.5, 0.02, 0.0, 0.001, 0.0), low=(0.4, 0.0, 0.0, 0.0005, 0.0), high=(0.6, 0.1, 0, 0.002, 0)
    )
    ax = alone(series, zeros=True)
    heights = next(line for line in ax.lines if len(line.get_xdata()) == 5).get_ydata()
    zero = heights[2]
    assert (heights[4], list(heights[[0, 1, 3]])) == (zero, [0.5, 0.02, 0.001])
    assert ax.get_ylim()[0] < zero < 0.0005 / 2  # below the least end of a range too
    words = dict(zip(ax.get_yticks(), labels(ax.yaxis), strict=True))
    assert words.pop(zero) == "0"
    assert min(words) >= 0.0005
    assert min(ax.yaxis.get_minorticklocs()) >= 0.0004
    whiskers = [segment for part in ax.collections for segment in part.get_segments()]
    assert min(low for (_, low), _ in whiskers) == zero
    gaps = alone(series).lines[0].get_ydata()
    assert [math.isnan(v) for v in gaps] == [False, False, True, False, True]  # not asked for: as before


@pytest.mark.parametrize("log_x", [False, True])
def test_infinity_has_a_tick_of_its_own_right_of_all_numbers(log_x):
    ax = alone(Series((1, 10, 100, 1000), (1, 2, 3, 4)), infinity=1000, log_x=log_x)
    words = dict(zip(ax.get_xticks(), labels(ax.xaxis), strict=True))
    assert words.pop(1000) == "∞"
    assert words
    assert max(words) < 1000
    assert "∞" not in words.values()


def test_panels_of_one_scale_have_zeros_below_the_numbers_of_all():
    falling = Panel("", [Series((0, 1), (0.5, 0.0))], zeros=True)
    small, none = Panel("", [Series((0, 1), (1e-4, 1e-5))], zeros=True), Panel("", [Series((0, 1), (0, 0))], zeros=True)
    axes = draw_sheet(Sheet("", (falling, small, none), share_y=True)).axes
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert axes[0].get_yticks()[0] < 1e-5 / 2
    assert labels(axes[0].yaxis)[0] == "0"
    assert labels(draw_sheet(Sheet("", (none,))).axes[0].yaxis) == ["0"]
    sheet = Sheet("", (falling,))
    assert sheet_from_dict(json.loads(json.dumps(asdict(sheet)))) == sheet


@pytest.mark.parametrize("low", [0.03, 0.5, 1.0, 3.3, 7.0, 99.0])
@pytest.mark.parametrize("decades", [0.001, 0.1, 0.3, 0.5, 0.9, 1.4, 2.5, 6.0])
@pytest.mark.parametrize("most", [5, 7])
def test_ticks_are_neither_too_few_nor_too_many(low, decades, most):
    scale = Scale(low, low * 10**decades, True).stretched(0.06, 0.06)
    ticks = scale.ticks(most)
    assert 2 <= len(ticks) <= most + 2
    assert all(scale.low <= t <= scale.high for t in ticks)
    assert len(set(scale.words(ticks))) == len(ticks)


def test_layers_are_counted_in_whole_numbers():
    assert labels(alone(Series(range(4), (8, 4, 2, 1))).xaxis) == ["0", "1", "2", "3"]
    assert labels(alone(Series((0.001, 0.01, 0.1), (8, 4, 2)), log_x=True).xaxis) == [
        "0.001",
        "0.003",
        "0.01",
        "0.03",
        "0.1",
    ]


def test_a_run_that_diverges_in_the_background_does_not_press_the_rest_flat():
    panel = law_panel("p")
    scale = y_scale(panel)
    assert 60 < scale.high < 400 < 4e6
    assert y_scale(Panel("", (Series((0, 1), (1, 4e6), style="faint"),))).high > 4e6


def test_shared_scales_are_the_same_and_labeled_at_the_left():
    panels = (law_panel("a", 8), Panel("b", (Series((0, 1), (300.0, 200.0)),), note="a note"))
    a, b = draw_sheet(Sheet("", panels, 2, share_y=True)).axes
    assert a.get_ylim() == b.get_ylim()
    assert a.get_ylim()[1] > 300
    assert a.yaxis.get_tick_params()["labelleft"]
    assert not b.yaxis.get_tick_params()["labelleft"]


@pytest.mark.parametrize("last", [0.4, 36.0, 900.0])
@pytest.mark.parametrize("columns", [1, 3, 6])
def test_notes_cover_no_data(last, columns):
    y = [36.8 * (last / 36.8) ** (i / 7) for i in range(8)]
    crossing = Series(range(8), y[::-1])
    note = "r = −0.998, ρ = 0.53\n6.7 of 7 effective layers, p = .0003 WWWW WWWW WWWW"
    panels = [Panel("p", (Series(range(8), y), crossing, Series(range(8), [10] * 8)), note=note)] * columns
    figure = draw_sheet(Sheet("", tuple(panels), columns))
    figure.draw_without_rendering()
    for ax in figure.axes:
        (text,) = ax.texts
        box, whole = text.get_window_extent(), ax.get_window_extent()
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1
        assert ax.lines
        for line in ax.lines:
            path = ax.transData.transform(list(zip(line.get_xdata(), line.get_ydata(), strict=True)))
            for (x0, y0), (x1, y1) in pairwise(path):
                for t in range(21):
                    assert not box.contains(x0 + (x1 - x0) * t / 20, y0 + (y1 - y0) * t / 20)


def test_note_and_legend_of_a_panel_do_not_meet():
    panel = epoch_sheet().panels[0]
    figure = draw_sheet(Sheet("", (Panel("p", panel.series, log_y=False, note="r < −0.99 from epoch 290"),)))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    note, legend = ax.texts[0].get_window_extent(), ax.get_legend().get_window_extent()
    assert not note.overlaps(legend)


def test_the_emptiest_corner_avoids_data_and_what_is_taken():
    falling = along([(0.0, 1.0), (1.0, 0.0)])
    first = emptiest(0.3, 0.2, falling)
    second = emptiest(0.3, 0.2, falling, [first.box])
    assert (first.name, second.name) == ("upper right", "lower left")
    assert first.covers == second.covers == 0
    assert emptiest(0.9, 0.9, falling).covers > 0
    assert not corner_box("lower left", 0.2, 0.2).overlaps(corner_box("upper right", 0.2, 0.2))


def test_bars_stand_side_by_side_on_zero():
    ax = alone(
        Series((1, 2), (0.2, -0.1), "a", style="bars"), Series((1, 2), (0.2, 0.3), "b", style="bars"), log_y=False
    )
    spans = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_y()) for bar in ax.patches]
    assert len(spans) == 4
    assert spans[0][1] == pytest.approx(spans[2][0])
    assert all(bottom == 0 for *_, bottom in spans)
    assert ax.get_ylim()[0] < -0.1


def test_a_shaded_range_is_drawn_and_survives_plain_data():
    plain, shaded = (alone(Series((0, 10), (1, 2)), shaded=between) for between in (None, (4, 10)))
    assert len(shaded.patches) == len(plain.patches) + 1
    box = shaded.patches[-1].get_extents().transformed(shaded.transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((4, 10))
    sheet = Sheet("s", [Panel("p", [Series((0, 1), (1, 2))], shaded=(0, 1))])
    assert sheet_from_dict(json.loads(json.dumps(asdict(sheet)))) == sheet
    with pytest.raises(InputError, match="expected a range of finite x"):
        Panel("p", [], shaded=(2, 1))


def test_the_marked_x_is_within_the_axes():
    ax = alone(Series((0, 1), (1, 2)), marked=5.0)
    assert list(ax.lines[-1].get_xdata()) == [5.0, 5.0]
    assert ax.get_xlim()[1] > 5


@pytest.mark.parametrize(
    "panel",
    [
        Panel("", ()),
        Panel("", (Series((), ()),)),
        Panel("", (Series((3,), (2.0,), "one"),), note="note"),
        Panel("", (Series((3,), (2.0,), style="line"),), log_x=True, marked=-1.0),
        Panel("", (Series((0, 1), (None, None), low=(None, None)),), note="note", marked=1.0),
        Panel("", (Series((0, 1), (0.0, -1.0)),)),
        Panel("", (Series((0, 1), (0.0, 0.0)),), log_y=False),
        Panel("", (Series((-1, 0, 1), (1, 2, 3)), Series((0, 1), (1, 0), style="bars")), log_x=True),
        Panel("", (Series((0, 1), (INF, 1.0), style="null"), Series((1, 2), (1e-30, 1e30), style="faint"))),
        Panel("x" * 200, (Series(range(600), [1 + i % 7 for i in range(600)], "y" * 90),), note="word " * 60),
        PlanePanel("", (), ()),
    ],
)
def test_no_panel_is_too_strange_to_draw(panel):
    for columns in (1, 5):
        assert drawn(draw_sheet(Sheet("", (panel,) * columns, columns))) > 500


def test_a_sheet_without_panels_is_drawn():
    assert drawn(draw_sheet(Sheet("nothing", ()))) > 500


def test_planes_are_square_and_colored_by_class():
    figure = draw_sheet(plane_sheet())
    colors = theme.class_colors(10)
    (dots,) = figure.axes[0].collections
    assert [to_hex(c) for c in dots.get_facecolors()[:10]] == colors
    assert figure.axes[0].get_aspect() == 1


def test_many_dots_become_a_picture():
    plane = PlanePanel("", tuple((i % 60, i // 60) for i in range(3600)), (0,) * 3600)
    assert len(inline_svg(draw_sheet(Sheet("", (plane,))), "k", title="t")) < 200_000


def test_the_heading_can_be_left_to_the_page():
    assert draw_sheet(plane_sheet()).get_suptitle() == "Planes"
    assert draw_sheet(plane_sheet(), heading=False).get_suptitle() == ""


def test_pyplot_is_never_imported_and_no_setting_changes():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import matplotlib as m, pages_outcomes as o;"
        "from layerlaw.pages import draw_sheet; from layerlaw.pages.html.outcomes import inline_svg;"
        "before = m.rcParams['svg.fonttype'];"
        "inline_svg(draw_sheet(o.epoch_sheet()), 'k', title='t');"
        "sys.exit('matplotlib.pyplot' in sys.modules or m.rcParams['svg.fonttype'] != before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# Inside a page


def svg_of(sheet, key="k", **words):
    return inline_svg(draw_sheet(sheet), key, title=words.pop("title", "A title"), **words)


def test_every_id_begins_with_the_key_and_every_reference_is_kept():
    root = ElementTree.fromstring(svg_of(epoch_sheet(), "o1s2"))
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    used = set(re.findall(r"(?:url\(|href=\")#([\w.-]+)", svg_of(epoch_sheet(), "o1s2")))
    assert len(ids) == len(set(ids)) > 20
    assert all(i.startswith("o1s2-") for i in ids)
    assert used
    assert used <= set(ids)


def test_text_stays_text_and_title_and_description_come_first():
    root = ElementTree.fromstring(svg_of(epoch_sheet(), title="When <it>", description="One panel & a note"))
    assert [e.tag.split("}")[1] for e in root[:2]] == ["title", "desc"]
    assert [e.text for e in root[:2]] == ["When <it>", "One panel & a note"]
    assert root.get("aria-labelledby") == "k-title k-desc"
    texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"epoch", "Pearson r", "8 layers", "600"} <= set(texts)


def test_nothing_in_the_drawing_speaks_to_the_page():
    svg = svg_of(epoch_sheet())
    assert "<style" not in svg
    assert "<metadata" not in svg
    assert "<?xml" not in svg
    assert svg == svg_of(epoch_sheet())


def test_labels_cannot_be_markup():
    svg = svg_of(nasty_outcome().sheets[0])
    assert "<script" not in svg
    assert "<img" not in svg
    assert "&lt;script&gt;" in svg


def test_named_classes_are_explained_once_per_sheet():
    points, names = tuple((i, i % 3) for i in range(12)), ("T-shirt", "Trouser", "Bag")
    planes = tuple(PlanePanel(f"layer {k}", points, tuple(i % 3 for i in range(12)), names) for k in range(2))
    (legend,) = draw_sheet(Sheet("", planes, 2)).legends
    assert [text.get_text() for text in legend.get_texts()] == list(names)
    assert [to_hex(line.get_color()) for line in legend.get_lines()] == theme.class_colors(3)
    assert not draw_sheet(plane_sheet()).legends


def test_a_sheet_and_an_outcome_draw_themselves():
    sheet = law_sheet()
    assert [ax.get_title() for ax in sheet.plot().axes] == [ax.get_title() for ax in draw_sheet(sheet).axes]
    outcome = law_outcome()
    assert len(outcome.plot().axes) == len(sheet.panels)
    with pytest.raises(InputError, match="outcome 'fig1': expected one of its 1 sheets, got 1"):
        outcome.plot(1)
