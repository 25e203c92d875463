"""The forecast of minority collapse: numbers against the solver, words, bad input, and the command."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import layerlaw as ll
import oracle
from layerlaw.advice import Forecast, forecast
from layerlaw.advice.outlook import MOST_BINS, MOST_GROUPS, shown_groups, solved_sizes
from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.peeled import collapse_curve, collapse_ratio, critical_budget, oversampling, solve, vanish_ratio
from layerlaw.wording import number, ratio_words

TAIL = [int(n) for n in np.geomspace(1280, 5, 100)]
COUNTS = [60, 50, 6, 5]


def trained_like(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, labels and a classifier: three numbers per sample, four classes, two of them rare."""
    x, y = oracle.blobs(COUNTS, 7, seed=seed, offset=0.5)
    return x, y, torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_two_sizes_say_what_the_solver_says() -> None:
    found = forecast([5000] * 5 + [1000] * 5, E_W=1, E_H=5)
    exact = solve([5000] * 5 + [1000] * 5, E_W=1, E_H=5)
    assert found.ratio == 5
    assert found.by_norms.phases == exact.phases == ("separated", "separated")
    assert found.by_norms.cosine == pytest.approx(exact.minority_cosine)
    assert found.by_norms.cosine == pytest.approx(collapse_curve(5, 5, [5], E_W=1, E_H=5).cosines[0])
    assert math.exp(found.by_norms.log_collapse) == pytest.approx(collapse_ratio(5, 5, E_W=1, E_H=5))
    assert found.by_norms.slack == pytest.approx(exact.slack.tolist())
    assert [n * math.sqrt(found.E_W) for n in found.by_norms.norms] == pytest.approx(exact.norms.tolist())
    assert found.by_use is None
    assert found.measured is None
    assert found.headline == (
        "No collapse predicted: R = 5.00 lies below the threshold R0 = 12.2 (0.41 of it). "
        "Deep networks are not safe by that: they collapsed earlier (docs/minority_collapse.md)."
    )


def test_the_lengths_do_not_depend_on_how_the_budget_is_split() -> None:
    found = forecast({100: 5, 20: 5}, E_W=4, E_H=1.25)
    exact = solve({100: 5, 20: 5}, E_W=4, E_H=1.25)
    assert [n * 2 for n in found.by_norms.norms] == pytest.approx(exact.norms.tolist())


def test_collapse_is_said_with_the_factor_that_leaves_it() -> None:
    counts = {6000: 5, 6: 5}
    found = forecast(counts, E_W=1, E_H=10)
    assert found.by_norms.factors == pytest.approx(oversampling(counts, E_W=1, E_H=10).factors.tolist())
    assert found.headline == (
        "Minority collapse predicted: one common row for 5 classes; R = 1,000 lies above the threshold R0 = 81.1. "
        "Showing the rarest samples 13 times separates all classes."
    )
    assert found.by_norms.cosine == 1
    repeated = forecast({6000: 5, 6 * 13: 5}, E_W=1, E_H=10)
    assert not repeated.by_norms.collapses


def test_vanishing_is_said_and_a_single_rare_class_has_a_factor_too() -> None:
    gone = forecast({1000: 7, 10: 3}, E_W=1, E_H=5)
    assert gone.by_norms.phases == ("separated", "vanished")
    assert gone.by_norms.cosine is None
    assert "rows of 0 for 3 classes" in gone.headline
    single = forecast([500] * 9 + [5], E_W=1, E_H=3)
    assert "a single rare class has no other to coincide with" in single.headline
    assert single.by_norms.repeats == pytest.approx(100 / vanish_ratio(9, 1, E_W=1, E_H=3))


def test_balanced_classes_do_not_collapse_and_nearly_balanced_ones_depend_on_the_budget() -> None:
    assert forecast([100] * 4, E_W=1, E_H=2).headline.startswith("No collapse: all 4 classes have the same size")
    near = forecast([500 + i for i in range(10)], E_W=1, E_H=2)
    assert near.headline.startswith("No class is predicted to be lost: c = 1.41 lies above the critical budget")
    assert len(near.groups) == 1
    poor = [100, 91, 90, 92, 93, 94, 95, 96, 97, 98]
    lost = forecast(poor, E_W=1, E_H=0.02)
    assert lost.critical == pytest.approx(critical_budget(poor))
    assert lost.by_norms.lost == (4,)
    assert "samples of 4 classes given to others" in lost.headline


