"""Numbers, names and ticks, as they are written."""

import itertools
import math
import re

import pytest
from pages_records import broken_record, deep_record, full_record, minimal_record, resnet50_record, three_records

from layerlaw.pages.html import fill, for_plotly
from layerlaw.pages.html.planes import plane_positions
from layerlaw.pages.html.plotly import log_axis, site_axis
from layerlaw.pages.html.records import page_html
from layerlaw.pages.record_view import read, read_all, strided
from layerlaw.pages.sheets.scales import log_ticks, tick_text
from layerlaw.pages.theme import class_colors
from layerlaw.wording import clean, number, p_value, percent, sentence, setting, short_names, shortened


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (0.0, "0"), (0.46712, "0.467"), (9.996, "10.00"),
        (-1234.5, "−1,234"), (3.2e-7, "3.20·10⁻⁷"), (2.5e9, "2.50·10⁹"), (5e-324, "4.94·10⁻³²⁴"),
    ],
)  # fmt: skip
def test_numbers_are_written_with_real_minus_signs_and_powers_of_ten(value, text):
    assert number(value) == text.replace("10.00", "10.0")


def test_a_percentage_that_rounds_to_zero_has_no_sign():
    assert percent(-0.0001) == "0.0%"
    assert percent(-0.031) == "−3.1%"
    assert percent(math.nan) == "–"


def test_p_values_below_a_ten_thousandth_say_only_that():
    assert p_value(3e-9) == "< 0.0001"
    assert p_value(0.00067) == "0.00067"
    assert p_value(None) == "–"


def test_sentences_get_minus_signs_but_names_keep_their_hyphens():
    assert sentence("r = -0.998 (-3) at 'conv-1' and 'x1e-3'") == "r = −0.998 (−3) at 'conv-1' and 'x1e-3'"
    assert sentence("D = 1.5e-06, p = < 0.0001") == "D = 1.5·10⁻⁶, p < 0.0001"


def test_names_lose_control_characters_and_lone_surrogates():
    assert clean("a\x1b[31m\tb\udcff") == r"a\x1b[31m b\udcff"


