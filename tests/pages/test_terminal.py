"""The terminal table: compact, complete, deaf to markup."""

import io
import re

import pytest
from lm_records import lm_record
from pages_records import (
    NASTY,
    broken_record,
    deep_record,
    falling,
    full_record,
    minimal_record,
    nasty_record,
    resnet56_record,
)
from rich.console import Console
from rich.table import Table

from layerlaw.pages import print_comparison, print_record, table
from layerlaw.pages.terminal import share_bar


def printed(record, width=100, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    print_record(record, console)
    return console.file.getvalue()


def heads(record, width=100):
    return [str(column.header) for column in table(record, width=width).columns]


def test_the_table_has_one_row_per_site_and_the_wanted_columns():
    assert isinstance(table(full_record()), Table)
    assert table(full_record()).row_count == 9
    assert heads(full_record()) == [
        "#", "site", "features", "D", "share of drop", "NC1", "NCC", "mismatch", "test D", "test NCC",
    ]  # fmt: skip


def test_columns_that_are_empty_are_left_out():
    assert heads(minimal_record()) == ["#", "site", "features", "D", "share of drop"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("make", [full_record, nasty_record, deep_record, broken_record])
def test_nothing_is_wider_than_the_console(make, width):
    lines = printed(make(), width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width


def test_at_a_hundred_columns_no_number_is_cut():
    lines = [line for line in printed(full_record()).splitlines() if "layers.7.relu  " in line]
    assert lines
    assert "…" not in lines[0]
    for number in ("0.467", "0.0467", "99.4%", "1.49", "74.1%", "█"):
        assert number in lines[0]


def test_the_verdict_follows_the_table():
    text = printed(full_record())
    assert text.index("classifier") < text.index("The law holds")
    assert "r = −0.998" in text
    assert "Dropout was off in train mode." in text


def test_what_is_asked_of_the_law_stands_below_its_numbers():
    lines = " ".join(printed(full_record()).split())
    assert "evenness 0.95, trend 1.03, Greenwood p = 0.00067). asked for: evenness ≥ 0.8, trend 1/1.75 … 1.75" in lines
    assert "asked for" not in printed(broken_record())


def compared(records, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_comparison(records, console)
    return console.file.getvalue()


def test_several_records_are_compared_in_a_table():
    seeds = [full_record(f"seed {i}", separation=falling(8, seed=i), seed=i) for i in range(3)]
    text = compared(seeds)
    assert " ".join(text.split()).startswith("The law holds in 2 of 3 networks (ρ 0.534 [")
    heads, _, *rows = text.split("training images.")[1].strip().splitlines()
    assert heads.split()[1:8] == ["steps", "ρ", "r", "evenness", "trend", "p", "holds"]
    assert rows[0].split()[1:9] == ["0", "7", "0.538", "−0.998", "0.96", "0.84", "0.00036", "yes"]
    assert rows[2].split()[1:9] == ["2", "7", "0.542", "−0.987", "0.73", "0.85", "0.18", "no"]
    assert "· seed 2: The law does not hold: D falls with depth as a whole, but it rises" in text


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("make", [full_record, nasty_record, deep_record, broken_record, lm_record])
def test_a_comparison_fits_the_console_and_keeps_the_answer(make, width):
    text = compared([make(), make()], width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert ("holds" in text) == (make is not broken_record)
    assert "\x1b" not in text


def test_names_are_neither_markup_nor_escape_codes():
    text = printed(nasty_record(), 160)
    assert all(words in text for words in (NASTY, "[bold]"))
    assert "\x1b" not in text


def test_a_record_without_a_law_is_printed_with_the_reason():
    text = printed(broken_record())
    assert "No law can be fitted" in text
    assert text.count("Something went wrong.") == 1


def test_a_record_without_sites_is_printed_too():
    record = minimal_record()
    record.sites = []
    assert "No law can be fitted" in printed(record)


def test_print_record_uses_standard_output_unless_told(capsys):
    print_record(minimal_record())
    assert "fc3" in capsys.readouterr().out


def test_bars_grow_in_eighths_and_rises_are_marked():
    assert [share_bar(s, 1.0, 2).rstrip() for s in (0, 1 / 16, 0.5, 1.0, -0.2)] == ["", "▏", "█", "██", "▲"]
    assert share_bar(0.3, 0.0, 2) == "  "


@pytest.mark.parametrize("width", [80, 120])
def test_side_branches_have_a_mark_and_long_names_stay_apart(width):
    lines = printed(resnet56_record(), width).splitlines()
    rows = [line.split() for line in lines if re.match(r"\s*\d+  \S", line)]
    assert len(rows) == 56
    names = [row[2] if row[1] == "╰" else row[1] for row in rows]
    assert names == [site.name for site in resnet56_record().sites]
    assert [row[1] == "╰" for row in rows] == [site.branch for site in resnet56_record().sites]
    assert "╰ on a side branch: no point of the law" in " ".join(lines)
    assert "╰" not in printed(full_record(), width)
