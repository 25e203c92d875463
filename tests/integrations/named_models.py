"""Small classifiers of transformers in folders, as save_pretrained leaves them; and libraries that may be missing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from layerlaw.lm.loading import quiet_transformers

OPERATORS: list[torch.library.Library] = []  # what is defined lasts as long as these
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "fine", "bad", "poor", "film", "book", "a", "very")


def fit_torchvision() -> None:
    """Import torchvision where it is installed, also where its compiled operators do not fit this torch."""
    if importlib.util.find_spec("torchvision") is None or "torchvision" in sys.modules:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchvision")
        except RuntimeError:  # "operator torchvision::nms does not exist"
            for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
                del sys.modules[module]
            OPERATORS.append(torch.library.Library("torchvision", "DEF"))
            for operator in ("nms", "qnms"):
                OPERATORS[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            importlib.import_module("torchvision")


def vision_library(name: str) -> Any:
    """timm or torchvision."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    fit_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def save_image_classifier(folder: Path, *, classes: int = 3, processor: bool = True, **more: Any) -> Path:
    """A vision transformer for pictures of 16×16 pixels, and its processor."""
    fit_torchvision()
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    size = {"image_size": 16, "patch_size": 8}
    shape = {"hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    with contextlib.redirect_stderr(io.StringIO()), quiet_transformers():
        config = transformers.ViTConfig(**shape, **size, num_labels=classes, **more)
        transformers.ViTForImageClassification(config).save_pretrained(folder)
        if processor:
            made = transformers.ViTImageProcessor(
                size={"height": 16, "width": 16}, image_mean=[0.2] * 3, image_std=[0.3] * 3
            )
            made.save_pretrained(folder)
    return folder


def save_text_classifier(folder: Path, *, kind: str = "ForSequenceClassification", family: str = "Bert") -> Path:
    """A small BERT (or Roberta) that knows a dozen words, and its tokenizer."""
    fit_torchvision()
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    shape = {"hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    with contextlib.redirect_stderr(io.StringIO()), quiet_transformers():
        config = getattr(transformers, f"{family}Config")(
            **shape, pad_token_id=0, vocab_size=len(WORDS), max_position_embeddings=12, num_labels=2
        )
        config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
        getattr(transformers, f"{family}{kind}")(config).save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
    return folder


TEXTS = [f"a {'very ' * (i % 3)}{word} {thing}" for i in range(6) for word in WORDS[4:8] for thing in ("film", "book")]
LABELS = [int("good" in text or "fine" in text) for text in TEXTS]
