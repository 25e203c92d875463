"""MODEL and --tokenizer of `layerlaw lm`: what stands behind these words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerlaw.cli.model_file import load_model
from layerlaw.errors import InputError
from layerlaw.lm import Loaded, load, load_tokenizer


def chosen_model(reference: str, tokenizer: str | None, **options: Any) -> Loaded:
    """The model and its tokenizer from the words of the command line; the options are those of `lm.load`."""
    words: Any = load_tokenizer(tokenizer)
    path = Path(reference).expanduser()
    if path.suffix in (".pt", ".pth"):
        from layerlaw.lab import load_text_model

        if words is None:
            raise InputError(f"{reference}: a model of the lab has no tokenizer of its own: name one with --tokenizer.")
        return load(load_text_model(path), tokenizer=words, **options)
    if ":" not in reference or path.exists():
        return load(reference, tokenizer=words, **options)
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
    return load(model, tokenizer=words, **options)
