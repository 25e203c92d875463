"""Samples with chosen class counts, repeated ones, and classes without training samples."""

import pytest
import torch

from layerlaw.errors import InputError, LabelError
from layerlaw.lab import ConvolutionalNetwork, Recipe, Samples, Schedule, Shape, sweep

NETWORK = ConvolutionalNetwork(stages=((4,), (8,)), side=8, inputs=1, classes=5)


def five_classes() -> Samples:
    x = torch.randn(100, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Samples.of((x, torch.arange(100) % 5), (x[:20], torch.arange(20) % 5))


def test_imbalanced_keeps_the_first_of_every_class_in_their_order() -> None:
    some = five_classes()
    few = some.imbalanced([20, 3, 20, 1, 0])
    assert (few.counts, few.classes) == ((20, 3, 20, 1, 0), 5)
    kept = [i for i in range(100) if i // 5 < [20, 3, 20, 1, 0][i % 5]]
    assert torch.equal(few.inputs, some.inputs[kept])
    assert torch.equal(few.labels, some.labels[kept])
    assert few.test_inputs is some.test_inputs
    assert some.imbalanced([20] * 5).checksum == some.checksum


def test_repeated_shows_every_sample_of_a_class_so_often() -> None:
    some = five_classes().imbalanced([20, 3, 20, 1, 0])
    again = some.repeated([1, 5, 1, 7, 2])
    assert again.counts == (20, 15, 20, 7, 0)
    assert torch.equal(again.inputs[again.labels == 3], some.inputs[some.labels == 3].expand(7, 1, 8, 8))
    assert len({image.numpy().tobytes() for image in again.inputs}) == len(some.labels)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.imbalanced([1] * 4), "counts: expected 5 numbers, one per class, got 4"),
        (lambda s: s.imbalanced([21, 1, 1, 1, 1]), "counts: expected at most 20 samples of class 0, got 21"),
        (lambda s: s.imbalanced([1, -1, 1, 1, 1]), r"counts\[1\]: expected a whole number of at least 0, got -1"),
        (lambda s: s.imbalanced([9, 0, 0, 0, 0]), "counts: expected at least 2 classes, got 1"),
        (lambda s: s.repeated([1, 1, 0, 1, 1]), r"times\[2\]: expected a whole number of at least 1, got 0"),
        (lambda s: s.repeated([2]), "times: expected 5 numbers, one per class, got 1"),
    ],
)
def test_counts_that_cannot_be_are_answered(call, words: str) -> None:
    with pytest.raises((InputError, LabelError), match=words):
        call(five_classes())


def test_a_class_without_samples_does_not_change_D_and_has_no_nearest_mean() -> None:
    few = five_classes().imbalanced([20, 20, 20, 0, 0])
    schedule = Schedule(batchnorm=("running",), test=True)
    (run,) = sweep([Recipe(NETWORK, epochs=2, batch_size=16)], few, schedule=schedule, progress=False)
    found = run.measurement(batchnorm="running")
    network = run.network()
    with torch.no_grad():
        h = torch.nn.Sequential(*network.children())[:-1](few.inputs).double()
    means = torch.stack([h[few.labels == k].mean(0) for k in range(3)])
    between = (means - means.mean(0)).T @ (means - means.mean(0)) / 3
    within = sum((h[few.labels == k] - means[k]).T @ (h[few.labels == k] - means[k]) for k in range(3)) / 60
    D = float(torch.trace(within @ torch.linalg.pinv(between, rtol=1e-9)))
    assert found.separation[-1] == pytest.approx(D, rel=1e-4)
    assert set(found.nearest) == {None}
    assert set(run.measurement(batchnorm="running", split="test").nearest) == {None}


def test_a_fleet_refuses_a_class_without_samples() -> None:
    few = five_classes().imbalanced([20, 20, 20, 0, 0])
    with pytest.raises(InputError, match=r"expected samples of every class for .*, got none of class 3 in 'data'"):
        sweep([Recipe(Shape.even(3, inputs=64, classes=5), epochs=1)], few, progress=False)
