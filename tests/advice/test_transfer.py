"""Lower against upper layers, on constructed histories."""

import math
from dataclasses import replace

import pytest

from layerlaw.advice import transfer_balance
from layerlaw.errors import InputError
from layerlaw.law import fit_law


def halves(lower: float, upper: float, *, below: int = 3, above: int = 4) -> list[float]:
    """D along depth that drops in log by `lower` at each of the first layers and by `upper` at each of the others."""
    y = [3.0]
    for step in [lower] * below + [upper] * above:
        y.append(y[-1] - step)
    return [math.exp(value) for value in y]


def test_the_epoch_from_which_the_halves_stay_balanced() -> None:
    ratios = {0: 3.0, 10: 1.2, 20: 1.5, 30: 1.24, 40: 0.81, 50: 1.0}
    found = transfer_balance({epoch: halves(0.5 * ratio, 0.5) for epoch, ratio in ratios.items()})
    assert found.epoch == 30
    assert found.layers == (3, 4)
    assert [stage.ratio for stage in found.stages] == pytest.approx(list(ratios.values()))
    assert "From epoch 30 on" in found.sentence


def test_gains_are_the_growth_between_probes() -> None:
    found = transfer_balance({0: halves(0.1, 0.0), 10: halves(0.5, 0.2), 20: halves(0.5, 0.5)})
    assert [stage.lower_gain for stage in found.stages] == [None, pytest.approx(0.4), pytest.approx(0)]
    assert [stage.upper_gain for stage in found.stages] == [None, pytest.approx(0.2), pytest.approx(0.3)]


def test_the_band_is_the_same_in_both_directions() -> None:
    for ratio, inside in ((0.79, False), (0.81, True), (1.24, True), (1.26, False)):
        curve = halves(0.5 * ratio, 0.5)
        assert (transfer_balance({0: curve, 1: curve}).epoch == 0) is inside


def test_a_balance_that_was_lost_is_told() -> None:
    steps = {0: (0.2, 0.5), 10: (0.5, 0.5), 20: (0.5, 0.5), 30: (0.5, 0.8), 40: (0.5, 0.9)}
    found = transfer_balance({epoch: halves(*pair) for epoch, pair in steps.items()})
    assert found.epoch is None
    assert found.stretches == ((10, 20),)
    assert "about equally from epoch 10 to 20" in found.sentence
    assert "at epoch 40 the upper layers reduce D more" in found.sentence


def test_one_probe_alone_is_no_balance_and_a_rise_has_no_ratio() -> None:
    found = transfer_balance({0: halves(0.1, 0.5), 10: halves(0.5, 0.5)})
    assert found.epoch is None
    assert "Balanced at the last probe alone" in found.sentence
    rising = transfer_balance({0: halves(0.5, 0.5), 10: halves(0.5, -0.1)})
    assert rising.stages[-1].ratio is None
    assert "one of them does not reduce D" in rising.sentence
    dead = transfer_balance({0: halves(0.5, 0.5), 10: [1.0] * 7 + [None]})
    assert dead.stages[-1].lower is None


@pytest.mark.parametrize("late", [(0.5, 0.5), (0.5, 0.9), (0.9, 0.5)])
def test_of_blocks_it_speaks_of_blocks(late: tuple[float, float]) -> None:
    curves = {0: halves(0.1, 0.5), 10: halves(0.5, 0.5), 20: halves(0.5, 0.5), 30: halves(*late)}
    by_layers = transfer_balance(curves)
    by_blocks = transfer_balance({epoch: replace(fit_law(D), step="block") for epoch, D in curves.items()})
    assert "per block" in by_blocks.sentence
    assert by_blocks.sentence.replace("block", "layer") == by_layers.sentence
    sheet = by_blocks.sheet()
    assert sheet.title == "Lower and upper blocks during training"
    assert [series.label for series in sheet.panels[0].series] == ["lower blocks", "upper blocks"]


def test_it_is_plain_data_and_can_be_drawn() -> None:
    found = transfer_balance({0: halves(0.1, 0.5), 10: halves(0.5, 0.5), 20: halves(0.5, 0.5)})
    data = found.to_dict()
    assert data["epoch"] == 10
    assert data["stages"][2]["ratio"] == pytest.approx(1)
    found.plot()


def test_bad_input_is_answered() -> None:
    with pytest.raises(InputError, match="at 2 epochs or more"):
        transfer_balance({0: halves(1, 1)})
    with pytest.raises(InputError, match="expected one number of layers at all epochs"):
        transfer_balance({0: halves(1, 1), 1: halves(1, 1, above=5)})
    with pytest.raises(InputError, match="2 or more, got"):
        transfer_balance({0: [2.0, 1.0], 1: [2.0, 1.0]})
    with pytest.raises(InputError, match="band"):
        transfer_balance({0: halves(1, 1), 1: halves(1, 1)}, band=(1.2, 0.8))
