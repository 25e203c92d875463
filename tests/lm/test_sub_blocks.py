"""The states between attention and the MLP: where they are, what they are, and the plain answer where there are none."""

import math

import numpy as np
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from language_models import DEPTH, FAMILIES, MASK, SIZE, VOCABULARY, WIDTH, family, probed, walks  # noqa: E402

from layerlaw.errors import CaptureError, InputError  # noqa: E402
from layerlaw.lm import find_blocks  # noqa: E402
from layerlaw.lm.anatomy import dry_inputs  # noqa: E402
from layerlaw.lm.sub_blocks import one_branch_note, with_sub_blocks  # noqa: E402
from layerlaw.verdict import judge  # noqa: E402
from layerlaw.verdict.changes import branch_changes, branch_rows  # noqa: E402

WITHOUT = ("gpt_neox", "phi", "mamba")
BRANCHES = {
    "gpt2": ("attn", "mlp"), "bloom": ("self_attention", "mlp"), "gpt1": ("attn", "mlp"), "gemma2": ("self_attn", "mlp"),
    "rwkv": ("attention", "feed_forward"), "bert": ("attention", "output"), "distilbert": ("attention", "ffn"),
    "albert": ("albert_layers.0.attention", "albert_layers.0.ffn_output"), "t5": ("layer.0", "layer.1", "layer.2"),
    "bart": ("self_attn", "encoder_attn", "fc2"),
}  # fmt: skip
BRANCHES |= dict.fromkeys(("bert_base", "roberta"), BRANCHES["bert"])


def split(model):
    dry = dry_inputs(model, torch.device("cpu"))
    return with_sub_blocks(model, find_blocks(model, dry), dry)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITHOUT])
def test_every_sequential_family_has_a_state_after_each_branch_in_any_dtype(name, dtype):
    found = split(family(name).to(dtype))
    branches = BRANCHES.get(name, ("self_attn", "mlp"))
    assert [site.in_fit for site in found.sites] == ([False] * (len(branches) - 1) + [True]) * DEPTH
    ends = [site for site in found.sites if site.in_fit]
    for i, site in enumerate(found.sites[: len(branches) - 1]):
        assert site.name == f"{ends[0].name} after {branches[i]}"
    assert [part.module.removeprefix(f"{ends[0].module}.") for part in found.parts[: len(branches)]] == list(branches)
    assert [part.kind for part in found.parts] == ([*["attention"] * (len(branches) - 1), "mlp"]) * DEPTH
    assert str(found).startswith(f"{DEPTH} blocks of type ")


def states_after_attention(model, ids, attention, block):
    """x + attention by hand, from what the block reads and what the attention module gives."""
    seen = {}

    def read(module, args, kwargs):
        seen["x"] = args[0] if args else kwargs["hidden_states"]

    hooks = [
        block.register_forward_pre_hook(read, with_kwargs=True),
        attention.register_forward_hook(lambda m, args, out: seen.update(a=out[0])),
    ]
    with torch.no_grad():
        model(input_ids=ids)
    for hook in hooks:
        hook.remove()
    return (seen["x"] + seen["a"]).double().numpy()


def residual_of(states, ids, norm):
    """PR in-sample by NumPy's least squares."""
    X = states[:, :-1].reshape(-1, states.shape[-1])
    if norm == "layer":
        X = X - X.mean(1, keepdims=True)
    X = X / np.sqrt((X**2).mean(1, keepdims=True) + 1e-6)
    y = ids[:, 1:].reshape(-1).double().numpy()
    A = np.column_stack([X, np.ones(len(X))])
    left = y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
    return (left**2).sum() / ((y - y.mean()) ** 2).sum()


@pytest.mark.parametrize(("name", "where"), [("llama", "model.layers"), ("gpt2", "transformer.h")])
def test_the_residual_after_attention_is_that_of_x_plus_attention(name, where):
    model, ids = family(name), walks(40, 48)
    record = probed(model, ids, sites="sub-blocks", groups=4)
    for i, block in enumerate(model.get_submodule(where)):
        attention = block.self_attn if name == "llama" else block.attn
        expected = residual_of(states_after_attention(model, ids, attention, block), ids, FAMILIES[name][3])
        row = record.sites[record.position(f"{where}.{i} after {'self_attn' if name == 'llama' else 'attn'}")]
        assert row.values["residual"] == pytest.approx(expected, abs=2e-6)
        assert not row.in_fit


def test_blocks_and_their_law_are_the_same_with_and_without_states_inside():
    whole, inside = (probed(family("llama"), walks(), sites=sites, null=True) for sites in ("blocks", "sub-blocks"))
    ends = [site for site in inside.sites if " after " not in site.name]
    assert [site.values for site in ends] == [site.values for site in whole.sites]
    assert inside.law() == whole.law()
    assert inside.numbers == ["in", "·", "1", "·", "2", "·", "3"]
    assert inside.settings["sites"] == "sub-blocks"
    assert "sites" not in whole.settings
    assert whole.parts == []
    assert all("residual_untrained" in site.values for site in inside.sites)


