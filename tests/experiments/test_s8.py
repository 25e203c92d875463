"""Figure S8, quickly."""

from dataclasses import replace

import pytest
import torch
from experiments_recorded import Quick, hidden, made_run, quick_fixture

from layerlaw.experiments.runs import PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import s8
from layerlaw.lab import Run, Samples
from layerlaw.law import fit_law
from layerlaw.measures import separation_fuzziness

quick = quick_fixture("s8", most=6)


def test_test_d_is_around_the_test_images_own_means(quick: Quick) -> None:
    samples = quick.setting.data["fashion_mnist"]
    run = next(r for r in quick.setting.runs["test"] if r.recipe.network.depth == 8)
    D = [float(separation_fuzziness(f, samples.test_labels)) for f in hidden(run.network(), samples.test_inputs)]
    assert len(D) == 8
    assert run.measurement(batchnorm="running", split="test").separation == pytest.approx(D, rel=1e-4)
    assert quick.row("depth-8/test-pearson-eval").ours == pytest.approx(fit_law(D).pearson, abs=1e-5)
    train, test = (run.law(split=split) for split in ("train", "test"))
    assert quick.row("depth-8/test-minus-train-evenness").ours == pytest.approx(test.evenness - train.evenness)
    sharp, fuzzy = quick.row("depth-8/test-holds"), quick.row("depth-8/test-below-chance")
    assert (sharp.ours, sharp.kind, sharp.paper) == (float(test.holds), None, "fuzzy law")
    below = test.greenwood_p < 0.05
    assert (fuzzy.ours, fuzzy.reproduced, fuzzy.paper) == (float(below), below, "fuzzy law")
    assert fuzzy.tolerance == "Greenwood's p < .05 in > half of the seeds"


def test_fuzzier_is_a_t_test_of_pairs_of_evenness() -> None:
    even, uneven = [0.5**i for i in range(8)], [1, 0.9, 0.4, 0.36, 0.1, 0.06, 0.05, 0.01]

    def network(train: list[float], test: list[float], seed: int) -> Run:
        on_train, on_test = (made_run({9: D}, splits=(part,)) for D, part in ((train, "train"), (test, "test")))
        return replace(made_run({9: train}, seed=seed), measurements=(*on_train.measurements, *on_test.measurements))

    assert s8.fuzzier(Runs(network(even, uneven, seed) for seed in range(3))).reproduced is True
    assert s8.fuzzier(Runs(network(uneven, even, seed) for seed in range(3))).reproduced is False
    mixed = [network(even, uneven, 1), network(even, even, 2), network(even, even, 3)]
    assert s8.fuzzier(Runs(mixed), "running").reproduced is False
    assert s8.fuzzier(Runs(mixed[:1])).reproduced is None


def test_equal_numbers_of_samples_and_the_correction(quick: Quick) -> None:
    samples = quick.setting.data["fashion_mnist"]
    run = next(r for r in quick.setting.runs["test"] if r.recipe.network.depth == 4)
    fair = s8.fairly(run, samples, batchnorm="running")
    x, y = s8.first_of_each(samples)
    D = [float(separation_fuzziness(f, y)) for f in hidden(run.network(), x)]
    assert fair.same_n == pytest.approx(D, rel=1e-4)
    assert (
        fair.train_corrected[-1] > run.measurement(batchnorm="running").separation[-1]
    )  # D is biased low at 100 per class
    trained = s8.fairly(run, samples, batchnorm="batch")
    assert quick.row("depth-4/test-same-n-last-D").ours == pytest.approx(trained.same_n[-1])
    assert quick.row("depth-4/train-last-D-corrected").ours == pytest.approx(trained.train_corrected[-1])


def test_as_many_test_as_training_images_of_every_class() -> None:
    x, y = torch.arange(6.0)[:, None], torch.tensor([0, 0, 1, 1, 1, 0])
    test_x, test_y = torch.arange(10.0)[:, None], torch.tensor([1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
    chosen_x, chosen_y = s8.first_of_each(Samples.of((x, y), (test_x, test_y)))
    assert chosen_y.tolist() == [1, 0, 1, 0, 1, 0]
    assert chosen_x.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    few = Samples.of((x[1:5], y[1:5]), (test_x, test_y))  # one of class 0, three of class 1
    assert s8.first_of_each(few)[1].tolist() == [1, 0, 1, 1]


def test_every_depth_has_rows_panels_and_layers(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for depth in (4, 8, 20):
        assert {f"depth-{depth}/test-holds-full", f"depth-{depth}/train-evenness-eval"} <= names
        assert {f"depth-{depth}/test-same-n-holds", f"depth-{depth}/test-last-D-corrected"} <= names
    assert len(quick.table(PROTOCOL_TITLE).rows) == 3
    assert {row.name for row in quick.outcome.rows if row.kind} == {f"depth-{d}/test-below-chance" for d in (4, 8, 20)}
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [3, 3, 3]
    assert len(quick.table("Every layer").rows) == 2 * (4 + 8 + 20)
    assert any("biased low" in note for note in quick.outcome.notes)
