"""Reductions: where space is, where tokens are."""

import pytest
import torch
from capture_networks import FNN, Encoder, InPlaceResNet, clouds, seeded
from torch import nn

import layerlaw as ll
from layerlaw.capture.plan import reduced, samples_first


def sides(network: nn.Module, example: torch.Tensor, choice: object) -> dict[str, tuple[bool, int]]:
    plan = ll.sites(network, example, sites=choice, reduce="mean")
    return {site.name: (site.channels_last, site.features) for site in plan.sites}


def test_space_is_after_the_channels_of_convolution_maps() -> None:
    found = sides(InPlaceResNet(), clouds(6, 3, 8, 8)[0], "blocks")
    assert found["input"] == (False, 3)
    assert found["layer1.0"] == (False, 4)
    assert found["layer2.1"] == (False, 8)
    layers = sides(InPlaceResNet(), clouds(6, 3, 8, 8)[0], "layers")
    assert layers["layer2.0.conv2"] == (False, 8)


def test_tokens_are_before_their_features() -> None:
    found = sides(seeded(Encoder, batch_first=True), clouds(6, 5, 8)[0], "blocks")
    assert set(found.values()) == {(True, 8)}
    found = sides(seeded(Encoder, batch_first=True), clouds(6, 5, 8)[0], "layers")
    assert found["encoder.layers.0.linear2"] == (True, 16)


def test_one_dimensional_convolutions_keep_channels_first_also_in_the_raw_input() -> None:
    class Part(nn.Sequential):
        pass

    def part(a: int) -> nn.Module:
        return Part(nn.Conv1d(a, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 4, 3, padding=1), nn.ReLU())

    network = nn.Sequential(part(2), part(4), part(4), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3))
    found = sides(network, clouds(6, 2, 9)[0], "blocks")
    assert {name: features for name, (_, features) in found.items()} == {"input": 2, "0": 4, "1": 4, "2": 4, "5": 4}
    assert not any(found[name][0] for name in ("input", "0", "1", "2"))


def test_a_block_with_a_convolution_inside_that_gives_tokens_is_read_by_its_neighbors() -> None:
    class Conformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix, self.out = nn.LayerNorm(6), nn.Conv1d(6, 6, 3, padding=1), nn.Linear(6, 6)

        def forward(self, x):
            return x + self.out(self.mix(self.norm(x).mT).mT)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.norm, self.head = (
                nn.Sequential(Conformer(), Conformer()),
                nn.LayerNorm(6),
                nn.Linear(6, 3),
            )

        def forward(self, x):
            return self.head(self.norm(self.blocks(x)).mean(1))

    found = sides(Net(), clouds(6, 5, 6)[0], "blocks")
    assert all(found[name] == (True, 6) for name in ("input", "blocks.0", "blocks.1"))


def test_images_that_a_feed_forward_net_flattens_have_channels_first() -> None:
    assert sides(FNN(), clouds(6, 3, 2, 2)[0], ["input"])["input"] == (False, 3)


class Window(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return x + self.two(self.one(self.norm(x)).relu())


def test_features_last_images_of_window_transformers_are_averaged_over_space() -> None:
    network = nn.Sequential(nn.Linear(2, 6), Window(), Window(), nn.LayerNorm(6), nn.Flatten(1, 2))
    assert sides(network, clouds(6, 4, 4, 2)[0], ["input", "1", "2"]) == {
        "input": (True, 2),
        "1": (True, 6),
        "2": (True, 6),
    }


def test_a_block_of_linear_layers_gives_features_last_also_where_its_neighbors_do_not_tell() -> None:
    class Merging(nn.Module):
        def forward(self, x):
            return x[:, ::2, ::2] + x[:, 1::2, 1::2]

    network = nn.Sequential(nn.Linear(2, 6), Window(), Merging(), Window(), Merging())
    assert sides(network, clouds(6, 4, 4, 2)[0], ["1", "3"]) == {"1": (True, 6), "3": (True, 6)}


def test_a_norm_that_permutes_axes_does_not_mislead() -> None:
    class LayerNorm2d(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 8), nn.Linear(8, 6)

        def forward(self, x):
            h = self.mix(x).permute(0, 2, 3, 1)
            return x + self.two(self.one(h).relu()).permute(0, 3, 1, 2)

    network = nn.Sequential(
        nn.Conv2d(3, 6, 1), LayerNorm2d(6), Block(), Block(), LayerNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    example = clouds(6, 3, 4, 4)[0]
    assert set(sides(network, example, "blocks").values()) == {(False, 3), (False, 6)}
    assert {name: width for name, (_, width) in sides(network, example, "layers").items()} == {
        "0": 3,
        "2.mix": 6,
        "2.one": 6,
        "2.two": 8,
        "3.mix": 6,
        "3.one": 6,
        "3.two": 8,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_means_and_maxima_are_those_of_numpy(dtype: torch.dtype) -> None:
    maps = clouds(4, 3, 5, 6)[0].to(dtype)
    plain = maps.double().numpy()
    for how, value in {"mean": plain.mean((2, 3)), "max": plain.max((2, 3))}.items():
        found = reduced(maps, how, channels_last=False)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), torch.from_numpy(value), rtol=1e-6, atol=1e-6)


def test_features_without_tokens_are_flattened_by_first_and_last() -> None:
    maps = clouds(4, 3, 2, 2)[0]
    for how in ("first", "last"):
        assert torch.equal(reduced(maps, how, channels_last=False), maps.flatten(1))
        assert torch.equal(reduced(maps[:, :, 0, 0], how, channels_last=True), maps[:, :, 0, 0])


def test_first_and_last_without_a_mask_are_the_outer_tokens() -> None:
    tokens = clouds(4, 3, 5)[0]
    assert torch.equal(reduced(tokens, "first", channels_last=True), tokens[:, 0])
    assert torch.equal(reduced(tokens, "last", channels_last=True), tokens[:, -1])


def test_the_sample_axis_comes_to_the_front() -> None:
    tokens = clouds(4, 3, 5)[0]
    assert torch.equal(samples_first(tokens.transpose(0, 1), 1, 1), tokens)
    assert torch.equal(samples_first(tokens.flatten(0, 1), 0, 3), tokens)


def test_a_reduction_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ll.LayerlawError, match="reduce: expected one of flatten, mean, max, first, last, got 'median'"):
        ll.sites(FNN(), clouds(6, 12)[0], reduce="median")
