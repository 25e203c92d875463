"""Measures of features on a GPU, which is pretended: the numbers of the CPU, streams in order, and few waits."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import layerlaw as ll
from layerlaw.measures.at_hand import cdnv, measure, nc1, ncc_accuracy, separation_fuzziness, target_separation
from layerlaw.stats import precision
from pretended_gpu import Gpu

SAME = {"rtol": 2e-5, "atol": 1e-8, "equal_nan": True}
Given = tuple[Tensor, Tensor, dict[str, Any]]


def clouds(n: int, d: int, K: int, *, even: bool = True) -> tuple[Tensor, Tensor]:
    """Features around class means, with equally many samples of each class or not."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, K, (n - K,), generator=generator)
    y = torch.arange(n) % K if even else torch.cat([torch.arange(K), drawn])
    return torch.randn(K, d, generator=generator)[y] + 0.3 * torch.randn(n, d, generator=generator), y


def scales(d: int, last: int) -> Tensor:
    """Features of very unequal size."""
    return torch.logspace(0, last, d)


def several(x: Tensor) -> Tensor:
    """Three sets of features."""
    return torch.stack([x, 2 * x + 1, x.flip(1)])


def first_far(x: Tensor) -> Tensor:
    """The first row, around which sums of its class are taken, lies far away."""
    return torch.cat([x[:1] + 100, x[1:]])


FEW, MANY, UNEVEN = clouds(300, 20, 5), clouds(840, 50, 70), clouds(840, 50, 70, even=False)
WIDE, WIDE_MANY = clouds(300, 200, 20), clouds(420, 120, 100)
Y = FEW[1]
CASES: dict[str, Given] = {
    "many classes": (*MANY, {}),
    "many classes, uneven": (*UNEVEN, {}),
    "classes have equal weight": (*UNEVEN, {"weighting": "classes"}),
    "all measures": (*FEW, {"linear": True, "decision": Y.roll(3), "classifier": FEW[0][:5].clone()}),
    "far away": (FEW[0].double() + 1e8, Y, {}),
    "far away, many classes": (MANY[0].double() + 1e8, MANY[1], {}),
    "uneven features": (FEW[0] * scales(20, -6), Y, {}),
    "uneven features, many classes": (MANY[0] * scales(50, -6), MANY[1], {}),
    "extreme": (MANY[0] * 1e-25, MANY[1], {}),
    "first row far": (first_far(MANY[0]), MANY[1], {}),
    "half precision": (MANY[0].half(), MANY[1], {}),
    "several sets": (several(MANY[0]), MANY[1], {}),
    "several sets, labels of their own": (several(MANY[0]), MANY[1].repeat(3, 1), {}),
    "several large sets": (several(WIDE_MANY[0]), WIDE_MANY[1], {}),
    "several large sets, uneven": (several(WIDE_MANY[0]) * scales(120, -6), WIDE_MANY[1], {}),
    "more classes than features": (clouds(420, 40, 60)[0], clouds(420, 40, 60)[1], {}),
    "few samples": (*WIDE, {}),
    "few samples, uneven features": (torch.stack([WIDE[0], WIDE[0] * scales(200, -5)]), WIDE[1], {}),
}


def sent(values: Any, device: str) -> Any:
    return values.to(device) if isinstance(values, Tensor) else values


def assert_same(found: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if value is None or found[key] is None:
            assert found[key] is value, (name, key)
        else:
            one, other = (torch.as_tensor(v).cpu().double() for v in (found[key], value))
            assert torch.allclose(one, other, **SAME), (name, key, one, other)


@pytest.mark.parametrize("where", ["cuda:0", "cuda:0, a stream", "cuda:1", "cuda:0, in pieces"])
@pytest.mark.parametrize("name", CASES)
def test_measures_are_those_of_the_cpu(name: str, where: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y, how), device = CASES[name], where[:6]
    expected = measure(x, y, **how)
    if where.endswith("pieces"):
        monkeypatch.setitem(precision.CHUNK_BYTES, "cuda", 2**14)
    own = torch.cuda.Stream(device) if where.endswith("stream") else None
    with torch.cuda.stream(own) if own else nullcontext():
        x, y, how = sent(x, device), sent(y, device), {key: sent(value, device) for key, value in how.items()}
        found = measure(x, y, **how)
        assert_same(found, expected, name)
        if "linear" not in how:
            separation_fuzziness(x, y, weighting=how.get("weighting", "samples"))
            for one in (nc1, cdnv, ncc_accuracy) if x.dim() == 2 else ():
                one(x, y)
        del x, y, how, found
        torch.ones(1, device=device)  # takes memory again that was let go of


def test_labels_may_be_on_the_cpu_and_arrays(gpu: Gpu) -> None:
    x, y = FEW
    for labels in (y, y.numpy(), y.tolist()):
        assert_same(measure(x.cuda(), labels, decision=labels), measure(x, y, decision=y), "labels")


def test_targets_are_those_of_the_cpu(gpu: Gpu) -> None:
    x, _ = FEW
    targets = x[:, :3] + torch.randn(len(x), 3, generator=torch.Generator().manual_seed(1))
    for y in (targets, targets > 0, targets[:, 0] + 1990):
        expected = pytest.approx(target_separation(x, y), rel=1e-6)
        assert target_separation(x.cuda(), y.cuda()) == expected
        assert target_separation(x.cuda(), y) == expected


K3 = torch.arange(60) % 3
NOISE = torch.randn(60, 5, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("x", "y"),
    {
        "dead": (torch.zeros(60, 5), K3),
        "NaN": (NOISE.clone().fill_(torch.nan), K3),
        "infinity": (NOISE.clone().fill_(torch.inf), K3),
        "large": (NOISE * 1e38, K3),
        "a class is missing": (NOISE, torch.where(K3 == 1, 2, K3)),
        "dead, many classes": (torch.zeros(700, 60), torch.arange(700) % 70),
        "far away": (1e6 + 0.1 * NOISE, K3),
    }.values(),
)
def test_errors_are_those_of_the_cpu(x: Tensor, y: Tensor, gpu: Gpu) -> None:
    errors = []
    for features, labels in ((x, y), (x.cuda(), y.cuda())):
        with pytest.raises(ll.LayerlawError) as error:
            separation_fuzziness(features, labels)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert torch.cuda.current_stream() is torch.cuda.current_stream("cuda:0")


@pytest.mark.parametrize(("even", "most"), [(True, 14), (False, 15)])
def test_the_host_waits_for_few_numbers_of_d(even: bool, most: int, gpu: Gpu) -> None:
    """Each time that it waits, a GPU stands still. Whoever needs one number more raises the number here."""
    x, y = (part.cuda() for part in (MANY if even else UNEVEN))
    waits: list[list[str]] = []
    for _ in range(2):  # the first call makes what is kept for others
        gpu.waits.clear()
        separation_fuzziness(x, y)
        waits.append(list(gpu.waits))
    assert len(waits[1]) <= most, "\n".join(waits[1])
