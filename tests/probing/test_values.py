"""Every number of a record equals one that was computed by hand, from features that were captured by hand."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from capture_networks import FNN, DenseNet, Encoder, InPlaceResNet, ResNet20, clouds, seeded
from torch import nn

import layerlaw as ll
import oracle
from layerlaw.record import Record, SiteRow

K = 3
COLUMNS = (
    "separation",
    "nc1",
    "nc2_norms",
    "nc2_angles",
    "ncc_accuracy",
    "ncc_mismatch",
    "cdnv",
    "compression",
    "discrimination",
)


def by_hand(network: nn.Module, x: torch.Tensor, size: int = 256) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The first input of every linear and convolution layer, by name, and the scores; in batches of this size."""
    found: dict[str, list[torch.Tensor]] = defaultdict(list)
    handles = [
        module.register_forward_pre_hook(lambda m, args, name=name: found[name].append(args[0].flatten(1).clone()))
        for name, module in network.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    ]
    with torch.no_grad():
        scores = torch.cat([network(part) for part in torch.split(x, size)])
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}, scores


def networks() -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    images, y = clouds(90, 3, 4, 4)  # small, for the d×d matrices of the oracle
    vectors, _ = clouds(90, 12)
    warm = seeded(InPlaceResNet)
    for _ in range(30):
        warm(images)  # running statistics of these data
    return {
        "fnn": (seeded(FNN), vectors, y),
        "resnet20": (seeded(ResNet20, "conv"), images, y),
        "in-place resnet": (warm, images, y),
        "dense net": (seeded(DenseNet), images, y),
    }


