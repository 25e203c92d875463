"""Language models on the page; what a record, a page and a terminal have in common."""

import io
import json
import math
import re
from itertools import pairwise

import pytest
from lm_records import bare_lm_record, lm_record, printed
from pages_records import NASTIER, NASTY, minimal_record
from rich.console import Console

from layerlaw.errors import InputError
from layerlaw.pages import plot, plot_planes, print_record, report
from layerlaw.pages.html.plotly import block_axis
from layerlaw.pages.html.records import page_html
from layerlaw.pages.record_view import read, read_all

PANELS = {"verdict", "law", "deviations", "gains", "table", "method", "definitions"}
EXTRA = {"codes", "tokens", "separation", "plane"}
FIGURES = ("law", "deviations", "gains", "codes", "tokens", "separation")


def panels(page):
    return set(re.findall(r'<section [^>]*data-panel="(\w+)"', page))


def text_of(page):
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


def figure(page, key):
    return json.loads(re.search(rf'data-figure="{key}">(.*?)</script>', page)[1])


@pytest.fixture(scope="module")
def page():
    return page_html(lm_record())


def test_only_what_was_measured_has_a_panel(page):
    assert panels(page) == PANELS | EXTRA
    assert panels(page_html(bare_lm_record())) == PANELS
    assert panels(page_html(minimal_record())).isdisjoint({"deviations", "gains", *EXTRA} - {"plane"})


def test_lenses_have_two_panels_columns_and_definitions_where_they_have_read(page):
    read_by_lens = page_html(lm_record(lens=True, targets=(), shuffled=0))
    assert {"lens", "predictions"} <= panels(read_by_lens)
    assert not {"lens", "predictions"} & panels(page)
    drawn = {trace["name"]: trace for trace in figure(read_by_lens, "r0-lens")["data"]}
    assert set(drawn) == {"logit lens", "linear lens"}
    assert drawn["logit lens"]["y"][0] is None  # at the embedded input it is far off, and would press the rest flat
    assert drawn["logit lens"]["y"][-1] == drawn["linear lens"]["y"][-1] == 3.5
    made = [trace["name"] for trace in figure(read_by_lens, "r0-predictions")["data"]]
    assert made == ["made", "made for good", "right", "made, linear lens"]
    words = text_of(read_by_lens)
    assert all(head in words for head in (">lens loss<", ">made<", ">linear lens<", "2,048 tokens", "alone (6.10)"))
    assert "The published tuned lens" in words
    assert "The published tuned lens" not in text_of(page)


def test_the_law_is_drawn_through_held_out_residuals_with_their_intervals(page):
    law = figure(page, "r0-law")
    names = [trace["name"] for trace in law["data"]]
    assert names == ["untrained", "in-sample", "law: ρ = 0.9964 per block", "held out"]
    assert len(law["data"][2]["y"]) == 30
    assert law["data"][2]["x"][0] == 1  # the embedded input is no point of it
    points = law["data"][3]
    assert points["x"] == [*range(1, 31), 0]  # a legend shows the first point: a solid one
    assert points["marker"]["color"] == ["#1f4e8c"] * 30 + ["white"]
    t, first = 2.364624, lm_record().sites[1].values["residual_held_out"]  # of 7 degrees of freedom
    assert points["error_y"]["array"][0] == pytest.approx(first * (math.exp(t * 0.01) - 1), rel=1e-3)
    assert law["layout"]["yaxis"]["type"] == "log"


def test_a_null_far_above_does_not_press_the_curve_flat():
    def span(record):
        law = figure(page_html(record), "r0-law")
        return law["layout"]["yaxis"]["range"], [trace["name"] for trace in law["data"]]

    near, _ = span(lm_record(null=None))
    far, names = span(lm_record(null=2.5))
    assert far == near
    assert "untrained, off the axis: 2.530 to 2.591" in names
    beside, names = span(lm_record(null=0.93))
    assert beside[1] > near[1]
    assert "untrained" in names


def test_the_axis_is_filled_by_the_curve():
    law = figure(page_html(bare_lm_record()), "r0-law")
    low, high = law["layout"]["yaxis"]["range"]
    values = [v for trace in law["data"][-2:] for v in trace["y"]]
    assert math.log10(max(values) / min(values)) > 0.8 * (high - low)
    assert 4 <= len(law["layout"]["yaxis"]["tickvals"]) <= 10


