"""The rules give the right rows on networks of every kind."""

import pytest
import torch
import torch.nn.functional as F
from capture_networks import FNN, DenseNet, InPlaceResNet, Pair, ResNet20, Twice, clouds, seeded
from torch import nn

import layerlaw as ll

IMAGES = clouds(6, 3, 8, 8)[0]


def names(network: nn.Module, example: object, **how: object) -> list[str]:
    return [site.name for site in ll.sites(network, example, **how).sites]


def test_a_feed_forward_net_of_l_layers_has_l_rows_from_the_raw_input_to_what_the_classifier_receives() -> None:
    plan = ll.sites(FNN(), clouds(6, 12)[0], sites="layers")
    assert [site.name for site in plan.sites] == [f"layers.{i}" for i in range(4)]
    assert [site.features for site in plan.sites] == [12, 8, 8, 8]
    assert {site.at for site in plan.sites} == {"input"}
    assert (plan.classifier, plan.reads, plan.classes) == ("layers.3", "layers.3", 3)
    assert all(site.in_fit for site in plan.sites)


def test_inputs_that_the_net_flattens_itself_are_the_first_row() -> None:
    plan = ll.sites(FNN(), clouds(6, 1, 3, 4)[0], sites="layers")
    assert [site.features for site in plan.sites] == [12, 8, 8, 8]


@pytest.mark.parametrize("shortcut", ["free", "conv"])
def test_resnet20_has_twenty_layer_rows_and_the_shortcut_is_none_of_them(shortcut: str) -> None:
    network = ResNet20(shortcut)
    found = names(network, IMAGES, sites="layers")
    assert len(found) == 20
    assert not any("shortcut" in name for name in found)
    assert found[0] == "conv1"
    assert found[-1] == "linear"
    assert found[7:9] == ["layer2.0.conv1", "layer2.0.conv2"]  # where the 1×1 convolution is called first


@pytest.mark.parametrize("shortcut", ["free", "conv"])
def test_resnet20_has_the_input_nine_blocks_and_the_classifier_input_as_block_rows(shortcut: str) -> None:
    plan = ll.sites(ResNet20(shortcut), IMAGES)
    assert plan.rule == "blocks"
    assert plan.why == "auto: 9 blocks of type ShortcutBlock"
    expected = ["input", *(f"layer{i}.{j}" for i in (1, 2, 3) for j in range(3)), "linear"]
    assert [site.name for site in plan.sites] == expected
    assert [site.at for site in plan.sites] == ["input", *["output"] * 9, "input"]
    assert [site.shape for site in plan.sites[:3]] == [(3, 8, 8), (4, 8, 8), (4, 8, 8)]
    assert plan.sites[-1].shape == (16,)


def test_blocks_with_in_place_relu_share_the_input_of_their_downsampling() -> None:
    found = names(InPlaceResNet(), IMAGES, sites="layers")
    assert found == [
        "conv1",
        *(f"layer1.{i}.conv{j}" for i in (0, 1) for j in (1, 2)),
        *(f"layer2.{i}.conv{j}" for i in (0, 1) for j in (1, 2)),
        "fc",
    ]


def test_a_dense_net_with_concatenation_has_a_row_for_every_layer() -> None:
    plan = ll.sites(DenseNet(), IMAGES, sites="layers")
    assert [site.name for site in plan.sites] == [
        "stem",
        *(f"layers.{i}.conv{j}" for i in range(3) for j in (1, 2)),
        "classifier",
    ]
    assert [site.shape[0] for site in plan.sites] == [3, 4, 4, 6, 4, 8, 4, 10]
    assert [site.branch for site in plan.sites] == [False, *[False, True] * 3, False]


def test_a_dense_net_by_blocks_shows_what_its_layers_have_added_to() -> None:
    plan = ll.sites(DenseNet(), IMAGES)
    assert plan.why == "auto: 3 blocks of type DenseLayer"
    assert [site.name for site in plan.sites] == ["input", "layers.0", "layers.1", "classifier"]
    assert [site.shape[0] for site in plan.sites] == [3, 6, 8, 10]  # behind the last layer: what the classifier reads
    assert [site.seen_at for site in plan.sites] == ["input", "behind", "behind", "input"]


def test_a_module_called_twice_gives_two_numbered_rows() -> None:
    assert names(Twice(), clouds(6, 6)[0], sites="layers") == ["first", "shared", "shared#2", "last"]
    assert names(Twice(), clouds(6, 6)[0], sites=["shared"]) == ["shared", "shared#2"]


