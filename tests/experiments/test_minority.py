"""Minority collapse, quickly; the model's side against closed forms and the exact solver."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments_recorded import PAPER_SEED, Quick, Recording, made_run, quick_fixture
from torch import nn

from layerlaw.errors import InputError
from layerlaw.experiments import code_digest, find
from layerlaw.experiments.layer_peeled import minority
from layerlaw.experiments.layer_peeled.minority import QUICK, Case, ClassifierReading, CountPlan, predictions, reading
from layerlaw.experiments.setting import Setting, samples
from layerlaw.lab import Architecture, Run
from layerlaw.peeled import solve

quick = quick_fixture("minority", most=30)
PLAIN = {ratio: Case(100, 5, ratio) for ratio in QUICK.ratios}
AGAIN = Case(100, 5, 100, 100)


def run_of(quick: Quick, case: Case) -> Run:
    (run,) = [run for runs in quick.setting.runs.values() for run in runs if run.recipe.data == case.name]
    return run


def read_by_numpy(quick: Quick, case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the classifier, features and labels of the training images."""
    run, data = run_of(quick, case), quick.setting.data[case.name]
    network = run.network()
    with torch.no_grad():
        features = nn.Sequential(*network.children())[:-1](data.inputs).double().numpy()
    return run.state["classifier.weight"].double().numpy(), features, data.labels.numpy()


def cosine(rows: np.ndarray) -> float:
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return float(np.mean([units[i] @ units[j] for i in range(len(rows)) for j in range(i)]))


def test_every_case_has_its_counts_and_fewer_images_are_part_of_more(quick: Quick) -> None:
    data = quick.setting.data
    assert [data[case.name].counts for case in PLAIN.values()] == [(100,) * 5 + (n,) * 5 for n in (100, 10, 1, 0)]
    assert data[AGAIN.name].counts == (100,) * 10
    rare = {
        case.name: {image.numpy().tobytes() for image in data[case.name].inputs[data[case.name].labels >= 5]}
        for case in (*PLAIN.values(), AGAIN)
    }
    assert [len(some) for some in rare.values()] == [500, 50, 5, 0, 5]
    assert rare[PLAIN[100].name] == rare[AGAIN.name] < rare[PLAIN[10].name] < rare[PLAIN[1].name]


def test_cosines_norms_and_accuracies_are_those_of_the_network(quick: Quick) -> None:
    for case in (*PLAIN.values(), AGAIN):
        W, _, _ = read_by_numpy(quick, case)
        assert quick.row(f"{case.name}/cosine").ours == pytest.approx(cosine(W[5:]), abs=1e-6)
        assert quick.row(f"{case.name}/cosine-centered").ours == pytest.approx(cosine((W - W.mean(0))[5:]), abs=1e-6)
        assert quick.row(f"{case.name}/cosine-majority").ours == pytest.approx(cosine(W[:5]), abs=1e-6)
        norms = np.linalg.norm(W, axis=1)
        ratio = quick.row(f"{case.name}/row-norm-minority-over-majority").ours
        assert ratio == pytest.approx(norms[5:].mean() / norms[:5].mean(), rel=1e-6)
        data = quick.setting.data[case.name]
        with torch.no_grad():
            decided = run_of(quick, case).network()(data.test_inputs).argmax(1)
        rare = data.test_labels >= 5
        right = float((decided == data.test_labels)[rare].double().mean())
        assert quick.row(f"{case.name}/test-accuracy-minority").ours == pytest.approx(right, abs=2e-3)
        stolen = float((decided[rare] < 5).double().mean())
        assert quick.row(f"{case.name}/test-minority-given-to-majority").ours == pytest.approx(stolen, abs=2e-3)


