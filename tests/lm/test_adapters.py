"""Folders of adapters: what their files lack is told by name, and is never drawn at random."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import family
from safetensors.torch import load_file, save_file

from layerlaw.errors import DataError
from layerlaw.lm import load
from layerlaw.lm.adapters import missing_refused, not_stored, refuse_missing_adapter

NAMES = [f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{ab}.weight" for i in (0, 1) for ab in "AB"]
WEIGHTS = {name: torch.zeros(2, 3) for name in NAMES}


def write(folder: Path, weights: dict[str, Any], kind: str) -> None:
    if kind == "bin":
        torch.save(weights, folder / "adapter_model.bin")
    else:
        save_file(weights, folder / "adapter_model.safetensors")


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_that_the_file_lacks_are_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path, WEIGHTS, kind)
    refuse_missing_adapter(NAMES, tmp_path)
    write(tmp_path, {name: WEIGHTS[name] for name in NAMES[:3]}, kind)
    with pytest.raises(
        DataError, match=r"expected weights for all parts of the adapter, got none for .*layers\.1.*lora_B"
    ):
        refuse_missing_adapter(NAMES, tmp_path)


def test_of_many_three_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    write(tmp_path, {"other": torch.zeros(1)}, "safetensors")
    with pytest.raises(DataError, match=r"lora_A.weight' and 1 more\. Is adapter_config\.json that of these weights"):
        refuse_missing_adapter(NAMES, tmp_path)


def test_a_folder_without_weights_and_a_file_without_names_are_answered(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the weights of an adapter \(adapter_model.safetensors or"):
        refuse_missing_adapter(NAMES, tmp_path)
    torch.save([torch.zeros(2)], tmp_path / "adapter_model.bin")
    with pytest.raises(DataError, match="expected weights by their names, got 'list'"):
        refuse_missing_adapter(NAMES, tmp_path)


def test_layers_may_have_moved_but_each_counts_once() -> None:
    moved = [name.replace("model.model.layers", "model.language_model.layers") for name in NAMES]
    assert not_stored(NAMES, moved) == []
    twice = NAMES + [name.replace("model.model.layers", "model.vision.layers") for name in NAMES]
    assert len(not_stored(twice, moved)) == len(NAMES)
    assert not_stored(["base.head.weight"], ["other.head.weight"]) == [
        "base.head.weight"
    ]  # no layer: by the whole name


def test_experts_are_left_to_peft() -> None:
    assert not_stored(["m.layers.0.mlp.experts.lora_A.weight"], ["m.layers.0.mlp.experts.3.up.lora_A.weight"]) == []


def test_what_peft_warns_of_is_refused_and_other_warnings_pass(tmp_path: Path) -> None:
    said = f"Found missing adapter keys while loading the checkpoint: {NAMES}."
    with (
        pytest.raises(DataError, match=r"got none for 'base_model.*lora_A.weight' and 1 more\."),
        missing_refused(tmp_path),
    ):
        warnings.warn(said, stacklevel=1)
    with pytest.raises(DataError, match=r"got none for 'lm_head.weight'\."), missing_refused(tmp_path):
        raise KeyError("lm_head.weight")
    with pytest.warns(UserWarning, match="other"), missing_refused(tmp_path):
        warnings.warn("other", stacklevel=1)


def test_a_damaged_adapter_is_not_loaded(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    base = family("llama")
    base.save_pretrained(tmp_path / "base")
    targets = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=4, **targets))
    model.save_pretrained(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}))
    load(tmp_path / "adapter", tokenizer=object())
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    for part in ("lora_B", "lm_head"):
        gone = next(name for name in weights if part in name)
        save_file({name: value for name, value in weights.items() if name != gone}, file)
        with pytest.raises(DataError, match=f"all parts of the adapter, got none for '{gone.rpartition('.')[0]}"):
            load(tmp_path / "adapter", tokenizer=object())
