"""Trainings with the Trainer of transformers: a classifier of token sequences and a causal language model, both tiny."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from training_parts import everything, seed_everything

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
VOCABULARY, LENGTH, CLASSES = 48, 12, 3
STEPS = {"num_train_epochs": 8, "per_device_train_batch_size": 16}  # of 80 samples: 40 steps


class Sentences(Dataset[dict[str, Any]]):
    """Token ids; the class is in the first ones. Every reading draws numbers and changes one token by them."""

    def __init__(self, samples: int = 80, *, of_tokens: bool = False) -> None:
        draw = torch.Generator().manual_seed(2)
        self.y = torch.arange(samples) % CLASSES
        self.ids = torch.randint(3, VOCABULARY, (samples, LENGTH), generator=draw)
        self.ids[:, 1:5] = self.y[:, None]
        self.of_tokens, self.own = of_tokens, np.random.default_rng(7)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, Any]:
        noise = random.random() + np.random.rand() + float(torch.rand(())) + self.own.random()  # noqa: NPY002
        ids = self.ids[i].clone()
        ids[-1] = int(noise * 10)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": ids if self.of_tokens else self.y[i],
        }


def model(kind: str) -> Any:
    torch.manual_seed(3)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    if kind == "language model":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attention_dropout=0.1))
    config = transformers.BertConfig(**sizes, num_labels=CLASSES, hidden_dropout_prob=0.1)
    return transformers.BertForSequenceClassification(config)


class Losses(transformers.TrainerCallback):
    """What the trainer logged."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.seen += [logs["loss"]] if "loss" in logs else []


def trainer_of(folder: Path, kind: str, **how: Any) -> Any:
    usual: dict[str, Any] = {
        "use_cpu": True, "report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "seed": 5,
        "learning_rate": 1e-2,
    }  # fmt: skip
    args = transformers.TrainingArguments(output_dir=str(folder), **STEPS | usual | how)
    data = Sentences(of_tokens=kind == "language model")
    return transformers.Trainer(model=model(kind), args=args, train_dataset=data)


def trained(trainer: Any) -> dict[str, Any]:
    """Train, and tell all that is left behind."""
    losses = Losses()
    trainer.add_callback(losses)
    seed_everything(11)
    trainer.train()
    return everything(trainer.model, trainer.optimizer.optimizer, losses.seen)
