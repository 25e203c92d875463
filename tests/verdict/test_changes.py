"""Changes of ln PR with their errors: two models on the same tokens, block by block."""

import copy
import math

import numpy as np
import pytest
from scipy.stats import t

from layerlaw.errors import InputError
from layerlaw.record import LANGUAGE_MODEL, Record, SiteRow
from layerlaw.verdict.changes import LogChange, paired_difference, paired_differences, why_not_paired

GROUPS = 6


def measured(name, values, *, seed=0, **settings):
    rng = np.random.default_rng(seed)
    rows = [
        SiteRow(
            f"layers.{i}", "Block", (8,), 8, values={"residual": v, "residual_held_out": v},
            left_out={"residual_held_out": [float(v * math.exp(e)) for e in rng.normal(0, 0.01, GROUPS)]},
        )
        for i, v in enumerate(values)
    ]  # fmt: skip
    told = {"task": "next", "groups": GROUPS, "tokens": 900} | settings
    return Record(name, rows, [], LANGUAGE_MODEL, settings=told, provenance={"data_sha256": "ab"})


def test_the_difference_and_its_error_are_those_of_numpy():
    base, other = measured("base", [0.9, 0.8, 0.7]), measured("tuned", [0.88, 0.81, 0.6], seed=1)
    found = paired_difference(base, other)
    left = [np.log([s.left_out["residual_held_out"] for s in r.sites]) for r in (base, other)]
    change = left[1] - left[0]  # (blocks, groups)
    errors = np.sqrt((GROUPS - 1) / GROUPS * ((change - change.mean(1, keepdims=True)) ** 2).sum(1))
    expected = [math.log(b / a) for a, b in ((0.9, 0.88), (0.8, 0.81), (0.7, 0.6))]
    assert [c.change for c in found.blocks] == pytest.approx(expected)
    assert [c.error for c in found.blocks] == pytest.approx(errors)
    mean = change.mean(0)
    assert found.mean.error == pytest.approx(math.sqrt((GROUPS - 1) / GROUPS * ((mean - mean.mean()) ** 2).sum()))
    assert found.mean.change == pytest.approx(sum(c.change for c in found.blocks) / 3)
    assert 3 in found.clear
    assert "most at block 3" in found.sentence()
    half = t.ppf(0.975, GROUPS - 1) * found.mean.error
    assert f"(ln: −{abs(found.mean.change):.3f} ± {half:.3f}, 95% interval; clear)" in found.sentence()


def test_what_is_written_as_error_is_what_decides_whether_a_difference_is_clear():
    change = LogChange(0.007, 0.006, 8)  # beyond one standard error, within its interval
    assert str(change) == "+0.007 ± 0.014"
    assert not change.clear
    base, other = measured("a", [0.9, 0.8]), measured("b", [0.901, 0.802], seed=1)
    assert "95% interval; not clear, it includes 0)" in paired_difference(base, other).sentence()


def test_what_both_share_does_not_count_as_error():
    """The same noise in both: the difference is known exactly, however uncertain the levels are."""
    base = measured("base", [0.9, 0.8])
    other = copy.deepcopy(base)
    other.name = "scaled"
    for site in other.sites:
        site.values = {k: 0.99 * v for k, v in site.values.items()}
        site.left_out = {k: [0.99 * v for v in values] for k, values in site.left_out.items()}
    found = paired_difference(base, other)
    assert found.mean.change == pytest.approx(math.log(0.99))
    assert found.mean.error == pytest.approx(0, abs=1e-12)
    assert paired_difference(base, base).sentence() == "'base' has the same PR as 'base' at every block."


def test_swapping_the_models_swaps_the_sign():
    base, other = measured("a", [0.9, 0.8]), measured("b", [0.7, 0.6], seed=1)
    there, back = paired_difference(base, other), paired_difference(other, base)
    assert [c.change for c in there.blocks] == pytest.approx([-c.change for c in back.blocks])
    assert [c.error for c in there.blocks] == pytest.approx([c.error for c in back.blocks])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r.provenance.update(data_sha256="cd"), "not measured on the same token ids"),
        (lambda r: r.provenance.pop("data_sha256"), "not measured on the same token ids"),
        (lambda r: r.settings.update(groups=3), "with another groups"),
        (lambda r: r.settings.update(normalize="none"), "with another normalize"),
        (lambda r: r.sites.pop(), "3 and 2 blocks"),
    ],
)
def test_records_of_other_tokens_or_settings_are_not_paired(change, why):
    base, other = measured("base", [0.9, 0.8, 0.7]), measured("other", [0.9, 0.8, 0.7])
    change(other)
    assert why in why_not_paired(base, other)
    with pytest.raises(InputError, match=why):
        paired_difference(base, other)
    assert paired_differences([base, other]) == []


def test_every_later_record_is_compared_with_the_first_of_its_tokens_but_more_than_two_checkpoints_are_not():
    records = [measured(name, [0.9, 0.8], seed=i) for i, name in enumerate("abc")]
    assert [(d.base, d.other) for d in paired_differences(records)] == [("a", "b"), ("a", "c")]
    steps = [measured(f"step{i}", [0.9, 0.8], step=i) for i in range(3)]
    assert paired_differences(steps) == []
    assert [(d.base, d.other) for d in paired_differences(steps[:2])] == [("step0", "step1")]


def test_without_groups_there_is_a_difference_but_no_error():
    base, other = measured("a", [0.9, 0.8]), measured("b", [0.7, 0.6])
    for record in (base, other):
        for site in record.sites:
            site.left_out = {}
    found = paired_difference(base, other)
    assert found.mean == LogChange(found.mean.change)
    assert found.clear == []
    assert "95%" not in found.sentence()