def test_deviations_are_those_of_the_fit(page):
    off = figure(page, "r0-deviations")["data"][0]
    fit = lm_record().law()
    assert off["y"] == pytest.approx([math.expm1(e) for e in fit.residuals], rel=1e-3)
    assert len(off["error_y"]["array"]) == 30


def test_gains_are_relative_falls_and_rises_are_red(page):
    bars = figure(page, "r0-gains")["data"][0]
    values = lm_record().column("residual_held_out")
    assert bars["x"] == list(range(1, 31))
    assert bars["y"] == pytest.approx([1 - b / a for a, b in pairwise(values)], rel=1e-3, abs=1e-6)
    red = [x for x, color in zip(bars["x"], bars["marker"]["color"], strict=True) if color == "#b23a48"]
    assert red == [28, 29, 30]
    assert bars["marker"]["color"][0] == "white"


def test_other_targets_are_drawn_over_their_first_block_with_r(page):
    codes = figure(page, "r0-codes")["data"]
    names = [trace["name"] for trace in codes]
    assert re.fullmatch(r"shuffled ids \(8\), r = −0\.\d{3} … −0\.\d{3}", names[0])
    assert len(codes[0]["x"]) == 8 * 31  # eight lines in one trace, with breaks
    assert codes[0]["x"].count(None) == 8
    assert all(re.search(r", r = [−+]\d\.\d{3}$", name) for name in names[1:])
    assert [trace["y"][1] for trace in codes[1:]] == pytest.approx([1.0] * 4)
    assert [trace["name"].split(",")[0] for trace in figure(page, "r0-tokens")["data"]] == [
        "next token", "previous token", "the token itself", "token after next",
    ]  # fmt: skip


def test_key_numbers_and_sources_stand_on_the_page(page):
    text = text_of(page)
    record = lm_record()
    fit = record.law()
    for number in ("0.9964", f"{fit.pearson:.3f}".replace("-", "−"), f"{fit.autocorrelation:.2f}"):
        assert f"<dd>{number}</dd>" in text
    assert "arXiv:2408.13442" in text
    assert "PNAS 120" in text
    assert "PNAS" not in text_of(page_html(bare_lm_record()))
    assert "(213 per feature)" in text
    assert "task: next token" in text


def test_word_planes_carry_neither_d_nor_the_residual(page):
    text = text_of(page)
    assert "Words in the plane" in text
    assert "</i>patients</li>" in text
    assert '<span class="num">PR =' not in text


def test_the_table_names_blocks_by_their_ends(page):
    text = text_of(page)
    assert "Every block: LlamaDecoderLayer, 576 features." in text
    assert '<th scope="col" class="site">block</th>' in text
    assert ">features</th>" not in text
    deep = text_of(page_html(lm_record(stem="transformer.decoder.blocks.", words=False)))
    assert ">trans…r.blocks.29</th>" in deep
    mixed = lm_record()
    mixed.sites[3].type = "MambaBlock"
    assert ">features</th>" in text_of(page_html(mixed))


def test_blocks_are_counted_from_one_and_the_input_only_where_it_is_drawn(page):
    view = read(lm_record())
    axis = block_axis(view, view.series("residual"))
    assert axis["ticktext"] == ["in", "5", "10", "15", "20", "25", "30"]
    assert axis["tickvals"] == [0, 5, 10, 15, 20, 25, 30]
    assert axis["title"]["text"] == "block (in: embedded input)"
    axis = block_axis(read(lm_record(blocks=6)))
    assert axis["ticktext"] == ["1", "2", "3", "4", "5", "6"]
    assert axis["range"] == [0.5, 6.5]
    assert axis["title"]["text"] == "block"
    shown = {key: "in" in figure(page, f"r0-{key}")["layout"]["xaxis"]["ticktext"] for key in FIGURES}
    assert shown == dict.fromkeys(FIGURES, False) | dict.fromkeys(("law", "tokens", "separation"), True)


def test_blocks_without_an_embedded_input_are_counted_from_one_everywhere():
    record = lm_record(blocks=5)
    record.sites = record.sites[1:]
    axis = block_axis(read(record), read(record).series("residual"))
    assert (axis["tickvals"], axis["ticktext"]) == ([0, 1, 2, 3, 4], ["1", "2", "3", "4", "5"])
    assert axis["title"]["text"] == "block"
    page = page_html(record)
    assert figure(page, "r0-law")["layout"]["meta"]["sites"][0] == "<b>1 · model.layers.0</b>"
    assert figure(page, "r0-law")["data"][-1]["x"] == [0, 1, 2, 3, 4]
    (ax,) = plot(record).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3", "4", "5"]
    assert re.search(r"^1  model.layers.0 ", printed(record, 80), re.M)