def test_the_prediction_is_the_exact_optimum_at_the_measured_norms(quick: Quick) -> None:
    for ratio in (10, 100):
        W, h, y = read_by_numpy(quick, PLAIN[ratio])
        E_H = np.mean([(h[y == k] ** 2).sum(1).mean() for k in range(10)])
        exact = solve([100] * 5 + [100 // ratio] * 5, E_W=(W**2).sum(1).mean(), E_H=E_H).minority_cosine
        assert quick.row(f"{PLAIN[ratio].name}/cosine-predicted").ours == pytest.approx(exact, abs=1e-4)
    assert quick.row(f"{PLAIN[1].name}/cosine-predicted").ours == pytest.approx(-1 / 9)
    assert quick.row(f"{AGAIN.name}/cosine-predicted").ours == pytest.approx(-1 / 9)  # shown equally often


def test_the_quick_run_shows_the_collapse_and_the_remedy(quick: Quick) -> None:
    assert quick.row("K_A-5/cosine-with-R/spearman").ours == pytest.approx(1)
    assert quick.row(f"{AGAIN.name}/cosine-minus-once").ours < -0.1
    once, again = (quick.row(f"{case.name}/cosine").ours for case in (PLAIN[100], AGAIN))
    assert quick.row(f"{AGAIN.name}/cosine-minus-once").ours == pytest.approx(again - once)
    assert quick.row(f"{PLAIN[math.inf].name}/test-accuracy-minority").ours == 0
    none = quick.row(f"{PLAIN[math.inf].name}/train-accuracy-minority")
    assert (none.ours, none.reason) == (None, "no rare training image")


def features_of_norm(square: float, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Features whose mean square over all ten classes is given; classes without images count as 0."""
    labels = torch.arange(10).repeat_interleave(torch.tensor(case.counts))
    present = sum(count > 0 for count in case.counts)
    h = torch.eye(10, dtype=torch.float64)[labels]
    return h * math.sqrt(square * 10 / present), labels


@pytest.mark.parametrize(
    ("case", "square", "expected"),
    [
        (Case(100, 5, 1), 5.0, -1 / 9),
        (Case(100, 5, 10), 5.0, 0.517496),
        (Case(100, 5, 100), 5.0, 1.0),
        (Case(100, 5, 100, 10), 5.0, 0.517496),  # the loss sees R/w
        (Case(100, 5, math.inf), 5.0, 1.0),
        (Case(100, 7, math.inf), 5.0, None),  # beyond R_vanish = 5.7 rows are 0
        (Case(100, 7, 4), 5.0, 0.999),
    ],
)
def test_predictions_are_known_solutions(case: Case, square: float, expected: float | None) -> None:
    features, labels = features_of_norm(square, case)
    found = predictions(case, torch.eye(10, dtype=torch.float64), features, labels)[0]
    assert found == (None if expected is None else pytest.approx(expected, abs=2e-3))


def test_a_diverged_network_has_no_reading_and_says_so() -> None:
    broken = made_run({3: [1.0, 0.5]}, diverged=2)
    data = samples(Setting(quick=True), "fashion_mnist", 2, size=10)(PAPER_SEED)
    assert reading(broken, Case(2, 5, 1), data) is None
    rows = minority._case_rows(QUICK, PLAIN[100], [None], {PLAIN[100]: [None]})
    assert all(row.ours is None and row.reason for row in rows)


BASE = ClassifierReading(0.0, 0.0, -0.1, (1.0, 1.0), -0.1, -0.1, (1.0, 1.0), (0.9, 0.5), 0.1)


def readings(cosines: dict[Case, list[float]], tested: dict[Case, list[float]]) -> minority.Readings:
    return {
        case: [
            replace(BASE, cosine=c, tested=(0.9, a)) for c, a in zip(cosines[case], tested[case], strict=True)
        ]
        for case in cosines
    }  # fmt: skip


def test_directions_are_tests_over_seeds() -> None:
    rising = {1: [-0.1, -0.1, -0.09], 10: [0.0, 0.1, 0.0], 100: [0.95, 0.9, 0.97], math.inf: [0.99, 0.98, 1.0]}
    cosines = {PLAIN[ratio]: some for ratio, some in rising.items()} | {AGAIN: [-0.1, 0.0, -0.05]}
    tested = {PLAIN[ratio]: [0.2, 0.25, 0.2] for ratio in rising} | {AGAIN: [0.4, 0.5, 0.42]}
    found = readings(cosines, tested)
    rows = {row.name: row for row in minority._direction_rows(QUICK, 5, found)}
    assert [row.reproduced for row in rows.values()] == [True, True, True]
    assert all(row.kind == "direction" and row.chance == 0.05 for row in rows.values())
    (largest,) = [
        r for r in minority._case_rows(QUICK, PLAIN[100], found[PLAIN[100]], found) if r.name.endswith("/cosine")
    ]
    assert (largest.reproduced, largest.chance, largest.tolerance) == (True, 0.0, "0.9 to 1")
    found[AGAIN] = found[PLAIN[100]]  # type: ignore[index]
    rows = {row.name: row for row in minority._direction_rows(QUICK, 5, found)}
    assert [row.reproduced for row in rows.values()] == [True, False, False]
    falling = readings(
        {case: some[::-1] for case, some in zip(PLAIN.values(), [*rising.values()][::-1], strict=True)}, tested
    )
    assert minority._direction_rows(replace(QUICK, times=()), 5, falling)[0].reproduced is False


def test_a_plan_wants_whole_counts_and_the_published_one_is_the_authors() -> None:
    with pytest.raises(InputError, match=r"ratios: expected whole parts of 500, at most 500, or .*, got 1000"):
        CountPlan(500)
    odd = ({"ratios": (math.inf,)}, {"K_A": (10,)}, {"times": (0,)}, {"majority": 0}, {"epochs": 0})
    for how in odd:
        with pytest.raises(InputError, match=rf"{next(iter(how))}: expected"):
            CountPlan(**how)
    with pytest.raises(InputError, match="data: expected one of fashion_mnist, cifar10, got 'mnist'"):
        CountPlan.published("mnist")
    theirs = CountPlan.published("cifar10")
    assert (theirs.majority, theirs.K_A, theirs.epochs, len(theirs.cases)) == (5000, (3, 5, 7), 350, 24)
    assert theirs.cases[3].counts == (5000,) * 3 + (5,) * 7
    assert theirs.cases[-1].shown == (5000,) * 10
    assert [case.counts[-1] for case in minority.SCALED.cases] == [1000, 100, 10, 1, 0, 1, 1]
    whole = CountPlan.published("fashion_mnist")
    assert set(minority.WHOLE.cases) <= {case for case in whole.cases if case.K_A == 5}


@pytest.mark.parametrize("name", minority.TITLES)
def test_every_network_is_found_by_its_name(name: str) -> None:
    found = find(name)
    assert found.title.startswith("Minority collapse: ")
    assert found.run.__module__.endswith("layer_peeled.minority")
    assert code_digest(name) != code_digest("fig1")


def test_a_quick_run_trains_a_small_form_of_its_own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minority, "QUICK", CountPlan(10, ratios=(1, 10, math.inf), times=(), epochs=1))
    networks, first_weights, cosines = {}, {}, {}
    for name in minority.TITLES:
        setting = Recording(most=1)
        outcome = find(name).run(setting)
        runs = [run for some in setting.runs.values() for run in some]
        (networks[name],) = {run.recipe.network for run in runs}
        first_weights[name] = next(iter(runs[0].state.values())).shape
        cosines[name] = {row.name: row.ours for row in outcome.rows if row.name.endswith("/cosine")}
        assert ("Quick run: Fashion-MNIST stands in for CIFAR-10." in outcome.notes) == ("CIFAR-10" in outcome.title)
    for name, full in zip(minority.TITLES, ("vgg11", "vgg13", "resnet18", "resnet18", "vgg11"), strict=True):
        whole = Architecture.named(full)
        kinds, small = ([type(part) for part in shape.build().modules()] for shape in (whole, networks[name]))
        assert kinds == small  # layer for layer: fewer channels, nothing else
    assert [shape[1] for shape in first_weights.values()] == [1, 3, 1, 3, 1]  # channels, as of gray and color images
    assert len({tuple(some.values()) for some in cosines.values()}) == 5


def test_what_was_read_is_kept_and_goes_on_without_the_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minority, "QUICK", CountPlan(10, ratios=(1, 10, math.inf), times=(10,), epochs=2))
    settings = [Recording(most=2, folder=tmp_path / "minority") for _ in range(2)]
    first = minority.minority(settings[0])
    assert len(settings[0].runs) == 4
    for folder in tmp_path.glob("minority/counts/*"):
        shutil.rmtree(folder)  # the networks
    assert minority.minority(settings[1]) == first
    assert not settings[1].runs
    assert settings[1].checksums == settings[0].checksums


def test_tables_and_sheets(quick: Quick) -> None:
    assert len(quick.table("Every network").rows) == len(QUICK.cases) == 5
    (sheet,) = quick.outcome.sheets
    assert [panel.infinity for panel in sheet.panels] == [1000] * 2
    predicted = sheet.panels[0].series[1]
    assert predicted.x[-2:] == (pytest.approx(316.2, abs=0.1), 1000)  # no line from the largest R to infinity
    assert predicted.y[-2:] == (None, 1)
    assert sheet.caption.startswith("Predictions")  # of one seed there is no range
    assert "n_A = 100 instead of 6,000; K_A = 3 and 7 not trained" in quick.outcome.notes[0]
