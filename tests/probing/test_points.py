"""Rows that are shown but are no points of the law: too few features, class means in line, the row before once more."""

import pytest
import torch
from networks import ResNet20, separated
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.errors import InputError
from layerlaw.record import Record
from layerlaw.verdict import judge

POOLED = "no weight layer lies between '{}' and what the classifier reads"


class Blocks(nn.Module):
    """Four blocks of two convolutions; the classifier reads all pixels, or their mean."""

    def __init__(self, *, pooled: bool = False, zero: bool = False, inputs: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(inputs, 12, 3, padding=1)
        self.blocks = nn.ModuleList(Two() for _ in range(4))
        self.pooled = pooled
        self.classifier = nn.Linear(12 if pooled else 12 * 36, 10)
        if zero:
            for block in self.blocks:
                nn.init.zeros_(block.second.weight)
                nn.init.zeros_(block.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.classifier(x.mean((2, 3)) if self.pooled else x.flatten(1))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def probed(network: nn.Module, x: Tensor, y: Tensor, **how: object) -> Record:
    return ll.probe(network.eval(), (x, y), uncertainty=False, progress=False, **how)  # type: ignore[arg-type]


def aside(record: Record) -> dict[str, str]:
    return {site.name: site.aside for site in record.sites if site.aside}


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    return separated(120, 12, 6, 6)


def test_a_pooled_input_of_three_channels_is_no_point_and_the_verdict_says_why() -> None:
    torch.manual_seed(0)
    record = probed(ResNet20(), *separated(200, 3, 32, 32), sites="blocks", reduce="mean")
    why = "3 features do not hold the 9 dimensions of 10 class means"
    assert aside(record) == {"input": why, "linear": POOLED.format("layer3.2")}
    assert [site.in_fit for site in record.sites] == [False, *[True] * 9, False]
    assert record.law().points == 9
    said = f"Left out of the law: 'input' is no point: {why}; 'linear' is no point: {POOLED.format('layer3.2')}."
    assert said in judge(record).findings
    assert record.sites[0].values["separation"] is not None  # it stays in the table
    assert record.sites[-1].values["nc3"] is not None
    assert any(line.startswith("At 'linear': NC1") and "NC3" in line for line in judge(record).findings)


def test_where_all_rows_are_narrow_none_is_left_out() -> None:
    torch.manual_seed(0)
    x, y = separated(200, 20)
    layers = [part for _ in range(5) for part in (nn.LazyLinear(5), nn.Tanh())]
    network = nn.Sequential(*layers, nn.Linear(5, 10))
    network(x)
    record = probed(network, x, y)
    assert [site.values["rank"] for site in record.sites] == [9.0, *[5.0] * 5]
    assert aside(record) == {}
    assert record.law().points == 6


def test_a_bottleneck_among_wide_layers_is_no_point() -> None:
    torch.manual_seed(0)
    x, y = separated(200, 20)
    network = nn.Sequential(
        nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 10)
    )
    assert aside(probed(network, x, y)) == {"4": "4 features do not hold the 9 dimensions of 10 class means"}


def test_class_means_in_line_are_told_from_too_few_features() -> None:
    x, y = separated(200, 20)
    network = nn.Sequential(
        nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 10)
    )
    with torch.no_grad():
        network[3].weight[:] = network[3].weight[:, :3] @ torch.randn(3, 20)  # of rank 3
    record = probed(network, x, y)
    assert aside(record) == {"4": "its class means span 3 of 9 dimensions"}


def test_a_dead_layer_still_ends_every_law() -> None:
    x, y = separated(200, 20)
    network = nn.Sequential(*(nn.Linear(20, 20) for _ in range(4)), nn.Linear(20, 10))
    with torch.no_grad():
        network[3].weight.zero_()
    record = probed(network, x, y)
    assert aside(record) == {}
    assert "the class means coincide at '4'" in judge(record).headline


