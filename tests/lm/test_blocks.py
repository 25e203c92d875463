"""Blocks that are named by hand, and blocks that return more than their hidden state."""

import dataclasses

import pytest
import torch
import transformers as tf
from language_models import DEPTH, FAMILIES, MASK, WIDTH, family, probed, walks
from torch import nn

from layerlaw.errors import CaptureError, InputError
from layerlaw.lm import find_blocks
from layerlaw.lm.anatomy import dry_inputs

IDS = walks()


def found(model, named=None):
    return find_blocks(model, dry_inputs(model, torch.device("cpu")), named)


def measured(model, **options):
    record = probed(model, IDS, groups=1, progress=False, **options)
    return record, {site.name: site.values["residual"] for site in record.sites}


@pytest.mark.parametrize("named", ["model.layers", [f"model.layers.{i}" for i in range(DEPTH)], "model.layers.*"])
def test_the_blocks_that_are_found_may_also_be_named(named):
    model = family("llama").double()
    assert measured(model, blocks=named)[1] == measured(model)[1]


def test_some_of_the_blocks_have_their_own_values_and_no_embedded_input():
    model = family("llama").double()
    everything, some = measured(model)[1], measured(model, blocks="model.layers.1, model.layers.2")[1]
    assert some == {name: everything[name] for name in ("model.layers.1", "model.layers.2")}


def test_parts_of_blocks_are_measured_in_the_order_they_end():
    record, _ = measured(family("llama"), blocks=["model.layers.*.mlp", "model.layers.*.self_attn"])
    names = [f"model.layers.{i}.{part}" for i in range(DEPTH) for part in ("self_attn", "mlp")]
    assert [site.name for site in record.sites] == names
    assert record.settings["blocks"].startswith("6 blocks of type LlamaAttention, LlamaMLP in 'model.layers'")


@pytest.mark.parametrize("name", ["llama", "gemma", "gemma2", "qwen3", "gpt2", "gpt_neox", "gpt1", "bert"])
@pytest.mark.parametrize("part", ["mlp|output", "attn|attention|self_attn"])
def test_parts_of_blocks_are_normalized_as_the_blocks_of_their_model_in_every_family(name, part):
    model, (_, _, _, norm, home) = family(name), FAMILIES[name]
    here = next(n for n, _ in model.get_submodule(f"{home}.0").named_children() if n in part.split("|"))
    blocks = found(model, f"{home}.*.{here}")
    assert (blocks.norm, len(blocks.sites)) == (norm, DEPTH)
    assert blocks.norm_name == found(model).norm_name


@pytest.mark.parametrize(
    ("named", "error", "said"),
    [
        (
            "model.layer",
            CaptureError,
            r"'model.layer' matches no module .* names: model.layers,(.|\n)*lm_head: Linear",
        ),
        ("model.layers.0", InputError, "expected at least 2 modules, got model.layers.0"),
        ("", CaptureError, "'' matches no module"),
        ([3], InputError, "expected names of modules"),
        ("lm_head,model.norm", CaptureError, r"'lm_head' to give \(2, 7, 32\) as 'model.norm' does, got \(2, 7, "),
        ("model.layers,model.rotary_emb", CaptureError, "'model.rotary_emb' to give|'model.layers.0' to give"),
    ],
)
def test_names_that_do_not_fit_are_told(named, error, said):
    with pytest.raises(error, match=said):
        found(family("llama"), named)


def test_a_module_that_does_not_run_is_told():
    model = family("llama")
    model.spare = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(CaptureError, match="'spare' was not called in the dry run"):
        found(model, "model.layers,spare")


def test_modules_that_do_not_pass_on_to_each_other_are_noted_and_their_ends_can_be_named():
    torch.manual_seed(0)
    model = tf.XLMWithLMHeadModel(tf.XLMConfig(vocab_size=150, emb_dim=32, n_layers=3, n_heads=2)).eval()
    record, _ = measured(model, mask_id=MASK)
    assert any("may be parts of blocks" in note for note in record.notes)
    assert record.sites[0].name == "transformer.ffns.0"  # what enters it is not the embedded text
    ends, _ = measured(model, mask_id=MASK, blocks="transformer.layer_norm2")
    assert [site.name for site in ends.sites] == [f"transformer.layer_norm2.{i}" for i in range(3)]
    assert not any("parts of blocks" in note for note in ends.notes)


@dataclasses.dataclass
class Result:
    attention_mask: torch.Tensor
    state: torch.Tensor


class Block(nn.Module):
    """Returns its result in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner = how, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = x + self.inner(x).tanh()
        return {
            "plain": y,
            "input first": (x, y),
            "input last": (y, x),
            "in a dictionary": {"before": x, "after": y},
            "in a dataclass": Result(torch.ones_like(y), y),
        }[self.how]


class Stack(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.table = nn.Embedding(150, WIDTH)
        self.layers = nn.ModuleList(Block(how) for _ in range(DEPTH))

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            y = layer(x)
            x = {
                "plain": lambda y=y: y,
                "input first": lambda y=y: y[1],
                "input last": lambda y=y: y[0],
                "in a dictionary": lambda y=y: y["after"],
                "in a dataclass": lambda y=y: y.state,
            }[layer.how]()
        return x


@pytest.mark.parametrize("how", ["input first", "input last", "in a dictionary", "in a dataclass"])
def test_the_hidden_state_is_what_a_block_has_made_whatever_it_returns_beside(how):
    torch.manual_seed(0)
    plain = Stack("plain").double()
    other = Stack(how).double()
    other.load_state_dict(plain.state_dict())
    assert measured(other)[1] == measured(plain)[1]


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.inner(x).tanh()
        x += y
        return x, y


class InPlaceStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(150, WIDTH)
        self.layers = nn.ModuleList(InPlace() for _ in range(DEPTH))

    def forward(self, ids):
        x = self.table(ids).clone()
        for layer in self.layers:
            x, _ = layer(x)
        return x


def test_a_state_that_is_changed_in_place_is_a_new_one():
    torch.manual_seed(0)
    plain, other = Stack("plain").double(), InPlaceStack().double()
    other.load_state_dict(plain.state_dict())
    assert measured(other)[1] == pytest.approx(measured(plain)[1], rel=1e-12)
