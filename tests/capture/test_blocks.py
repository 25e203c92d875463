"""Blocks as people mean them, whatever modules they are packed in; and layers, whatever their parameters are called."""

from collections.abc import Callable

import pytest
import torch
from capture_networks import FNN, InPlaceBlock, Pair, ResNet20, clouds, seeded
from torch import Tensor, nn

import layerlaw as ll

IMAGES = clouds(6, 3, 8, 8)[0]
TOKENS = clouds(6, 5, 8)[0]


def blocks(network: nn.Module, example: object) -> list[str]:
    """The rows without the input and what the classifier reads."""
    plan = ll.sites(network, example, sites="blocks")
    assert plan.no_trunk == ""
    assert not any(site.branch for site in plan.sites)
    assert plan.sites[0].type == "input"
    return [site.name for site in plan.sites if site.type != "input" and site.module != plan.classifier]


class Attention(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(torch.softmax(q @ k.mT, -1) @ v)


class FeedForward(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.inner, self.norm = inner, nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class PreNorm(nn.Module):
    """A transformer block with one attention and one feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = nn.LayerNorm(8), Attention(), nn.LayerNorm(8), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNorm(nn.Module):
    """The part with attention ends on the trunk too, and is a module of its own."""

    class Part(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.norm = inner, nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x + self.inner(x))

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed = PostNorm.Part(Attention()), PostNorm.Part(FeedForward())

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(self.attention(x))


class Stage(nn.Module):
    """A chain of blocks, with something in front that makes it smaller."""

    def __init__(self, *inner: nn.Module, front: nn.Module | None = None) -> None:
        super().__init__()
        self.front, self.blocks = front or nn.Identity(), nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.front(x))


class Loop(nn.Module):
    """Modules of a list, called by a function of the model."""

    def __init__(self, layers: nn.Module, call: Callable[..., Tensor], width: int = 8) -> None:
        super().__init__()
        self.layers, self.call, self.head = layers, call, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.call(layer, x)
        return self.head(x.mean(1) if x.dim() == 3 else x)


def sequential(*parts: nn.Module) -> nn.Module:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    return nn.Sequential(*parts, Mean(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (sequential(*(PreNorm() for _ in range(4))), ["0", "1", "2", "3"]),
        (sequential(*(PostNorm() for _ in range(4))), ["0", "1", "2", "3"]),
        (
            sequential(Stage(PreNorm(), PreNorm()), Stage(PreNorm()), Stage(PreNorm(), front=nn.Linear(8, 8))),
            ["0.blocks.0", "0.blocks.1", "1.blocks.0", "2.blocks.0"],
        ),
        (sequential(nn.Sequential(Stage(PreNorm(), PreNorm()), Stage(PreNorm(), PreNorm()))),
         [f"0.{i}.blocks.{j}" for i in (0, 1) for j in (0, 1)]),
        (sequential(*(nn.Sequential(Residual(Attention()), Residual(FeedForward())) for _ in range(4))),
         ["0", "1", "2", "3"]),
        (sequential(*(Stage(PreNorm()) for _ in range(4))), ["0", "1", "2", "3"]),  # no stage has more than one
        (sequential(*(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3))), ["0", "1", "2"]),
        (
            sequential(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)),
            [f"0.layers.{i}" for i in range(3)],
        ),
    ],
    ids=["pre-norm", "post-norm", "stages", "nested", "halves", "stages of one", "torch", "encoder"],
)  # fmt: skip
def test_transformer_blocks_are_one_row_each_in_every_packaging(network: nn.Module, names: list[str]) -> None:
    assert blocks(network.eval(), TOKENS) == names


def test_halves_in_a_sequence_are_the_output_of_the_sequence() -> None:
    network = sequential(*(nn.Sequential(Residual(Attention()), Residual(FeedForward())) for _ in range(4)))
    plan = ll.sites(network, TOKENS)
    assert plan.why == "auto: 4 blocks of type Residual + Residual"
    assert [site.seen_at for site in plan.sites] == ["input", *["output"] * 4, "input"]


def test_a_sum_that_the_model_does_itself_is_the_end_of_a_block() -> None:
    network = Loop(nn.ModuleList(Pair(8) for _ in range(4)), lambda layer, x: x + layer(x))
    plan = ll.sites(network, clouds(6, 8)[0])
    assert plan.why == "auto: 4 blocks of type Pair"
    # Behind the last sum the classifier reads it.
    assert [site.name for site in plan.sites] == ["input", "layers.0", "layers.1", "layers.2", "head"]
    assert [site.seen_at for site in plan.sites] == ["input", *["behind"] * 3, "input"]
    x, y = clouds(60, 8)
    record = ll.probe(network, (x, y), progress=False)
    with torch.no_grad():
        first = x + network.layers[0](x)
    assert record.sites[1].at == "behind"
    expected = ll.separation_fuzziness(first, y)
    assert record.sites[1].values["separation"] == pytest.approx(float(expected), rel=1e-5)


def test_attention_and_feed_forward_parts_in_a_list_are_one_block() -> None:
    def call(parts: nn.ModuleList, x: Tensor) -> Tensor:
        for part in parts:
            x = x + part(x)
        return x

    network = Loop(nn.ModuleList(nn.ModuleList([Attention(), FeedForward()]) for _ in range(4)), call)
    assert blocks(network, TOKENS) == ["layers.0", "layers.1", "layers.2"]  # the last one is what the classifier reads
    assert ll.sites(network, TOKENS).why == "auto: 4 blocks of type Attention + FeedForward"


def test_two_layers_of_two_lists_are_a_block_between_two_points() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (nn.ModuleList(nn.Linear(6, 6) for _ in range(4)) for _ in range(2))
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            for up, down in zip(self.up, self.down, strict=True):
                x = x + down(up(x).relu())
            return self.head(x)

    assert blocks(Lists(), clouds(6, 6)[0]) == [f"up.{i} … down.{i}" for i in range(3)]


class Excite(nn.Module):
    """Squeeze and excitation: a gate."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.expand(self.reduce(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class Bottleneck(nn.Module):
    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.wide, self.deep, self.se, self.narrow, self.skip = (
            nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), Excite(), nn.Conv2d(4, 4, 1), skip,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(self.se(self.deep(self.wide(x)).relu()))
        return x + y if self.skip else y


class FirstBottleneck(Bottleneck):
    """Another class, which occurs once."""


def convolutional(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_a_gate_is_no_block_also_where_the_class_around_it_occurs_once() -> None:
    inverted = [FirstBottleneck(False), Bottleneck(True), Bottleneck(False), Bottleneck(True)]
    stages = (nn.Sequential(*inverted[:1]), nn.Sequential(*inverted[1:]))
    assert blocks(convolutional(nn.Sequential(*stages)), IMAGES) == ["1.0.0", "1.1.0", "1.1.1", "1.1.2"]
    plain = convolutional(nn.Conv2d(4, 4, 3), Excite(), nn.Conv2d(4, 4, 3), Excite(), nn.Conv2d(4, 4, 3))
    with pytest.raises(
        ll.LayerlawError, match="sites='blocks': no repeated module class with two or more weight layers"
    ):
        blocks(plain, IMAGES)


def test_modules_of_a_class_that_occurs_once_are_blocks_where_they_branch() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x):
            return torch.cat([self.one(x), self.three(self.two(x))], 1)

    class Reduced(Mixed):
        pass

    class Stem(nn.Sequential):
        pass

    stem = Stem(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))
    network = convolutional(nn.Sequential(stem), Mixed(), Mixed(), Reduced(), Mixed())
    assert blocks(network, IMAGES) == ["2", "3", "4", "5"]


def test_a_shared_block_is_a_row_for_every_call() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = PostNorm(), nn.Linear(8, 3)

        def forward(self, x):
            for _ in range(4):
                x = self.block(x)
            return self.head(x[:, 0])

    assert blocks(Shared(), TOKENS) == ["block", "block#2", "block#3", "block#4"]


def test_streams_of_two_tensors_fall_back_on_repeated_classes() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, pair):
            a, b = pair
            return a + self.one(b), b + self.two(a)

    class Dual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = nn.ModuleList(Both() for _ in range(3)), nn.Linear(6, 3)
            self.front = FNN((6, 6, 6, 6, 6, 6, 6, 6, 6))

        def forward(self, x):
            x = self.front(x)
            pair = (x, x)
            for block in self.blocks:
                pair = block(pair)
            return self.head(pair[0] + pair[1])

    plan = ll.sites(Dual(), clouds(6, 6)[0], sites="blocks")
    assert "hand on several tensors" in plan.no_trunk
    assert [site.name for site in plan.sites] == ["input", "blocks.0", "blocks.1", "blocks.2", "head"]


