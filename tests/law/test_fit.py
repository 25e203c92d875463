"""The law along depth: the fit, the sharing of the drop, Greenwood's test, and words that do not oversell."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlaw.errors import InputError
from layerlaw.law import LawFit, fit_law

MEASURED = [36.814, 15.455, 9.480, 5.550, 3.197, 1.652, 0.742, 0.467]  # 8-layer Adam net of the project's facts
CORE = settings(deadline=None, derandomize=True, max_examples=50)
sequences = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=30)


# --- the line -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.818, 0.99])
@pytest.mark.parametrize("points", [2, 3, 4, 8, 20])
def test_a_geometric_sequence_is_the_law_itself(rho: float, points: int) -> None:
    fit = fit_law([7.0 * rho**i for i in range(points)])
    m = points - 1
    assert fit.rho == pytest.approx(rho, rel=1e-12)
    assert fit.end_to_end == pytest.approx(rho, rel=1e-12)
    assert fit.half_life == pytest.approx(math.log(2) / math.log(1 / rho), rel=1e-9)
    assert fit.slope == pytest.approx(math.log(rho), rel=1e-12)
    assert fit.intercept == pytest.approx(math.log(7), rel=1e-12)
    assert fit.line == pytest.approx(fit.values, rel=1e-12)
    assert max(map(abs, fit.residuals)) < 1e-12
    assert fit.shares == pytest.approx([1 / m] * m, rel=1e-9)
    assert fit.effective_layers == pytest.approx(m, rel=1e-9)
    assert fit.chord_deviation == pytest.approx(0, abs=1e-12)
    assert fit.sensitivity == pytest.approx(m / rho, rel=1e-12)
    assert fit.inefficiency == pytest.approx(1, rel=1e-12)
    assert (fit.points, fit.layers) == (points, m)
    if points == 2:
        assert fit.pearson is None
        assert fit.r_squared is None
        assert fit.greenwood_p is None
    else:
        assert fit.pearson == pytest.approx(-1, abs=1e-12)
        assert fit.r_squared == pytest.approx(1, abs=1e-12)
        assert fit.greenwood_p == pytest.approx(0, abs=1e-5)


@CORE
@given(sequences)
def test_the_fit_agrees_with_numpy(values: list[float]) -> None:
    y, l = np.log(values), np.arange(len(values))  # noqa: E741
    fit = fit_law(values)
    slope, intercept = np.polyfit(l, y, 1)
    size = 1 + np.abs(y).max()
    assert fit.slope == pytest.approx(slope, abs=1e-9 * size)
    assert fit.intercept == pytest.approx(intercept, abs=1e-9 * size)
    assert fit.rho == pytest.approx(math.exp(slope), rel=1e-7)
    np.testing.assert_allclose(fit.residuals, y - slope * l - intercept, atol=1e-9 * size)
    if fit.pearson is not None and np.ptp(y) > 1e-6:
        assert fit.pearson == pytest.approx(np.corrcoef(l, y)[0, 1], abs=1e-6)
        assert fit.r_squared == pytest.approx(fit.pearson**2)


@CORE
@given(sequences)
def test_the_numbers_along_the_drop_agree_with_their_definitions(values: list[float]) -> None:
    fit = fit_law(values)
    D, m = np.array(values), len(values) - 1
    assert fit.end_to_end == pytest.approx((D[-1] / D[0]) ** (1 / m), rel=1e-9)
    ratios = D[:-1] / D[1:]
    assert fit.sensitivity == pytest.approx(ratios.sum(), rel=1e-9)
    assert fit.inefficiency == pytest.approx(ratios.mean() / np.exp(np.log(ratios).mean()), rel=1e-9)
    assert fit.inefficiency >= 1 - 1e-12
    drop = math.log(D[0] / D[-1])
    if drop > 1e-6:
        shares = np.log(ratios) / drop
        assert fit.shares == pytest.approx(shares, rel=1e-6, abs=1e-6)
        assert sum(fit.shares) == pytest.approx(1, abs=1e-6)
        assert fit.effective_layers == pytest.approx(1 / (shares**2).sum(), rel=1e-6)
        assert 0 < fit.effective_layers <= m * (1 + 1e-9)
        chord = np.log(D[0]) - drop * np.arange(m + 1) / m
        assert fit.chord_deviation == pytest.approx(np.abs(np.log(D) - chord).max() / drop, rel=1e-6, abs=1e-9)
    elif drop < 0:
        assert fit.shares is None
        assert fit.effective_layers is None
        assert fit.greenwood_p is None
        assert fit.chord_deviation is None


@CORE
@given(sequences, st.floats(1e-3, 1e3))
def test_a_common_factor_changes_only_the_intercept(values: list[float], factor: float) -> None:
    before, after = fit_law(values), fit_law([factor * v for v in values])
    assert after.rho == pytest.approx(before.rho, rel=1e-9)
    assert after.intercept == pytest.approx(before.intercept + math.log(factor), abs=1e-7)
    assert after.inefficiency == pytest.approx(before.inefficiency, rel=1e-7)


def test_the_network_measured_by_the_project() -> None:
    fit = fit_law(MEASURED)
    assert fit.pearson == pytest.approx(-0.998, abs=5e-4)
    assert fit.rho == pytest.approx(0.541, abs=5e-4)
    assert fit.effective_layers == pytest.approx(6.6, abs=0.05)
    assert fit.greenwood_p == pytest.approx(0.0007, abs=5e-5)
    assert fit.half_life == pytest.approx(math.log(2) / -math.log(0.541), rel=2e-3)
    assert fit.verdict.startswith("The law holds: ")


def test_the_four_layer_network_measured_by_the_project() -> None:
    fit = fit_law([36.814, 11.552, 3.643, 1.099])
    assert fit.pearson == pytest.approx(-0.99996, abs=5e-6)
    assert fit.rho == pytest.approx(0.311, abs=5e-4)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple, list])
def test_every_kind_of_sequence(kind) -> None:
    assert fit_law(kind(MEASURED)).rho == pytest.approx(fit_law(MEASURED).rho, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_torch_values_of_every_dtype_even_with_a_graph(dtype: torch.dtype) -> None:
    values = torch.tensor(MEASURED, dtype=dtype).requires_grad_()
    assert fit_law(values * 1).rho == pytest.approx(fit_law(MEASURED).rho, rel=2e-2)


def test_whole_numbers_are_fine() -> None:
    assert fit_law(np.array([8, 4, 2, 1])).rho == pytest.approx(0.5)


@CORE
@given(sequences)
def test_the_fit_becomes_json(values: list[float]) -> None:
    plain = fit_law(values).to_dict()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again["points"] == len(values)
    assert again["verdict"] == plain["verdict"]
    assert again["values"] == list(plain["values"])


def test_numpy_values_become_json_too() -> None:
    json.dumps(fit_law(np.array(MEASURED, dtype=np.float32)).to_dict(), allow_nan=False)


def test_the_fit_reads_as_its_verdict() -> None:
    fit = fit_law(MEASURED)
    assert str(fit) == fit.verdict == fit.to_dict()["verdict"]


# --- when there is no law -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 1.5, 1.2, 1.9, 1.7]])
def test_no_half_life_where_nothing_falls(values: list[float]) -> None:
    fit = fit_law(values)
    assert fit.rho > 1
    assert fit.half_life is None
    two = "Two points make no law: D does not fall, from 1 to 2"
    assert fit.verdict.startswith(two if len(values) == 2 else "No law: D does not fall with depth")


@CORE
@given(st.floats(1e-6, 1e6), st.integers(2, 40))
def test_a_constant_has_neither_half_life_nor_shares(value: float, points: int) -> None:
    fit = fit_law([value] * points)
    assert fit.rho == pytest.approx(1, abs=1e-12)
    assert fit.half_life is None or fit.rho < 1
    assert fit.half_life is None or fit.half_life > 1e9
    assert fit.pearson is None
    assert fit.shares is None
    assert fit.verdict.startswith("No law") == (points > 3)


@CORE
@given(sequences)
def test_a_factor_of_one_or_more_has_no_half_life(values: list[float]) -> None:
    fit = fit_law(values)
    assert (fit.half_life is None) == (fit.rho >= 1)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_numbers_without_a_logarithm_are_refused(bad: float) -> None:
    with pytest.raises(
        InputError, match=r"expected positive, finite numbers, got .* at index 2\. The law speaks of log D"
    ):
        fit_law([4.0, 2.0, bad, 1.0])


@pytest.mark.parametrize(
    ("values", "shape"), [([], r"\(0,\)"), ([3.0], r"\(1,\)"), ([[1.0, 2.0]], r"\(1, 2\)"), (3.0, r"\(\)")]
)
def test_fewer_than_two_numbers_are_refused(values, shape: str) -> None:
    with pytest.raises(InputError, match=rf"expected at least 2 numbers along depth, got an array of shape {shape}"):
        fit_law(values)


@pytest.mark.parametrize("values", [[1e-300, 1e300], [1e300, 1e-300], [1e300, 1.0, 1e-300]])
def test_enormous_ratios_neither_warn_nor_crash(values: list[float]) -> None:
    """A network that diverges, or one that collapses to the last digit."""
    fit = fit_law(values)
    assert fit.rho >= 0
    json.dumps(fit.to_dict())


# --- the words ------------------------------------------------------------------------------------------------------

HOLDS = "The law holds"


@CORE
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=3))
def test_three_points_are_never_a_law(values: list[float]) -> None:
    fit = fit_law(values)
    assert fit.holds is None
    assert HOLDS not in fit.verdict


def test_an_even_drop_over_few_points_is_said_to_be_too_short() -> None:
    verdict = fit_law([4.0, 2.0, 1.0]).verdict
    assert verdict.startswith("Too few points to call it a law: D falls over 3 of them (ρ = 0.500")
    assert fit_law([8.0, 4.0, 2.0, 1.0]).verdict.startswith(HOLDS)


def test_few_points_with_a_rise_are_not_said_to_fall_over_all_of_them() -> None:
    verdict = fit_law([8.914, 9.482, 4.764]).verdict
    said = (
        "Too few points to call it a law: D falls over 3 of them as a whole, but it rises at 1 of 2 layers (ρ = 0.731"
    )
    assert verdict.startswith(said)
    assert not any(word in verdict for word in ("evenness", "trend", "Greenwood"))


def test_two_points_make_no_law() -> None:
    assert fit_law([4.0, 1.0]).verdict.startswith("Two points make no law: D falls, from 4 to 1 (ρ = 0.250")


@CORE
@given(st.lists(st.floats(0.01, 3), min_size=4, max_size=25), st.integers(0, 24), st.floats(0.01, 1))
def test_a_curve_that_rises_anywhere_is_never_said_to_fall_by_equal_steps(
    drops: list[float], at: int, rise: float
) -> None:
    steps = [-d for d in drops]
    steps[at % len(steps)] = rise
    fit = fit_law(np.exp(np.cumsum([0.0, *steps])))
    assert not fit.equal_steps
    assert not fit.verdict.startswith("The law holds: ")
    if fit.shares is not None and fit.rho < 1 and not fit.little and fit.points >= 4:
        assert "it rises at 1 of" in fit.verdict


def test_a_rising_curve_is_named_as_such() -> None:
    values = [0.8**i for i in range(12)]
    values[5] = values[4] * 1.01
    assert fit_law(values).verdict.startswith(
        "The law holds as a whole: log D falls on a line, but it rises at 1 of 11 layers, and single steps are −0.04 to 2.04"
    )
    values[5] = values[4] * 3
    assert fit_law(values).verdict.startswith(
        "The law does not hold: D falls with depth as a whole, but it rises at 1 of 11 layers; "
    )


@CORE
@given(st.lists(st.floats(0.001, 10), min_size=4, max_size=25))
def test_a_drop_no_more_even_than_chance_is_never_the_law(drops: list[float]) -> None:
    fit = fit_law(np.exp(-np.cumsum([0.0, *drops])))
    assert fit.greenwood_p is not None
    if fit.greenwood_p >= 0.05:
        assert HOLDS not in fit.verdict


@pytest.mark.parametrize("at", [0, 3, 8])
def test_a_drop_in_one_layer_is_not_the_law(at: int) -> None:
    steps = [-0.01] * 9
    steps[at] = -3.0
    fit = fit_law(np.exp(np.cumsum([0.0, *steps])))
    assert fit.verdict.startswith(
        "The law does not hold: D falls with depth as a whole, but the layers share the drop no more evenly than a random"
    )
    assert fit.effective_layers == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("ratio", [4.3, 3.0, 1 / 3])
@pytest.mark.parametrize("m", [3, 7, 19, 49])
def test_a_smooth_curve_is_no_law_however_sure_it_is_that_it_is_no_random_split(m: int, ratio: float) -> None:
    fit = fit_law(np.exp(-np.cumsum([0.0, *np.geomspace(0.2, 0.2 * ratio, m)])))
    assert fit.holds is False
    assert f"the steps {'grow' if ratio > 1 else 'shrink'} with depth" in fit.objections
    if m >= 19:
        assert fit.greenwood_p < 0.001
        assert (fit.trend > 2) == (ratio > 1)


@CORE
@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=30))
def test_the_trend_is_that_of_numpys_parabola(values: list[float]) -> None:
    c, b, _ = np.polyfit(np.arange(len(values)), np.log(values), 2)
    first, last = -(b + c), -(b + c * (2 * len(values) - 3))
    trend = fit_law(values).trend
    if min(abs(first), abs(last)) < 1e-6:
        return  # rounding decides the sign
    if first > 0 and last > 0:
        assert trend == pytest.approx(last / first, rel=1e-6)
    else:
        assert trend == (None if max(first, last) <= 0 else 0 if first > 0 else math.inf)


def test_the_steps_are_told_in_units_of_the_even_one() -> None:
    fit = fit_law(np.exp(-np.cumsum([0.0, 1.0, 2.0, 3.0, 2.0])))
    assert fit.steps == pytest.approx((0.5, 1.5))
    assert fit.evenness == pytest.approx(64 / 18 / 4)
    assert fit.equal_steps is True
    assert fit_law(np.exp(-np.cumsum([0.0, 0.9, 2.0, 3.1, 2.0]))).equal_steps is False


def test_the_best_of_several_curves_must_be_more_even() -> None:
    values = [36.8, 11.0, 4.1, 1.3]
    alone, best = fit_law(values), fit_law(values, chosen_from=7)
    assert best.greenwood_p == pytest.approx(1 - (1 - alone.greenwood_p) ** 7)
    assert alone.holds
    assert not best.holds
    assert best.verdict.startswith(
        "The law is not established: D falls with depth as a whole, but the layers share the"
    )
    assert "as the best of 7" in best.verdict
    for bad in (0, 1.5, None):
        with pytest.raises(InputError, match="chosen_from: expected the number of curves"):
            fit_law(values, chosen_from=bad)


@CORE
@given(sequences)
def test_every_verdict_is_one_sentence_with_its_factor(values: list[float]) -> None:
    verdict = fit_law(values).verdict
    assert "ρ = " in verdict
    assert verdict.endswith(").")
    assert "nan" not in verdict


def test_a_random_split_of_the_drop_is_called_a_law_no_more_often_than_five_percent() -> None:
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        drops = rng.exponential(size=7)
        called += HOLDS in fit_law(np.exp(-np.cumsum([0.0, *(4 * drops / drops.sum())]))).verdict
    assert called <= 0.08 * 400


def test_fits_compare_by_value() -> None:
    assert fit_law(MEASURED) == fit_law(tuple(MEASURED))
    assert isinstance(fit_law(MEASURED), LawFit)


# --- prediction residuals --------------------------------------------------------------------------------------------


def test_a_residual_that_falls_by_a_tenth_is_not_called_little() -> None:
    values = [0.90 * 0.9965**i for i in range(30)]
    assert fit_law(values).verdict.startswith("No law to speak of")
    residual = fit_law(values, quantity="PR")
    assert not residual.little
    assert residual.verdict.startswith("The law holds: every layer takes about the same share of log PR")
    assert "ρ = 0.9965 per layer, r = −1.000" in residual.verdict
    assert "half-life" not in residual.verdict


@pytest.mark.parametrize(("quantity", "above", "below"), [("PR", "1.0002", "0.9998"), ("D", "1.000", "1.000")])
def test_the_factor_has_as_many_digits_above_one_as_below(quantity: str, above: str, below: str) -> None:
    assert f"(ρ = {above} per layer, r = 1.000)" in str(fit_law([0.9 * 1.0002**i for i in range(8)], quantity=quantity))
    assert f"ρ = {below} per layer" in str(fit_law([0.9 * 0.9998**i for i in range(8)], quantity=quantity))
    assert "(ρ = 1e+06 per layer, r = 1.000)" in str(fit_law([1.0, 1e6, 1e12], quantity=quantity))


def test_rises_of_a_residual_are_counted() -> None:
    values = [0.90 * 0.99**i for i in range(10)]
    values[5] = values[4] * 1.01
    assert "but it rises at 1 of 9 layers" in fit_law(values, quantity="PR").verdict


def test_autocorrelation_tells_a_curve_from_noise() -> None:
    x = np.linspace(-1, 1, 30)
    assert fit_law(np.exp(-x + 0.3 * x**2)).autocorrelation > 0.7
    for points in (10, 30):
        x = np.linspace(-1, 1, points)
        noise = np.random.default_rng(0).normal(0, 0.1, (2000, points))
        mean = np.mean([fit_law(np.exp(-x + e)).autocorrelation for e in noise])
        assert mean == pytest.approx(-2 / points, abs=0.02)
        assert fit_law(np.exp(-x + noise[0])).noise_autocorrelation == -2 / points
    assert fit_law([8.0, 4.0, 2.0, 1.0, 0.5]).autocorrelation is None  # an exact line leaves rounding only
    e = np.array(fit_law([5.0, 3.0, 2.9, 1.0, 0.8]).residuals)
    assert fit_law([5.0, 3.0, 2.9, 1.0, 0.8]).autocorrelation == pytest.approx((e[1:] @ e[:-1]) / (e @ e))


def test_numbers_beyond_floats_are_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"expected numbers up to 1\.8e308, got larger ones"):
        fit_law([10**400, 1, 2, 3])


def test_masked_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="got 1 that are masked"):
        fit_law(np.ma.masked_array([8.0, 4.0, 2.0], mask=[0, 1, 0]))


@pytest.mark.parametrize("quantity", [3, None, "", b"D"])
def test_the_quantity_is_a_name(quantity: object) -> None:
    with pytest.raises(InputError, match="fit_law: quantity: expected a name"):
        fit_law([8.0, 4.0, 2.0], quantity=quantity)


def test_the_name_of_a_quantity_does_not_steer_the_terminal() -> None:
    said = str(fit_law([8.0, 4.0, 2.0, 1.0], quantity="\x1b[31mX"))
    assert "\x1b" not in said
    assert "\\x1b[31mX" in said
