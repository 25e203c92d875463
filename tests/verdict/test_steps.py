"""Steps in sentences: where they are, what they are called, where the law ends, and what would give more of them."""

import math
import random
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.law import fit_law
from layerlaw.record import Record, SiteRow
from layerlaw.verdict import judge
from layerlaw.verdict.steps import plateau, step_places

EVEN = [0.5**i * 40 for i in range(6)]


def record(values: list[float], *, at: str = "output", sites: str = "layers", **columns: list[float]) -> Record:
    rows = [
        SiteRow(f"s{i}", "Linear", (9,), 9, at=at, values={"separation": v} | {n: c[i] for n, c in columns.items()})
        for i, v in enumerate(values)
    ]
    return Record(name="net", sites=rows, classes=["a", "b"], counts=[200, 200], settings={"sites": sites})


def branch(name: str) -> SiteRow:
    return SiteRow(name, "Conv2d", (9,), 9, in_fit=False, at="input", branch=True, values={"separation": 7.0})


def test_a_step_over_side_branches_is_between_two_points_and_no_layers_alone() -> None:
    made = record([40.0, 38.0, 4.0, 3.0, 3.2, 2.0], at="input")
    assert "The largest step is at 's1', by a factor of 9.50" in str(judge(made))
    made.sites[2:2] = [branch("u.0"), branch("u.1")]
    said = str(judge(made))
    assert "The largest step is between 's1' and 's2', by a factor of 9.50" in said
    assert "D rises at 's3' (by 6.7%)" in said
    made.sites[made.position("s4") : made.position("s4")] = [branch("v.0")]
    assert "D rises between 's3' and 's4' (by 6.7%)" in str(judge(made))
    idle = record([40.0, 10.0, 9.9, 3.0, 1.0], at="input")
    idle.sites[2:2] = [branch("u.0")]
    assert "Hardly anything happens between 's1' and 's2'." in str(judge(idle))


def test_a_step_over_a_row_set_aside_is_between_two_points_too() -> None:
    made = record([40.0, 38.0, 4.0, 2.0, 1.0], at="input")
    narrow = SiteRow(
        "narrow", "Linear", (2,), 2, in_fit=False, at="input", values={"separation": 1.0}, aside="too narrow"
    )
    made.sites[2:2] = [narrow]
    assert "The largest step is between 's1' and 's2'" in str(judge(made))