class SameConv(nn.Conv2d):
    """A convolution that owns its padding."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.pad = nn.ZeroPad2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.pad(x))


class Named(nn.Module):
    """A layer that calls its parameter W."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W


def test_a_convolution_that_owns_a_child_is_a_layer() -> None:
    network = nn.Sequential(
        SameConv(3, 4, 3),
        nn.ReLU(),
        SameConv(4, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    assert [site.name for site in ll.sites(network, IMAGES).sites] == ["0", "2", "6"]


def test_a_layer_may_call_its_parameter_as_it_likes() -> None:
    network = nn.Sequential(Named(6, 6), nn.ReLU(), Named(6, 6), nn.ReLU(), Named(6, 3))
    plan = ll.sites(network, clouds(6, 6)[0])
    assert [site.name for site in plan.sites] == ["0", "2", "4"]
    assert (plan.classifier, plan.no_sites) == ("4", {})


def test_where_the_data_cannot_be_followed_a_layer_is_known_by_its_parameter() -> None:
    class Arrays(nn.Sequential):
        def forward(self, x):
            return super().forward(torch.from_numpy(x.numpy()))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer_scale = nn.Parameter(torch.ones(2, 6))

        def forward(self, x):
            return x * self.layer_scale[0]

    plan = ll.sites(Arrays(Named(6, 6), Scaled(), nn.ReLU(), Named(6, 3)), clouds(6, 6)[0], sites="layers")
    assert [site.name for site in plan.sites] == ["0", "3"]


def test_weights_that_a_module_applies_for_its_children_make_it_the_layer() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = nn.functional.linear(x, self.qkv.weight, self.qkv.bias).chunk(3, -1)
            return nn.functional.linear(torch.softmax(q @ k.mT, -1) @ v, self.proj.weight, self.proj.bias)

    plan = ll.sites(sequential(*(Functional() for _ in range(3))), TOKENS, sites="layers")
    assert [site.name for site in plan.sites] == ["0", "1", "2", "4"]
    assert "0.qkv (never called)" in plan.dropped


def test_every_called_module_with_a_weight_that_is_no_site_is_listed_with_the_reason() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 6)
            self.token, self.projection = nn.Parameter(torch.randn(1, 6)), nn.Parameter(torch.randn(6, 6))
            self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
            self.affine, self.head = Affine(), nn.Linear(6, 3)

        def forward(self, x):
            x = self.words(x) + self.token
            x = self.affine(x + self.query(x) * self.key(x)) @ self.projection
            return self.head(x)

    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha = nn.Parameter(torch.ones(1, 6))

        def forward(self, x):
            return self.alpha * x

    plan = ll.sites(Odd(), torch.arange(6), sites="layers")
    assert plan.no_sites == {
        "the model itself": "applies its parameter 'projection' between layers of its own",
        "words": "an embedding",
        "key": "reads what 'query' reads",
        "affine": "its parameters enter no convolution or matrix product of the data",
    }
    assert "no site: key (reads what 'query' reads)" in str(plan)


def test_layers_inside_blocks_are_listed_together() -> None:
    plan = ll.sites(seeded(ResNet20), IMAGES)
    assert len(plan.no_sites) == 19  # all but the classifier
    assert plan.no_sites["layer1.0.conv1"] == "a layer inside the blocks"
    assert "and 15 more (a layer inside the blocks)" in str(plan)


def test_layers_in_front_of_between_and_behind_the_blocks_are_not_said_to_be_inside() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    class Framed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.mid, self.top = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.blocks = nn.ModuleList(Residual() for _ in range(4))
            self.unused_end, self.fc = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = self.stem(x * 2.0)  # no row shows what it reads
            for i, block in enumerate(self.blocks):
                x = block(x if i != 2 else torch.relu(self.mid(x)))
            self.unused_end(x + 1.0)  # off the way to the scores
            return self.fc(torch.relu(self.top(x + 2.0)))

    plan = ll.sites(Framed(), clouds(6, 6)[0], sites="blocks")
    asked = ("stem", "blocks.0.up", "blocks.3.down", "mid", "top", "unused_end")
    sides = ("in front of", "inside", "inside", "between", "behind", "behind")
    assert [plan.no_sites[name] for name in asked] == [f"a layer {side} the blocks" for side in sides]
    assert plan.in_front == {"blocks.0": ("stem",), "blocks.2": ("mid",)}
    assert ll.sites(Framed(), clouds(6, 6)[0], sites="layers").in_front == {}


def test_a_model_that_is_one_layer_has_its_row() -> None:
    assert [site.features for site in ll.sites(nn.Linear(6, 3), clouds(6, 6)[0]).sites] == [6]
    assert [site.features for site in ll.sites(Named(6, 3), clouds(6, 6)[0]).sites] == [6]


def test_a_deep_residual_network_by_layers_has_a_law_on_its_trunk_alone() -> None:
    class ResNet56(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), *(InPlaceBlock(4, 4) for _ in range(27)),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
            )  # fmt: skip

    x, y = clouds(90, 3, 8, 8)
    record = ll.probe(seeded(ResNet56), (x, y), sites="layers", uncertainty=False, progress=False)
    assert len(record.sites) == 56
    assert [site.branch for site in record.sites] == [False, *[False, True] * 27, False]
    assert record.law().points == 29
    assert record.law(branches=True).points == 56
    values = [site.values["separation"] for site in record.sites if not site.branch]
    assert list(record.law().values) == values
    assert any("27 of 56 rows lie on side branches and are no points of the law" in note for note in record.notes)
