"""Classifiers of images and texts from Hugging Face: a folder, or a name on the hub, with image processor or tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from layerlaw.data.prepared import Kind
from layerlaw.errors import DataError, InputError, needed
from layerlaw.integrations.by_name import NamedModel, Wish
from layerlaw.lm.claims import check_claims
from layerlaw.lm.loading import quiet_transformers, refuse_kernels
from layerlaw.lm.tokenizer import explained
from layerlaw.lm.twins import seeded
from layerlaw.packed import check_weight_files

TASKS: dict[str, Kind] = {"ForImageClassification": "images", "ForSequenceClassification": "texts"}
WHAT = "a classifier of images or texts, with its image processor or tokenizer,"


def load_classifier(wish: Wish) -> NamedModel:
    """The model of a wish, and what prepares its inputs; never runs code that a model brings along."""
    transformers = needed("transformers", "lm", f"loading '{wish}'")
    if wish.weights is not None and not wish.drawn:
        raise InputError(f"{wish}: expected ?weights=random, or none for those that were saved, got {wish.weights!r}.")
    if wish.classes is not None and not wish.drawn:
        raise InputError(
            f"{wish}: saved weights are of the classes they were trained on; ?classes=… goes with &weights=random."
        )
    path = Path(wish.name).expanduser()
    where = str(path) if path.exists() else wish.name
    if path.is_dir() and not (path / "config.json").is_file():
        there = ", ".join(sorted(child.name for child in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path}: expected a model that transformers has saved, with a config.json, got {there}.")
    if path.is_dir():
        check_weight_files(path)
    with quiet_transformers(), explained(where, WHAT):
        own = {} if wish.classes is None else {"num_labels": wish.classes}
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=False, **own)
        refuse_kernels(config, where)
        reads, auto = _task(transformers, config, where)
        if path.is_dir():
            check_claims(config, path, auto)
        if wish.drawn:
            model = seeded(wish.seed, lambda: auto.from_config(config, trust_remote_code=False))
        else:
            how: Any = {"config": config, "weights_only": True, "output_loading_info": True}
            model, told = auto.from_pretrained(where, trust_remote_code=False, **how)
            if missing := sorted(told["missing_keys"]):
                cure = "Is it a model before it was trained to classify?"
                raise DataError(f"{wish}: expected weights of all layers, got none of {', '.join(missing[:4])}. {cure}")
        loader = transformers.AutoImageProcessor if reads == "images" else transformers.AutoTokenizer
        prepare = loader.from_pretrained(where, trust_remote_code=False)
    words = f"saved in {path.name}" if path.exists() else f"published as {where}"
    words = f"random (seed {wish.seed})" if wish.drawn else words
    names = tuple(str(label) for _, label in sorted(config.id2label.items()))
    generic = all(name == f"LABEL_{k}" for k, name in enumerate(names))
    most = _most_tokens(model, config) if reads == "texts" else None
    name = f"hf:{path.name if path.exists() else where}"
    return NamedModel(model, name, words, prepare, reads, None if generic else names, most)


def _most_tokens(model: nn.Module, config: Any) -> int | None:
    """How many tokens of a text a model takes; RoBERTa counts its positions from behind that of padding."""
    places = (m for name, m in model.named_modules() if name.endswith("position_embeddings"))
    padding = next((m.padding_idx for m in places if isinstance(m, nn.Embedding) and m.padding_idx is not None), -1)
    most = getattr(config, "max_position_embeddings", None)
    return most - padding - 1 if isinstance(most, int) and most > padding + 1 else None


def _task(transformers: Any, config: Any, where: str) -> tuple[Kind, Any]:
    """What a model reads, and the class that loads it."""
    autos = {
        "images": transformers.AutoModelForImageClassification,
        "texts": transformers.AutoModelForSequenceClassification,
    }
    saved_as = [str(name) for name in getattr(config, "architectures", None) or ()]
    for ending, reads in TASKS.items():
        if any(name.endswith(ending) for name in saved_as):
            return reads, autos[reads]
    knows: list[Kind] = [reads for reads in TASKS.values() if type(config) in autos[reads]._model_mapping]
    if len(knows) == 1 and not saved_as:
        return knows[0], autos[knows[0]]
    came = ", ".join(saved_as) or config.model_type
    cure = "layerlaw lm measures language models"
    raise InputError(f"'{where}': expected a classifier ({' or '.join(TASKS)}), got {came}; {cure}.")
