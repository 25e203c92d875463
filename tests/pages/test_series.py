"""Pages of checkpoints along training steps, of any kind of record, and of models on the same tokens."""

import math

import numpy as np
import pytest
from lm_records import curve, lm_record

from layerlaw.pages import report
from layerlaw.pages.html.records import page_html
from layerlaw.pages.html.series import (
    MOST_CURVES,
    drawn_alone,
    ends_figure,
    heat_figure,
    shape_figure,
    training_series,
    training_words,
)
from layerlaw.pages.record_view import read_all
from layerlaw.record import Record, SiteRow

BARE = {"words": False, "null": None, "targets": (), "shuffled": 0, "separation": False}


def checkpoint(step, blocks=6, *, share=1.0, **settings):
    values = list(0.97 * (curve(blocks) / 0.97) ** share)
    record = lm_record(f"run step{step}", values=values, seed=int(step) % 97, **BARE)
    record.settings |= {"step": step, "step_unit": "step"} | settings
    return record


def classifier(epoch):
    rows = [
        SiteRow(f"fc{i}", "Linear", (4,), 4, values={"separation": 10.0 * (0.9 - 0.1 * epoch) ** i}) for i in range(5)
    ]
    return Record(f"epoch {epoch}", rows, ["a", "b"], counts=[9, 9], settings={"step": epoch, "step_unit": "epoch"})


def series_of(records):
    (series,) = training_series(read_all(records))
    return series


def test_the_heat_map_holds_every_block_at_every_step_in_order():
    records = [checkpoint(step, share=share) for step, share in ((1000, 1.0), (0, 0.1), (16, 0.5))]
    series = series_of(records)
    assert series.steps == (0.0, 16.0, 1000.0)
    (heat,) = heat_figure(series).data
    ordered = sorted(records, key=lambda record: record.settings["step"])
    expected = np.log([[site.values["residual_held_out"] for site in record.points()] for record in ordered]).T
    assert np.array(heat.z, dtype=float) == pytest.approx(expected, abs=2e-6)
    assert list(heat.y) == [1, 2, 3, 4, 5, 6]
    layout = heat_figure(series).layout
    assert layout.xaxis.ticktext == ("0", "16", "1k")
    assert "<b>step 16</b><br>2 · model.layers.1<br>PR = " in heat.customdata[1][1]
    assert training_words(series).startswith("From step 0 to 1k PR of the last block goes from 0.96")


def test_a_law_that_cannot_be_judged_at_any_checkpoint_is_no_count():
    few = [checkpoint(step, tokens_per_feature=5.0) for step in (0, 1000)]
    assert training_words(series_of(few)).endswith("; whether the law holds cannot be said at any of 2 checkpoints.")


def test_steps_that_span_much_stand_on_a_log_axis_with_zero_before_them():
    figure = ends_figure(series_of([checkpoint(step) for step in (0, 1, 100, 10000)]))
    assert list(figure.data[0].x) == [-0.5, 0, 2, 4]
    assert figure.layout.xaxis.ticktext == ("0", "1", "10", "100", "1k", "10k")
    near = ends_figure(series_of([checkpoint(step) for step in (100, 200, 300)]))
    assert list(near.data[0].x) == [100, 200, 300]


def test_checkpoints_of_a_classifier_have_the_same_page():
    records = [classifier(epoch) for epoch in (3, 1, 2)]
    series = series_of(records)
    assert (series.unit, series.steps) == ("epoch", (1.0, 2.0, 3.0))
    (heat,) = heat_figure(series).data
    assert heat.z[4][2] == pytest.approx(math.log(10.0 * 0.6**4), abs=1e-4)
    page = page_html(records)
    assert 'data-panel="training"' in page
    assert "D of every layer (upwards) at every checkpoint" in page
    assert shape_figure(series).data[1].marker.color[0] in ("white", "#1f4e8c")


def test_records_of_other_texts_or_depths_are_no_one_series():
    one, two, three = checkpoint(1), checkpoint(2), checkpoint(2)
    three.provenance["data_sha256"] = "other"
    deep = checkpoint(3, blocks=8)
    views = read_all([one, two, three, deep])
    (series,) = training_series(views)
    assert [view.record for view in series.views] == [one, two]
    four = checkpoint(1)
    four.provenance["data_sha256"] = "other"
    assert len(training_series(read_all([one, two, three, four]))) == 2
    assert training_series(read_all([one, checkpoint(1)])) == []  # one step twice
    assert 'data-panel="training"' not in page_html([lm_record("A", **BARE), lm_record("B", **BARE)])


def test_means_over_networks_are_not_claimed_of_checkpoints():
    page = page_html([checkpoint(step, blocks=12) for step in (1, 2, 3)])
    assert "if the networks differ in nothing but seed" not in page


def test_of_a_long_series_some_are_drawn_one_by_one_and_all_are_rows():
    records = [checkpoint(step, share=step / 40) for step in range(40)]
    views = read_all(records)
    assert len(drawn_alone(views)) <= MOST_CURVES
    assert drawn_alone(views)[0] is views[0]
    assert drawn_alone(views)[-1] is views[-1]
    page = page_html(records)
    assert page.count('<details class="record">') == len(drawn_alone(views))
    assert page.split('data-panel="compare"')[1].split("</table>")[0].count('scope="row"') == 40
    assert "evenly chosen, are drawn one by one" in page
    assert len(page) < 6_500_000


def test_a_checkpoint_without_values_leaves_a_hole_and_no_nan():
    broken = checkpoint(2)
    broken.sites[3].values = {}
    series = series_of([checkpoint(1), broken, checkpoint(3)])
    (heat,) = heat_figure(series).data
    assert heat.z[2][1] is None
    assert all("NaN" not in draw(series).to_json() for draw in (heat_figure, ends_figure, shape_figure))
    assert 'data-panel="training"' in page_html([checkpoint(1), broken])


def test_models_on_the_same_tokens_have_a_panel_of_their_differences():
    base, tuned = lm_record("base", **BARE), lm_record("tuned", values=list(0.99 * curve(30)), **BARE)
    text = page_html([base, tuned]).replace("&nbsp;", " ")
    assert 'data-panel="paired"' in text
    assert "On the same tokens PR of &#x27;tuned&#x27; is 1.00% lower than of &#x27;base&#x27;" in text
    tuned.provenance["data_sha256"] = "other"
    assert 'data-panel="paired"' not in page_html([base, tuned])


@pytest.mark.browser
def test_the_page_of_a_run_fits_a_desk_and_a_telephone(watched, tmp_path):
    records = [
        checkpoint(step, blocks=24, share=i / 9) for i, step in enumerate((0, 1, 8, 64, 512, 1000, 8000, 143000))
    ]
    tab, trouble = watched(report(records, tmp_path / "run.html"), 400)
    for width in (400, 1280):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert tab.locator("#training0-heat .hm image").count() == 1
    assert trouble == []