def test_the_changes_of_the_branches_add_up_to_the_fall_from_the_embedded_input():
    record = probed(family("gpt2"), walks(), sites="sub-blocks", groups=5)
    changes, column = branch_changes(record), record.leading
    first, last = record.sites[0].values[column], record.sites[-1].values[column]
    assert set(changes) == {"attention", "mlp"}
    assert sum(change.change for change in changes.values()) == pytest.approx(math.log(last / first))
    by_part = [part.change(column) for part in record.parts if part.kind == "mlp"]
    assert changes["mlp"].change == pytest.approx(sum(by_part))
    rows = [(before, after) for part, before, after in branch_rows(record) if part.kind == "mlp"]
    logs = np.array([[math.log(a / b) for b, a in zip(before.left_out[column], after.left_out[column], strict=True)]
                     for before, after in rows]).sum(0)  # fmt: skip
    assert changes["mlp"].error == pytest.approx(math.sqrt(4 / 5 * ((logs - logs.mean()) ** 2).sum()))
    assert any("at attention and" in finding and "at the MLPs" in finding for finding in judge(record).findings)


@pytest.mark.parametrize("name", ["gpt_neox", "phi"])
def test_parallel_blocks_are_told_to_have_no_state_after_attention(name):
    told = r"adds '.*att.*' and '.*mlp' at once .*a parallel block.*no state after attention"
    with pytest.raises(CaptureError, match=told):
        probed(family(name), walks(), sites="sub-blocks")


def test_a_block_of_one_branch_is_told_to_have_none_inside():
    with pytest.raises(CaptureError, match=r"one branch only \('backbone.layers.0.mixer'\)"):
        probed(family("mamba"), walks(), sites="sub-blocks")


def test_gpt_neox_with_sequential_residuals_has_one():
    config = transformers.GPTNeoXConfig(**SIZE, use_parallel_residual=False)
    torch.manual_seed(0)
    found = split(transformers.GPTNeoXForCausalLM(config).eval())
    assert [site.name for site in found.sites[:2]] == ["gpt_neox.layers.0 after attention", "gpt_neox.layers.0"]


def test_a_branch_with_a_factor_is_found():
    config = transformers.GraniteConfig(**SIZE, num_key_value_heads=2, residual_multiplier=0.22)
    for seed in range(8):  # small branches: the factor that is found is rounded as the states are
        torch.manual_seed(seed)
        assert len(split(transformers.GraniteForCausalLM(config).eval()).parts) == 2 * DEPTH


class Block(nn.Module):
    """One branch, or two, with or without a module that reads the state between them."""

    def __init__(self, branches, *, seen=True):
        super().__init__()
        self.mixes, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH) if seen else None
        self.mlp = nn.Linear(WIDTH, WIDTH) if branches > 1 else None

    def forward(self, x):
        x = x + self.mixes(x)
        return x if self.mlp is None else x + self.mlp(self.norm(x) if self.norm else torch.tanh(x))


class Mixed(nn.Module):
    """Blocks of two branches and one block of one."""

    def __init__(self, *branches, seen=True):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(many, seen=seen) for many in branches)
        self.config = type("Config", (), {"vocab_size": VOCABULARY})()

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_without_a_state_inside_stay_whole_and_a_note_names_them():
    torch.manual_seed(0)
    found = split(Mixed(2, 1, 2))
    names = [site.name for site in found.sites]
    assert names == ["blocks.0 after mixes", "blocks.0", "blocks.1", "blocks.2 after mixes", "blocks.2"]
    assert one_branch_note(found) == "1 of 3 blocks have no state between branches: blocks.1."
    record = probed(Mixed(2, 1, 2), walks(), sites="sub-blocks", task="next")
    assert one_branch_note(found) in record.notes
    assert [part.layer for part, _, _ in branch_rows(record)] == ["blocks.0", "blocks.0", "blocks.2", "blocks.2"]


def test_a_state_that_no_module_sees_is_not_called_a_parallel_block():
    torch.manual_seed(0)
    with pytest.raises(CaptureError, match=r"'blocks.0.mlp', but no module reads or gives the state between"):
        split(Mixed(2, 2, seen=False))


def test_named_modules_without_sub_blocks_get_no_note_about_them():
    record = probed(family("llama"), walks(), blocks="model.layers.*.mlp")
    assert not any("between branches" in note for note in record.notes)
    some = probed(family("llama"), walks(), blocks=["model.layers.1", "model.layers.2"], sites="sub-blocks")
    assert [site.name for site in some.sites] == [
        f"model.layers.{i}{what}" for i in (1, 2) for what in (" after self_attn", "")
    ]
    assert not any("between branches" in note for note in some.notes)


def test_masked_and_span_tasks_have_sub_blocks_too():
    bert = probed(family("bert"), walks(), sites="sub-blocks", mask_id=MASK)
    assert len(bert.sites) == 1 + 2 * DEPTH
    assert {part.kind for part in bert.parts} == {"attention", "mlp"}


def test_other_words_for_sites_are_answered():
    with pytest.raises(InputError, match="sites: expected one of blocks, sub-blocks, got 'layers'"):
        probed(family("llama"), walks(), sites="layers")
