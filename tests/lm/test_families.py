"""Every family by structure: blocks, norm, task, and residuals that equal scikit-learn's on the collected hidden states."""

import numpy as np
import pytest
import torch
from language_models import DEPTH, FAMILIES, MASK, WIDTH, family, probed, walks
from sklearn.linear_model import LinearRegression

from layerlaw.errors import CaptureError
from layerlaw.lm.anatomy import dry_inputs
from layerlaw.lm.blocks import find_blocks

IDS = walks()


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_norm_and_task_of_a_family_are_found_by_structure(name):
    model = family(name)
    _, _, task, norm, home = FAMILIES[name]
    record = probed(model, IDS, groups=2, mask_id=MASK)
    blocks = find_blocks(model, dry_inputs(model, torch.device("cpu")))
    assert (blocks.home, blocks.norm, len(blocks.sites), blocks.width) == (home, norm, DEPTH, WIDTH)
    assert record.settings["task"] == task
    assert [site.in_fit for site in record.sites] == [False, *[True] * DEPTH]
    residuals = [site.values["residual"] for site in record.sites]
    assert all(0 < value <= 1 for value in residuals)
    assert len({round(value, 9) for value in residuals}) == DEPTH + 1  # every block was seen, not one of them twice


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "mamba", "gemma"])
def test_residual_equals_scikit_learn_on_collected_hidden_states(name):
    model = family(name).double()
    record = probed(model, IDS, groups=2, tokens=10**6)
    states = collected(model, FAMILIES[name][4])
    y = IDS[:, 1:].reshape(-1).numpy().astype(float)
    norm = FAMILIES[name][3]
    eps = 1e-5 if norm == "layer" or name == "mamba" else 1e-6
    for site, X in zip(record.sites[1:], states, strict=True):
        X = X - X.mean(1, keepdims=True) if norm == "layer" else X
        X = X / np.sqrt((X**2).mean(1, keepdims=True) + eps)
        expected = 1 - LinearRegression().fit(X, y).score(X, y)
        assert site.values["residual"] == pytest.approx(expected, abs=1e-8)


def collected(model, home):
    """The outputs of all blocks, kept whole."""
    kept = []

    def keep(module, args, output):
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        kept.append(hidden[:, :-1].reshape(-1, hidden.shape[-1]).numpy())

    hooks = [block.register_forward_hook(keep) for block in model.get_submodule(home)]
    with torch.no_grad():
        model(input_ids=IDS)
    for hook in hooks:
        hook.remove()
    return kept


def test_the_trained_norm_at_the_end_changes_nothing():
    model = family("llama").double()
    model.model.norm.weight.data.uniform_(0.5, 2)
    record = probed(model, IDS, groups=2, tokens=10**6)
    with torch.no_grad():
        last = model(input_ids=IDS, output_hidden_states=True).hidden_states[-1]
    X, y = last[:, :-1].reshape(-1, WIDTH).numpy(), IDS[:, 1:].reshape(-1).numpy().astype(float)
    expected = 1 - LinearRegression().fit(X, y).score(X, y)
    assert record.sites[-1].values["residual"] == pytest.approx(expected, abs=1e-8)


def test_blocks_that_are_called_twice_are_two_sites():
    record = probed(family("albert"), IDS, mask_id=MASK, groups=1)
    home = "albert.encoder.albert_layer_groups.0"
    assert [site.name for site in record.sites[1:]] == [home, f"{home}#2", f"{home}#3"]


def test_a_model_without_blocks_gets_its_tree():
    class Bag(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(200, 8)
            self.tower = torch.nn.Linear(8, 200)

        def forward(self, input_ids):
            return self.tower(self.table(input_ids))

    with pytest.raises(CaptureError, match=r"no blocks found.*\n.*table: Embedding\n.*tower: Linear"):
        probed(Bag(), IDS)


def test_the_model_is_afterwards_as_it_was():
    model = family("llama").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probed(model, IDS, groups=1)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_padding_changes_nothing():
    model = family("llama").double()
    ids = list(walks(40))
    ragged = [piece[: 20 + 7 * (i % 5)] for i, piece in enumerate(ids)]
    one = probed(model, ragged, groups=1, batch_size=1)
    many = probed(model, ragged, groups=1, batch_size=16)
    assert one.counts == many.counts
    for a, b in zip(one.sites, many.sites, strict=True):
        assert a.values["residual"] == pytest.approx(b.values["residual"], abs=1e-12)
