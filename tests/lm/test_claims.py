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