def test_layers_that_read_the_same_tensor_are_one_row_named_by_the_first_defined() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.auxiliary, self.main = nn.Linear(6, 5), nn.Linear(5, 2), nn.Linear(5, 3)

        def forward(self, x):
            x = self.stem(x).relu()
            scores = self.main(x)
            self.auxiliary(x)
            return scores

    plan = ll.sites(Heads(), clouds(6, 6)[0], sites="layers")
    assert [site.name for site in plan.sites] == ["stem", "auxiliary"]
    assert (plan.classifier, plan.reads) == ("main", "auxiliary")


def test_a_tensor_changed_in_place_between_two_readers_is_two_rows() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            x = self.one(x)
            y = self.two(x)
            x.relu_()
            return self.last(x) + 0 * y[:, :3]

    assert names(Changed(), clouds(6, 6)[0], sites="layers") == ["one", "two", "last"]


def test_a_last_block_that_feeds_the_classifier_is_not_doubled() -> None:
    plan = ll.sites(nn.Sequential(Pair(), Pair(), Pair(), nn.Flatten(), nn.Linear(6, 3)), clouds(6, 6)[0])
    assert [site.name for site in plan.sites] == ["input", "0", "1", "2"]
    assert (plan.rule, plan.classifier, plan.reads) == ("blocks", "4", "2")


def test_blocks_may_be_of_two_repeated_classes() -> None:
    class Wide(nn.Sequential):
        pass

    class Deep(nn.Sequential):
        pass

    def two() -> list[nn.Module]:
        return [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)]

    parts = [Wide(*two()), Deep(*two()), Wide(*two()), Deep(*two(), Wide(*two()))]
    plan = ll.sites(nn.Sequential(*parts, nn.ReLU(), nn.Linear(6, 3)), clouds(6, 6)[0])
    assert [site.name for site in plan.sites] == ["input", "0", "1", "2", "3", "5"]  # the Wide inside 3 is no row
    assert plan.why == "auto: 4 blocks of type Wide, Deep"


def test_auto_says_why_it_takes_layers() -> None:
    assert ll.sites(FNN(), clouds(6, 12)[0]).why == (
        "auto: the input of every weight layer, since no repeated block was found"
    )
    plan = ll.sites(nn.Sequential(Pair(), Pair()), clouds(6, 6)[0])
    assert [site.name for site in plan.sites] == ["0.one", "0.two", "1.one", "1.two"]
    assert plan.why == "auto: the input of every weight layer, since blocks would give only 3 points"


def test_a_block_that_gives_the_logits_is_no_row() -> None:
    assert names(nn.Sequential(Pair(), Pair(), Pair()), clouds(6, 6)[0]) == ["input", "0", "1", "2.two"]


def test_layers_that_are_never_called_are_left_out_and_listed() -> None:
    class Spare(FNN):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(4, 4)

    plan = ll.sites(Spare(), clouds(6, 12)[0], sites="layers")
    assert "spare" not in [site.name for site in plan.sites]
    assert plan.dropped == ("spare (never called)",)
    assert "left out: spare (never called)" in str(plan)


def test_logits_are_a_site_of_their_own_outside_the_fit() -> None:
    plan = ll.sites(FNN(), clouds(6, 12)[0], sites=["layers", "logits"])
    last = plan.sites[-1]
    assert (last.name, last.at, last.in_fit, last.features) == ("logits", "logits", False, 3)
    assert [site.in_fit for site in plan.sites[:-1]] == [True] * 4


def test_embeddings_and_norms_are_no_weight_layers_but_a_normed_linear_is() -> None:
    class NormedLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 6))

        def forward(self, x):
            return F.normalize(x) @ F.normalize(self.weight).T

    class LayerNorm2d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 6))

        def forward(self, x):
            return self.weight * x

    network = nn.Sequential(nn.Linear(6, 6), LayerNorm2d(), nn.LayerNorm(6), nn.ReLU(), NormedLinear())
    assert names(network, clouds(6, 6)[0], sites="layers") == ["0", "4"]


def test_a_parametrized_layer_is_one_layer_and_the_classifier_is_found() -> None:
    network = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)),
        nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)),
    )
    plan = ll.sites(network, clouds(6, 6)[0], sites="layers")
    assert [site.name for site in plan.sites] == ["0", "2"]
    assert plan.classifier == "2"