def check_rows(site: SiteRow, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> None:
    """Cosines, norms and budgets of the classifier's rows; the counts of `y` are unequal."""
    rows, counts = weight.double().numpy(), torch.bincount(y).numpy()
    rare = counts < np.sqrt(counts.min() * counts.max())
    for name, chosen in (("", slice(None)), ("_minority", rare), ("_majority", ~rare)):
        norm, cosine = site.values[f"classifier_norm{name}"], site.values[f"classifier_cosine{name}"]
        assert norm == pytest.approx(np.linalg.norm(rows[chosen], axis=1).mean())
        if len(rows[chosen]) > 1:
            assert cosine == pytest.approx(oracle.mean_cosine(rows[chosen]), abs=1e-9)
        else:
            assert cosine is None
    assert site.by_class["classifier_norm"] == pytest.approx(np.linalg.norm(rows, axis=1).tolist())
    assert site.values["classifier_square"] == pytest.approx((rows**2).sum(1).mean())
    assert site.values["feature_square"] == pytest.approx(oracle.feature_square(x, y, K), rel=1e-6)
    assert site.values["classifier_budget"] == pytest.approx(oracle.used_budget(x, y, K, rows), rel=1e-5)


@pytest.mark.parametrize("name", ["fnn", "resnet20", "in-place resnet", "dense net"])
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_every_column_equals_the_oracle_on_features_captured_by_hand(name: str, weighting: str) -> None:
    network, x, y = networks()[name]
    y = y.clone()
    y[:40] = 0  # imbalanced: more than twice as many as of another class
    record = ll.probe(network, (x, y), sites="layers", weighting=weighting, batch_size=32, progress=False)
    features, scores = by_hand(network.eval(), x, 32)
    decision = scores.argmax(1)
    assert record.accuracy == pytest.approx(float((decision == y).double().mean()))
    assert record.counts == torch.bincount(y).tolist()
    last = list(network.modules())[-1] if name != "fnn" else network.layers[-1]
    for site in record.sites:
        is_last = site is record.sites[-1]
        weight = last.weight.detach() if is_last else None
        expected = oracle.everything(
            features[site.name], y, K, weighting=weighting, decision=decision, classifier=weight
        )
        check(site, expected)
        if is_last:
            for column in ("nc2_norms_classifier", "nc2_angles_classifier", "nc3"):
                assert site.values[column] == pytest.approx(expected[column], rel=1e-6)
            assert site.values["nc4"] == pytest.approx(expected["ncc_mismatch"])
            check_rows(site, features[site.name], y, weight)
        else:
            assert "nc3" not in site.values


def check(site: SiteRow, expected: dict, prefix: str = "") -> None:
    for column in COLUMNS:
        assert site.values[prefix + column] == pytest.approx(expected[column], rel=1e-6), (site.name, column)
    assert site.by_class[f"{prefix}separation"] == pytest.approx(expected["separation_classes"].tolist(), rel=1e-6)
    assert site.values[f"{prefix}rank"] == expected["rank"]


def test_blocks_of_an_encoder_equal_a_manual_forward() -> None:
    network = seeded(Encoder, batch_first=True).eval()
    x, y = clouds(90, 4, 8)
    record = ll.probe(network, (x, y), progress=False)
    states, h = [x], x
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        for layer in network.encoder.layers:
            h = layer(h)
            states.append(h)
    torch.backends.mha.set_fastpath_enabled(True)
    states.append(h[:, 0])
    assert [site.name for site in record.sites] == ["input", *(f"encoder.layers.{i}" for i in range(3)), "head"]
    decision = network.head(states[-1]).argmax(1)
    for site, state in zip(record.sites, states, strict=True):
        check(site, oracle.everything(state.flatten(1), y, K, decision=decision))


def test_test_data_have_their_own_means_in_d_and_the_training_means_in_nearest_center() -> None:
    network, x, y = networks()["fnn"]
    other, labels = clouds(45, 12, seed=3)
    record = ll.probe(network, (x, y), test=(other, labels), sites="layers", progress=False)
    train, _ = by_hand(network.eval(), x)
    test, scores = by_hand(network, other)
    decision = scores.argmax(1).numpy()
    assert record.test_counts == torch.bincount(labels).tolist()
    assert record.test_accuracy == pytest.approx(float(np.mean(decision == labels.numpy())))
    for site in record.sites:
        expected = oracle.everything(test[site.name], labels, K, decision=decision)
        means = oracle.class_means(oracle.as_array(train[site.name]), y.numpy(), K)
        points = oracle.as_array(test[site.name])
        nearest = np.array([np.argmin(((row - means) ** 2).sum(1)) for row in points])
        expected["ncc_accuracy"] = float(np.mean(nearest == labels.numpy()))
        expected["ncc_mismatch"] = float(np.mean(nearest != decision))
        check(site, expected, "test_")
        hits = [float(np.mean((nearest == k)[labels.numpy() == k])) for k in range(K)]
        assert site.by_class["test_ncc_accuracy"] == pytest.approx(hits)


def test_ten_classes_of_a_model_with_a_thousand_logits_are_measured_alone() -> None:
    ids = [5, 999, 17, 300, 301, 302, 44, 43, 42, 0]
    network = seeded(FNN, (12, 16, 16, 1000))
    x, positions = clouds(200, 12, classes=10)
    y = torch.tensor(ids)[positions]
    outside, elsewhere = clouds(50, 12, seed=9)[0], torch.full((50,), 7)  # a class that is not asked for
    order = torch.randperm(250, generator=torch.Generator().manual_seed(1))
    data = (torch.cat([x, outside])[order], torch.cat([y, elsewhere])[order])
    for batches in (data, [(a, b) for a, b in zip(*(torch.split(t, 60) for t in data), strict=True)]):
        how = {"sites": "layers", "uncertainty": "jackknife", "progress": False}
        record = ll.probe(network, batches, classes=ids, scores=lambda output: output, **how)
        assert record.classes == [str(i) for i in ids]
        assert record.counts == [20] * 10
        features, scores = by_hand(network, x)
        decision = scores[:, ids].argmax(1)
        assert record.accuracy == pytest.approx(float((decision == positions).double().mean()))
        weight = network.layers[-1].weight.detach()[ids]
        for site in record.sites:
            check(site, oracle.everything(features[site.name], positions, 10, decision=decision))
        duality = oracle.self_duality(features[record.sites[-1].name], positions, 10, weight)
        assert record.sites[-1].values["nc3"] == pytest.approx(duality, rel=1e-6)
        assert record.settings["classes"] == ids


def test_batches_without_any_of_the_chosen_classes_are_passed_over() -> None:
    x, y = clouds(60, 12)
    order = y.argsort(stable=True)
    batches = [(x[order[i : i + 10]], y[order[i : i + 10]]) for i in range(0, 60, 10)]
    record = ll.probe(seeded(FNN), batches, classes=[0, 2], progress=False)
    assert record.counts == [20, 20]
    with pytest.raises(ll.LayerlawError, match=r"data: expected samples of the classes \(0, 2\), got none"):
        ll.probe(seeded(FNN), [(x[y == 1], y[y == 1])], classes=[0, 2], progress=False)


def test_the_first_k_classes_may_be_asked_for_by_their_number_where_the_scores_are_said_to_be_theirs() -> None:
    x, y = clouds(60, 12, classes=2)
    network, how = seeded(FNN), {"scores": lambda output: output, "progress": False}
    few, chosen = (ll.probe(network, (x, y), classes=c, **how) for c in (np.int64(2), [0, 1]))
    assert few.to_pandas().equals(chosen.to_pandas())
    assert few.accuracy == chosen.accuracy
    assert few.accuracy is not None


@pytest.mark.parametrize("end", ["(n, 1)", "(n,)", "probability"])
def test_a_single_logit_decides_between_two_classes(end: str) -> None:
    parts: dict[str, list[nn.Module]] = {"(n, 1)": [], "(n,)": [nn.Flatten(0)], "probability": [nn.Sigmoid()]}
    network = nn.Sequential(seeded(FNN, (12, 8, 1)), *parts[end])
    x, y = clouds(60, 12, classes=2)
    with torch.no_grad():
        decision = (network[0](x).squeeze(1) > 0).long()
    record = ll.probe(network, (x, y), sites=["layers", "logits"], progress=False)
    assert record.classes == ["0", "1"]
    assert record.accuracy == pytest.approx(float((decision == y).double().mean()))
    features = by_hand(network, x)[0]
    for site in record.sites[:2]:
        check(site, oracle.everything(features[site.name], y, 2, decision=decision))
    assert record.sites[-1].features == 1
    turned = ll.probe(network, (x, y), classes=[1, 0], sites="layers", progress=False)
    assert turned.accuracy == record.accuracy
    assert any(note.startswith("No NC2 and NC3 of the classifier: ") for note in record.notes)


def test_a_model_with_log_softmax_has_no_nc3_and_says_why() -> None:
    x, y = clouds(60, 12)
    record = ll.probe(nn.Sequential(seeded(FNN), nn.LogSoftmax(1)), (x, y), progress=False)
    assert not any(column.startswith("nc3") or column.endswith("_classifier") for column in record.columns)
    assert record.accuracy is not None
    assert record.notes == [
        "No NC2 and NC3 of the classifier: no weight layer's output is the model's output "
        "(a softmax or pooling may follow the last layer)."
    ]


def test_nc3_is_found_where_the_last_block_feeds_the_classifier() -> None:
    from capture_networks import Pair

    network = seeded(lambda: nn.Sequential(Pair(12), Pair(12), Pair(12), nn.Linear(12, 3)))
    x, y = clouds(60, 12)
    record = ll.probe(network, (x, y), progress=False)
    assert [site.name for site in record.sites] == ["input", "0", "1", "2"]
    assert record.sites[-1].values["nc3"] is not None
    assert record.notes == []
    elsewhere = ll.probe(network, (x, y), sites=["0", "1"], progress=False)
    assert elsewhere.notes == [
        "No NC2 and NC3 of the classifier: what the classifier '3' reads is not among the sites."
    ]


def test_nc3_of_a_parametrized_classifier_uses_the_weight_in_force() -> None:
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))
    network = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), last)
    x, y = clouds(60, 12)
    record = ll.probe(network, (x, y), sites="layers", progress=False)
    features = by_hand(network, x)[0]
    expected = oracle.self_duality(features["2"], y, K, last.weight.detach())
    assert record.sites[-1].values["nc3"] == pytest.approx(expected, rel=1e-6)


