"""Networks for images: their published sizes, the rows that sites give, and answers to what does not fit."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from seam_parts import pictures
from torch import nn
from torch.nn import functional as F

import layerlaw as ll
from layerlaw.errors import InputError, MemoryBudgetError
from layerlaw.lab import (
    Architecture,
    ConvolutionalNetwork,
    DenseNetwork,
    Measurement,
    Recipe,
    ResidualNetwork,
    Samples,
    Schedule,
    TiedNetwork,
    sweep,
)
from layerlaw.lab.forwards import Forwards
from layerlaw.lab.networks.convolutional import CopiedConv2d
from layerlaw.lab.trainer import Trainer
from layerlaw.lab.training import SingleEngine, batch_that_fits, train
from layerlaw.verdict import emergence

SMALL: dict[str, dict[str, Any]] = {  # the same shapes with fewer channels and pixels
    "vgg13_5x5": {"stages": ((4, 4), (8, 8), (8,)), "hidden": (16, 16), "side": 16, "repeat": 2},
    "alexnet_5x5": {"stages": ((4,), (8,), (8, 8, 8)), "hidden": (16, 16), "side": 16, "repeat": 2},
    "vgg11": {"stages": ((4,), (8,), (8, 8)), "side": 16},
    "pure_cnn_16": {"stages": ((4,) * 8,), "side": 16},
    "resnet18": {"widths": (4, 8, 8, 8)},
    "resnet18_7x7": {"widths": (4, 8, 8, 8)},
    "resnet20": {"widths": (4, 8, 8)},
    "resnet50": {"widths": (2, 4, 4, 4), "blocks": (2, 1, 1, 1)},
    "resnet_2layer": {"side": 16},
    "resnet_3layer": {"side": 16},
    "resnet_mixed": {"side": 16},
    "tied_resnet": {"channels": 4, "steps": 5},
    "tied_resnet_group": {"channels": 4, "steps": 5},
    "densenet161": {"layers": (2, 3, 2), "growth": 4},
}


def small(name: str, **changes: Any) -> Architecture:
    return Architecture.named(name, **SMALL[name], **changes)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "published"),
    [
        # the CIFAR forms of pytorch-cifar, one linear layer behind the convolutions
        ("vgg11", 10, 9_231_114),
        ("vgg13", 10, 9_416_010),
        ("vgg16", 10, 14_728_266),
        ("vgg19", 10, 20_040_522),
        ("resnet18", 10, 11_173_962),
        ("resnet50", 10, 23_520_842),
        ("densenet121", 10, 6_956_298),
        ("densenet161", 10, 26_482_378),
        ("resnet20", 10, 269_722),  # He et al.: 0.27 M, shortcuts without parameters (option A)
        ("resnet18_7x7", 1000, 11_689_512),  # torchvision
        ("resnet50_7x7", 1000, 25_557_032),
    ],
)
def test_they_have_as_many_parameters_as_published(name: str, classes: int, published: int) -> None:
    with torch.device("meta"):
        assert count(Architecture.named(name, classes=classes).build()) == published


@pytest.mark.parametrize("copies", [1, 4])
def test_copies_of_channels_are_convolved_as_if_they_had_been_made(copies: int) -> None:
    torch.manual_seed(0)
    ours = CopiedConv2d(3 * copies, 5, 3, copies).double()
    x, upstream = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randn(2, 5, 6, 6, dtype=torch.float64)
    plain = F.conv2d(x.repeat(1, copies, 1, 1), ours.weight, ours.bias, padding=1)
    assert torch.allclose(ours(x), plain, rtol=0, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(y, ours.parameters(), upstream) for y in (ours(x), plain)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_resnet20_with_convolutions_as_shortcuts_has_the_other_published_size() -> None:
    assert count(Architecture.named("resnet20", shortcut="convolution").build()) == 272_474


def test_the_variants_of_the_authors_have_the_sizes_of_their_definitions() -> None:
    def conv(before: int, after: int, kernel: int, bias: bool) -> int:
        return before * after * kernel**2 + bias * after + 2 * after  # and BatchNorm

    def linear(before: int, after: int) -> int:
        return before * after + after + 2 * after

    head = linear(4096, 4096) + 4096 * 10 + 10
    widths = (32 * 1, 64, 192, 384, 256, 256)
    alex = sum(conv(a, b, 5, True) for a, b in pairwise(widths)) + linear(256 * 4 * 4, 4096) + head
    widths = (16 * 3, 64, 64, 128, 128, 256, 256, 512, 512, 512, 512)
    vgg = sum(conv(a, b, 5, True) for a, b in pairwise(widths)) + linear(512, 4096) + head
    pixels = 8 * 32 * 32 * 10 + 10
    with torch.device("meta"):
        assert count(Architecture.named("alexnet_5x5", inputs=1).build()) == alex
        assert count(Architecture.named("vgg13_5x5").build()) == vgg
        assert count(Architecture.named("pure_cnn_64", inputs=1).build()) == (
            9 * 64 + 7 * 9 * 64**2 + 8 * 3 * 64 + 64 * 1024 * 10 + 10
        )
        for name, convolutions in (
            ("resnet_2layer", 8 * conv(8, 8, 3, False)),
            ("resnet_3layer", 12 * conv(8, 8, 5, False)),
            ("resnet_mixed", 6 * conv(8, 8, 5, False) + 4 * conv(8, 8, 3, False)),
        ):
            assert count(Architecture.named(name, inputs=1).build()) == convolutions + pixels
            first = conv(24, 8, 3 if name == "resnet_2layer" else 5, False)
            wider = first - conv(8, 8, 3 if name == "resnet_2layer" else 5, False) + conv(24, 8, 1, False)
            assert count(Architecture.named(name).build()) == convolutions + wider + pixels  # 3 colors, 8 times


@pytest.mark.parametrize("name", SMALL)
def test_they_take_images_and_survive_a_trip_through_json(name: str) -> None:
    network = small(name, inputs=1, classes=4)
    assert network.build()(torch.randn(3, 1, 16, 16)).shape == (3, 4)
    recipe = Recipe(network)
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert hash(again) == hash(recipe)
    network.check_inputs((1, 16, 16))
    assert network.norm == (name != "tied_resnet_group")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shortcut", ["convolution", "zeros"])
@pytest.mark.parametrize("kernels", [(3, 3), (1, 3, 1)], ids=str)
def test_a_residual_block_is_its_definition(kernels: Any, shortcut: Any, stride: int) -> None:
    shape = ResidualNetwork(
        blocks=(1,), widths=(6,), kernels=(kernels,), strides=(stride,), shortcut=shortcut, stem="none", inputs=4
    )
    torch.manual_seed(0)
    block, x = shape.build().eval().stage1[0], torch.randn(2, 4, 9, 9)
    state = dict(block.state_dict())
    y, size = x, len(kernels)
    for i, kernel in enumerate(kernels, 1):
        step = stride if i == (2 if size == 3 else 1) else 1  # 1×1, 3×3 with the stride, 1×1
        y = F.conv2d(y, state[f"branch.conv{i}.weight"], stride=step, padding=kernel // 2) / (1 + 1e-5) ** 0.5
        y = F.relu(y) if i < size else y
    if shortcut == "convolution":
        skip = F.conv2d(x, state["shortcut.conv.weight"], stride=stride) / (1 + 1e-5) ** 0.5
    else:
        zeros = torch.zeros(2, 1, 9, 9)
        skip = torch.cat((zeros, x, zeros), 1)[:, :, ::stride, ::stride]
    torch.testing.assert_close(block(x), F.relu(skip + y))


def test_steps_share_their_convolutions_and_become_an_ode_as_they_get_smaller() -> None:
    torch.manual_seed(0)
    coarse = TiedNetwork(channels=4, steps=4, time=1.0, norms="group", inputs=1).build()
    assert count(coarse) == count(TiedNetwork(channels=4, steps=64, norms="group", inputs=1).build())
    x, ends = torch.randn(2, 1, 8, 8), []
    for steps in (4, 256, 512):
        network = TiedNetwork(channels=4, steps=steps, time=1.0, norms="group", inputs=1).build()
        network.load_state_dict(coarse.state_dict())
        ends.append(network(x))
    gaps = [(end - ends[-1]).norm().item() for end in ends[:2]]
    assert gaps[1] < 0.05 * gaps[0]


def rows(network: Architecture, rule: Any) -> list[str]:
    plan = ll.sites(network.build(), torch.randn(4, network.inputs, 16, 16), sites=rule)  # type: ignore[attr-defined]
    assert not plan.no_trunk
    return [site.name + "*" * site.branch for site in plan.sites]


def test_layers_and_blocks_are_the_rows_that_the_papers_draw() -> None:
    pairs = [f"stage1.{b}.branch.conv{i}{'*' * (i > 1)}" for b in range(4) for i in (1, 2)]
    assert rows(small("resnet_2layer"), "layers") == [*pairs, "classifier"]
    four = ["input", *(f"stage1.{b}" for b in range(4))]
    assert rows(small("resnet_2layer"), "blocks") == rows(small("resnet_3layer"), "blocks") == four
    mixed = [("stage1", 3), ("stage1", 3), ("stage2", 2), ("stage2", 2)]
    layers = [f"{s}.{b % 2}.branch.conv{i + 1}{'*' * (i > 0)}" for b, (s, n) in enumerate(mixed) for i in range(n)]
    assert rows(small("resnet_mixed"), "layers") == [*layers, "classifier"]
    assert rows(small("resnet_mixed"), "blocks") == ["input", "stage1.0", "stage1.1", "stage2.0", "stage2.1"]
    eight = [f"stage{s}.{b}" for s in (1, 2, 3, 4) for b in (0, 1)]
    assert rows(small("resnet18"), "blocks") == ["input", *eight, "classifier"]
    assert rows(small("resnet18_7x7"), "blocks") == ["input", *eight, "classifier"]
    nine = [f"stage{s}.{b}" for s in (1, 2, 3) for b in (0, 1, 2)]
    assert rows(small("resnet20"), "blocks") == ["input", *nine, "classifier"]
    assert len(rows(small("resnet20"), "layers")) == 20  # its name
    assert rows(small("alexnet_5x5"), "layers") == [f"conv{i}" for i in range(1, 6)] + [
        "linear1",
        "linear2",
        "classifier",
    ]
    assert rows(small("pure_cnn_16"), "layers") == [*(f"conv{i}" for i in range(1, 9)), "classifier"]
    assert (
        len(
            rows(
                ConvolutionalNetwork.named("vgg19", stages=((2,) * 2, (2,) * 2, (2,) * 4, (2,) * 4), side=16), "layers"
            )
        )
        == 13
    )


def test_dense_blocks_their_layers_and_the_steps_of_a_tied_network_are_rows() -> None:
    layers = ["stage1.0", "stage1.1", "stage2.0", "stage2.1", "stage2.2", "stage3.0", "stage3.1"]
    assert rows(small("densenet161"), "blocks") == ["input", *layers, "classifier"]
    assert rows(small("densenet161"), ("input", "stage1", "stage2", "stage3")) == [
        "input",
        "stage1",
        "stage2",
        "stage3",
    ]
    steps = ["change", *(f"change#{i}" for i in range(2, 6))]
    for name in ("tied_resnet", "tied_resnet_group"):
        assert rows(small(name), "blocks") == ["input", *steps, "classifier"]


@pytest.mark.parametrize(("name", "narrow", "wide"), [
    ("tied_resnet", {"channels": 2}, {"channels": 3}),
    ("resnet20", {"widths": (2, 2, 2)}, {"widths": (2, 2, 3)}),
])  # fmt: skip
def test_a_pooled_head_is_a_point_by_layers_where_it_can_hold_the_class_means(
    name: str, narrow: dict[str, Any], wide: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    for changes, point in ((wide, True), (narrow, False)):
        network = Architecture.named(name, inputs=1, classes=4, **changes).build()
        record = ll.probe(network, (torch.randn(40, 1, 8, 8), torch.arange(40) % 4), sites="layers", progress=False)
        head = record.sites[-1]
        assert (head.name, head.at, head.in_fit) == ("classifier", "input", point)
        assert head.aside == "" if point else "do not hold the 3 dimensions of 4 class means" in head.aside


@pytest.mark.parametrize("rule", ["layers", "blocks"])
def test_a_runs_law_counts_what_was_measured(rule: str) -> None:
    samples = Samples.of((torch.randn(40, 1, 8, 8), torch.arange(40) % 4))
    recipe = Recipe(Architecture.named("resnet20", inputs=1, classes=4, widths=(4, 4, 4)), epochs=2, batch_size=20)
    schedule = Schedule(epochs=(0, 1), batchnorm=("running",), sites=rule)
    (run,) = sweep([recipe], samples, schedule=schedule, progress=False)
    step, other = ("block", "layer") if rule == "blocks" else ("step", "layer")  # which passes a side branch
    law = run.law(batchnorm="running")
    assert law is not None
    assert law.step == Measurement.from_dict(asdict(run.measurements[-1])).step == step
    assert f"per {step}" in law.verdict
    assert other not in law.verdict
    assert f"D of the last {'site' if step == 'step' else step} " in emergence(run, batchnorm="running").sentence


@pytest.mark.parametrize("rule", ["layers", "auto"])
@pytest.mark.parametrize("name", SMALL)
def test_rows_are_the_same_channels_last(name: str, rule: str) -> None:
    network, x = small(name).build(), torch.randn(4, 3, 16, 16)
    plain = ll.sites(network, x, sites=rule)
    network.to(memory_format=torch.channels_last)
    last = ll.sites(network, x.contiguous(memory_format=torch.channels_last), sites=rule)
    assert [(s.name, s.branch, s.in_fit, s.features) for s in last.sites] == [
        (s.name, s.branch, s.in_fit, s.features) for s in plain.sites
    ]


def test_layers_before_they_are_pooled_are_chosen_by_name() -> None:
    network = small("vgg13_5x5").build()
    plan = ll.sites(network, torch.randn(4, 3, 16, 16), sites=("input", "relu*"))
    assert [site.name for site in plan.sites] == ["input", *(f"relu{i}" for i in range(1, 8))]
    assert [site.shape[-1] for site in plan.sites[1:6]] == [16, 16, 8, 8, 4]


def test_a_network_is_named_in_a_recipe() -> None:
    assert Recipe("resnet18").network == ResidualNetwork.named("resnet18")
    assert str(Recipe("resnet18").network) == "resnet18"
    assert [str(recipe.network) for recipe in Recipe().grid(network=("vgg11", "resnet20"))] == ["vgg11", "resnet20"]
    assert str(Architecture.named("vgg13_5x5", inputs=1, classes=7)) == "vgg13_5x5"
    assert "residual blocks of 2 layers" in str(small("resnet18"))
    assert Recipe(Architecture.named("densenet161", growth=12)).network == DenseNetwork(growth=12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Recipe("resnet81"),
            r"network: expected one of .*vgg11, .*resnet18, .*got 'resnet81'\. Did you mean resnet18\?",
        ),
        (lambda: Recipe("VGG-13"), r"got 'VGG-13'\. Did you mean vgg13\?"),
        (lambda: ConvolutionalNetwork.named("resnet18"), r"network: expected one of vgg11, vgg13.*got 'resnet18'"),
        (
            lambda: Architecture.named("vgg11", clases=3),
            r"vgg11: expected changes of .*, got 'clases'. Did you mean classes\?",
        ),
        (lambda: Architecture.named("vgg13", side=28), "side: expected at least 32 pixels for 5 poolings, got 28"),
        (
            lambda: Architecture.named("vgg13", kernel=4),
            "kernel: expected an odd size, which keeps the size of the image, got 4",
        ),
        (lambda: Architecture.named("vgg13", pool=5), r"pool: expected 2, 3 .* or 0 \(none\), got 5"),
        (lambda: Architecture.named("vgg13", stages=()), r"stages: expected channels per stage, .*, got \(\)"),
        (
            lambda: Architecture.named("vgg13", stages=(64, 128)),
            r"stages: expected channels per stage, .*got \(64, 128",
        ),
        (lambda: Architecture.named("vgg13", hidden=64), r"hidden: expected widths of linear layers, .*, got 64"),
        (lambda: Architecture.named("vgg13", inputs=0), "inputs: expected a whole number of at least 1, got 0"),
        (
            lambda: Architecture.named("resnet18", widths=(8, 16)),
            r"widths: expected one per stage, got \(8, 16\) for blocks=",
        ),
        (lambda: Architecture.named("resnet18", stem="5x5"), "stem: expected one of none, 3x3, 7x7, got '5x5'"),
        (
            lambda: Architecture.named("resnet18", kernels=((3,),) * 4),
            "kernels: expected two or three convolutions per block",
        ),
        (lambda: Architecture.named("resnet18", kernels=3), r"kernels: expected sizes .*\(\(3, 3\),\) \* 4 .*, got 3"),
        (lambda: Architecture.named("resnet18", blocks=2), r"blocks: expected a value per stage, .*, got 2"),
        (
            lambda: Architecture.named("resnet20", widths=(16, 8, 8)),
            r"widths: expected channels that do not fall for shortcut='zeros', got \(16, 8, 8\)",
        ),
        (
            lambda: Architecture.named("densenet161", layers=()),
            r"layers: expected numbers of layers of the dense blocks, .*, got \(\)",
        ),
        (lambda: Architecture.named("tied_resnet", time=0.0), "time: expected a positive number, got 0.0"),
        (lambda: Architecture.named("tied_resnet", norms="layer"), "norms: expected one of batch, group, got 'layer'"),
        (
            lambda: Recipe("resnet18", precision="fp16"),
            "precision: expected one of float32, tf32, bf16, None, got 'fp16'",
        ),
    ],
)
def test_descriptions_that_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("network", "side", "words"),
    [
        (
            Architecture.named("vgg13", inputs=1, classes=4),
            28,
            r"expected images of 32 × 32 pixels for vgg13, got samples of 1 × 28 × 28\. Resize them to 32 × 32: 28 pixels "
            "are too few for its poolings",
        ),
        (
            Architecture.named("vgg13", inputs=1, classes=4),
            64,
            r"expected images of 32 × 32 pixels for vgg13, .*Resize them to 32 × 32, or describe it with side=64\.",
        ),
        (
            Architecture.named("vgg13", classes=4),
            32,
            r"images of 3 channels for vgg13, got .*1 × 32 × 32\. .* inputs=1\.",
        ),
        (
            Architecture.named("densenet121", inputs=1, classes=4),
            6,
            r"expected images of 8 × 8 pixels at least for densenet121, .*Resize them to 8 × 8 or more: 6 pixels are",
        ),
        (
            Architecture.named("resnet_2layer", inputs=1, classes=4),
            16,
            r"expected images of 32 × 32 pixels for resnet_2layer, .*Resize them to 32 × 32, or describe it with side=16",
        ),
    ],
    ids=["too small", "too large", "channels", "dense", "every pixel"],
)
def test_images_that_do_not_fit_are_told_before_anything_is_trained(network: Any, side: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sweep([Recipe(network, epochs=1, batch_size=6)], pictures(24, test=8, side=side), progress=False)


def test_images_that_are_flat_or_not_square_are_told() -> None:
    network, samples = small("resnet18", inputs=1, classes=4), pictures(24, test=8, side=16)
    with pytest.raises(
        InputError, match=r"expected images \(channels, height, width\) for .* got samples of 256\. Pass im"
    ):
        sweep([Recipe(network, batch_size=6)], samples.flat(), progress=False)
    with pytest.raises(
        InputError, match=r"expected images of 16 × 16 .*got samples of 1 × 16 × 20\. Resize them to 16 × 16\."
    ):
        small("resnet_2layer", inputs=1).check_inputs((1, 16, 20))
    with pytest.raises(
        InputError, match=r"of 3 channels .*16 × 16 × 3\. Put their channels first: .*permute\(0, 3, 1, 2"
    ):
        small("resnet18").check_inputs((16, 16, 3))
    with pytest.raises(InputError, match=r"got samples of 16 × 16\. Add the axis of their channel: .*unsqueeze\(1\)"):
        network.check_inputs((16, 16))
    network.check_inputs((1, 16, 20))  # it averages over all pixels


@pytest.mark.parametrize(("batch", "n"), [(1, 24), (23, 24)])
def test_batches_of_one_are_told_where_there_is_batchnorm(batch: int, n: int) -> None:
    samples = pictures(n, test=8, side=16)
    words = rf"at least 2 samples for BatchNorm, but 24 samples in batches of {batch} leave one .*another batch size, "
    with pytest.raises(InputError, match=words + ("2 for" if batch == 1 else "22 for")):
        sweep([Recipe(small("resnet18", inputs=1, classes=4), batch_size=batch)], samples, progress=False)
    plain = Recipe(small("tied_resnet_group", inputs=1, classes=4), batch_size=batch, epochs=1)
    assert sweep([plain], samples, progress=False)[0].finished


def test_bf16_and_compiling_are_refused_on_a_cpu() -> None:
    samples, recipe = pictures(24, test=8, side=16), Recipe(small("resnet18", inputs=1, classes=4), batch_size=6)
    with pytest.raises(
        InputError, match=r"precision: expected 'float32' on the device 'cpu', got 'bf16'\. Train it on a GPU"
    ):
        sweep([Recipe(recipe.network, precision="bf16", batch_size=6)], samples, progress=False)
    with pytest.raises(InputError, match=r"compile: expected False on the device 'cpu', got True"):
        sweep([recipe], samples, compile=True, progress=False)


def test_out_of_memory_says_which_batch_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    samples = pictures(24, test=8, side=16)
    recipe = Recipe(small("resnet18", inputs=1, classes=4), batch_size=20, epochs=1)
    monkeypatch.setattr(Trainer, "step", full)
    words = (
        r"training 1 member \(8 residual .*\) at once ran out .* on cpu: about 10 samples per batch would fit, not 20"
    )
    with pytest.raises(MemoryBudgetError, match=rf"{words}\. Pass batch_size=10\.$"):
        sweep([recipe], samples, progress=False)
    with pytest.raises(MemoryBudgetError, match=r"Pass batch_size=2\.$"):
        sweep([replace(recipe, batch_size=3)], samples, progress=False)
    uneven = replace(recipe, batch_size=23)  # half of it, 11, leaves one of 23 alone
    with pytest.raises(MemoryBudgetError, match=r"Pass batch_size=10\.$"):
        sweep([uneven], pictures(23, test=8, side=16), progress=False)
    monkeypatch.setattr("layerlaw.lab.training.batch_that_fits", lambda *given: 1)
    with pytest.raises(MemoryBudgetError, match=r"not even batches of 2 would fit\. Choose a smaller network\."):
        sweep([recipe], samples, progress=False)


def test_out_of_memory_while_measuring_is_no_matter_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, seen = Forwards._forward, []

    def crowded(self: Forwards, cuts: list[slice]) -> object:
        if (longest := max(cut.stop - cut.start for cut in cuts)) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        seen.append(longest)
        return forward(self, cuts)

    samples = pictures(24, test=8, side=16)
    recipe = Recipe(small("resnet18", inputs=1, classes=4), batch_size=6, epochs=1)
    schedule = ll.lab.Schedule(batchnorm=("running",))
    (roomy,) = sweep([recipe], samples, schedule=schedule, progress=False)
    monkeypatch.setattr(Forwards, "_forward", crowded)
    (run,) = sweep([recipe], samples, schedule=schedule, progress=False)
    assert max(seen) <= 10
    assert [m.separation for m in run.measurements] == [pytest.approx(m.separation) for m in roomy.measurements]
    words = r"measuring batches of 24 \(batchnorm='whole'\) ran out of memory on cpu\. Their .*leave this mode out"
    with pytest.raises(MemoryBudgetError, match=words):
        sweep([recipe], samples, schedule=ll.lab.Schedule(batchnorm=("whole",)), progress=False)


def test_a_network_of_ones_own_gets_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Architecture.named("vgg11", stages=((4,), (4,)), side=8, classes=4).build()
    x, y, recipe = torch.randn(12, 3, 8, 8), torch.arange(12) % 4, Recipe(batch_size=4, epochs=1)
    with pytest.raises(
        InputError, match=r"expected one that takes samples of shape \(3, 4, 4\).*fails in epoch 1.*of 8 × 8 p"
    ):
        train(network, x[:, :, :4, :4], y, recipe, progress=False)
    with pytest.raises(InputError, match=r"shape \(1, 8, 8\).*to have 3 channels"):
        train(network, x[:, :1], y, recipe, progress=False)
    with pytest.raises(InputError, match="at least 2 samples for BatchNorm, but 9 samples in batches of 4 leave one"):
        train(network, x[:9], y[:9], recipe, progress=False)

    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Trainer, "train_epoch", full)
    words = (
        r"in batches of 4 ran out of memory on cpu: about 2 samples per batch would fit, not 4\. Pass batch_size=2\."
    )
    with pytest.raises(MemoryBudgetError, match=words):
        train(network, x, y, recipe, progress=False)


def test_the_batch_that_fits_is_what_autograd_keeps() -> None:
    samples = Samples.of((torch.randn(8, 3, 32, 32), torch.arange(8) % 4))
    light = batch_that_fits(Recipe(small("resnet18", classes=4)), samples, "cpu")
    heavy = batch_that_fits(Recipe(Architecture.named("resnet18", classes=4)), samples, "cpu")
    # resnet18 of 64 channels keeps about 20 maps of 64 × 32 × 32 numbers, and as much again in the stages behind
    assert 4 * 2**30 / (1.5 * 4 * 80 * 65536) < heavy < 4 * 2**30 / (1.5 * 4 * 20 * 65536)
    assert light > 8 * heavy


def test_optimizers_of_the_engine_are_plain_ones_on_a_cpu() -> None:
    engine = SingleEngine(
        Recipe(small("resnet18", inputs=1, classes=4), batch_size=6), pictures(24, test=8, side=16), ll.lab.Schedule()
    )
    assert engine.how == "float32"
    assert not engine._trainer.channels_last
    assert not engine._trainer.captured
