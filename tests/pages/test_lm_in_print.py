"""Language models in the terminal and on paper."""

import math
import re

import pytest
from lm_records import bare_lm_record, lm_record, printed
from pages_records import full_record

from layerlaw.pages import plot, plot_planes, table


def test_the_terminal_says_what_its_heads_leave_out():
    lines = " ".join(printed(lm_record(), 100).split())
    assert "±: 95% interval of PR; gain: by how much of itself PR falls, ▲ where it rises; untrained: held out" in lines
    inside = " ".join(printed(lm_record(held_out=False), 100).split())
    assert "untrained: in-sample, as the first column" in inside
    assert "±" not in inside


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (60, ["#", "site", "held-out PR", "gain", "in-sample"]),
        (80, ["#", "site", "held-out PR", "±", "gain", "in-sample", "untrained"]),
        (120, ["#", "site", "held-out PR", "±", "gain", "in-sample", "untrained", "embedding"]),
    ],
)
def test_the_terminal_table_keeps_the_most_telling_columns(width, heads):
    shown = [str(column.header) for column in table(lm_record(), width=width).columns]
    assert shown[: len(heads)] == heads
    assert max(len(line.rstrip()) for line in printed(lm_record(), width).splitlines()) <= width


def test_the_terminal_shows_gains_as_bars_and_rises_as_marks():
    lines = printed(lm_record(), 100).splitlines()
    (low,) = (line for line in lines if re.match(r"\s*30  model.layers.29 ", line))
    assert "▲" in low
    assert "−0.6%" in low
    (high,) = (line for line in lines if re.match(r"\s*25  model.layers.24 ", line))
    assert "█" in high
    assert "0.8380  ±2.4%" in high
    assert [str(c.header) for c in table(bare_lm_record()).columns] == ["#", "site", "PR", "gain", "adjusted"]


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("residual", "prediction residual"),
        ("residual_held_out", "prediction residual (held out)"),
        ("residual_shuffled_3_held_out_untrained", "prediction residual (shuffled 3, held out, untrained)"),
        (None, "prediction residual (held out)"),
    ],
)
def test_residuals_can_be_plotted(column, label):
    (ax,) = plot(lm_record(), column).axes
    assert ax.get_ylabel() == label
    assert ax.get_yscale() == "log"
    assert "r = " in ax.get_title()
    values = [v for line in ax.lines[:2] for v in line.get_ydata()]
    low, high = ax.get_ylim()
    assert math.log(max(values) / min(values)) > 0.5 * math.log(high / low)
    assert all(low <= v <= high for line in ax.lines for v in line.get_ydata())  # the line of the law ends in sight
    assert sum(low <= tick <= high for tick in ax.get_yticks()) >= 3


def test_errors_and_ranks_are_plotted_without_a_law():
    (ax,) = plot(lm_record(), "residual_log_se").axes
    assert ax.get_yscale() == "linear"
    assert "ρ" not in ax.get_title()


def test_planes_on_paper_carry_d_but_not_the_residual():
    assert plot_planes(lm_record(blocks=3)).axes[1].get_title() == "1 · model.layers.0"
    assert plot_planes(full_record()).axes[1].get_title() == "1 · layers.1.relu\nD = 15.5"