def test_conv1d_of_hugging_face_keeps_its_weight_the_other_way_round() -> None:
    from transformers.pytorch_utils import Conv1D

    network = seeded(lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), Conv1D(3, 8)))
    x, y = clouds(60, 12)
    record = ll.probe(network, (x, y), sites="layers", progress=False)
    with torch.no_grad():
        features = network[1](network[0](x))
    expected = oracle.self_duality(features, y, K, network[2].weight.detach().T)
    assert record.sites[-1].values["nc3"] == pytest.approx(expected, rel=1e-6)


def test_an_untrained_copy_with_recalibrated_batch_norm_gives_the_null_column() -> None:
    network, x, y = networks()["in-place resnet"]
    record = ll.probe(network, (x, y), sites="layers", null=True, batch_size=30, progress=False)
    fresh = ll.untrained(network).eval()
    for module in fresh.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.train()
    with torch.no_grad():
        for part in torch.split(x, 30):
            fresh(part)
    features, _ = by_hand(fresh.eval(), x)
    for site in record.sites:
        expected = oracle.separation(features[site.name], y, K)
        assert site.values["separation_untrained"] == pytest.approx(expected, rel=1e-5)


def test_the_null_leaves_out_single_samples_when_it_calibrates() -> None:
    network, x, y = networks()["in-place resnet"]
    record = ll.probe(network, (x[:61], y[:61]), batch_size=30, null=True, progress=False)
    assert all(np.isfinite(record.column("separation_untrained")))


