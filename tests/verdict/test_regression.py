"""Sentences for regressions and for several labels, of records made by hand."""

from layerlaw.record import REGRESSION, Record, SiteRow
from layerlaw.verdict import UntilLaw, judge

EVEN = [0.5**i * 40 for i in range(8)]


def record(values, *, labels: bool = False, **columns) -> Record:
    sites = [
        SiteRow(
            f"s{i}", "ReLU", (10,), 10, values={"target_separation": v} | {name: c[i] for name, c in columns.items()}
        )
        for i, v in enumerate(values)
    ]
    settings = {"targets": "labels", "most_frequent_accuracy": 0.75} if labels else {"targets": "numbers"}
    return Record(name="made", sites=sites, classes=["a", "b"], counts=[200], kind=REGRESSION, settings=settings)


def test_an_even_drop_of_d_reg_is_the_law() -> None:
    verdict = judge(record(EVEN))
    assert verdict.headline.startswith("The law holds: every layer takes about the same share of log D_reg")
    assert not [line for line in verdict.findings if " D " in line]
    assert verdict.advice == ()


def test_chance_nulls_and_rises_speak_of_d_reg_and_targets() -> None:
    flat = [8.0, 9.0, 4.0, 2.0, 1.0]
    said = str(
        judge(
            record(
                flat,
                target_separation_permuted=[10.0] * 5,
                target_separation_untrained=[8.0, 10, 12, 14, 16],
                target_separation_log_se=[0.2] * 5,
                test_target_separation=[9.0, 9.0, 5.0, 4.0, 3.0],
            )
        )
    )
    assert "D_reg rises at 's1' (by 12.5%), within two standard errors." in said
    assert "At 's0', 's1' D_reg is more than half of what permuted targets give" in said
    assert "Untrained, D_reg rises from 8 to 16" in said
    assert "the last point of the law (train 1)." in said


def test_held_out_residuals_stand_beside_the_law() -> None:
    falling = judge(record(EVEN, residual_held_out=[0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.03, 0.04]))
    expected = "leaves 1 − R² of the targets from 0.500 at 's0' to 0.040 at 's7' (lowest 0.030 at 's6')."
    assert any(line.endswith(expected) for line in falling.findings)
    flat = str(judge(record(EVEN, residual_held_out=[0.5, 0.52, 0.5, 0.5, 0.49, 0.48, 0.5, 1.2])))
    assert "D_reg falls, but the targets become hardly easier to read" in flat
    assert "At 's7' that is 1 or more" in flat
    residuals = {
        "residual_held_out": [0.5 / (i + 1) for i in range(8)],
        "test_residual": [0.4 + i / 20 for i in range(8)],
    }
    lost = str(judge(record(EVEN, **residuals)))
    assert "from 0.400 at 's0' to 0.750 at 's7': what the layers do for the training data does not carry over." in lost


def test_what_the_network_itself_makes_of_the_targets_is_told() -> None:
    made = record(EVEN)
    made.r_squared, made.test_r_squared = 0.976, -0.2
    assert "Of the network's own output R² is 0.976, on test data −0.200." in judge(made).findings
    made = record(EVEN, labels=True)
    made.accuracy, made.test_accuracy = 0.98, 0.9
    expected = "is 98.0% (75.0% by always giving each label's more frequent answer), on test data 90.0%."
    assert any(line.endswith(expected) for line in judge(made).findings)


def test_what_grows_or_is_dead_is_said() -> None:
    assert any("D_reg grows with depth" in line for line in judge(record(EVEN[::-1])).advice)
    dead = judge(record([4.0, None, 1.0], rank=[1.0, 0.0, 1.0]))
    assert dead.headline.startswith("No law can be fitted: nothing goes with the targets at 's1'")


def test_the_stopping_rule_reads_regressions() -> None:
    rule = UntilLaw(patience=2)
    assert not rule.update(0, record(EVEN))
    assert rule.update(1, record(EVEN))
