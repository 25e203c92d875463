"""Figure S6, quickly."""

import numpy as np
import pytest
from experiments_recorded import Quick, hidden, quick_fixture

import oracle
from layerlaw.experiments.separation import s6
from layerlaw.law import fit_law

WHOLES = ("all-classes", "mean-class", "worst-class", "all-minus-mean-class")
quick = quick_fixture("s6", most=20)


def test_the_mean_over_classes_is_d(quick: Quick) -> None:
    (run,) = quick.setting.runs["classes"]
    for batchnorm in ("batch", "running"):
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
    assert quick.row("shirt/pearson-eval").ours == pytest.approx(fit_law(curve).pearson, abs=1e-4)


def test_every_class_has_its_row_and_panel(quick: Quick) -> None:
    names = [row.name for row in quick.outcome.rows]
    assert sum(name.endswith("/pearson") and name.split("/")[0] not in WHOLES for name in names) == 10
    assert {"t-shirt-top/pearson-eval", "worst-class/pearson", "all-minus-mean-class/pearson"} <= set(names)
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [11, 11, 2]
    assert len(quick.table("Every class").rows) == 11
    mean = quick.row("mean-class/pearson").ours
    each = [row.ours for row in quick.outcome.rows if row.paper == "law, noisier"]
    assert mean == pytest.approx(np.mean(each))
    assert quick.row("worst-class/pearson").ours == max(each)
    whole = quick.row("all-classes/pearson").ours
    assert quick.row("all-minus-mean-class/pearson").ours == pytest.approx(whole - mean)