def test_keyword_calls_are_seen() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, pixels):
            return self.two(input=self.one(input=pixels).relu())

    example = {"pixels": clouds(6, 6)[0], "labels": torch.zeros(6, dtype=torch.long)}
    assert names(Keyword(), example, sites="layers") == ["one", "two"]
    assert names(Keyword(), {"pixels": clouds(6, 6)[0]}, sites="layers") == ["one", "two"]


def test_modules_may_give_tuples_and_dictionaries() -> None:
    class Gives(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.inner, self.kind = nn.Linear(6, 6), kind

        def forward(self, x):
            x = self.inner(x).relu()
            return (x, None) if self.kind == "tuple" else {"mask": torch.ones(3), "hidden": x}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.last = Gives("tuple"), Gives("dict"), nn.Linear(6, 3)

        def forward(self, x):
            return {"loss": None, "logits": self.last(self.two(self.one(x)[0])["hidden"])}

    plan = ll.sites(Net(), clouds(6, 6)[0], sites=["one", "two"])
    assert [(site.name, site.shape) for site in plan.sites] == [("one", (6,)), ("two", (6,))]
    assert (plan.classifier, plan.classes) == ("last", 3)


def test_a_model_that_ends_in_log_softmax_has_no_classifier_and_says_why() -> None:
    plan = ll.sites(nn.Sequential(FNN(), nn.LogSoftmax(1)), clouds(6, 12)[0])
    assert plan.classifier is None
    assert plan.reads is None
    assert "no weight layer's output is the model's output (a softmax" in plan.classifier_why
    assert "classifier: none: no weight layer" in str(plan)


def test_a_single_logit_means_two_classes() -> None:
    x = clouds(6, 12)[0]
    assert ll.sites(FNN((12, 5, 1)), x).classes == 2
    assert ll.sites(nn.Sequential(FNN((12, 5, 1)), nn.Flatten(0)), x).classes == 2
    assert ll.sites(FNN((12, 5, 1)), x).threshold == 0.0
    assert ll.sites(nn.Sequential(FNN((12, 5, 1)), nn.Sigmoid()), x).threshold == 0.5


def test_conv1d_nets_and_recurrent_nets_have_their_rows() -> None:
    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.fc = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(self.two(self.one(x).relu()).relu().mean(2))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.fc = nn.LSTM(4, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            return self.fc(self.lstm(x)[0][:, -1])

    sound = ll.sites(Sound(), clouds(6, 2, 9)[0], sites="layers")
    assert [(site.name, site.shape) for site in sound.sites] == [("one", (2, 9)), ("two", (4, 7)), ("fc", (4,))]
    words = ll.sites(Recurrent(), clouds(6, 7, 4)[0], sites="layers")
    assert [(site.name, site.shape) for site in words.sites] == [("lstm", (7, 4)), ("fc", (5,))]
    output = ll.sites(Recurrent(), clouds(6, 7, 4)[0], sites=["lstm"])
    assert output.sites[0].shape == (7, 5)


def test_the_table_shows_names_types_shapes_features_and_memory() -> None:
    plan = ll.sites(ResNet20(), IMAGES, sites="layers")
    row = plan.rows()[1]
    assert row == {
        "name": "layer1.0.conv1",
        "type": "Conv2d",
        "at": "input",
        "shape": [4, 8, 8],
        "features": 256,
        "memory": 40 * 3 * 256,
        "in_fit": True,
        "branch": False,
    }
    assert "layer1.0.conv1" in str(plan)
    assert "4×8×8" in str(plan)


def test_names_in_the_notebook_table_are_escaped() -> None:
    network = nn.Sequential()
    network.add_module("<script>", nn.Linear(6, 5))
    network.add_module("last", nn.Linear(5, 3))
    html = ll.sites(network, clouds(6, 6)[0])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_dry_run_gives_back_the_same_model_whatever_it_does_to_its_input() -> None:
    class Overwrites(FNN):
        def forward(self, x):
            x.mul_(2)
            return super().forward(x)

    x = clouds(6, 12)[0]
    before = x.clone()
    assert ll.sites(seeded(Overwrites), x).overwrites_input
    assert torch.equal(x, before)
    assert not ll.sites(FNN(), x).overwrites_input


def test_one_site_is_one_and_long_types_are_shortened() -> None:
    class AVeryLongNameForALinearLayerThatFillsTheWholeTable(nn.Linear):
        pass

    text = str(ll.sites(nn.Sequential(AVeryLongNameForALinearLayerThatFillsTheWholeTable(6, 3)), clouds(6, 6)[0]))
    assert text.startswith("1 site (")
    assert "AVeryLo…" in text
    assert "AVeryLongNameForALinearLayer" not in text
