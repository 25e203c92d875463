"""When the law appears: constructed sequences, online against offline, and training that stops."""

import random
from dataclasses import replace

import pytest
import torch

from layerlaw.data import DEFAULT as SAMPLE
from layerlaw.data import load
from layerlaw.errors import InputError
from layerlaw.lab import FeedForward, Measurement, Recipe, Samples, Schedule, Shape, sweep, train
from layerlaw.law import fit_law
from layerlaw.probing import probe
from layerlaw.verdict import UntilLaw, emergence

STRAIGHT, BENT, RISING = [32.0, 16, 8, 4, 2, 1], [32.0, 30, 28, 4, 2, 1], [32.0, 16, 17, 4, 2, 1]


def test_the_criterion_is_the_verdict_of_the_fit() -> None:
    draw = random.Random(0)
    seen = {True: 0, False: 0}
    for _ in range(400):
        even, layers, little, rise = (draw.choice(c) for c in ((1, 20, 20), (3, 4, 7), (1, 1, 1, 1e-4), (0, 0, 0, 1)))
        steps = [draw.gammavariate(even, 1 / even) * little for _ in range(layers)]
        steps[draw.randrange(layers)] *= -0.02 if rise else 1
        values = [100.0]
        for step in steps:
            values.append(values[-1] * 2.718**-step)
        fit = fit_law(values)
        assert fit.holds == fit.verdict.startswith("The law holds"), fit.verdict
        seen[bool(fit.holds)] += 1
    assert min(seen.values()) > 20


def test_the_first_row_of_probes_that_is_long_enough_counts() -> None:
    history = {0: BENT, 10: STRAIGHT, 20: STRAIGHT, 30: RISING, 40: STRAIGHT, 50: STRAIGHT, 60: STRAIGHT, 70: BENT}
    found = emergence(history, patience=3)
    assert (found.epoch, found.confirmed, found.lasting) == (40, 60, False)
    assert "The law held from epoch 40 (confirmed at epoch 60), but not at every later probe." in found.sentence
    short = emergence(history, patience=2)
    assert (short.epoch, short.confirmed) == (10, 20)
    never = emergence(history, patience=4)
    assert never.epoch is never.confirmed is None
    assert "never held at 4 probes in a row (at 5 of 8, r at best −1.000)" in never.sentence


def test_interpolation_and_convergence_stand_beside_it() -> None:
    lasts = {10: 4.0, 20: 2.0, 30: 1.04, 40: 0.98, 50: 1.0}
    history = {epoch: [32.0 * (last / 32) ** (i / 5) for i in range(6)] for epoch, last in lasts.items()}
    found = emergence(history, patience=2, accuracies={10: 0.9, 20: 0.9989, 30: 0.9991, 40: 1.0, 50: 1.0})
    assert (found.epoch, found.interpolation, found.convergence) == (10, 30, 30)
    assert "fitted after the law appeared (epoch 30)" in found.sentence
    assert "settled after the law appeared (epoch 30)" in found.sentence
    assert emergence(history, within=0.03).convergence == 40


def test_a_last_layer_that_moves_to_the_end_has_not_converged() -> None:
    history = {0: STRAIGHT, 10: [value**0.5 for value in [1000.0, 250, 60, 15, 4, 1.5]]}
    found = emergence(history)
    assert found.convergence is None
    assert "still moving" in found.sentence
    assert "not known" in found.sentence  # no accuracies


def test_order_of_epochs_does_not_matter_and_a_dead_network_breaks_the_row() -> None:
    history = {20: STRAIGHT, 0: STRAIGHT, 10: [32.0, None, 8.0, 4.0, 2.0, 1.0], 30: torch.tensor(STRAIGHT)}
    assert emergence(history, patience=2).epoch == 20


def test_online_is_offline() -> None:
    draw = random.Random(1)
    for _ in range(200):
        history = {10 * i: draw.choice((STRAIGHT, STRAIGHT, BENT)) for i in range(12)}
        patience = draw.choice((1, 2, 3, 4))
        rule = UntilLaw(patience)
        stop = next((epoch for epoch, values in history.items() if rule.update(epoch, values)), None)
        found = emergence(history, patience=patience)
        assert (rule.since, rule.stopped, stop) == (found.epoch, found.confirmed, found.confirmed)


