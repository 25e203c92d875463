"""Features at hand that float32 sums, or an offset, would spoil: right to the digits that came, or refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

import layerlaw as ll
import oracle
from layerlaw.errors import FeatureError
from layerlaw.measures import measure, ncc_accuracy, separation_fuzziness, target_separation
from layerlaw.stats import ClassSums, closer, find_centers
from layerlaw.stats.closer import narrow
from layerlaw.verdict import judge

Array = npt.NDArray[np.float64]
Y = np.repeat(np.arange(4), 25)


def blobs() -> Array:
    return np.random.default_rng(0).normal(size=(100, 6)) + np.eye(6)[Y] * 2


def rotation() -> Array:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]


def exact(x: npt.NDArray[np.floating]) -> float:
    """D of the digits as they are."""
    return oracle.separation(torch.tensor(x.astype(float)), torch.tensor(Y), 4, number=np.longdouble)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e6, 1e7, 1e8])
@pytest.mark.parametrize("turned", [False, True])
def test_one_outlier_drops_no_direction_of_float32_features(size: float, turned: bool) -> None:
    x = blobs()
    x[0, 0] = size
    x = (x @ rotation() if turned else x).astype(np.float32)
    found = measure(x, Y)
    assert found["rank"] == 3
    assert found["separation"] == pytest.approx(exact(x), rel=1e-5)


def test_the_outlier_of_ten_million_gives_35() -> None:
    x = blobs().astype(np.float32)
    x[0, 0] = 1e7
    assert separation_fuzziness(x, Y) == pytest.approx(35.14223, abs=1e-5)


@pytest.mark.parametrize("size", [1e9, 1e12])
def test_an_outlier_whose_own_rounding_hides_directions_is_refused(size: float) -> None:
    x = blobs()
    x[0, 0] = size
    x = (x @ rotation()).astype(np.float32)
    with pytest.raises(FeatureError, match=r"larger than others.*features\.double\(\)"):
        separation_fuzziness(x, Y)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e7, 1e9])
def test_a_feature_in_large_units_drops_no_direction_of_the_others(size: float) -> None:
    x = blobs()
    x[:, 0] *= size
    x = x.astype(np.float32)
    assert separation_fuzziness(x, Y) == pytest.approx(exact(x), rel=1e-6)


def test_of_several_sets_of_features_one_with_an_outlier_is_refused() -> None:
    x = np.stack([blobs(), blobs()]).astype(np.float32)
    x[1, 0, 0] = 1e7
    with pytest.raises(FeatureError, match=r"features\.double\(\)"):
        separation_fuzziness(x, Y)
    assert separation_fuzziness(x.astype(float), Y)[1] == pytest.approx(35.14223, abs=1e-5)


def test_class_means_in_line_stay_in_line_in_float32() -> None:
    """Their rounding is no direction: neither of collapsed classes nor of mirrored noise."""
    line = np.outer([0.1, 0.2, 0.3, 0.7], [1.0, 3.0, -0.3])
    assert measure(line[Y].astype(np.float32), Y)["rank"] == 1
    even = np.repeat(np.arange(4), 24)
    pairs = np.random.default_rng(2).normal(size=(48, 3))
    mirrored = line[even] + np.stack([pairs, -pairs], 1).reshape(-1, 3)
    assert measure(mirrored.astype(np.float32), even)["rank"] == 1


@pytest.mark.parametrize("offset", [0.0, 1e5, 5e5, 1e6, 2e6])
def test_nearest_centers_of_float32_are_those_of_the_same_digits_in_float64(offset: float) -> None:
    x = (blobs() + offset).astype(np.float32)
    near = x.astype(float) - offset
    means = np.stack([near[k == Y].mean(0) for k in range(4)])
    nearest = ((near[:, None] - means) ** 2).sum(-1).argmin(1)
    assert ncc_accuracy(x, Y) == ncc_accuracy(x.astype(float), Y) == pytest.approx((nearest == Y).mean(), abs=1e-12)


@pytest.mark.parametrize("offset", [1e6, 1e9, 1e12, 1e13, 1e14])
def test_float64_far_from_0_is_measured_as_if_it_were_near(offset: float) -> None:
    far = blobs() + offset
    found, near = measure(far, Y, linear=True), measure(far - offset, Y, linear=True)
    for name in ("separation", "separation_linear", "nc1", "cdnv", "ncc_accuracy", "rank"):
        assert found[name] == pytest.approx(near[name], rel=1e-11), name
    assert found["separation"] == pytest.approx(exact(far - offset), rel=1e-11)
    assert found["discrimination"] < 1e-9  # of class means that are not centered


def test_float64_too_far_from_0_is_not_sent_to_float64() -> None:
    with pytest.raises(FeatureError, match=r"rounding of float64.*Subtract the mean before they are rounded\.$"):
        separation_fuzziness(blobs() + 1e15, Y)


def test_class_means_in_line_stay_in_line_far_from_0_in_float64() -> None:
    even = np.repeat(np.arange(4), 24)
    pairs = np.random.default_rng(2).normal(size=(48, 3))
    x = np.outer([0.0, 1, 2, 4], np.ones(3))[even] + np.stack([pairs, -pairs], 1).reshape(-1, 3)
    assert measure(x + 1e10, even)["rank"] == 1


def test_a_stream_of_float64_features_that_far_from_0_has_no_d() -> None:
    x, y = torch.tensor(blobs()), torch.tensor(Y)
    network = torch.nn.Sequential(torch.nn.Linear(6, 4)).double()
    plain = ll.probe(network, (x + 1e6, y), sites=["input"], progress=False)
    assert plain.sites[0].values["separation"] == pytest.approx(exact((x + 1e6).numpy() - 1e6), rel=1e-8)
    far = ll.probe(network, (x + 1e13, y), sites=["input"], progress=False)
    assert far.sites[0].values["separation"] is None
    assert any("rounding of float64" in note and "double()" not in note for note in far.notes)


def test_where_d_is_refused_nothing_is_said_of_the_span_of_the_class_means() -> None:
    x, y = torch.tensor(blobs() * 0.3 + 1e6).float(), torch.tensor(Y)
    record = ll.probe(torch.nn.Sequential(torch.nn.Linear(6, 4)), (x, y), sites=["input"], progress=False)
    assert record.sites[0].values["separation"] is None
    assert any("away from 0" in note for note in record.notes)
    assert not any("span fewer" in note for note in record.notes)
    assert not any("span fewer" in line for line in str(judge(record)).splitlines())


def targets(x: Array) -> Array:
    return x[:, :2] + np.random.default_rng(3).normal(size=(100, 2))


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
def test_one_outlier_drops_no_direction_of_float32_features_beside_targets(size: float) -> None:
    x, y = blobs(), targets(blobs())
    x[0, 0] = size
    x = x.astype(np.float32)
    assert target_separation(x, y) == pytest.approx(target_separation(x.astype(float), y), rel=1e-5)


@pytest.mark.parametrize("offset", [1e6, 1e9, 1e13])
def test_float64_far_from_0_is_regressed_on_targets_as_if_it_were_near(offset: float) -> None:
    far, y = blobs() + offset, targets(blobs())
    assert target_separation(far, y) == pytest.approx(target_separation(far - offset, y), rel=1e-10)


def test_float64_too_far_from_0_is_refused_for_targets_too() -> None:
    with pytest.raises(FeatureError, match=r"rounding of float64.*Subtract the mean before they are rounded\.$"):
        target_separation(blobs() + 1e16, targets(blobs()))


def probed(
    x: Array | torch.Tensor, y: torch.Tensor, *, streamed: bool, model: torch.nn.Module | None = None
) -> ll.Record:
    """Probed by batches of 25; streamed: without room for the features."""
    x = torch.as_tensor(x)
    data = [(x[i : i + 25], y[i : i + 25]) for i in range(0, len(x), 25)]
    network = model or torch.nn.Sequential(torch.nn.Linear(6, 4))
    return ll.probe(network, data, sites=["input"], memory_gib=1e-6 if streamed else 1.0, progress=False)


@pytest.mark.parametrize("size", [1e7, 1e8, 1e10])
def test_a_stream_of_float32_features_with_an_outlier_has_no_d_where_directions_vanish(size: float) -> None:
    x, y = torch.tensor(blobs()), torch.tensor(Y)
    network = torch.nn.Sequential(torch.nn.Linear(6, 4))
    x[0, 0] = size
    record = probed(x.float(), y, streamed=True, model=network)
    assert record.sites[0].values["separation"] is None
    assert any("few samples lie so far" in note and "float64" in note for note in record.notes)
    assert not any("span fewer" in note for note in record.notes)
    kept = probed(x.float(), y, streamed=False, model=network)  # added up again in float64
    assert kept.sites[0].values["separation"] == pytest.approx(exact(x.float().numpy()), rel=1e-6)
    wide = ll.probe(network.double(), (x.float().double(), y), sites=["input"], progress=False)  # as advised
    assert wide.sites[0].values["separation"] == pytest.approx(exact(x.float().numpy()), rel=1e-6)


def with_columns(size: float, turned: bool) -> Array:
    x = blobs()
    x[:, 0] *= size
    return (x @ rotation() if turned else x).astype(np.float32)


def with_outliers(size: float, share: float) -> Array:
    x, random = blobs(), np.random.default_rng(5)
    rows = random.random(len(x)) < share
    x[rows, 0] += size * random.normal(size=int(rows.sum()))
    return x.astype(np.float32)


UNEVEN = {
    **{f"a column of {size:g}": with_columns(size, False) for size in (1e4, 1e5, 1e6, 1e7, 1e9)},
    **{f"a direction of {size:g}": with_columns(size, True) for size in (1e4, 1e5, 1e6)},
    **{f"outliers of {size:g}": with_outliers(size, 0.3) for size in (1e4, 1e6, 1e7, 1e9)},
}


@pytest.mark.parametrize("name", UNEVEN)
def test_a_probe_of_uneven_float32_features_is_right_and_a_stream_right_or_refused(name: str) -> None:
    x, y = UNEVEN[name], torch.tensor(Y)
    for streamed in (False, True):
        found = probed(x, y, streamed=streamed)
        value = found.sites[0].values["separation"]
        if value is None:
            assert streamed
            assert any("vanish in float32" in note and "float64" in note for note in found.notes)
            assert not found.sites[0].in_fit
        else:
            assert value == pytest.approx(exact(x), rel=1e-3 if streamed else 1e-6)


def test_even_float32_features_get_no_closer_look() -> None:
    x, y = blobs().astype(np.float32), torch.tensor(Y)
    kept, streamed = (probed(x, y, streamed=streamed).sites[0].values["separation"] for streamed in (False, True))
    assert kept == pytest.approx(exact(x), rel=1e-6)
    assert streamed == pytest.approx(kept, rel=1e-6)
    centers = find_centers(ClassSums.of(torch.tensor(x), y, 4))
    assert not bool(narrow(centers))
    uneven = find_centers(ClassSums.of(torch.tensor(with_columns(1e6, False)), y, 4))
    assert bool(narrow(uneven))


def test_kept_features_with_directions_that_may_be_rounding_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closer look takes the centers that were found in float64 before, and says what it says of its own."""
    x, y = blobs(), torch.tensor(Y)
    x[:, 1:] *= 1e-8  # of noise of the size of the rounding beside it
    x = (x @ rotation()).astype(np.float32)
    alone = probed(x, y, streamed=True).sites[0].values["separation"]
    monkeypatch.setattr(closer, "find_centers", None)
    assert probed(x, y, streamed=False).sites[0].values["separation"] == pytest.approx(alone, rel=1e-6)
    with pytest.raises(TypeError):  # a stream finds them there
        probed(x, y, streamed=True)