def test_one_block_has_one_number_on_page_paper_and_terminal(page):
    text = text_of(page)
    assert '<span class="index">30</span>model.layers.29</th>' in text
    assert "<b>30</b> model.layers.29" in text
    assert '<span class="index">in</span>embedded input</th>' in text
    (ax,) = plot(lm_record(blocks=3)).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["in", "1", "2", "3"]
    assert ax.get_xlabel() == "block (in: embedded input)"
    assert plot_planes(lm_record(blocks=3)).axes[0].get_title().startswith("in · embedded input")
    assert re.search(r"^in  embedded input ", printed(lm_record(), 80), re.M)


def test_many_columns_stand_under_short_heads():
    text = text_of(page_html(lm_record(words=False)))
    assert '<table class="layers many">' in text
    assert ">freq. rank</th>" in text
    assert 'title="PR of another target: frequency rank, held out"' in text
    few = text_of(page_html(bare_lm_record()))
    assert '<table class="layers">' in few


def test_no_tile_is_empty_or_said_twice():
    bare = text_of(page_html(bare_lm_record()))
    assert "<dt>r</dt>" in bare
    assert "r in-sample" not in bare
    for record in (lm_record(blocks=2, words=False), lm_record(blocks=1, words=False), lm_record(words=False)):
        text = text_of(page_html(record))
        names = re.findall(r"<dt>(.*?)</dt><dd>.*?</dd><dd class='tail'>", text)
        assert len(names) == len(set(names))
        assert "<dd>–</dd>" not in text.replace("<dd>–</dd><dd class='tail'>fewer than 4 points</dd>", "")


def noise_record():
    """Gains of a hundredth of a percent, known to a thousandth."""
    record = lm_record(values=[0.9, 0.9001, 0.89995, 0.9, 0.89992], noise=0, targets=(), shuffled=0, words=False)
    record.sites[0].values["residual_held_out"] = 0.9108
    return record


def test_noise_looks_like_noise():
    page = page_html(noise_record())
    low, high = figure(page, "r0-gains")["layout"]["yaxis"]["range"]
    assert high == -low == pytest.approx(0.0055)
    widths = [int(w) for w in re.findall(r'class="bar \w+" style="width:(\d+)%"', page)]
    assert len(widths) == 5
    assert max(widths) <= 3
    rows = [line for line in printed(noise_record(), 100).splitlines() if "model.layers." in line]
    assert not any(mark in row for row in rows for mark in "▲█")


def test_a_residual_of_nothing_is_zero():
    record = lm_record(blocks=4)
    for site in record.sites[:2]:
        site.values["residual_held_out"] = site.values["residual_current_held_out"] = -1e-14
    text = text_of(page_html(record))
    assert "<td>0.0000</td>" in text
    assert "10⁻¹⁴" not in text.split('data-panel="table"')[1]
    assert "0.0000" in printed(record, 80)
    assert 2 not in read(record).gains  # of nothing nothing can be taken


def test_captions_say_what_thin_lines_are(page):
    assert "Thin lines: 95% intervals." in text_of(page)
    assert "Thin lines" not in text_of(page_html(bare_lm_record()))


def test_names_never_become_markup():
    record = lm_record(NASTY, stem=NASTIER)
    record.settings = {"task": NASTY, "targets": {NASTY: NASTIER}}
    record.classes = [NASTY, NASTIER, "x"]
    record.notes = [NASTIER]
    for site in record.sites:
        site.type = NASTY
    page = page_html([record, lm_record()])
    assert "<img" not in text_of(page)
    assert "<script>window.__pwned" not in page
    assert page.count("</script>") == len(re.findall(r"<script[ >]", page))


def test_holes_leave_a_page():
    record = lm_record(words=False)
    record.sites[4].values = dict.fromkeys(record.sites[4].values)
    text = text_of(page_html(record))
    assert "No law can be fitted" in text
    assert "none at &#x27;model.layers.3&#x27;" in text
    empty = bare_lm_record()
    for site in empty.sites:
        site.values = {"residual": None}
    assert "No prediction residual was measured" in text_of(page_html(empty))