def test_the_rule_says_when_a_probe_is_due_and_takes_fits() -> None:
    rule = UntilLaw(patience=2, every=5)
    assert [epoch for epoch in range(12) if rule.due(epoch)] == [0, 5, 10]
    assert not rule.update(0, fit_law(STRAIGHT))
    assert rule.update(5, fit_law(STRAIGHT))
    assert rule.update(10, BENT)  # once said, it stays said


@pytest.fixture(scope="module")
def samples() -> Samples:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    return Samples.of((torch.randn(4, 20, generator=g)[y] + 1.5 * torch.randn(200, 20, generator=g), y))


def test_a_run_is_read_at_its_epochs_with_the_accuracy_of_eval_mode(samples: Samples) -> None:
    schedule = Schedule(epochs=(0, 5, 10, 20), batchnorm=("batch", "running"))
    run, *_ = sweep(
        [Recipe(Shape.even(6, inputs=20, classes=4), epochs=20)], samples, schedule=schedule, progress=False
    )
    found = emergence(run, patience=2)
    assert [probe.epoch for probe in found.probes] == [0, 5, 10, 20]
    assert found.probes[-1].accuracy == run.measurement(batchnorm="running").accuracy
    law = run.law(batchnorm="batch")
    assert law is not None
    assert found.probes[-1].pearson == law.pearson
    assert emergence(run.measurements, patience=2) == found
    assert found.to_dict()["probes"][0]["epoch"] == 0
    with pytest.raises(InputError, match=r"at 1 epochs or more \(BatchNorm whole, training data\), got 0"):
        emergence(run, batchnorm="whole")


def test_training_stops_when_the_rule_says_so() -> None:
    torch.manual_seed(0)
    network, rule = FeedForward(depth=5, inputs=100, width=100, classes=10), UntilLaw(patience=2, every=5)
    x, y = load(SAMPLE).balanced(100).resized(10).tensors(flat=True)
    losses = train(
        network, x, y, Recipe(epochs=60, learning_rate=1e-3), progress=False, at_epochs=range(0, 61, rule.every),
        visit=lambda epoch: rule.update(epoch, probe(network, (x, y), batchnorm="batch", progress=False)),
    )  # fmt: skip
    assert rule.stopped == len(losses) < 60
    assert rule.since == rule.stopped - 5
    assert not network.training


def test_only_true_stops_training(samples: Samples) -> None:
    def length(visit: object) -> int:
        network = FeedForward(depth=2, inputs=20, width=5, classes=4)
        how = {"at_epochs": range(4), "visit": visit, "progress": False}
        return len(train(network, samples.inputs, samples.labels, Recipe(epochs=3), **how))  # type: ignore[arg-type]

    assert length(lambda epoch: epoch == 2) == 2
    assert length(lambda epoch: epoch == 0) == 0
    assert length(lambda epoch: "a record") == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: UntilLaw(0), "patience: expected at least 1, got 0"),
        (lambda: UntilLaw(every=0), "every: expected at least 1, got 0"),
        (lambda: UntilLaw().update(0, [4.0, 2.0, 1.0]), "so few make no law"),
        (lambda: UntilLaw().update(0, 3.0), "expected a fit, a record, or at least 2 numbers"),
        (lambda: emergence({0: [4.0, -2.0, 1.0]}), "expected D ≥ 0 everywhere along depth, got -2 at place 1"),
        (lambda: emergence({0: [4.0, "two", 1.0]}), "expected numbers along depth, got 'two' at place 1"),
        (lambda: emergence({}), "got 0"),
        (lambda: emergence({0: "abc"}), "expected a fit, a record"),
    ],
)
def test_bad_input_is_answered(call: object, words: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert words in str(caught.value)


def test_the_rule_tells_its_state() -> None:
    rule = UntilLaw(patience=2)
    assert repr(rule) == "UntilLaw(patience=2, every=1): no probe yet"
    rule.update(3, STRAIGHT)
    assert repr(rule).endswith("held at the last 1 of 2 probes needed, up to epoch 3")
    rule.update(4, STRAIGHT)
    assert repr(rule).endswith("the law has held since epoch 3, known at epoch 4")


def test_epochs_go_forward() -> None:
    rule = UntilLaw()
    rule.update(5, STRAIGHT)
    with pytest.raises(InputError, match="expected one after 5, got 5"):
        rule.update(5, STRAIGHT)
    measurement = Measurement(0, "batch", "train", (4.0, 2.0), (None, None))
    with pytest.raises(InputError, match="one measurement per epoch"):
        emergence([measurement, replace(measurement, accuracy=0.5)])