def test_logits_are_measured_but_no_point_of_the_law() -> None:
    network, x, y = networks()["fnn"]
    record, plain = (ll.probe(network, (x, y), sites=how, progress=False) for how in (["auto", "logits"], "auto"))
    assert [site.in_fit for site in record.sites] == [True] * 4 + [False]
    assert record.law() == plain.law()
    scores = by_hand(network, x)[1]
    check(record.sites[-1], oracle.everything(scores, y, K, decision=scores.argmax(1)))


def test_what_was_left_out_is_one_note() -> None:
    class Spare(FNN):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    x, y = clouds(60, 12)
    record = ll.probe(seeded(Spare), (x, y), progress=False)
    assert record.notes == ["Left out: spare (never called); other (never called)."]


def test_class_names_come_from_the_user_or_from_the_data() -> None:
    network, x, y = networks()["fnn"]

    class Named(torch.utils.data.TensorDataset):
        classes = ("ant", "bee", "cat")

    def classes(data: object, **how: object) -> list[str]:
        return ll.probe(network, data, progress=False, **how).classes

    assert classes((x, y)) == ["0", "1", "2"]
    assert classes((x, y), classes=["a", "b", "c"]) == ["a", "b", "c"]
    assert classes(Named(x, y)) == ["ant", "bee", "cat"]
    assert classes(torch.utils.data.DataLoader(Named(x, y), batch_size=20), classes=[2, 0]) == ["cat", "ant"]
    assert classes((x, y), classes={2: "two", 0: "none"}) == ["two", "none"]
    with pytest.raises(ll.LayerlawError, match=r"got 2\..* 2 classes were named, the model's output fits 3\."):
        classes((x, y), classes=["a", "b"])


def test_a_record_says_how_it_was_measured() -> None:
    network, x, y = networks()["resnet20"]
    record = ll.probe(network, (x, y), test=(x[:30], y[:30]), batch_size=30, progress=False)
    assert isinstance(record, Record)
    assert record.name == type(network).__name__
    assert record.settings == {
        "sites": "blocks",
        "sites_why": "auto: 9 blocks of type ShortcutBlock",
        "in_front": {"layer1.0": ["conv1"]},
        "reduce": "flatten",
        "batchnorm": "running",
        "batch_size": 30,
        "order": "as given",
        "weighting": "samples",
        "classes": 3,
        "jackknife_groups": 10,
        "linear": False,
        "parts": False,
        "permuted_labels": True,
        "one_forward": True,
        "seed": 0,
        "scores": "the output",
        "data_name": "",
    }
    provenance = record.provenance
    assert provenance["model"] == "ResNet20"
    assert provenance["parameters"] == sum(p.numel() for p in network.parameters())
    assert all(provenance[f"{part}_fingerprint"].startswith("sums64:") for part in ("data", "test"))
    assert provenance["processes"] == 1
    assert provenance["seconds"] > 0
    assert len(record.plane_labels) == 90
    assert all(len(site.plane) == 90 for site in record.sites)


def test_standard_errors_do_not_depend_on_the_order_of_the_file() -> None:
    """Samples that change slowly along the file: groups dealt in turn would be alike, and the errors far too small."""
    x, y = clouds(400, 12, seed=5)
    K = int(y.max()) + 1
    sorted_ = x[:, 0].argsort()
    orders = [sorted_, *(torch.randperm(len(y), generator=torch.Generator().manual_seed(i)) for i in range(8))]
    errors = [
        ll.probe(nn.Linear(12, K), (x[o], y[o]), progress=False).sites[0].values["separation_log_se"] for o in orders
    ]
    assert min(errors[1:]) / 1.5 < errors[0] < 1.5 * max(errors[1:])


def test_a_class_of_one_sample_has_no_standard_errors_and_a_note_says_so() -> None:
    x, y = torch.randn(41, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    record = ll.probe(model, (x, torch.cat([y, torch.tensor([2])])), uncertainty=True, progress=False)
    assert "separation_log_se" not in record.columns
    assert any("No standard errors" in note and "one sample of class 2" in note for note in record.notes)
    silent = ll.probe(model, (x, torch.cat([y, torch.tensor([2])])), uncertainty=False, progress=False)
    assert not any("No standard errors" in note for note in silent.notes)
