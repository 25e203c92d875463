"""Mismatch and NC1 to NC4 at measured epochs: against NumPy, in fleets and plain loops, through files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seam_parts import TinyConv

from layerlaw.errors import InputError
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape, sweep
from layerlaw.lab.schedule import COLLAPSE, Measurement
from layerlaw.lab.variability import VariabilityCrossEntropy
from layerlaw.verdict.conjectures import training_course


def pictures() -> Samples:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(140) % 4
    means = 0.7 * torch.randn(4, 1, 6, 6, generator=generator)
    x = means[y] + torch.randn(140, 1, 6, 6, generator=generator)
    return Samples.of((x[:100], y[:100]), (x[100:], y[100:]))


SAMPLES = pictures()
SCHEDULE = Schedule((1,), batchnorm=("running",), test=True, permuted=True, collapse=True)
PLAIN = Recipe(TinyConv(), epochs=2, batch_size=25, optimizer="momentum", learning_rate=0.05, seed=3)


def run_of(recipe: Recipe, schedule: Schedule = SCHEDULE, **how: Any) -> Run:
    (run,) = sweep([recipe], SAMPLES, schedule=schedule, progress=False, **how)
    return run


def by_numpy(features: np.ndarray, labels: np.ndarray, centers: np.ndarray, decision: np.ndarray) -> dict[str, float]:
    """Mismatch by given class means; NC1 and NC2 of the features' own."""
    K = len(centers)
    distances = ((features[:, None] - centers) ** 2).sum(-1)
    own = np.stack([features[labels == k].mean(0) for k in range(K)])
    M = own - own.mean(0)
    rest = features - own[labels]
    within = rest.T @ rest / len(rest)  # classes are of one size
    nc1 = np.trace(within @ np.linalg.pinv(M.T @ M / K, rcond=1e-9)) / K
    norms = np.linalg.norm(M, axis=1)
    cosines = (M / norms[:, None]) @ (M / norms[:, None]).T
    off = cosines[~np.eye(K, dtype=bool)]
    return {
        "ncc_mismatch": float((distances.argmin(1) != decision).mean()),
        "nc1": float(nc1),
        "nc2_norms": float(norms.std() / norms.mean()),
        "nc2_angles": float(np.abs(off + 1 / (K - 1)).mean()),
        "nc2_equiangularity": float(off.std()),
    }


@pytest.mark.parametrize("split", ["train", "test"])
def test_columns_equal_numpy_with_the_class_means_of_the_training_samples(split: Any) -> None:
    schedule = replace(SCHEDULE, sites=("2", "5", "7", "9"))  # ReLUs, flattened pool, and the classifier by its name
    run = run_of(PLAIN, schedule)
    network, found = run.network().double(), run.measurement(batchnorm="running", split=split)
    assert found.sites == ("2", "5", "7", "9")
    train, y = SAMPLES.inputs.double(), SAMPLES.labels.numpy()
    x, labels = (train, y) if split == "train" else (SAMPLES.test_inputs.double(), SAMPLES.test_labels.numpy())
    with torch.no_grad():
        decision = network(x).argmax(1).numpy()
        for i, site in enumerate(found.sites):
            part = network[: int(site) + 1]
            features, of_train = (part(some).flatten(1).numpy() for some in (x, train))
            centers = np.stack([of_train[y == k].mean(0) for k in range(4)])
            expected = by_numpy(features, labels, centers, decision)
            for name, value in expected.items():
                assert found.collapse[name][i] == pytest.approx(value, rel=2e-4, abs=1e-9), (site, name)
        M = np.stack([network[:8](x).numpy()[labels == k].mean(0) for k in range(4)])
        M, W = M - M.mean(0), network[9].weight.numpy()
        nc3 = np.square(W / np.linalg.norm(W) - M / np.linalg.norm(M)).sum()
    assert found.collapse["nc3"] == (None, None, pytest.approx(nc3, rel=1e-4), None)
    assert found.collapse["nc4"][2] == found.mismatch[2]
    assert (found.samples, set(found.collapse)) == (len(labels), set(COLLAPSE))


def test_a_fleet_records_what_the_plain_loop_does() -> None:
    fleet = Recipe(Shape(36, (8, 8), 4), epochs=2, batch_size=25, seed=3)
    alone = replace(fleet, loss=VariabilityCrossEntropy(0.0))
    a, b = run_of(fleet), run_of(alone)
    assert a.how != b.how
    for one, other in zip(a.measurements, b.measurements, strict=True):
        assert (one.epoch, one.split, one.samples) == (other.epoch, other.split, other.samples)
        if one.split == "permuted":
            assert one.collapse is other.collapse is None
            continue
        for name in COLLAPSE:
            for mine, theirs in zip(one.collapse[name], other.collapse[name], strict=True):
                assert mine == (theirs if theirs is None else pytest.approx(theirs, rel=1e-3, abs=1e-6)), name
    assert a.measurement(batchnorm="running").collapse["nc3"][-1] is not None


def test_columns_survive_files_and_older_measurements_answer(tmp_path: Path) -> None:
    run = run_of(PLAIN, folder=tmp_path)
    assert run_of(PLAIN, folder=tmp_path).measurements == run.measurements
    found = run.measurements[0]
    assert Measurement.from_dict(json.loads(json.dumps(asdict(found)))) == found
    old = {key: value for key, value in asdict(found).items() if key not in ("collapse", "samples")}
    with pytest.raises(InputError, match=r"Schedule\(collapse=True\)"):
        _ = Measurement.from_dict(old).mismatch
    assert "collapse" not in Schedule().to_dict()


def test_other_numbers_are_the_same_with_and_without() -> None:
    with_it, without = run_of(PLAIN), run_of(PLAIN, replace(SCHEDULE, collapse=False))
    for a, b in zip(with_it.measurements, without.measurements, strict=True):
        assert a.separation == pytest.approx(b.separation, rel=1e-12)
        assert (a.nearest, a.accuracy, a.loss) == (b.nearest, b.accuracy, b.loss)


def test_a_class_without_training_samples_has_no_mismatch() -> None:
    some = replace(SAMPLES.imbalanced([25, 25, 25, 0]))
    (run,) = sweep([PLAIN], some, schedule=replace(SCHEDULE, permuted=False), progress=False)
    assert set(run.measurement(batchnorm="running").mismatch) == {None}


def test_a_course_comes_from_a_run() -> None:
    course = training_course(run_of(replace(PLAIN, epochs=3), replace(SCHEDULE, epochs=(1, 2))))
    assert course.epochs == (1, 2, 3)
    assert course.samples == {"train": 100, "test": 40}
    assert len(course.at("test", 2)) == len(course.sites)


def test_a_course_of_a_run_leaves_out_the_raw_input() -> None:
    run = run_of(replace(PLAIN, epochs=3), replace(SCHEDULE, epochs=(1, 2)))
    measured = run.measurement(batchnorm="running")
    course = training_course(run)
    assert course.sites == measured.sites[1:]
    assert course.at("train", 3) == measured.mismatch[1:]
    outputs = replace(SCHEDULE, epochs=(1, 2), sites=("2", "5"))
    assert training_course(run_of(replace(PLAIN, epochs=3), outputs)).sites == ("2", "5")
