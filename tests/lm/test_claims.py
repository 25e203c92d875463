"""Folders of models whose config.json claims more than their weights are: an answer before memory and time are taken."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from language_models import family

from layerlaw.errors import DataError
from layerlaw.lm import load
from layerlaw.lm.claims import check_claims
from layerlaw.lm.tokenizer import error_line


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5"])
def test_a_model_as_it_was_saved_claims_what_it_holds(kind: str, tmp_path: Path) -> None:
    model = family(kind)
    model.save_pretrained(tmp_path)
    before = model.config.to_dict()
    check_claims(model.config, tmp_path, type(model))
    assert model.config.to_dict() == before


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"n_layer": 100_000}, r"expected weights for n_layer = 100,000, as config.json says, got \d+ tensors"),
        ({"n_layer": 100_000, "n_embd": 1_048_576}, "n_layer = 100,000"),
        (
            {"n_embd": 1_048_576},
            r"weights for the [\d,]+ numbers of its model.*, as config.json says, got [\d,]+ bytes",
        ),
        ({"vocab_size": 10**10}, "as config.json says"),
        ({"n_layer": 1000}, "n_layer = 1,000"),
        ({"n_positions": 10**8}, "as config.json says"),
    ],
)
def test_a_config_that_claims_far_more_than_its_weights_is_refused_at_once(
    claim: dict[str, Any], message: str, tmp_path: Path
) -> None:
    family("gpt2").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | claim))
    began = time.process_time()
    with pytest.raises(DataError, match=message):
        load(tmp_path)
    assert time.process_time() - began < 10


def test_an_error_without_words_is_named() -> None:
    assert error_line(MemoryError()) == "MemoryError"
    assert error_line(ValueError("\x1b[31ma\n b\x1b[0m")) == "a b"


def test_masks_and_positions_that_a_config_claims_are_counted(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
    kinds = {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64}
    transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**sizes, **kinds)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 30_000}))
    with pytest.raises(
        DataError, match=r"weights for the [\d,]+ numbers of its model \(parameters, masks, positions\)"
    ):
        load(tmp_path)


def test_a_model_whose_files_lack_weights_is_refused(tmp_path: Path) -> None:
    """transformers would draw them at random, others in every run."""
    from safetensors.torch import load_file, save_file

    family("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if "down_proj" in name)
    kept = {key: value for key, value in weights.items() if key != name}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=rf"expected weights for all parameters, got none for '{name}'"):
        load(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    file = tmp_path / "config.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"num_hidden_layers": about["num_hidden_layers"] + 1}))
    with pytest.raises(DataError, match=r"got none for .* and \d+ more\. Is config\.json that of these weights"):
        load(tmp_path)