def test_an_ordinary_network_keeps_all_its_points(data: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    for sites in ("layers", "blocks"):
        assert aside(probed(Blocks(), *data, sites=sites)) == {}


@pytest.mark.parametrize("reduce", ["flatten", "mean"])
def test_channels_last_memory_changes_no_row(reduce: str, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    torch.manual_seed(0)
    network = Blocks()
    plain = probed(network, x, y, sites="blocks", reduce=reduce)
    last = x.to(memory_format=torch.channels_last)
    other = probed(network.to(memory_format=torch.channels_last), last, y, sites="blocks", reduce=reduce)
    assert [(site.name, site.in_fit) for site in other.sites] == [(site.name, site.in_fit) for site in plain.sites]
    assert other.law().values == pytest.approx(plain.law().values, rel=1e-5)
    if reduce == "flatten":
        assert plain.sites[-1].name == "blocks.3"  # what the classifier reads, once
        assert other.sites[-1].values["nc3"] == pytest.approx(plain.sites[-1].values["nc3"], rel=1e-5)


def test_an_overwritten_tensor_is_not_taken_for_what_it_was(data: tuple[Tensor, Tensor]) -> None:
    """The last block's output before an in-place ReLU is another row than what the classifier reads."""

    class Overwriting(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x) - 1.0
            x = nn.Identity()(x)
            return self.classifier(torch.relu_(self.last(x)).flatten(1))

    torch.manual_seed(0)
    network = Overwriting()
    network.last = nn.Conv2d(12, 12, 1)
    x, y = data
    record = probed(
        network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), y, sites=["last"]
    )
    assert "nc3" not in record.sites[0].values


@pytest.mark.parametrize("reduce", ["flatten", "mean"])
def test_pooling_behind_the_last_block_is_no_layer_of_its_own(reduce: str, data: tuple[Tensor, Tensor]) -> None:
    """One number of steps, the same for the law and for the module finder, whatever way the features are reduced."""
    torch.manual_seed(0)
    record = probed(Blocks(pooled=True), *data, sites="blocks", reduce=reduce)
    assert aside(record) == {"classifier": POOLED.format("blocks.3")}
    assert record.law().layers == 4
    [level] = ll.find_modules(record).levels
    assert (level.name, level.modules) == ("blocks", (4,))
    assert level.p == pytest.approx(record.law().greenwood_p or 1.0)


@pytest.mark.parametrize(
    ("head", "points"),
    [
        ([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.LayerNorm(12)], 5),
        ([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 12), nn.Tanh()], 6),
        ([nn.Conv2d(12, 12, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()], 6),
    ],
    ids=["pool, dropout, norm", "a layer behind the pool", "a layer before it"],
)
def test_a_layer_behind_the_blocks_is_a_step_of_its_own(
    head: list[nn.Module], points: int, data: tuple[Tensor, Tensor]
) -> None:
    class Headed(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            for block in self.blocks:
                x = block(x)
            return self.classifier(self.head(x))

    torch.manual_seed(0)
    network = Headed(pooled=True)
    network.head = nn.Sequential(*head)
    record = probed(network, *data, sites="blocks")
    assert record.law().points == points
    assert bool(aside(record)) == (points == 5)
    [level] = ll.find_modules(record).levels
    assert level.modules == (points - 1,)


def test_blocks_that_change_nothing_are_points_all_the_same(data: tuple[Tensor, Tensor]) -> None:
    """Residual blocks that begin as the identity are idle, which is a finding; only what has no weights is a repetition."""
    torch.manual_seed(0)
    record = probed(Blocks(pooled=True, zero=True), *data, sites="blocks", reduce="mean")
    assert aside(record) == {"classifier": POOLED.format("blocks.3")}
    assert record.law().points == 5
    by_layers = probed(Blocks(pooled=True, zero=True), *data, sites="layers", reduce="mean")
    assert aside(by_layers) == {}


def test_chosen_modules_without_weights_repeat_the_row_before() -> None:
    torch.manual_seed(0)
    x, y = separated(200, 20)
    network = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Dropout(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))
    record = probed(network, x, y, sites=["input", "1", "2", "4"])
    assert aside(record) == {"2": "the same features as '1'"}


def test_a_record_at_layers_knows_its_blocks_and_finds_modules(data: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    record = probed(Blocks(), *data, sites="layers")
    assert record.settings["blocks"] == [f"blocks.{i}" for i in range(4)]
    found = ll.find_modules(record, branches=True)
    assert [(level.name, level.modules) for level in found.levels] == [("layers", (9,)), ("blocks", (5,))]
    [trunk] = ll.find_modules(record).levels
    assert (trunk.name, trunk.counted, trunk.modules[0]) == (
        "blocks",
        "4 blocks and 1 other layer",
        record.law().layers,
    )
    both = ll.find_modules(record, probed(Blocks(), *data, sites="layers"))  # another initialization
    assert len(both.networks) == 2


def test_what_is_left_out_is_named_where_too_few_are_left() -> None:
    torch.manual_seed(0)
    record = probed(ResNet20(), *separated(200, 3, 32, 32), sites=["input", "layer3.2"], reduce="mean")
    record.sites[0].in_fit, record.sites[0].aside = False, "3 features do not hold the 9 dimensions of 10 class means"
    with pytest.raises(
        InputError, match=r"at least 2 points of the law, got 1\. 'input' is none: 3 features do not hold"
    ):
        record.law()


class TinyViT(nn.Module):
    """Patches of 4×4 pixels, a class token, five encoder blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        layer: dict = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(24, 2, **layer) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@pytest.mark.parametrize("token", ["first", "last"])
@pytest.mark.parametrize("sites", ["blocks", "layers"])
def test_a_whole_image_is_no_point_beside_tokens(token: str, sites: str) -> None:
    record = probed(TinyViT(), *separated(200, 3, 8, 8), sites=sites, reduce=token)
    first, why = record.sites[0], f"all its 192 numbers, beside the {token} token of other rows"
    assert (first.features, first.in_fit, first.aside) == (192, False, why)
    assert first.values["separation"] is not None  # it stays in the table
    assert all(site.features in (24, 48, 72) for site in record.sites[1:])
    assert record.law().points == sum(site.in_fit for site in record.sites) >= 5
    assert any(f"'{first.name}' is no point: {why}" in line for line in judge(record).findings)
    if (token, sites) == ("first", "layers"):  # what the first attention reads of the class token
        assert record.sites[1].aside == "the first token, which is still the same in all samples"
        assert not record.sites[1].in_fit
    flattened = probed(TinyViT(), *separated(200, 3, 8, 8), sites=sites)
    assert flattened.sites[0].in_fit


def test_layers_of_a_transformer_are_answered_with_the_advice_to_take_blocks() -> None:
    said = (
        "In networks of blocks on tokens the blocks are what papers draw: sites='blocks' measures behind each of the 5."
    )
    x, y = separated(200, 3, 8, 8)
    assert said in judge(probed(TinyViT(), x, y, sites="layers", reduce="first")).advice
    assert said not in judge(probed(TinyViT(), x, y, sites="blocks", reduce="first")).advice
    torch.manual_seed(0)
    deep = probed(ResNet20(), *separated(200, 3, 32, 32), sites="layers")
    assert not any("papers draw" in line for line in judge(deep).advice)