@pytest.mark.parametrize("blocks", [1, 2, 3, 120])
def test_any_depth_has_a_page_and_a_table(blocks):
    record = lm_record(blocks=blocks, words=False)
    assert panels(page_html(record)) >= PANELS
    assert max(map(len, printed(record, 80).splitlines())) <= 80


def test_several_language_models_are_compared_by_like():
    page = page_html([lm_record("A"), lm_record("B", blocks=12)])
    text = text_of(page)
    assert "PR held out along the blocks" in text
    assert '<span title="pieces of 512">122,688</span><span class="below">213 per feature</span>' in text
    assert re.search(r'0\.9964<span class="below">0\.996\d … 0\.99\d\d</span>', text)
    assert re.search(r'<td>−0\.9\d\d<span class="below">−0\.\d{3} … −0\.\d{3}</span></td>', text)
    assert "Separation fuzziness" in text
    figure_ = figure(page, "all-compare")
    assert figure_["layout"]["yaxis"]["title"]["text"] == "prediction residual PR"
    assert figure_["layout"]["xaxis"]["title"]["text"] == "block"
    assert figure_["layout"]["xaxis"]["range"] == [0.5, 30.5]
    points, line = figure_["data"][:2]
    assert "PR = " in points["hovertemplate"]
    assert points["text"][0] == "1 · model.layers.0"
    assert all(bar > 0 for bar in points["error_y"]["array"])
    assert line["x"] == list(range(1, 31))
    assert "Bars: 95% intervals" in text
    mixed = read_all([lm_record("A"), bare_lm_record()])
    assert {view.column for view in mixed} == {"residual"}  # one has nothing held out
    assert "PR in-sample along the blocks" in text_of(page_html([lm_record("A"), bare_lm_record()]))


def test_records_of_one_model_are_told_apart_by_their_text():
    first, second = lm_record("A"), lm_record("A", task="masked")
    first.provenance["text"] = {"name": "wikitext-2", "documents": 60}
    second.settings["length"] = 1024
    table_ = text_of(page_html([first, second])).split('data-panel="compare"')[1].split("</table>")[0]
    one, two = table_.split("<tr>")[2:]
    assert '<td><span title="wikitext-2">wikitext-2</span><span class="below">next token</span></td>' in one
    assert 'title="pieces of 512"' in one
    assert '<td>–<span class="below">masked tokens</span></td>' in two
    assert 'title="pieces of 1,024"' in two
    assert [view.label for view in read_all([first, second])] == ["A (1)", "A (2)"]
    second.provenance["text"] = {"name": "some/where/books.txt", "documents": 6}
    assert [view.label for view in read_all([first, second])] == ["A · wikitext-2", "A · books.txt"]


def test_columns_without_room_are_named_and_other_targets_are_said_to_be_held_out(page):
    console = Console(width=60, file=io.StringIO())
    print_record(lm_record(words=False), console)
    assert "no room here, but on the page:" in " ".join(console.file.getvalue().split())
    assert "Columns of other targets are held out; shuffled ids: the mean of 8 vocabularies." in text_of(page)


def test_the_models_own_loss_stands_under_its_name():
    record = lm_record("A")
    record.settings["loss"] = 3.0634
    assert ">its loss 3.06 nats per token</span>" in text_of(page_html(record))
    assert "nats per token" not in text_of(page_html(lm_record("A")))


def test_only_records_are_reported(tmp_path):
    for wrong in (None, 3):
        with pytest.raises(InputError, match="report: expected one Record or a list of them, got"):
            report(wrong, tmp_path / "p.html")


def test_kinds_are_not_mixed_on_a_page(tmp_path):
    with pytest.raises(InputError, match=r"one kind, got a classifier \('minimal'\) and a language model \('bare'\)"):
        report([minimal_record(), bare_lm_record()], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_what_a_probe_leaves_can_be_shown(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    lm = pytest.importorskip("layerlaw.lm")
    shape = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 5}
    config = transformers.LlamaConfig(
        **shape, num_attention_heads=2, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    torch.manual_seed(0)
    ids = torch.randint(3, 50, (24, 32))
    record = lm.probe_lm(
        lm.load(transformers.LlamaForCausalLM(config), name="tiny"),
        ids,
        null=True,
        targets="id,embedding,shuffled",
        progress=False,
    )
    text = text_of(report(record, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "The same model untrained" in text
    assert "shuffled ids" in text
    assert panels(text) == PANELS | {"codes"}
    assert record.law_errors() is not None
    assert "held-out PR" in printed(record, 80)
