"""Sites that the user chooses: names, globs, module types, predicates."""

import pytest
import torch
from capture_networks import FNN, Beside, InPlaceResNet, clouds
from torch import nn

import layerlaw as ll

IMAGES = clouds(6, 3, 8, 8)[0]


def names(choice: object, network: nn.Module | None = None, example: object = IMAGES) -> list[str]:
    return [site.name for site in ll.sites(network or InPlaceResNet(), example, sites=choice).sites]


def test_names_give_outputs_in_depth_order_whatever_their_order() -> None:
    plan = ll.sites(InPlaceResNet(), IMAGES, sites=["layer2", "layer1.0", "input"])
    assert [site.name for site in plan.sites] == ["input", "layer1.0", "layer2"]
    assert [site.at for site in plan.sites] == ["input", "output", "output"]
    assert (plan.rule, plan.why) == ("chosen", "chosen by the user")


def test_a_single_name_a_glob_a_type_and_a_predicate_choose() -> None:
    assert names("layer1") == ["layer1"]
    assert names("layer?.1") == ["layer1.1", "layer2.1"]
    assert names(["layer1.*.conv1", "avgpool"]) == ["layer1.0.conv1", "layer1.1.conv1", "avgpool"]
    assert names(nn.AdaptiveAvgPool2d) == ["avgpool"]
    assert names((nn.AdaptiveAvgPool2d, nn.Linear)) == ["avgpool", "fc"]
    assert names([nn.Linear, "layer1"]) == ["layer1", "fc"]
    assert names(lambda name, module: name.startswith("layer2") and isinstance(module, nn.Conv2d)) == [
        "layer2.0.conv1",
        "layer2.0.conv2",
        "layer2.0.downsample.0",
        "layer2.1.conv1",
        "layer2.1.conv2",
    ]


def test_a_module_named_twice_is_one_row() -> None:
    assert names(["layer1", "layer1", "layer?"]) == ["layer1", "layer2"]


def test_a_chosen_site_that_gives_the_logits_is_no_point_of_the_law() -> None:
    plan = ll.sites(InPlaceResNet(), IMAGES, sites=["layer1", "layer2", "avgpool", "fc"])
    assert [site.in_fit for site in plan.sites] == [True, True, True, False]
    assert plan.why == "chosen by the user; 'fc' gives the logits, no point of the law"
    assert plan.reads == "avgpool"  # flattened it is what the classifier reads


def test_a_pattern_that_matches_nothing_offers_the_nearest_names() -> None:
    with pytest.raises(
        ll.LayerlawError, match=r"site 'layer1\.o' matches no module.*Nearest names: layer1\.1, layer1\.0"
    ):
        names(["layer1.o"])
    with pytest.raises(
        ll.LayerlawError,
        match=r"matches no module of the model. layerlaw sites .* lists the names",
    ):
        names("§*")


def test_a_named_site_that_never_fires_raises_and_one_found_by_a_glob_is_left_out() -> None:
    class Spare(FNN):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.spare_too = nn.Linear(4, 4), nn.Identity()

    x = clouds(6, 12)[0]
    with pytest.raises(
        ll.LayerlawError, match="site 'spare' never fires: the model's forward does not call this module"
    ):
        names(["spare"], Spare(), x)
    with pytest.raises(ll.LayerlawError, match="site 'layers' never fires"):
        names(["layers"], Spare(), x)  # a ModuleList has no forward
    plan = ll.sites(Spare(), x, sites=["layers.0", "spare*"])
    assert [site.name for site in plan.sites] == ["layers.0"]
    assert plan.dropped == ("spare (never called)", "spare_too (never called)")


def test_only_names_the_user_wrote_raise_when_they_cannot_be_measured() -> None:
    class Counts(nn.Module):
        def forward(self, x):
            return (x > 0).long()

    x = clouds(6, 12)[0]
    with pytest.raises(
        ll.LayerlawError, match="site 'counts' cannot be measured: its output is no floating-point tensor"
    ):
        names(["counts"], Beside(counts=Counts()), x)
    plan = ll.sites(Beside(counts=Counts()), x, sites="*")
    assert "counts (its output is no floating-point tensor)" in plan.dropped


def test_the_raw_input_of_token_ids_cannot_be_named() -> None:
    network = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    ids = torch.arange(12).reshape(6, 2) % 5
    with pytest.raises(
        ll.LayerlawError, match="site 'input' cannot be measured: its input is no floating-point tensor"
    ):
        names(["input", "1"], network, ids)


def test_a_module_called_input_may_be_named() -> None:
    network = nn.Sequential()
    network.add_module("input", nn.Linear(6, 5))
    network.add_module("last", nn.Linear(5, 3))
    assert [(s.name, s.at) for s in ll.sites(network, clouds(6, 6)[0], sites="input").sites] == [("input", "output")]


def test_choices_of_another_kind_are_refused() -> None:
    for wrong in (3, [3], None, nn.Linear(2, 2)):
        with pytest.raises(ll.LayerlawError, match="sites: expected names, globs, module types or a predicate, got"):
            names(wrong)


def test_a_choice_that_finds_nothing_lists_the_modules() -> None:
    with pytest.raises(
        ll.LayerlawError, match=r"no site found with sites=.*Left out: nothing. The model's modules: conv1, bn1"
    ):
        names(nn.LSTM)
    with pytest.raises(ll.LayerlawError, match="no site found"):
        names([])


def test_blocks_where_there_are_none_say_so() -> None:
    with pytest.raises(
        ll.LayerlawError, match="sites='blocks': no repeated module class with two or more weight layers"
    ):
        names("blocks", FNN(), clouds(6, 12)[0])


def test_a_row_that_does_not_follow_the_samples_is_left_out() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(1, 5, 4))
            self.embed, self.last = nn.Linear(4, 4), nn.Linear(20, 3)

        def forward(self, x):
            return self.last((x + self.embed(self.table)).flatten(1))

    plan = ll.sites(Table(), clouds(6, 5, 4)[0], sites="layers")
    assert [site.name for site in plan.sites] == ["last"]
    assert plan.dropped == ("embed (no axis of (1, 5, 4) follows the number of samples)",)


def test_an_input_and_an_output_of_one_module_are_told_apart() -> None:
    network = nn.Sequential()
    network.add_module("logits", nn.Linear(6, 3))
    plan = ll.sites(network, clouds(6, 6)[0], sites=["layers", "logits"])
    assert [site.name for site in plan.sites] == ["logits", "logits (logits)"]


def test_a_module_called_logits_is_meant_where_no_rule_stands_beside_the_name() -> None:
    network = nn.Sequential()
    network.add_module("one", nn.Linear(6, 6))
    network.add_module("logits", nn.Linear(6, 3))
    plan = ll.sites(network, clouds(6, 6)[0], sites=["one", "logits"])
    assert [(site.name, site.at) for site in plan.sites] == [("one", "output"), ("logits", "output")]
