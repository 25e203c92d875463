"""Downloads that ended early: an error of ours that says so, whatever the format."""

from pathlib import Path

import pytest
import torch
from language_models import family

from layerlaw.errors import DataError
from layerlaw.lm import load


@pytest.mark.parametrize("form", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_end_early_are_cut_short(form: str, tmp_path: Path) -> None:
    model = family("gpt2")
    model.save_pretrained(tmp_path)
    if form.endswith(".bin"):
        (tmp_path / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / form)
    whole = (tmp_path / form).read_bytes()
    for share in (0.0, 0.001, 0.5, 0.999):
        (tmp_path / form).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=rf"{form}: .*cut short: download it again"):
            load(tmp_path)


def test_a_gguf_file_that_ends_early_is_cut_short(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs gguf")
    from test_gguf import written

    path = tmp_path / "model.gguf"
    written(path, family("llama"))
    whole = path.read_bytes()
    for share in (0.0, 0.01, 0.5, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=r"model\.gguf: .*cut short: download it again"):
            load(path)