@pytest.mark.parametrize("noise", [1e-1, 1e-3])
def test_small_features_beside_well_separated_large_ones_are_measured(noise: float) -> None:
    """The mean is large beside the spread within classes, and no offset."""
    labels = np.repeat(np.arange(3), 100)
    x = np.array([[0, 0], [1, 1], [2, 0.0]])[labels] + noise * np.random.default_rng(0).normal(size=(300, 2))
    x[:, 1] *= 1e-7
    x = x.astype(np.float32)
    right = oracle.separation(x, labels, 3, number=np.longdouble)
    assert separation_fuzziness(x, labels) == pytest.approx(right, rel=1e-6)
    data = torch.tensor(x), torch.tensor(labels)
    record = ll.probe(torch.nn.Identity(), data, sites=["output"], scores=None, classes=3, progress=False)
    assert record.sites[0].values["separation"] == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("name", UNEVEN)
def test_uneven_float32_features_keep_their_directions_beside_targets(name: str) -> None:
    x, y = UNEVEN[name], torch.tensor(targets(blobs()))
    found = probed(x, y, streamed=False, model=torch.nn.Linear(6, 2))
    assert found.sites[0].values["target_separation"] == pytest.approx(target_separation(x.astype(float), y), rel=1e-6)


def test_float32_features_that_hide_what_goes_with_targets_are_refused() -> None:
    x, y = with_columns(1e7, True), torch.tensor(targets(blobs()))
    with pytest.raises(FeatureError, match=r"vanish in float32.*features\.double\(\)"):
        target_separation(x, y)
    found = probed(x, y, streamed=False, model=torch.nn.Linear(6, 2))
    assert found.sites[0].values["target_separation"] is None
    assert any("vanish in float32" in note for note in found.notes)


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float64, 1e10), (np.float32, 1e4), (np.float32, 1e6), (np.float32, 1e10)]
)
def test_an_outlier_leaves_the_nearest_centers_of_the_others_as_they_are(dtype: type, size: float) -> None:
    labels = np.repeat(np.arange(3), 50)
    x = 5 * np.eye(3, 4)[labels] + np.random.default_rng(0).normal(size=(150, 4))
    x[7] *= size
    x = x.astype(dtype)
    near = x.astype(np.longdouble)
    means = np.stack([near[labels == k].mean(0) for k in range(3)])
    right = (((near[:, None] - means) ** 2).sum(-1).argmin(1) == labels).mean()
    data = [(torch.tensor(x[i : i + 50]), torch.tensor(labels[i : i + 50])) for i in (0, 50, 100)]
    for memory in (1.0, 1e-6):
        how = {"sites": ["output"], "scores": None, "classes": 3, "progress": False, "memory_gib": memory}
        record = ll.probe(torch.nn.Identity(), data, **how)
        found = record.sites[0].values["ncc_accuracy"]
        may_refuse = dtype == np.float32 and (size > 1e9 or (size > 1e5 and memory < 1))
        assert found == pytest.approx(right, abs=1e-12) or (found is None and may_refuse)
        judge(record)
        ll.Record.from_dict(record.to_dict())