def test_sizes_are_shown_in_few_groups_without_losing_classes() -> None:
    groups = shown_groups(TAIL)
    assert len(groups) == MOST_GROUPS
    assert sum(g.size * g.number for g in groups) == pytest.approx(sum(TAIL))
    assert sorted(k for g in groups for k in g.classes or ()) == list(range(100))
    assert all(g.low <= TAIL[k] <= g.high for g in groups for k in g.classes or ())
    assert all(a.low > b.high for a, b in pairwise(groups))
    middle = math.sqrt(max(TAIL) * min(TAIL))
    assert all(g.rare is (TAIL[k] < middle) for g in groups for k in g.classes or ())


SMALL_TAIL = [1000, 457, 289, 209, 162, 132, 111, 95, 83, 74, 66]


def test_up_to_forty_sizes_are_solved_as_they_are() -> None:
    found, exact = forecast(SMALL_TAIL, E_W=1, E_H=4.463), solve(SMALL_TAIL, E_W=1, E_H=4.463)
    assert found.critical == pytest.approx(critical_budget(SMALL_TAIL))
    assert [size.phase for size in found.by_norms.sizes] == list(exact.phases)
    assert sum(found.by_norms.lost) == sum(phase != "separated" for phase in exact.phases) == 1
    assert found.by_norms.phases[-1] == "confused"  # a group is as its worst class
    copies = found.by_norms.copies
    assert copies is not None
    assert len(copies) == len(SMALL_TAIL) > len(found.groups)
    assert solve([n * k for n, k in zip(SMALL_TAIL, copies, strict=True)], E_W=1, E_H=4.463).separated
    told = found.to_dict()
    assert told["by_norms"]["copies"] == list(copies)
    assert (told["ratio"], told["by_norms"]["R0"], told["by_norms"]["log_collapse"]) == (None, None, None)
    assert "more than two class sizes" in told["ratio_note"]
    assert "R0" not in str(found)
    assert len(found.sheet().panels) == 1  # no curve against one ratio


