"""Language models side by side: what a comparison says of each, and of what they were measured on."""

import pytest
from lm_records import lm_record

from layerlaw.pages.html.compared import compare_figure
from layerlaw.pages.html.records import page_html
from layerlaw.pages.record_view import read_all
from layerlaw.wording import correlation


def text_of(page):
    return page.replace("&nbsp;", " ")


def test_one_text_under_two_tokenizers_is_not_called_different_data():
    records = [lm_record("A"), lm_record("B")]
    for i, record in enumerate(records):
        record.provenance |= {"data_sha256": str(i), "text": {"name": "wikitext-2", "sha256": "1f"}}
    text = text_of(page_html(records))
    assert "different data" not in text
    assert "The records are of one text, cut into other tokens or pieces." in text
    records[1].provenance["text"]["sha256"] = "2e"
    assert "The records were measured on different data." in text_of(page_html(records))


def test_a_comparison_shows_loss_bos_every_r_and_relative_depth():
    first, second = lm_record("A"), lm_record("B")
    second.sites = second.sites[:20]
    first.settings |= {"loss": 3.0634, "bos": 1, "null_std": 1 / 24}
    second.settings |= {"bos": None}
    views, text = read_all([first, second]), text_of(page_html([first, second]))
    table_ = text.split('data-panel="compare"')[1].split("</table>")[0]
    one, two = table_.split("<tr>")[2:]
    assert '<td>3.06<span class="below">nats, with BOS</span></td>' in one
    assert '<td>–<span class="below">no BOS</span></td>' in two
    for row, record in ((one, first), (two, second)):
        for column in ("residual", "residual_held_out", "residual_held_out_untrained"):
            assert f"<td>{correlation(record.law(column).pearson)}" in row
    assert "std 0.0417" in one
    assert "Below, the same along relative depth." in text
    figure_ = compare_figure(views, relative=True)
    assert [max(trace.x) for trace in figure_.data] == pytest.approx([1] * len(figure_.data), abs=0.02)
    assert figure_.data[0].text[0] == "1 of 30 · model.layers.0"
    assert "all-compare-relative" in text
    assert "all-compare-relative" not in text_of(page_html([lm_record("A"), lm_record("B")]))
