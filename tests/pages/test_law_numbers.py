"""The numbers that say whether the law holds: as tiles, as columns, of several records together."""

import math
import re

import pytest
from lm_records import bare_lm_record, lm_record
from pages_records import deep_record, falling, full_record, many_classes_record, minimal_record

from layerlaw.law import laws_across
from layerlaw.pages.html.records import page_html
from layerlaw.pages.record_view import read
from layerlaw.verdict import law_holds
from layerlaw.verdict.shape import shape_intervals
from layerlaw.wording import number


def text_of(page):
    """The page without its scripts and styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


def tiles(page):
    """Of the panel of the law: name → number, and what stands below it."""
    panel = page.split('data-panel="law"')[1].split("</section>")[0]
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd><dd class='tail'>(.*?)</dd>", panel)
    assert len({name for name, *_ in found}) == len(found)  # one tile per number
    return {name: (value, below) for name, value, below in found}


def compared(page):
    """The rows of the comparison: head → cell."""
    panel = text_of(page).split('data-panel="compare"')[1].split("</table>")[0]
    heads, *rows = panel.split("<tr>")[1:]
    names = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', heads)[1:]
    return [dict(zip(names, re.findall(r"<td>(.*?)</td>", row), strict=True)) for row in rows]


def test_key_numbers_stand_in_cards():
    found = tiles(page_html(full_record()))
    assert found["law holds"] == ("yes", "evenness, trend and chance are as asked for")
    assert found["evenness"] == ("0.95", "asked for: ≥\u00a00.8<br>6.6 effective layers of 7")
    asked = "asked for: 1/1.75\u00a0…\u00a01.75<br>"
    assert found["trend"] == ("1.03", f"{asked}last over first step of a curve fitted to all steps")
    assert found["Greenwood p"] == ("0.00067", "asked for: &lt;\u00a00.05<br>chance of a split as even")
    assert found["single steps"] == ("0.74 … 1.39", "of the even step; all within a factor of 2: yes")
    assert found["ρ"] == ("0.541", "factor per layer<br>half-life 1.13 layers")
    assert found["r"][0] == "−0.998"
    assert found["final D"] == ("0.467", "at layers.7.relu, the last point of the law; from 36.8 at input")


def test_tiles_say_why_a_number_is_missing():
    def of(*separation):
        return tiles(page_html(full_record(separation=list(separation), logits=False)))

    rises = of(100.0, 50.0, 25.0, 24.9, 12.0, 12.5, 6.0)
    assert rises["law holds"] == ("no", "not as asked for: evenness, trend, chance")
    assert rises["evenness"][1].endswith("<br>– effective layers: D rises at 1 of 6")
    bent = of(*(math.exp(-x - 0.05 * x**2) for x in range(12)))
    assert bent["law holds"] == ("no", "not as asked for: trend")
    late = of(10.0, 11.0, 11.5, 11.0, 9.0, 6.0, 3.0)  # the fitted first step rises
    assert late["trend"][0] == "∞"
    grows = of(1.0, 2.0, 4.0, 8.0, 16.0)
    assert grows["law holds"] == ("no", "D does not fall with depth")
    assert not {"evenness", "trend", "Greenwood p", "single steps"} & set(grows)
    assert of(4.0, 2.0, 1.0)["law holds"] == ("–", "fewer than 4 points")
    assert of(10.0, 9.9, 9.8, 9.7, 9.6)["law holds"] == ("no", "D falls by less than a tenth")


@pytest.mark.parametrize("make", [full_record, minimal_record, deep_record, many_classes_record])
def test_headline_tile_and_comparison_give_one_answer(make):
    view = read(make())
    holds = {True: "yes", False: "no", None: "–"}[law_holds(view.record, view.fit)]
    assert tiles(page_html(make()))["law holds"][0] == holds
    assert view.headline[0].startswith("The law holds") == (holds == "yes")
    assert compared(page_html([make(), make()]))[0]["holds"] == holds


def test_networks_of_one_kind_are_judged_together():
    seeds = [full_record(f"seed {i}", separation=falling(8, seed=i), seed=i) for i in range(5)]
    page = page_html(seeds)
    across = laws_across([record.law() for record in seeds])
    assert f'<p class="together">{across.sentence} Means and 95% intervals are right if' in page
    rows = compared(page)
    assert [row["holds"] for row in rows] == ["yes", "yes", "no", "no", "yes"]
    assert sum(row["holds"] == "yes" for row in rows) == across.holds
    assert rows[0]["evenness"] == "0.96"
    assert rows[0]["trend"] == "0.84"
    assert rows[0]["p"] == "0.00036"
    assert "Asked for: evenness ≥ 0.8, trend 1/1.75 … 1.75, p &lt; 0.05." in page


def test_records_that_differ_in_more_than_seeds_are_only_counted():
    def said(change):
        records = [full_record(f"seed {i}", separation=falling(8, seed=i), seed=i) for i in range(3)]
        change(records)
        found = re.search(r'<p class="together">(.*?)</p>', page_html(records))
        return found and found[1]

    def settings(records):
        records[1].settings["batchnorm"] = "running"

    def epochs(records):
        for i, record in enumerate(records):
            record.provenance["recipe"] = {"seed": i, "epoch": 10 * i}

    def seeds(records):
        for i, record in enumerate(records):
            record.provenance["recipe"] = {"seed": i, "epoch": 10}

    def same_network(records):
        for record in records:
            record.provenance["parameters_sha256"] = "5254"

    def too_short(records):
        for record in records:
            record.sites = record.sites[:3]

    def other_depth(records):
        records[0].sites = records[0].sites[1:]

    for change in (settings, epochs, same_network):
        assert said(change) == "The law holds in 2 of 3 records."
    assert said(seeds).startswith("The law holds in 2 of 3 networks (ρ ")
    assert said(too_short) == "Whether the law holds cannot be said of any of 3 records."
    assert said(other_depth) == "The law holds in 2 of 3 records."


def test_language_models_are_only_counted_since_nothing_says_that_they_differ_in_their_seed():
    line = [0.9 * 0.99**i for i in range(12)]
    text = text_of(page_html([lm_record("base", values=line), lm_record("tuned", values=line)]))
    assert '<p class="together">The law holds in 2 of 2 records.</p>' in text
    text = text_of(page_html([lm_record("base", values=line), lm_record("short", values=line[:10])]))
    assert '<p class="together">The law holds in 2 of 2 records.</p>' in text


def test_tiles_carry_intervals_of_evenness_and_trend():
    record = lm_record()
    even, trend = ("{}\u00a0…\u00a0{}".format(*(f"{end:.2f}" for end in ends)) for ends in shape_intervals(record))
    text = text_of(page_html(record))
    assert "<dt>law holds</dt><dd>no</dd><dd class='tail'>not as asked for: evenness, chance</dd>" in text
    below = f"asked for: ≥\u00a00.8<br>95%\u00a0interval {even}<br>– effective blocks: PR rises at 3 of 29</dd>"
    assert f"<dt>evenness</dt><dd>{record.law().evenness:.2f}</dd><dd class='tail'>{below}" in text
    what = "last over first step of a curve fitted to all steps"
    below = f"asked for: 1/1.75\u00a0…\u00a01.75<br>95%\u00a0interval {trend}<br>{what}</dd>"
    assert f"<dt>trend</dt><dd>{record.law().trend:.2f}</dd><dd class='tail'>{below}" in text
    assert "95%\u00a0interval" not in text_of(page_html(bare_lm_record()))
    assert "for other text through this same model" in text


def test_a_text_that_cannot_say_gives_no_answer_anywhere():
    line = [0.9 * 0.99**i for i in range(12)]
    few = lm_record("few", values=line, tokens_per_feature=4.0, words=False)
    assert few.law().holds
    assert "<dt>law holds</dt><dd>–</dd><dd class='tail'>this text cannot say</dd>" in text_of(page_html(few))
    text = text_of(page_html([few, lm_record("enough", values=line, words=False)]))
    assert '<p class="together">The law holds in 1 of 2 records; of 1 it cannot be said.</p>' in text


def test_steps_of_a_record_by_blocks_are_called_blocks_and_the_end_is_the_last_point():
    record, again = full_record(), full_record("other")
    record.settings["sites"] = "blocks"
    for one in (record, again):
        one.points()[-1].in_fit = False
    last = record.points()[-1]
    found = tiles(page_html(record))
    assert "effective blocks of 6" in found["evenness"][1]
    assert found["ρ"][1].startswith("factor per block<br>half-life")
    assert found["final D"][0] == number(last.values["separation"])
    assert found["final D"][1].startswith(f"at {last.name}, the last point of the law")
    where = f'<span title="at {last.name}, the last point of the law">{number(last.values["separation"])}</span>'
    assert compared(page_html([record, again]))[0]["final D"] == where


def test_a_trend_that_is_no_plain_ratio_says_why():
    late, early = [9.0, 9.1, 9.2, 8.8, 7.0, 3.0, 1.0, 0.2], [9.0, 2.0, 0.8, 0.45, 0.4, 0.41, 0.42, 0.43]
    ratio = "last over first step of a curve fitted to all steps, which does not fall at its "
    for values, value, where in ((late, "∞", "first step"), (early, "0.00", "last step")):
        trend = tiles(page_html(full_record(separation=values)))["trend"]
        assert trend[0] == value
        assert trend[1].endswith(ratio + where)


def test_rare_classes_have_tiles_only_where_there_are_some():
    for counts, shown in (([98] * 5 + [104] * 5, False), ([50] * 5 + [100] * 5, True), ([], True)):
        record = full_record()
        record.counts = counts
        record.sites[-1].values |= {"classifier_cosine_minority": 0.2, "classifier_norm_minority": 1.1}
        text = text_of(page_html(record))
        assert ("<dt>rare cosine</dt>" in text) is shown
        assert ("<dt>rare norm</dt>" in text) is shown


def test_a_comparison_explains_an_infinite_trend_where_there_is_one():
    late = full_record(separation=[9.0, 9.1, 9.2, 8.8, 7.0, 3.0, 1.0, 0.2])
    assert compared(page_html([late, full_record()]))[0]["trend"] == "∞"
    said = "Trend ∞: a curve fitted to all steps does not fall at its first one."
    assert said in page_html([late, full_record()])
    assert said not in page_html([full_record(), full_record()])