def test_more_sizes_are_binned_and_the_headline_says_so() -> None:
    zipf = [100_000 // k for k in range(1, 101)]
    found = forecast(zipf, E_W=1, E_H=3.1**2)
    assert found.bounded
    assert found.critical > 4.549  # of the true sizes
    assert "Some classes may be lost (100 sizes taken as " in found.headline
    assert abs(sum(found.by_norms.lost) - 32) <= 3  # 32 in truth
    assert f"about {sum(found.by_norms.lost)} of 100 classes" in found.headline
    assert "every class" not in found.headline
    told = found.to_dict()["by_norms"]
    assert told["copies"] is None
    assert "binned" in told["copies_note"]
    with_bias = forecast(zipf, E_W=1, E_H=4.6**2, bias=True)  # a closed form for any sizes
    assert with_bias.critical == pytest.approx(critical_budget(zipf, bias=True))
    assert with_bias.headline.startswith("No class is predicted to be lost")
    assert not with_bias.bounded


def random_sizes(rng: np.random.Generator, kind: int, G: int) -> list[int]:
    sizes = (
        10 ** rng.uniform(1, rng.uniform(1.3, 5), G),
        1e5 / np.arange(1, G + 1) ** rng.uniform(0.3, 2),
        np.linspace(rng.uniform(1, 100), rng.uniform(101, 1e4), G),
        np.append(rng.uniform(1000, 1300, G // 2), rng.uniform(10, 12, G - G // 2) * rng.integers(1, 50)),
    )[kind]
    distinct = np.unique(np.maximum(1, sizes.astype(int)))
    return [int(n) for n in np.repeat(distinct, rng.integers(1, 4, len(distinct)) if rng.random() < 0.5 else 1)]


def test_bins_never_give_a_false_all_clear() -> None:
    rng = np.random.default_rng(0)
    for i in range(48):
        counts = random_sizes(rng, i % 4, int(rng.integers(9, 16)))
        bins = solved_sizes(counts, most=8, bins=8)
        if not bins.binned:
            continue
        assert bins.groups.sizes[-1] == min(counts)
        assert len(counts) == bins.groups.K
        c = critical_budget(bins.groups, progress=False) * (1 + 1e-6)  # type: ignore[arg-type]  # Groups are taken
        assert solve(counts, E_W=c, E_H=c).separated


def test_bins_are_borders_of_the_groups_shown() -> None:
    for counts in (list(range(1, 300)), TAIL, [1000 + i for i in range(60)] + [1]):
        bins, every = solved_sizes(counts), solved_sizes(counts, math.inf)
        assert len(bins.groups) <= MOST_BINS + 1
        groups = shown_groups(counts)
        for g in range(len(groups)):
            assert bins.groups.classes[bins.shown == g].sum() == every.groups.classes[every.shown == g].sum()


def test_counts_of_any_number_of_classes_are_never_listed() -> None:
    found = forecast({5: 10**12, 3: 2}, E_W=1, E_H=1)
    assert found.K == 10**12 + 2
    assert found.to_dict()["groups"][0]["classes"] is None


def test_measured_accuracy_comes_before_the_forecast() -> None:
    x, y, W = trained_like()
    found = forecast(COUNTS, classifier=W, features=(x, y), accuracy=[1, 0.9, 0, 0.1])
    assert found.accuracy == (1, 0.9, 0, 0.1)
    assert found.headline.startswith(
        "Already lost in this network: accuracy of 2 classes on these data below half of the 1.00 of the most frequent. "
        "Forecast: "
    )
    assert found.to_dict()["already_lost"] == 2
    assert "Already" not in forecast(COUNTS, classifier=W, features=(x, y), accuracy=[1, 1, 1, 0.8]).headline
    rows = torch.cat([W[:2], W[2:3], W[2:3]])
    same = forecast([50, 50, 5, 5], classifier=rows, E_H=100)
    assert same.headline.startswith("Already lost in this network: rows of 2 classes coincide. Forecast: No collapse")


def test_a_linear_layer_with_features_tells_its_accuracy() -> None:
    x, y, W = trained_like()
    layer = torch.nn.Linear(7, 4, dtype=torch.float64)
    layer.weight.data, layer.bias.data = W, torch.tensor([0.0, 0.0, 0.0, 1e6], dtype=torch.float64)
    assert forecast(COUNTS, classifier=layer, features=(x, y)).accuracy == (0, 0, 0, 1)
    assert forecast(COUNTS, classifier=W, features=(x, y)).accuracy is None  # a bias may belong to the rows


def test_the_norm_in_use_is_a_lower_bound_of_what_the_logits_need() -> None:
    x, y, W = trained_like()
    means = np.stack([x[y == k].double().mean(0).numpy() for k in range(4)])
    needed = (
        np.linalg.svd(means @ (W - W.mean(0)).numpy().T, compute_uv=False).sum() / 4
    )  # without a bias: not centered
    found = forecast(COUNTS, classifier=W, features=(x, y))
    assert found.by_use is not None
    assert found.by_use.c < needed < found.by_norms.c


def test_powers_of_ten_carry_their_rounding() -> None:
    assert ratio_words(math.log(1e9)) == "1.0·10⁹"
    assert ratio_words(math.log(99_960)) == "1.0·10⁵"


def test_measured_norms_are_those_of_the_model() -> None:
    x, y, W = trained_like()
    found = forecast(COUNTS, classifier=W, features=(x, y))
    assert pytest.approx(float(W.square().sum(1).mean())) == found.E_W
    assert pytest.approx(oracle.feature_square(x, y, 4)) == found.E_H
    assert found.by_use is not None
    assert found.by_use.c == pytest.approx(oracle.used_budget(x, y, 4, W), rel=1e-6)
    assert found.closest is found.by_use
    assert found.rare is not None
    assert found.rare.mean_cosine == pytest.approx(oracle.mean_cosine(W.numpy()[2:]))
    assert found.rare.mean_cosine_centered == pytest.approx(oracle.mean_cosine((W - W.mean(0)).numpy()[2:]))
    assert found.rare.mean_row_norm == pytest.approx(float(W[2:].norm(dim=1).mean()))
    assert found.measured is not None
    assert [rows.mean_row_norm for rows in found.measured] == pytest.approx(W.norm(dim=1).tolist())


def test_rotating_features_and_trading_their_scale_change_no_forecast() -> None:
    x, y, W = trained_like()
    Q = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))[0]
    plain = forecast(COUNTS, classifier=W, features=(x, y))
    turned = forecast(COUNTS, classifier=W @ Q / 5, features=(5 * x.double() @ Q, y))
    for a, b in zip(plain.outlooks, turned.outlooks, strict=True):
        assert a.c == pytest.approx(b.c)
        assert a.cosine == pytest.approx(b.cosine)
        assert a.slack == pytest.approx(b.slack)


def test_a_record_knows_everything_that_features_and_rows_know() -> None:
    x, y, W = trained_like()
    layer = torch.nn.Linear(7, 4, bias=False, dtype=torch.float64)
    layer.weight.data = W
    record = ll.probe(torch.nn.Sequential(torch.nn.Identity(), layer), (x.double(), y), progress=False)
    by_hand, recorded = forecast(COUNTS, classifier=layer, features=(x, y)), forecast(record=record)
    assert pytest.approx(by_hand.E_W) == recorded.E_W
    assert pytest.approx(by_hand.E_H, rel=1e-6) == recorded.E_H
    assert recorded.by_use is not None
    assert by_hand.by_use is not None
    assert recorded.by_use.c == pytest.approx(by_hand.by_use.c, rel=1e-6)
    assert recorded.rare is not None
    assert by_hand.rare is not None
    assert recorded.rare.mean_cosine == pytest.approx(by_hand.rare.mean_cosine)
    twice = forecast([2 * n for n in COUNTS], record=record)
    assert twice.by_norms.cosine == pytest.approx(recorded.by_norms.cosine)


def test_given_norms_go_before_measured_ones() -> None:
    x, y, W = trained_like()
    found = forecast(COUNTS, E_W=1, E_H=5, classifier=W, features=(x, y))
    assert (found.E_W, found.E_H, found.by_use) == (1, 5, None)
    assert any("Norms were given, so the norm in use" in line for line in found.sentences)
    assert found.rare is not None


def test_enormous_norms_are_no_obstacle() -> None:
    found = forecast({1000: 500, 1: 500}, E_W=50, E_H=1e6)
    assert not found.by_norms.collapses
    assert "R0 = 10" in found.headline


def test_collapse_by_use_alone_is_within_reach() -> None:
    exact = solve([500, 500, 5, 5], E_W=1, E_H=1.5)
    means, W = torch.from_numpy(exact.H(6)), torch.from_numpy(exact.W(6))
    generator = torch.Generator().manual_seed(0)
    x = means.repeat_interleave(50, 0)
    x = x + 3 * torch.randn(x.shape, dtype=x.dtype, generator=generator)  # spread that no class uses
    found = forecast([500, 500, 5, 5], classifier=W, features=(x, torch.arange(4).repeat_interleave(50)))
    assert found.by_use is not None
    assert found.headline.startswith(
        "Already lost in this network: rows of 2 classes coincide. Forecast: "  # the model's own optimum
        "Minority collapse within reach, though not if all of the norm counted: one common row for 2 classes"
    )
    assert f"by the norm in use (c = {number(found.by_use.c)}) R = 100 lies above" in found.headline


@pytest.mark.parametrize("bias", [False, True])
def test_the_forecast_is_plain_data_and_a_figure(tmp_path: Path, bias: bool) -> None:
    x, y, W = trained_like()
    for found in (
        forecast(COUNTS, classifier=W, features=(x, y), bias=bias),
        forecast([7, 7], E_W=1, E_H=1, bias=bias),
        forecast(TAIL[::10], E_W=1, E_H=4, bias=bias),
        forecast([500] * 9 + [5], E_W=1, E_H=3, bias=bias),
    ):
        data = json.loads(found.save(tmp_path / "forecast.json").read_text())
        assert data["format"] == "layerlaw forecast"
        assert data["sentences"] == list(found.sentences)
        assert str(found).startswith(found.headline)
        found.plot().savefig(tmp_path / "forecast.png")


def test_caveats_speak_of_depth_decay_and_this_training() -> None:
    for counts in ({100: 5, 10: 5}, {5000: 5, 10: 5}):  # not predicted to collapse, and predicted
        assert " ".join(forecast(counts, E_W=1, E_H=5).sentences).count("they collapsed earlier") == 1
    text = " ".join(forecast({5000: 5, 10: 5}, E_W=1, E_H=5).caveats)
    for words in ("no safe bound for deep networks", "Weight decay is no norm budget", "no test of significance"):
        assert words in text
    found = forecast({100: 5, 1: 5}, E_W=1, E_H=5)
    assert len(" ".join(found.caveats)) < 2 * len(found.headline)


def test_at_the_threshold_the_digits_tell_which_side() -> None:
    for n, words in ((12_192_400, "R = 12.19240 lies right below the threshold R0 = 12.19245"),
                     (12_192_500, "R = 12.193 lies above the threshold R0 = 12.192")):  # fmt: skip
        assert words in forecast({n: 5, 10**6: 5}, E_W=1, E_H=5).headline


def test_a_size_of_one_class_is_said_with_its_cosine_not_as_a_common_row() -> None:
    found = forecast([100, 50, 20, 20, 5], E_W=1, E_H=3)
    assert found.by_norms.phases[-1] == "confused"
    cosine = solve([100, 50, 20, 20, 5], E_W=1, E_H=3).cosines[3, 2]
    between = f"(cosine {cosine:.2f} between its row and the one that takes its samples)"
    assert f"Some classes are predicted to be lost: samples of 1 class given to others {between}" in found.headline
    assert "common row" not in found.headline
    assert "collapse" not in found.headline
    tail = forecast([264, 24, 17, 6, 5, 2], E_W=0.7268826, E_H=0.7268826)
    assert "samples of 3 classes given to others (cosine" in tail.headline
    assert "Showing the rarest samples 23 times, others fewer times, separates all classes" in tail.headline


def test_advice_that_nobody_follows_becomes_weights() -> None:
    found = forecast({10**9: 5, 1: 5}, E_W=1, E_H=1)
    assert "Weighting the loss of the rarest samples" in found.headline
    assert "as copies it would take" in found.headline
    near = forecast([100, 91, 90, 92, 93, 94, 95, 96, 97, 98], E_W=1, E_H=0.02)
    assert "Weighting the loss as if no class had fewer than" in near.headline


@pytest.mark.parametrize("bias", [False, True])
def test_headline_phases_critical_budget_and_copies_agree(bias: bool) -> None:
    rng = np.random.default_rng(8)
    for _ in range(25):
        sizes = np.unique(np.round(10 ** rng.uniform(0, 3, rng.integers(2, 6))).astype(int))
        counts = np.repeat(sizes, rng.integers(1, 4, len(sizes)))
        if len(counts) < 2:
            continue
        c = 10 ** rng.uniform(-0.5, 0.7)
        found, exact = forecast(counts.tolist(), E_W=c, E_H=c, bias=bias), solve(counts, E_W=c, E_H=c, bias=bias)
        assert found.by_norms.phases == exact.phases
        assert found.by_norms.collapses is not exact.separated
        assert found.by_norms.collapses == (c < found.critical)
        lost = "Some classes are" if "confused" in exact.phases else "Minority collapse"
        assert found.headline.startswith("No c" if exact.separated else f"{lost} predicted")
        assert (max(found.by_norms.copies or [2]) > 1) is not exact.separated


def test_the_json_carries_plain_ratios_and_names_its_norms() -> None:
    found = forecast({100: 5, 20: 5}, E_W=4, E_H=1.25)
    plain = found.to_dict()["by_norms"]
    assert plain["R0"] == pytest.approx(collapse_ratio(5, 5, E_W=4, E_H=1.25))
    assert plain["log_collapse"] == pytest.approx(math.log(plain["R0"]))
    assert plain["R_vanish"] is None
    assert plain["predicted_row_norms"] == pytest.approx(solve({100: 5, 20: 5}, E_W=4, E_H=1.25).norms.tolist())
    large = forecast({1000: 500, 1: 500}, E_W=50, E_H=1e6).to_dict()["by_norms"]
    assert large["R0"] is None
    assert large["log_collapse"] > 700
    x, y, W = trained_like()
    measured = forecast(COUNTS, classifier=W, features=(x, y)).to_dict()
    assert set(measured["rare"]) == {"mean_row_norm", "mean_cosine", "mean_cosine_centered"}


def refused(kind: type[Exception], match: str, *counts: object, **known: object) -> None:
    with pytest.raises(kind, match=match):
        forecast(*counts, **known)  # type: ignore[arg-type]


def test_bad_input_is_answered_with_what_was_expected() -> None:
    x, y, W = trained_like()
    refused(InputError, "counts: expected samples per class")
    refused(InputError, r"E_W and E_H: expected norms.*lose classes where √\(E_W E_H\) is below", {100: 5, 10: 5})
    refused(InputError, "^E_H: expected norms", COUNTS, E_W=1)
    refused(InputError, "E_W: expected a positive, finite budget, got 0", COUNTS, E_W=0, E_H=1)
    refused(LabelError, r"counts\[1\]: expected at least 1, got 0", [5, 0], E_W=1, E_H=1)
    refused(LabelError, "expected at least 2 classes", [5], E_W=1, E_H=1)
    refused(LabelError, "expected 4 classes, one per row of the classifier, got 2", [5, 5], classifier=W, E_H=1)
    refused(InputError, r"expected a linear layer or its rows \(K, d\)", COUNTS, classifier=W[0], E_H=1)
    for other, got in (
        (torch.nn.ReLU(), "ReLU"),
        (torch.nn.Sequential(torch.nn.Linear(7, 4)), "Sequential"),
        ("a", "str"),
    ):
        refused(InputError, rf"a linear layer or its rows \(K, d\), got {got}", COUNTS, classifier=other, E_H=1)
    for other in (3, "x"):
        refused(InputError, "record: expected what `probe` returns", COUNTS, record=other, E_W=1, E_H=1)
    for wrong in ([1, 1], [2, 0, 0, 0], "abcd"):
        refused(InputError, "accuracy: expected 4 shares from 0 to 1", COUNTS, accuracy=wrong, E_W=1, E_H=1)
    refused(FeatureError, "expected finite rows", COUNTS, classifier=W * math.nan, E_H=1)
    refused(FeatureError, "expected a pair", COUNTS, features=x, E_W=1)
    refused(
        FeatureError, "expected 7 numbers, as the classifier reads, got 3", COUNTS, classifier=W, features=(x[:, :3], y)
    )
    refused(LabelError, "got none of class 3", COUNTS, features=(x[y < 3], y[y < 3]), E_W=1)
    record = ll.probe(torch.nn.Linear(7, 4).double(), (x.double(), y), progress=False)
    refused(LabelError, "expected 4, one per class of the record, got 2", [5, 5], record=record)
    softmax = torch.nn.Sequential(torch.nn.Linear(7, 4), torch.nn.Softmax(1)).double()
    none = ll.probe(softmax, (x.double(), y), progress=False)
    refused(InputError, "expected norms of its classifier, found none", record=none)


def test_a_forecast_is_frozen() -> None:
    found = forecast([10, 5], E_W=1, E_H=1)
    assert isinstance(found, Forecast)
    with pytest.raises(AttributeError):
        found.E_W = 2.0  # type: ignore[misc]


def test_a_mapping_does_not_say_which_class_is_which() -> None:
    with pytest.raises(InputError, match="got a mapping, which does not say which class is which"):
        forecast({5: 2, 20: 2}, E_W=1, E_H=1, accuracy=[1, 1, 0, 0])


def test_labels_that_are_no_numbers_are_told() -> None:
    rows, h = torch.eye(4, 8), torch.rand(40, 8)
    with pytest.raises(FeatureError, match="features: expected numbers"):
        forecast([10] * 4, classifier=rows, features=(h, ["a"] * 40))


def test_a_network_that_lost_more_than_the_model_says_is_believed() -> None:
    found = forecast([400, 400, 8, 8], E_W=100, E_H=100, accuracy=[1, 1, 0, 1])
    assert found.headline.startswith("Already lost in this network: accuracy of 1 class on these data")
    assert found.headline.endswith("The network is further than the model says: trust what was measured.")


def test_a_single_rare_class_is_not_called_safe_without_a_word_on_the_bias() -> None:
    assert "with a bias it may be lost all the same" in forecast([5000, 50], E_W=1, E_H=1).headline
    assert "predicted to be lost" in forecast([5000, 50], E_W=1, E_H=1, bias=True).headline
