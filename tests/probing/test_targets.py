"""Probes of regressions and of several labels at once: recognized, measured, streamed, and what is answered in words."""

import json

import numpy as np
import pytest
import torch
from capture_networks import FNN, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
import oracle
from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.record import CLASSIFIER, REGRESSION
from layerlaw.verdict import judge

N = 300
X = clouds(N, 12)[0]
TWO = torch.stack([X[:, 0] * X[:, 1], 100 * X[:, 2].sin() + 1990], 1)
LABELS = torch.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0, X[:, 3] > 1], 1)


def network(outputs: int = 2) -> nn.Module:
    return seeded(FNN, (12, 20, 16, 16, outputs))


def probe(data, *, outputs: int = 2, **how) -> ll.Record:
    return ll.probe(network(outputs), data, progress=False, **how)


def features(net: nn.Module) -> list[torch.Tensor]:
    """What enters each layer."""
    found, x = [X], X
    for layer in net.layers[:-1]:
        x = torch.relu(layer(x)).detach()
        found.append(x)
    return found


def near(a: ll.Record, b: ll.Record, columns=None, rel: float = 1e-9) -> None:
    for column in columns or a.columns:
        left, right = (np.array(record.column(column), dtype=float) for record in (a, b))
        assert left == pytest.approx(right, rel=rel, nan_ok=True), column


def test_floating_point_targets_are_a_regression() -> None:
    record = probe((X, TWO))
    assert record.kind == REGRESSION
    assert record.leading == "target_separation"
    assert (record.counts, record.classes, record.accuracy) == ([N], ["0", "1"], None)
    assert record.settings["targets"] == "numbers"
    assert repr(record) == "<Record 'FNN': 4 sites, 2 targets, 300 samples>"
    expected = [oracle.target_separation(x, TWO) for x in features(network())]
    assert record.column("target_separation") == pytest.approx(expected, rel=1e-6)
    assert record.law().quantity == "D_reg"


