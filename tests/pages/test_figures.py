"""Figures for papers: drawn without pyplot, readable, harmless to what is around them."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from pages_records import broken_record, deep_record, full_record, many_classes_record, minimal_record, nasty_record

from layerlaw.errors import InputError
from layerlaw.pages import plot, plot_planes


def drawn(figure):
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=40)
    return out.getbuffer().nbytes


def test_plot_shows_points_line_and_numbers():
    figure = plot(full_record())
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    assert "ρ = 0.541" in ax.get_title()
    assert "r = −0.998" in ax.get_title()
    assert ax.get_xlabel() == "layer index"
    points, logits, line = ax.lines
    assert len(points.get_xdata()) == 8
    assert list(logits.get_xdata()) == [8]
    assert line.get_linestyle() == "--"
    assert drawn(figure) > 1000


@pytest.mark.parametrize("make", [minimal_record, nasty_record, deep_record, many_classes_record, broken_record])
def test_every_record_can_be_plotted(make):
    assert drawn(plot(make())) > 1000


@pytest.mark.parametrize("column", ["nc1", "test_separation", "ncc_accuracy", "rank", "nc3"])
def test_every_column_can_be_plotted(column):
    assert drawn(plot(full_record(), column)) > 1000


def test_shares_of_samples_are_no_law():
    (ax,) = plot(full_record(), "ncc_accuracy").axes
    assert ax.get_yscale() == "linear"
    assert "ρ" not in ax.get_title()


def test_plot_draws_on_given_axes_and_returns_their_figure():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot(minimal_record(), ax=right) is figure
    assert not left.lines
    assert right.lines


def ticks_of(names, **how):
    record = minimal_record()
    record.sites = [replace(record.sites[0], name=name) for name in names]
    (ax,) = plot(record, **how).axes
    return [text.get_text() for text in ax.get_xticklabels()], ax.get_xlabel()


def test_sites_are_named_where_their_names_fit_and_say_more_than_numbers():
    assert ticks_of(["conv1", "conv2", "$fc$"]) == (["conv1", "conv2", "$fc$"], "layer")
    for numbered in (["0", "2", "4"], ["features.a_long_name_of_a_site", "features.another_one", "classifier"]):
        assert ticks_of(numbered)[1] == "layer index"
    assert ticks_of([f"l{i}" for i in range(13)])[1] == "layer index"  # not all of them have a tick
    assert ticks_of(["conv1", "conv2", "fc"], ax=Figure().add_subplot())[1] == "layer index"  # of any width


def test_planes_are_small_multiples():
    figure = plot_planes(full_record())
    assert len(figure.axes) == 9
    assert figure.axes[1].get_title() == "1 · layers.1.relu\nD = 15.5"
    assert drawn(figure) > 1000


@pytest.mark.parametrize("make", [nasty_record, many_classes_record, broken_record])
def test_planes_survive_names_classes_and_holes(make):
    assert drawn(plot_planes(make())) > 1000


def test_a_column_that_is_not_there_is_answered():
    with pytest.raises(InputError, match="expected one of the columns"):
        plot(minimal_record(), "nc1")


def test_an_empty_column_is_answered():
    record = minimal_record()
    for site in record.sites:
        site.values["nc1"] = None
    with pytest.raises(InputError, match="holds no finite number in column 'nc1'"):
        plot(record, "nc1")


def test_planes_that_were_not_recorded_are_answered():
    with pytest.raises(InputError, match="holds no plane coordinates"):
        plot_planes(minimal_record())


def test_pyplot_is_never_imported():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import layerlaw.pages as p, pages_records;"
        "p.plot(pages_records.full_record()).savefig(sys.argv[1]); p.plot_planes(pages_records.full_record());"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, "/dev/null"], check=True, capture_output=True)


def test_a_record_draws_itself():
    record = full_record()
    assert record.plot("nc1").axes[0].get_title() == plot(record, "nc1").axes[0].get_title()


def test_several_records_are_drawn_into_one_picture_with_a_legend():
    deep, full = deep_record(), full_record()
    figure = plot([full, deep, full_record()])
    (ax,) = figure.axes
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(names) == 3
    assert len(set(names)) == 3  # records of one name are told apart
    assert all("ρ = " in name for name in names)
    assert not ax.get_title()
    colors = {line.get_color() for line in ax.lines if line.get_linestyle() == "--"}
    assert len(colors) == 3
    assert ax.get_xlim()[1] > len(deep.sites) - 1
    assert drawn(figure) > 1000
    assert drawn(plot((full, deep), "ncc_accuracy")) > 1000


def test_one_record_in_a_list_is_drawn_as_it_is_alone():
    alone, listed = plot(full_record()), plot([full_record()])
    assert listed.axes[0].get_title() == alone.axes[0].get_title()
    assert listed.axes[0].get_legend() is None


def test_what_cannot_be_drawn_together_is_told():
    from lm_records import lm_record

    with pytest.raises(InputError, match="plot: expected records of one kind, got a classifier and a language model"):
        plot([full_record(), lm_record()])
    for wrong in (3, [3], "record", None):
        with pytest.raises(InputError, match="plot: expected one Record or a list of them, got"):
            plot(wrong)
    with pytest.raises(InputError, match="plot: expected at least one record, got an empty list"):
        plot([])
    with pytest.raises(InputError, match="expected one of the columns"):
        plot([full_record(), minimal_record()], "nc3")