def test_escaping_suits_html_and_plotly():
    assert fill("{}", "<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"
    assert for_plotly('<b>"x"&') == '&lt;b&gt;"x"&amp;'  # Plotly does not know &quot;


def test_long_names_keep_both_ends():
    name = shortened("encoder.layers.11.attention.output.dense", 17)
    assert len(name) == 17
    assert name.endswith("output.dense"[1:])


@pytest.mark.parametrize("span", [(-0.05, 0.1), (-0.2, 0.3), (-1, 1.5), (-4, 1), (-30, 5), (1.99, 2.01)])
def test_log_ticks_are_few_and_inside(span):
    ticks = log_ticks(*span)
    assert 2 <= len(ticks) <= 12
    assert all(10 ** span[0] <= t <= 10 ** span[1] for t in ticks)
    assert len({tick_text(t) for t in ticks}) == len(ticks)


def test_a_log_axis_survives_values_that_have_no_logarithm():
    axis = log_axis([None, 0.0, math.inf, -1.0], "D")
    assert axis["range"][0] < axis["range"][1]


def test_planes_keep_first_and_last_and_strides_are_even():
    chosen = plane_positions(read(deep_record(59)))
    assert (chosen[0], chosen[-1], len(set(chosen))) == (0, 59, 24)
    assert len(strided(200, 18)) <= 18


@pytest.mark.parametrize("most", [12, 13, 18])
@pytest.mark.parametrize("count", [1, 2, 5, 18, 19, 55, 56, 57, 100, 200])
def test_the_first_and_the_last_tick_are_there_and_none_are_close(count, most):
    ticks = strided(count, most)
    gaps = [b - a for a, b in itertools.pairwise(ticks)]
    assert (ticks[0], ticks[-1]) == (0, count - 1)
    assert len(ticks) <= most
    assert len(set(gaps[:-1])) <= 1
    assert not gaps or 2 * gaps[-1] > gaps[0]


@pytest.mark.parametrize("longest", [14, 17, 24])
def test_names_below_a_chart_differ_and_drop_what_they_have_in_common(longest):
    names = [site.name for site in resnet50_record().sites]
    assert len(names) == 56
    short = short_names(names, longest)
    assert len(set(short)) == 56
    assert max(map(len, short)) <= longest
    assert short[names.index("backbone.body.layer3.5.conv2")] == "layer3.5.conv2"
    assert (short[0], short[-1]) == ("input", "classifier")


def test_short_names_stay_as_they_are_and_equal_ones_stay_equal():
    assert short_names(["layers.1.relu", "layers.2.relu"], 17) == ["layers.1.relu", "layers.2.relu"]
    assert short_names([], 17) == []
    assert short_names(["a" * 40, "a" * 40, ""], 17) == ["aaaaaa…", "aaaaaa…", ""]


def test_a_cut_word_ends_in_an_ellipsis_that_stands_for_three_letters_or_more():
    names = ["stem.0", "stage1.0.project.0", "stage1.1.expand.0", "stage2.0.project.0", "stage2.1.squeeze.fc1", "fc"]
    assert short_names(names, 22) == names  # there is room
    for longest in (14, 15, 16, 17, 19):
        short = short_names(names, longest)
        assert len(set(short)) == len(names)
        assert max(map(len, short)) <= longest
        for name, brief in zip(names, short, strict=True):
            kept = [re.escape(piece) for piece in brief.split("…")]
            found = re.fullmatch("(.{3,})".join(kept), name)  # what is left out, and nothing else is changed
            assert found, (name, brief)
    assert short_names(names, 17)[1] == "stage1.0.proj….0"


def test_no_name_becomes_a_mere_number():
    names = ["embedded input", *(f"bert.encoder.layer.{i}" for i in range(3)), "classifier"]
    assert short_names(names, 17) == ["embedded input", "layer.0", "layer.1", "layer.2", "classifier"]
    assert short_names(["0", "3", "6"], 14) == ["0", "3", "6"]


def test_a_wide_interval_is_a_factor_and_a_narrow_one_is_percent():
    record = full_record()
    errors = {0: 0.02, 1: 0.2, 2: 0.21, 3: 1.366}
    for i, error in errors.items():
        record.sites[i].values["separation_log_se"] = error
    view = read(record)
    assert [view.interval(view.sites[i]) for i in errors] == ["±4.0%", "±48%", "×/÷ 1.5", "×/÷ 15"]
    page = page_html(record)
    assert "<td>×/÷ 15</td>" in page
    assert "×/÷ 3: from a third of it to three times" in page


def test_the_axis_of_56_sites_names_the_last_one():
    axis = site_axis(read(resnet50_record()))
    assert axis["tickvals"][-1] == 55
    assert axis["ticktext"][-1] == "classifier"
    assert len(set(axis["ticktext"])) == len(axis["ticktext"])
    assert "…" not in "".join(axis["ticktext"])


def test_ten_classes_have_ten_colors_and_a_thousand_have_colors_too():
    assert len(set(class_colors(10))) == 10
    assert len(class_colors(1000)) == 1000


def test_settings_are_words_not_python():
    assert setting({"lr": 0.1, "on": True, "list": [1, 2]}) == "lr: 0.100, on: yes, list: 1, 2"
    assert "(200 in all)" in setting(list(range(200)))
    assert len(setting("x" * 10_000)) < 500


def test_the_headline_is_parted_from_its_numbers():
    head, numbers = read(full_record()).headline
    assert head == "The law holds: every layer takes about the same share of log D."
    assert numbers.startswith("ρ = 0.541")
    assert read(broken_record()).headline[1] == ""


def test_reading_never_raises_and_leaves_out_the_logits():
    assert read(broken_record()).fit is None
    assert read(minimal_record()).series("no such column") == [None] * 4
    view = read(full_record())
    assert view.fit_positions == list(range(8))
    assert sum(view.shares.values()) == pytest.approx(1)


def test_records_of_one_name_are_numbered():
    assert [view.label for view in read_all(three_records())] == ["FNN (1)", "FNN, 20 layers", "FNN (2)"]