def test_class_numbers_stay_classes() -> None:
    x, y = clouds(N, 12)
    assert probe((x, y), outputs=3).kind == CLASSIFIER
    assert probe((x, y.unsqueeze(1)), outputs=3).kind == CLASSIFIER


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_target_may_be_a_column_or_a_row(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = TWO[:, 0].to(dtype)
    record = probe((X, y.reshape(shape)), outputs=1)
    expected = [oracle.target_separation(x, y) for x in features(network(1))]
    assert record.column("target_separation") == pytest.approx(expected, rel=1e-6)
    assert record.classes == ["0"]


def test_numpy_targets_dictionaries_and_data_sets_are_taken() -> None:
    whole = probe((X, TWO))
    for data in (
        (X.numpy(), TWO.numpy()),
        TensorDataset(X, TWO),
        [{"x": X[:100], "labels": TWO[:100]}, {"x": X[100:], "labels": TWO[100:]}],
    ):
        near(probe(data), whole, ["target_separation", "residual", "residual_held_out"], rel=1e-5)


def test_rows_of_zeros_and_ones_are_labels_of_any_type() -> None:
    records = [probe((X, LABELS.to(t)), outputs=3) for t in (torch.bool, torch.int64, torch.uint8, torch.float32)]
    for record in records:
        assert record.several_labels
        assert record.settings["targets"] == "labels"
        assert record.r_squared is None
        near(record, records[0])
    assert repr(records[0]).startswith("<Record 'FNN': 4 sites, 3 labels")
    decided = network(3)(X) > 0
    assert records[0].accuracy == pytest.approx(float((decided == LABELS).double().mean()))
    share = LABELS.double().mean(0)
    assert records[0].settings["most_frequent_accuracy"] == pytest.approx(float(torch.maximum(share, 1 - share).mean()))


def test_outputs_that_are_probabilities_decide_at_one_half() -> None:
    net = nn.Sequential(network(3), nn.Sigmoid())
    record = ll.probe(net, (X, LABELS), progress=False)
    assert record.accuracy == probe((X, LABELS), outputs=3).accuracy


def test_one_hot_labels_give_the_separation_of_classes_and_say_so() -> None:
    x, y = clouds(N, 12)
    hot, plain = probe((x, nn.functional.one_hot(y)), outputs=3), probe((x, y), outputs=3)
    assert hot.column("target_separation") == pytest.approx(plain.column("separation"), rel=1e-5)
    assert hot.column("target_separation_permuted") == pytest.approx(plain.column("separation_permuted"), rel=1e-5)
    assert hot.settings["target_dimensions"] == 2
    assert any("exactly one label, so D_reg is D" in note for note in hot.notes)
    double = ll.probe(network(3).double(), (x.double(), nn.functional.one_hot(y)), progress=False)
    exact = ll.probe(network(3).double(), (x.double(), y), progress=False)
    assert double.column("target_separation") == pytest.approx(exact.column("separation"), rel=1e-12)


def test_r_squared_is_that_of_the_output() -> None:
    y = TWO * torch.tensor([1.0, 0.01])
    net = network()
    with torch.no_grad():
        expected = 1 - (net(X) - y).square().mean(0) / y.var(0, correction=0)
    record = probe((X, y), test=(X[:100], y[:100]))
    assert record.r_squared == pytest.approx(float(expected.mean()), rel=1e-5)
    with torch.no_grad():
        expected = 1 - (net(X[:100]) - y[:100]).square().mean(0) / y[:100].var(0, correction=0)
    assert record.test_r_squared == pytest.approx(float(expected.mean()), rel=1e-5)


def test_an_output_of_another_width_has_no_r_squared() -> None:
    record = probe((X, TWO), outputs=5)
    assert record.r_squared is None
    assert any("No R² of the network: its output has not one column for each of 2" in note for note in record.notes)


def test_targets_are_named_and_chosen_by_classes() -> None:
    named = probe((X, TWO), classes=["product", "year"])
    assert named.classes == ["product", "year"]
    one = probe((X, TWO), classes={1: "year"})
    assert one.classes == ["year"]
    assert one.column("target_separation") == pytest.approx(
        probe((X, TWO[:, 1]), outputs=1).column("target_separation"), rel=1e-9
    )
    assert one.r_squared is not None  # the output has a column for each of the two targets
    assert probe((X, TWO), classes=[0]).classes == ["0"]
    with pytest.raises(InputError, match="classes: expected 2 names, one for each target, got 3"):
        probe((X, TWO), classes=["a", "b", "c"])
    for wrong in (3, [2], [0, 0], [-1], []):
        with pytest.raises(LabelError, match=r"classes: expected names or numbers of targets.*numbers 0 … 1"):
            probe((X, TWO), classes=wrong)


@pytest.mark.parametrize("memory", [2.0, 2e-4])
def test_a_stream_gives_what_the_whole_gives(memory: float) -> None:
    loader = DataLoader(TensorDataset(X, TWO), batch_size=37)
    whole, streamed = probe((X, TWO)), probe(loader, memory_gib=memory, uncertainty=True)
    assert streamed.settings["one_forward"] is (memory > 1)
    columns = ["target_separation", "target_separation_log_se", "rank", "residual", "residual_held_out"]
    near(streamed, whole, columns, rel=1e-5)


def test_sites_in_groups_give_what_they_give_together() -> None:
    loader = DataLoader(TensorDataset(X, TWO), batch_size=50)
    apart = probe(loader, memory_gib=3000 / 2**30, uncertainty=False)
    near(apart, probe((X, TWO)), ["target_separation"], rel=1e-6)
    assert any("second moments do not fit memory_gib" in note for note in apart.notes)


def test_held_out_residuals_and_test_data() -> None:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(200, 12, generator=g)
    y = torch.stack([x[:, 0] * x[:, 1], 100 * x[:, 2].sin() + 1990], 1)
    record = probe((X, TWO), test=(x, y), null=True)
    A, B = (np.c_[oracle.as_array(z), np.ones(len(z))] for z in (X, x))
    Y, Z = oracle.as_array(TWO), oracle.as_array(y)
    beta = np.linalg.lstsq(A, Y, rcond=None)[0]
    expected = ((Z - B @ beta) ** 2).sum(0) / ((Z - Y.mean(0)) ** 2).sum(0)
    assert record.column("test_residual")[0] == pytest.approx(expected.mean(), rel=1e-5)
    assert record.sites[0].by_class["test_residual"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert record.column("test_target_separation")[0] == pytest.approx(oracle.target_separation(x, y), rel=1e-6)
    assert None not in record.column("target_separation_untrained")
    assert None not in record.column("residual_held_out_untrained")


def test_a_small_test_set_is_predicted_by_the_training_data() -> None:
    record = probe((X, TWO), test=(X[:5], TWO[:5]))
    assert None not in record.column("test_residual")
    assert "test_residual_held_out" not in record.columns


@pytest.mark.parametrize("seed", range(3))
def test_pixels_that_hardly_ever_vary_spoil_no_residual(seed: int) -> None:
    """Held out, what rounding leaves of a feature that is constant in the other samples must not predict anything."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x, digit = torch.tensor(digits.data[:1200], dtype=torch.float32), torch.tensor(digits.target[:1200])
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    labels = torch.stack([digit % 2 == 0, digit >= 5], 1)
    order = torch.randperm(1200, generator=torch.Generator().manual_seed(seed))
    train, test = ((x[rows], labels[rows]) for rows in (order[:900], order[900:]))
    record = ll.probe(seeded(FNN, (64, 8, 8, 2)), train, test=test, sites=["input"], progress=False)
    inside, held_out, tested = (record.column(name)[0] for name in ("residual", "residual_held_out", "test_residual"))
    assert inside < held_out < 1.5 * inside
    assert inside < tested < 1.5 * inside


def test_collinear_features_spoil_no_residual() -> None:
    x = X @ torch.randn(12, 60, generator=torch.Generator().manual_seed(0))
    wide = ll.probe(seeded(FNN, (60, 8, 8, 2)), (x, TWO), sites=["input"], progress=False)
    expected = probe((X, TWO), sites=["input"]).column("residual_held_out")[0]
    assert wide.column("residual_held_out")[0] == pytest.approx(expected, rel=1e-3)


def test_a_constant_target_is_left_out_and_told() -> None:
    y = torch.cat([TWO, torch.full((N, 1), 3.0)], 1)
    record = probe((X, y), outputs=3)
    near(record, probe((X, TWO)), ["target_separation", "residual", "residual_held_out"])
    assert any("say nothing and were left out: 2" in note for note in record.notes)
    with pytest.raises(LabelError, match="data: expected targets that differ between samples, got the same everywhere"):
        probe((X, torch.full((N,), 0.3)), outputs=1)


def test_collinear_targets_are_told() -> None:
    record = probe((X, torch.cat([TWO, TWO.sum(1, keepdim=True)], 1)), outputs=3)
    assert any("The 3 targets span 2 dimensions" in note for note in record.notes)
    near(record, probe((X, TWO)), ["target_separation"], rel=1e-6)


@pytest.mark.parametrize(("apart", "told"), [(1e-3, ""), (1e-5, "nearly linear in others"), (1e-7, "span 1 dimension")])
def test_targets_that_are_nearly_collinear_are_measured_or_told(apart: float, told: str) -> None:
    first, second = TWO.double().unbind(1)
    alike = torch.stack([first, first + apart * second * first.std() / second.std()], 1)
    record = probe((X, alike))
    found = [note for note in record.notes if "linear in others" in note]
    assert bool(found) == bool(told)
    assert told in "".join(found)
    assert record.settings["target_dimensions"] == (1 if apart < 1e-6 else 2)
    if apart > 1e-6:
        near(record, probe((X, TWO)), ["target_separation"], rel=1e-6 if apart > 1e-4 else 1e-3)
    else:
        near(record, probe((X, TWO[:, :1]), outputs=1), ["target_separation"], rel=1e-5)


def test_fewer_samples_than_features_have_no_residual_and_fewer_than_targets_nothing() -> None:
    record = probe((X[:18], TWO[:18]))
    assert record.sites[0].values["residual"] > 0  # 12 features; at the others 16 and more
    assert all("residual" not in site.values for site in record.sites[1:])
    assert any("as many features as samples (18) explains everything" in note for note in record.notes)
    assert None not in record.column("target_separation")
    with pytest.raises(LabelError, match="expected more samples than targets, got 3 samples for 2 targets"):
        probe((X[:3], TWO[:3]))


def test_targets_that_are_not_finite_name_batch_target_and_sample() -> None:
    y = TWO.clone()
    y[60, 1] = torch.nan
    with pytest.raises(LabelError, match=r"labels of data: expected finite targets, got nan in target 1 of sample 60"):
        probe((X, y))
    with pytest.raises(
        LabelError, match=r"labels of data, batch 1: expected finite targets, got nan in target 1 of sample 10"
    ):
        probe(DataLoader(TensorDataset(X, y), batch_size=50))


def test_class_numbers_as_floating_point_numbers_are_no_regression() -> None:
    x, y = clouds(N, 12)
    with pytest.raises(
        LabelError, match=r"expected whole-number class labels \(int64\), got torch.float32.*labels.long\(\)"
    ):
        probe((x, y.float()), outputs=3)
    rated = probe((x, y.float()), outputs=1)  # counts, ratings: one output
    assert rated.kind == REGRESSION
    told = "3 different whole numbers as floating-point numbers: taken as a regression target; pass integer labels"
    assert any(told in note for note in rated.notes)
    for other in (y.float() + 0.5, (y > 0).float()):  # no whole numbers; a label that is there or not
        assert not any("pass integer labels" in note for note in probe((x, other), outputs=1).notes)


def test_two_classes_as_zero_and_one_with_a_single_output_are_one_label() -> None:
    x, y = clouds(N, 12, classes=2)
    one, plain = probe((x, y.float()), outputs=1), probe((x, y), outputs=1)
    assert one.column("target_separation") == pytest.approx(plain.column("separation"), rel=1e-5)
    assert one.accuracy == plain.accuracy


def test_whole_numbers_in_rows_are_answered() -> None:
    with pytest.raises(
        LabelError, match=r"of a regression floating-point numbers.*got torch.int64 of shape \(300, 2\)"
    ):
        probe((X, TWO.long()))


def test_classes_cannot_weigh_equally_where_there_are_none() -> None:
    with pytest.raises(InputError, match="weighting: expected 'samples' where the labels are no classes"):
        probe((X, TWO), weighting="classes")


def test_batchnorm_by_batch_takes_targets() -> None:
    net = seeded(
        lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    )
    for mode in ("batch", "whole"):
        record = ll.probe(net, (X, TWO), batchnorm=mode, progress=False)
        assert None not in record.column("target_separation")


def test_features_near_their_end_say_that_the_layers_are_dead() -> None:
    net = network()
    with torch.no_grad():
        net.layers[1].weight.zero_()
        net.layers[1].bias.fill_(1.0)
    record = ll.probe(net, (X, TWO), progress=False)
    assert record.column("target_separation")[2] is None
    assert any("spans fewer than 2 dimensions at: layers.2" in note for note in record.notes)
    assert "nothing goes with the targets at 'layers.2'" in ll.verdict.judge(record).headline


def test_a_record_comes_back_from_its_file(tmp_path) -> None:
    for data, outputs in (((X, TWO), 2), ((X, LABELS), 3)):
        record = probe(data, outputs=outputs, test=(data[0][:80], data[1][:80]), null=True)
        again = ll.Record.load(record.save(tmp_path / "record.json"))
        assert again == record
        plain = json.loads((tmp_path / "record.json").read_text())
        assert plain["kind"] == "regression"
        assert "NaN" not in (tmp_path / "record.json").read_text()


def test_planes_are_colored_by_the_first_target() -> None:
    record = probe((X, TWO), classes=["product", "year"])
    assert len(record.words) == 5
    assert all(word.startswith("product: ") for word in record.words)
    assert len(record.plane_labels) == len(record.sites[0].plane) == 200
    assert np.bincount(record.plane_labels).tolist() == [40] * 5
    labels = probe((X, LABELS), outputs=3)
    assert labels.words == ["without 0", "with 0"]
    assert labels.plane_labels == LABELS[:200, 0].int().tolist()


def test_the_network_is_undisturbed_and_the_same_probe_gives_the_same() -> None:
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    near(ll.probe(net, (X, TWO), progress=False), ll.probe(net, (X, TWO), progress=False), rel=0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_parts_tell_how_much_they_change_d_reg() -> None:
    net = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    record = ll.probe(net, (X, TWO), parts=True, progress=False)
    assert [part.kind for part in record.parts] == ["map", "nonlinearity"] * 2
    x = X
    for part, module in zip(record.parts, net, strict=False):
        before, after = oracle.target_separation(x, TWO), oracle.target_separation(x := module(x).detach(), TWO)
        assert part.change() == pytest.approx(np.log(after / before), rel=1e-5)
    assert any(line.startswith("Over 2 layers ln D_reg changes by") for line in ll.verdict.judge(record).findings)


def test_the_best_linear_map_is_of_classes_alone() -> None:
    with pytest.raises(InputError, match="linear: D_lin is the least D of classes, the labels here are targets"):
        probe((X, TWO), linear=True)


def test_rows_that_are_no_points_are_set_aside() -> None:
    narrow = [
        nn.Linear(12, 20),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(20, 16),
        nn.ReLU(),
        nn.Linear(16, 1),
        nn.Linear(1, 2),
    ]
    record = ll.probe(nn.Sequential(*narrow), (X, TWO), sites=[str(i) for i in range(6)], progress=False)
    found = {site.name: site.aside for site in record.sites if not site.in_fit}
    assert found == {"2": "the same features as '1'", "5": "1 feature does not hold the 2 dimensions of the targets"}
    collinear = torch.cat([TWO, TWO[:, :1] + TWO[:, 1:]], 1)  # three targets, two dimensions: nothing is short of them
    assert all(site.in_fit for site in probe((X, collinear), outputs=3).sites)


def test_the_output_that_predicts_is_found_or_named_or_left_out() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(12, 8), nn.Linear(8, 2)

        def forward(self, x):
            hidden = self.one(x).relu()
            return {"hidden": hidden, "out": self.two(hidden)}

    model = seeded(Two)
    found, named, none = (ll.probe(model, (X, TWO), scores=at, progress=False) for at in ("auto", "out", None))
    with torch.no_grad():
        left = ((model(X)["out"] - TWO) ** 2).mean(0) / TWO.var(0, correction=0)
    assert found.r_squared == named.r_squared == pytest.approx(float((1 - left).mean()), rel=1e-5)
    assert none.r_squared is None
    assert none.notes == ["No R² of the network: scores=None."]
    near(found, none, ["target_separation", "residual_held_out"])


def test_an_output_that_is_no_number_is_told() -> None:
    net = network()
    with torch.no_grad():
        net.layers[-1].bias.fill_(torch.nan)
    with pytest.raises(FeatureError, match="the network's output: expected numbers, got NaN in data, batch 0"):
        ll.probe(net, (X, TWO), progress=False)
    assert ll.probe(net, (X, TWO), scores=None, progress=False).r_squared is None


def test_soft_labels_are_asked_about_since_both_readings_give_numbers() -> None:
    x, y = clouds(N, 12)
    smoothed = 0.9 * nn.functional.one_hot(y).float() + 0.1 / 3
    message = r"labels of data: .* rows of 3 numbers that sum to 1, which are soft labels .* labels.argmax\(1\)"
    for soft in (smoothed, smoothed.double(), smoothed.half(), torch.randn(N, 3).softmax(1).bfloat16()):
        with pytest.raises(LabelError, match=message):
            probe((x, soft), outputs=3)
    loader = DataLoader(TensorDataset(x, smoothed), batch_size=100)
    with pytest.raises(LabelError, match=r"batch 0.*soft labels"):
        probe(loader, outputs=3)
    assert probe((x, smoothed.argmax(1)), outputs=3).kind == CLASSIFIER
    scaled = probe((x, 2 * smoothed), outputs=3)  # does not sum to 1
    assert scaled.kind == REGRESSION
    one_less = probe((x, smoothed[:, 1:]), outputs=3)  # the way out of the message: it changes no D_reg
    near(one_less, scaled, ["target_separation"], rel=1e-5)


@pytest.mark.parametrize("low", [0, -5])
def test_whole_number_targets_are_told_to_become_floats(low: int) -> None:
    years = torch.arange(N) % 97 + low
    with pytest.raises(LabelError, match=r"If these 97 different numbers are to be predicted .* pass y.float\(\)"):
        probe((X, years), outputs=1)
    sparse = 7 * (torch.arange(N) % 97) + low
    with pytest.raises(LabelError, match=r"pass y.float\(\)"):
        probe((X, sparse), outputs=5, scores=None)
    with pytest.raises(LabelError, match=r"floating-point numbers \(n,\) or \(n, q\) \(y.float\(\)\)"):
        probe((X, torch.stack([years, years], 1)))
    assert probe((X, years.float()), outputs=1).kind == REGRESSION


def test_class_numbers_out_of_range_get_no_word_about_regressions() -> None:
    x, y = clouds(N, 12)
    with pytest.raises(LabelError) as caught:
        probe((x, y + 1), outputs=3)
    assert "y.float()" not in str(caught.value)


def test_an_output_in_other_units_is_told() -> None:
    y = 100 * X[:, :1] + 1990
    net = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 1))
    with torch.no_grad():
        net[2].bias.zero_()
    record = ll.probe(net, (X, y), progress=False)
    said = next(line for line in judge(record).findings if line.startswith("Of the network's own output R² is −"))
    assert (
        "it is worse than the mean of the targets, while a linear regression on the features at '2' leaves only" in said
    )
    assert said.endswith("Other units? The targets may have been scaled in training.")
    noise = torch.randn(N, 1, generator=torch.Generator().manual_seed(0)) + 50
    blind = judge(ll.probe(net, (X, noise), progress=False)).findings
    assert not [line for line in blind if "Other units?" in line]  # nothing in the features tells the targets