class Joined(nn.Module):
    """A chain, then a branch of two layers beside another that rejoins: a small U."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(20, 20), nn.Tanh())))
        self.left, self.right = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20)), nn.Linear(20, 20)
        self.tail, self.fc = nn.Linear(40, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.chain(x)
        x = torch.cat([self.left(x), self.right(x)], 1)
        return self.fc(torch.tanh(self.tail(torch.tanh(x))))


def test_branches_of_a_real_network_get_no_credit_alone() -> None:
    torch.manual_seed(0)
    data = torch.randn(60, 20), torch.arange(60) % 3
    made = ll.probe(Joined(), data, sites="layers", uncertainty=False, progress=False)
    assert [site.name for site in made.sites if site.branch] == ["left.2"]
    chain = [f"at 'chain.{i}'" for i in (0, 2, 4, 6)]
    assert step_places(made) == [*chain, "between 'left.0' and 'tail'", "at 'tail'"]


def test_the_final_separation_is_that_of_the_last_point_and_says_so() -> None:
    made = record([*EVEN, 9.01], test_separation=[*EVEN, 12.0], separation_untrained=[41.0] * 7)
    made.sites[-1].in_fit, made.sites[-1].aside = False, "its class means span 3 of 9 dimensions"
    said = str(judge(made))
    assert "On test data D is 1.25 at 's5', the last point of the law (train 1.25)" in said
    assert "trained it is 1.25 at 's5', the last point of the law" in said
    assert "ends at" not in said
    assert "9.01" not in said


def test_one_rise_within_its_errors_is_not_called_each() -> None:
    one = record([100.0, 50.0, 25.0, 12.0, 12.5, 6.0], separation_log_se=[0.1] * 6)
    assert "D rises at 's4' (by 4.2%), within two standard errors." in str(judge(one))
    two = record([100.0, 104.0, 25.0, 12.0, 12.5, 6.0], separation_log_se=[0.1] * 6)
    assert "D rises at 's1' (by 4.0%) and 's4' (by 4.2%), each within two standard errors." in str(judge(two))


def test_a_rise_to_many_times_is_told_as_a_factor() -> None:
    assert "D rises at 's3' (20-fold)." in str(judge(record([100.0, 10.0, 1.0, 20.0, 5.0, 1.0])))


@pytest.mark.parametrize("values", [EVEN, [40.0, 39.9, 39.8, 3.0, 3.1, 1.0]])
def test_steps_of_a_record_by_blocks_are_called_blocks(values: list[float]) -> None:
    by_layers, by_blocks = judge(record(values)), judge(record(values, sites="blocks"))
    for said in (by_blocks.headline, *by_blocks.advice):
        assert "layer" not in said
    assert "per block" in by_blocks.headline
    assert by_blocks.headline.replace("block", "layer") == by_layers.headline


def test_steps_of_which_one_is_no_blocks_are_not_called_blocks() -> None:
    made = record([40.0, 39.9, 39.8, 3.0, 3.1, 1.0], sites="blocks")
    assert made.step_name == "block"
    made.sites[-1] = replace(made.sites[-1], name="classifier", at="input")  # behind a pooler
    assert made.step_name == "step"
    verdict = judge(made)
    for said in (verdict.headline, *verdict.advice):
        assert "block" not in said
    assert "per step" in verdict.headline
    made.sites[-1] = replace(made.sites[-1], in_fit=False)
    assert made.step_name == "block"


@pytest.mark.parametrize("values", [[4.0, 2.0], [4.0, 2.0, 1.0], [1.0, 2.0]])
def test_too_few_points_say_what_would_give_more(values: list[float]) -> None:
    more = "sites='layers' (--sites layers) measures at every weight layer instead of at blocks."
    assert any(more in line for line in judge(record(values, sites="blocks")).advice)
    assert not any("too few" in line for line in judge(record(values)).advice)
    branched = record(values)
    branched.sites[1:1] = [branch("u.0"), branch("u.1")]
    assert any("record.law(branches=True)" in line for line in judge(branched).advice)
    assert any("name more sites" in line for line in judge(record(values, sites="chosen")).advice)
    assert not any("too few" in line for line in judge(record(EVEN, sites="blocks")).advice)


def test_one_point_says_it_too() -> None:
    verdict = judge(record([4.0], sites="blocks"))
    assert verdict.headline.startswith("No law can be fitted")
    assert verdict.advice[0].startswith("1 point of a law is too few, it takes 4: sites='layers'")


def test_a_network_that_is_worse_than_its_input_is_warned_of_and_does_not_decide_well() -> None:
    rising = record([1.0, 2.0, 4.0, 8.0, 16.0], at="input", ncc_accuracy=[0.91, 0.8, 0.7, 0.7, 0.7])
    rising.accuracy = 0.80
    said = str(judge(rising))
    assert (
        "The network is worse than its own input: it is right on 80.0%, the nearest class center of what enters" in said
    )
    assert "enters it ('s0') on 91.0%, with the class means of these same samples, which flatters it." in said
    assert "decides well" not in said
    rising.accuracy = 0.92
    said = str(judge(rising))
    assert "worse than its own input" not in said
    assert "although the network decides well" in said


def test_test_data_decide_whether_a_network_is_worse_than_its_input() -> None:
    made = record(EVEN, at="input", ncc_accuracy=[0.91] * 6, test_ncc_accuracy=[0.91] * 6)
    made.accuracy, made.test_accuracy, made.test_counts = 1.0, 0.72, [200, 200]
    assert any("it is right on 72.0% on test data" in line for line in judge(made).advice)
    made.test_accuracy = 0.90  # within its error
    assert not any("worse than" in line for line in judge(made).advice)
    made.sites[0].at = "output"  # no input was measured
    made.test_accuracy = 0.72
    assert not any("worse than" in line for line in judge(made).advice)


def test_a_printed_record_marks_its_points() -> None:
    made = record(EVEN)
    made.sites[2:2] = [branch("side")]
    made.sites[-1].in_fit = False
    heads, *rows = (line.split() for line in str(made).splitlines()[1:])
    assert heads[:3] == ["site", "features", "law"]
    assert [row[2] for row in rows] == ["point", "point", "branch", "point", "point", "point", "–"]
    assert ">branch</td>" in made._repr_html_()


def plateau_by_loops(shares: tuple[float, ...]) -> tuple[int, int] | None:
    """The definition itself: every run, the longest first, the earliest of these first."""
    m = len(shares)
    for length in range(m - 1, 2, -1):
        for first in range(m - length + 1):
            run, limit = shares[first : first + length], 0.25 * length / m
            halves = sum(run[: length // 2]), sum(run[length // 2 :])
            if abs(sum(run)) < limit and max(halves) < limit:
                return first, first + length - 1
    return None


def test_a_plateau_is_the_one_that_trying_every_run_finds() -> None:
    draw = random.Random(0)
    for points in (4, 5, 9, 30, 60):
        for _ in range(10):
            steps = [draw.choice((0.0, 0.0, 0.3, 1.0)) * draw.random() for _ in range(points - 1)]
            fit = fit_law([math.exp(-sum(steps[:i])) * 9 for i in range(points)])
            found = plateau(fit)
            assert (found and (found.first, found.last)) == (fit.shares and plateau_by_loops(fit.shares))


def test_thousands_of_sites_are_judged_at_once() -> None:
    draw = random.Random(0)
    rows = [
        SiteRow(str(i), "Linear", (4,), 4, values={"separation": 0.999**i * (1 + 0.1 * draw.random())})
        for i in range(5000)
    ]
    began = time.process_time()
    judge(Record("long", rows, ["a", "b"], counts=[3, 4]))
    assert time.process_time() - began < 5  # 0.1 s; a pass over all steps for each of them takes a minute


def test_names_of_a_record_do_not_steer_the_terminal() -> None:
    red = "\x1b[31mRED\x07"
    rows = [SiteRow(f"fc{i}", "Linear", (4,), 4, values={"separation": 2.0**-i}) for i in range(6)]
    rows[1] = replace(rows[1], name=red, values={"separation": 1.5})
    rows.append(SiteRow("logits", "output", (4,), 4, in_fit=False, aside=red, values={"separation": 1.0}))
    said = str(judge(Record(red, rows, ["a", "b"], counts=[3, 4], notes=[red])))
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\\x1b[31mRED\\x07" in said
