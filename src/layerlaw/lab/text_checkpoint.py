"""Language models on disk: one torch file with the arguments and the float32 weights; no pickled code is ever run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from layerlaw.errors import DataError, InputError
from layerlaw.files import replace_whole
from layerlaw.lab.gpt import GPT
from layerlaw.lab.recurrent import Recurrent
from layerlaw.lab.text_model import TextModel

FORMAT = "layerlaw text model"
VERSION = 1
KINDS: dict[str, type[GPT] | type[Recurrent]] = {"GPT": GPT, "Recurrent": Recurrent}


def save_text_model(model: TextModel, path: str | os.PathLike[str]) -> Path:
    """Write a model to one file, whole or not at all."""
    kind = type(model).__name__
    if KINDS.get(kind) is not type(model):
        raise InputError(f"model: expected a {' or a '.join(KINDS)} of layerlaw.lab, got {kind}.")
    state = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    del state["head.weight"]  # it is the embedding
    file = {"format": FORMAT, "version": VERSION, "kind": kind, "arguments": model.arguments, "state": state}
    return replace_whole(path, lambda part: torch.save(file, part))


def load_text_model(path: str | os.PathLike[str]) -> GPT | Recurrent:
    """A model as it was saved, on the CPU and in eval mode."""
    file = _read(Path(path))
    try:
        model = KINDS[file["kind"]](**file["arguments"])
        model.load_state_dict({**file["state"], "head.weight": file["state"]["embedding.weight"]})
    except (KeyError, TypeError, AttributeError, RuntimeError, InputError) as error:
        said = str(error).splitlines()
        raise DataError(
            f"{path}: expected a whole {FORMAT} of version {VERSION}, but a part is missing or wrong: "
            f"{' '.join(line.strip() for line in said[:3])[:300]}. Save it again with save_text_model."
        ) from None
    return model.eval()


def _read(path: Path) -> dict[str, Any]:
    try:
        file = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: expected a file written by save_text_model, found nothing there.") from None
    except (IsADirectoryError, PermissionError) as error:
        raise DataError(f"{path}: expected a file that can be read ({error.strerror}).") from None
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise DataError(
            f"{path}: expected a file written by save_text_model, got one that torch cannot read ({said}). "
            "It may be truncated: copy it again."
        ) from None
    if not isinstance(file, dict) or file.get("format") != FORMAT:
        raise DataError(f"{path}: expected a {FORMAT}, got another torch file. Was it written by save_text_model?")
    version = file.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise DataError(
            f"{path}: expected a {FORMAT} of version ≤ {VERSION}, got version {version}. "
            "It was written by a newer layerlaw: pip install --upgrade layerlaw"
        )
    return file
