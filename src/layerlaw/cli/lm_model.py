"""MODEL and --tokenizer of `layerlaw lm`: what stands behind these words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from layerlaw.cli.model_file import load_model
from layerlaw.errors import InputError
from layerlaw.lm import load_tokenizer


def chosen_model(reference: str, tokenizer: str | None) -> tuple[nn.Module | str, Any]:
    """(model, or what probe_lm is to load; tokenizer or None) from the words of the command line."""
    words: Any = load_tokenizer(tokenizer) if tokenizer is not None else None
    path = Path(reference).expanduser()
    if path.suffix in (".pt", ".pth"):
        from layerlaw.lab import load_text_model

        if words is None:
            raise InputError(f"{reference}: a model of the lab has no tokenizer of its own: name one with --tokenizer.")
        return load_text_model(path), words
    if ":" not in reference or path.exists():
        return reference, words
    model, own, more = load_model(reference, "or (model, tokenizer)")
    if more is not None or not (own is None or callable(own)):
        raise InputError(
            f"{reference}: expected a callable that returns a model or (model, tokenizer), got more or others."
        )
    words = words if words is not None else own
    if words is None:
        raise InputError(
            f"{reference}: expected a tokenizer for the text: return (model, tokenizer), or use --tokenizer."
        )
    return model, words
