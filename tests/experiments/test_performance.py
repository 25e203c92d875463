"""Does evenness go along with accuracy? Quickly, and on numbers made by hand."""

import numpy as np
import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.moments import ranked
from layerlaw.experiments.runs import Runs
from layerlaw.experiments.separation import performance

quick = quick_fixture("performance", most=30)


def test_networks_are_measured_with_and_without_noise(quick: Quick) -> None:
    table = quick.table("Every trained network")
    assert set(performance.Able.NAMES) < set(table.columns)
    runs = quick.setting.runs["grid"].trained
    assert len(table.rows) == len(runs) > 0
    able = performance.Able.of(runs[0], quick.setting.data[runs[0].recipe.data], "cpu").values
    assert able["test-accuracy"] == pytest.approx(runs[0].measurement(batchnorm="running", split="test").accuracy)
    assert able["noisy-input-accuracy"] < able["test-accuracy"]
    assert able["change-of-log-D"] > 0
    again = performance.Able.of(runs[0], quick.setting.data[runs[0].recipe.data], "cpu").values
    assert again == able


def test_matching_takes_out_what_the_rate_does() -> None:
    """Within each rate evenness and skill agree; across rates they are opposed."""
    runs = Runs(made_run({1: (4.0, 2.0)}, seed=seed, learning_rate=rate) for rate in (1e-3, 1e-4) for seed in range(6))
    even = {id(r): r.recipe.seed + (10 if r.recipe.learning_rate == 1e-3 else 0) for r in runs}
    skill = {id(r): r.recipe.seed - (10 if r.recipe.learning_rate == 1e-3 else 0) for r in runs}
    pair = (lambda r: even[id(r)], lambda r: skill[id(r)])
    assert performance.correlation(runs, *pair) < 0
    assert performance.matched(runs, *pair) == pytest.approx([1.0, 1.0])
    assert performance.correlation(runs[:4], *pair) is None


def test_a_partial_correlation_is_what_the_group_and_the_other_number_leave() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=60)
    a, b = z + 0.1 * rng.normal(size=60), z + 0.1 * rng.normal(size=60)  # alike because of z alone
    rates = np.repeat([1e-3, 1e-2], 30)
    shift = np.where(rates == 1e-2, 9.0, 0.0)
    runs = [made_run({1: (2.0, 1.0)}, learning_rate=float(rate), seed=i) for i, rate in enumerate(rates)]
    at = {id(r): i for i, r in enumerate(runs)}

    def of(values: np.ndarray) -> performance.Value:
        return lambda r: float(values[at[id(r)]])

    assert performance.correlation(runs, of(a + shift), of(b - shift)) < -0.3  # confounded by the rate
    assert performance.partial(runs, of(a + shift), of(b - shift), []) > 0.9
    assert abs(performance.partial(runs, of(a + shift), of(b - shift), [of(z)])) < 0.35
    x, y, held = (np.concatenate([ranked(v[:30]), ranked(v[30:])]) for v in (a, b, z))
    left = [r - held * (held @ r) / (held @ held) for r in (x, y)]
    assert performance.partial(runs, of(a + shift), of(b - shift), [of(z)]) == pytest.approx(np.corrcoef(*left)[0, 1])
    assert performance.partial(runs[:5], of(a), of(b), [of(z)]) is None
