"""Figure S6, quickly."""

from dataclasses import replace

import numpy as np
import pytest
from experiments_recorded import Quick, hidden, made_run, quick_fixture

import oracle
from layerlaw.experiments.runs import MODE_NAMES, PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import s6
from layerlaw.lab import Run
from layerlaw.law import fit_law

quick = quick_fixture("s6", most=20)


def test_the_mean_over_classes_is_d(quick: Quick) -> None:
    (run,) = quick.setting.runs["classes"]
    for batchnorm in MODE_NAMES:
        measurement = run.measurement(batchnorm=batchnorm)
        assert np.mean(measurement.by_class, axis=1) == pytest.approx(
            np.array(measurement.separation)
        )  # classes are balanced


def test_the_class_laws_equal_those_of_explicit_covariances(quick: Quick) -> None:
    (run,) = quick.setting.runs["classes"]
    samples = quick.setting.data["fashion_mnist"]
    y, curve = oracle.as_labels(samples.labels), []
    for features in hidden(run.network(), samples.inputs):
        x = oracle.as_array(features)
        _, between = oracle.scatters(x, y, 10)
        inverse = np.linalg.pinv(between, rcond=1e-9, hermitian=True)
        curve.append(np.trace(oracle.class_covariance(x, y, 6) @ inverse))
    law = s6.class_laws(run, batchnorm="running")[6]
    assert law is not None
    assert law.values == pytest.approx(curve, rel=1e-3)
    assert quick.row("shirt/holds-eval").ours == float(fit_law(curve).holds)


def test_every_class_has_its_row_and_panel(quick: Quick) -> None:
    rows = [row for row in quick.outcome.rows if row.name.endswith("/holds") and row.name != "all-classes/holds"]
    assert [(row.paper, row.kind) for row in rows] == [("law", None)] * 10  # judged together
    judged = [row.name for row in quick.outcome.rows if row.kind]
    assert judged == ["all-minus-mean-class/evenness", "share-of-classes-with-law"]
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [11, 11, 2]
    assert len(quick.table("Every class").rows) == 11
    (run,) = quick.setting.runs["classes"]
    share = quick.row("share-of-classes-with-law")
    assert share.ours == pytest.approx(sum(row.ours for row in rows) / 10)
    assert share.ours == pytest.approx(s6.held_classes(Runs([run])) / 10)
    assert (share.reproduced, share.chance) == (None, 0.05)  # one seed is no test
    each = [law.evenness for law in s6.class_laws(run)]
    assert quick.row("mean-class/evenness").ours == pytest.approx(np.mean(each))
    assert quick.row("worst-class/evenness").ours == min(each)
    gain = quick.row("all-minus-mean-class/evenness")
    assert gain.ours == pytest.approx(run.law().evenness - np.mean(each))
    assert gain.chance == 1  # arithmetic: not counted
    assert len(quick.table(PROTOCOL_TITLE).rows) == 1


def test_most_classes_is_a_t_test_over_seeds() -> None:
    even, uneven = [0.5**i for i in range(8)], [1.0] * 7 + [0.01]

    def network(held: int, seed: int) -> Run:
        run = made_run({9: even}, seed=seed)
        layers = tuple(zip(*([even] * held + [uneven] * (10 - held)), strict=True))
        return replace(run, measurements=[replace(m, by_class=layers) for m in run.measurements])

    def verdict(*held: int) -> bool | None:
        return s6.share_with_law(Runs(network(n, seed) for seed, n in enumerate(held))).reproduced

    assert verdict(7, 8, 9) is True
    assert verdict(5, 6, 5) is False
    assert verdict(10) is None
