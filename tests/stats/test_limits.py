"""Numbers at the edge of their dtype: measured rightly, or refused with advice; never plausible and wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
import oracle
from layerlaw.errors import FeatureError, LabelError
from layerlaw.measures import measure, separation_fuzziness
from layerlaw.measures.at_hand import target_separation
from layerlaw.stats.centers import Centers, find_centers
from layerlaw.stats.limits import Extent, doubtful
from layerlaw.stats.sums import ClassSums

K, D, N = 4, 6, 400
LABELS = torch.arange(N) % K
SCALE_FREE = ("separation", "nc1", "nc2_norms", "nc2_angles", "ncc_accuracy", "cdnv", "compression", "discrimination")


def blobs(apart: float = 0.5) -> Tensor:
    """Four classes whose means differ by a part of the spread (N, D), in float64."""
    generator = torch.Generator().manual_seed(0)
    means = apart * torch.randn(K, D, generator=generator, dtype=torch.float64)
    return means[LABELS] + torch.randn(N, D, generator=generator, dtype=torch.float64)


def mirrored(offset: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Class means on one line, exactly; the same far from 0 in float32; and labels."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n // (2 * K), K, D, generator=generator, dtype=torch.float64)
    line = torch.tensor([0.0, 1, 2, 4], dtype=torch.float64).outer(torch.ones(D, dtype=torch.float64))
    x = line.repeat(n // K, 1) + torch.stack([noise, -noise], 1).reshape(-1, D)
    return x, (x + offset).float(), torch.arange(n) % K


def passing(dtype: torch.dtype) -> nn.Module:
    """A network whose layer '0' hands its inputs on."""
    network = nn.Sequential(nn.Linear(D, D, bias=False), nn.Identity(), nn.Linear(D, K)).to(dtype)
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(D))
        network[2].weight.zero_()
    return network


def probed(x: Tensor, y: Tensor = LABELS) -> ll.Record:
    return ll.probe(passing(x.dtype), (x, y), sites=["input", "0"], progress=False)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4, 1e5])
def test_an_offset_that_float32_bears_is_measured_as_the_oracle_does(offset: float) -> None:
    x = (blobs() + offset).float()
    exact = oracle.separation(x, LABELS, K, number=np.longdouble)
    assert separation_fuzziness(x, LABELS) == pytest.approx(exact, rel=1e-6)
    assert probed(x).sites[1].values["separation"] == pytest.approx(exact, rel=1e-6)


def refused(record: ll.Record, words: str) -> bool:
    """Whether no site has a D, none is a point of the law, and a note says why and what to do."""
    none = all(site.values.get(record.leading) is None and not site.in_fit for site in record.sites)
    told = all(words in site.aside for site in record.sites)
    return none and told and any(words in note and "'input'" in note for note in record.notes)


@pytest.mark.parametrize(("offset", "apart"), [(1e6, 0.25), (1e7, 1.0)])
def test_an_offset_that_hides_directions_is_refused_with_advice(offset: float, apart: float) -> None:
    x = (blobs(apart) + offset).float()
    with pytest.raises(FeatureError, match=r"features: .* away from 0.*rounding of float32.*features\.double\(\)"):
        separation_fuzziness(x, LABELS)
    record = probed(x)
    assert refused(record, "away from 0")
    assert any("features.double()" in note for note in record.notes)
    assert all(site.values["cdnv"] is not None for site in record.sites)  # which needs no directions
    assert ll.Record.from_dict(record.to_dict()).notes == record.notes
    # as advised: the digits as they are
    exact = oracle.separation(x, LABELS, K, number=np.longdouble)
    assert separation_fuzziness(x.double(), LABELS) == pytest.approx(exact, rel=1e-9)


def test_an_offset_that_hides_directions_is_refused_for_targets_too() -> None:
    x = blobs()
    targets = 0.3 * x[:, :3] + torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    near, far = target_separation(x, targets), (x + 1e6).float()
    assert target_separation((x + 1e4).float(), targets) == pytest.approx(near, rel=1e-3)
    with pytest.raises(FeatureError, match=r"features: .* away from 0"):
        target_separation(far, targets)
    assert refused(probed(far, targets.float()), "away from 0")


def test_one_layer_without_a_d_leaves_the_others_as_they_are() -> None:
    """Untrained and without BatchNorm, deep layers are nearly constant, far from 0 for what varies."""
    torch.manual_seed(0)
    layers = [part for i in range(30) for part in (nn.Linear(784 if i == 0 else 20, 20), nn.ReLU())]
    network, (x, y) = (
        nn.Sequential(*layers, nn.Linear(20, 10)),
        ll.data.load(split="test").balanced(20).tensors(flat=True),
    )
    record = ll.probe(network, (x, y), progress=False)
    exact = ll.probe(network.double(), (x.double(), y), progress=False)
    refused = [site.values["separation"] is None for site in record.sites]
    for site, other in zip(record.sites, exact.sites, strict=True):
        if site.values["separation"] is not None:  # right but for the rounding inside the network, or not there
            assert site.values["separation"] == pytest.approx(other.values["separation"], rel=5e-2), site.name
    assert 0 < sum(refused) < len(refused) - 8
    assert any("away from 0" in site.aside for site in record.sites)
    assert sum(site.in_fit and site.values["separation"] is not None for site in record.sites) >= 8


@pytest.mark.parametrize("n", [80, 4000])
@pytest.mark.parametrize("offset", [1e3, 1e5, 1e6])
def test_class_means_that_do_span_less_are_measured_however_far_from_0(offset: float, n: int) -> None:
    near, far, y = mirrored(offset, n)
    found = measure(far, y)
    assert found["rank"] == 1
    assert found["separation"] == pytest.approx(separation_fuzziness(near, y), rel=1e-2)  # the features are rounded


@pytest.mark.parametrize("scale", [1e36, 1e30, 1e10, 1e-15, 1e-20, 1e-25, 1e-30, 1e-35])
def test_no_measure_depends_on_the_scale_of_float32_features(scale: float) -> None:
    x = blobs()
    plain, scaled = measure(x.float(), LABELS), measure((x * scale).float(), LABELS)
    record = probed((x * scale).float()).sites[1].values
    for name in SCALE_FREE:
        assert scaled[name] == pytest.approx(plain[name], rel=1e-5), name
        assert record[name] == pytest.approx(plain[name], rel=1e-5), name


@pytest.mark.parametrize("scale", [1e37, 5e37, 1e38, 1e39])
def test_features_near_the_end_of_float32_are_right_or_refused(scale: float) -> None:
    x = (blobs() * scale).float()
    exact = separation_fuzziness(blobs(), LABELS)
    for found in (lambda: separation_fuzziness(x, LABELS), lambda: probed(x).sites[1].values["separation"]):
        try:
            value = found()
        except FeatureError as error:
            assert "too large" in str(error)  # noqa: PT017 - either is right
        else:
            assert value == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("scale", "dtype", "words"),
    [
        (1e-38, torch.float32, "multiply them by a constant"),
        (1e-42, torch.float32, "multiply them by a constant"),
        (1e-200, torch.float64, "multiply them by a constant"),
        (1e-145, torch.float64, "multiply them by a constant"),
        (1e160, torch.float64, "divide them by a constant"),
        (1e300, torch.float64, "divide them by a constant"),
        (1e307, torch.float64, "too large"),
    ],
)
def test_features_out_of_range_are_refused(scale: float, dtype: torch.dtype, words: str) -> None:
    x = (blobs() * scale).to(dtype)
    with pytest.raises(FeatureError, match=words):
        measure(x, LABELS)
    with pytest.raises(FeatureError, match=f"site 'input': .*{words}"):
        probed(x)


@pytest.mark.parametrize("label", [10**6, 2**40, 2**62])
def test_labels_with_gaps_are_answered_before_memory_is_taken(label: int) -> None:
    x, y = blobs().float(), LABELS.clone()
    y[y == 3] = label
    with pytest.raises(LabelError, match=r"expected samples of all .* classes, got 400 samples\..*np\.unique"):
        separation_fuzziness(x, y)
    with pytest.raises(LabelError, match="expected samples of all"):
        ll.probe(passing(torch.float32), (x, y), scores=None, progress=False)
    with pytest.raises(LabelError, match="classes: expected"):
        ll.probe(passing(torch.float32), (x, y), scores=None, classes=[0, 2**40], progress=False)


def test_what_is_doubted_does_not_depend_on_what_was_asked_before() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(2, 60, 5, generator=g)
    x[..., 1] = 1e-8 * y  # hidden in float32 beside the sample that lies far away
    x[1, 0] = 1e6
    outliers = torch.tensor([False, True])

    def centers() -> Centers:
        return find_centers(ClassSums.of(x, y.expand(2, -1), 3))

    fresh, asked = centers(), centers()
    assert doubtful(asked).tolist() == [False, False]
    assert doubtful(asked, outliers).tolist() == doubtful(fresh, outliers).tolist()
    assert doubtful(asked).tolist() == [False, False]


@pytest.mark.parametrize(
    ("scale", "extreme"), [(1e-20, True), (1e-10, False), (1.0, False), (1e18, False), (1e25, True)]
)
def test_both_ways_of_measuring_agree_on_where_squares_leave_float32(scale: float, extreme: bool) -> None:
    centers = find_centers(ClassSums.of((scale * blobs()).float(), LABELS, K))
    assert bool(centers.extreme) == bool(Extent.of(centers).extreme) == extreme
