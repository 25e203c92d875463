"""What the experiments on language models share: the real model, texts, and models of our own, trained once and kept."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlaw.data import load_text
from layerlaw.data.official import ENVIRONMENT, data_folder
from layerlaw.errors import DataError
from layerlaw.experiments.setting import Setting
from layerlaw.lab import GPT, Recurrent, TextRecipe, load_text_model, save_text_model, train_text
from layerlaw.lab.text_model import TextModel
from layerlaw.lm import Loaded, load, probe_lm
from layerlaw.lm.pieces import pieces_of
from layerlaw.lm.vocabulary import train_vocabulary
from layerlaw.record import Record

REAL = "SmolLM2-135M-Instruct"
TOKENS = 122_880  # 240 pieces of 512: what the reference numbers were measured on
VOCABULARY = 8192
HELD_OUT = 6  # books that are not trained on
CONTEXT = 256
KINDS = {"gpt": GPT, "masked": GPT, "recurrent": Recurrent}


def real_model(setting: Setting) -> Loaded:
    """SmolLM2-135M from LAYERLAW_DATA/smollm2 (a folder of transformers, or a GGUF file); quickly: a tiny GPT."""
    setting.networks += 1
    if setting.quick:
        return Loaded(tiny(), None, "tiny GPT")
    return _loaded(_place("smollm2"), setting.device)


@cache
def _loaded(place: Path, device: str) -> Loaded:
    files = sorted(place.glob("*.gguf"))
    where = place if (place / "config.json").exists() or not files else files[0]
    loaded = load(where, dtype="float32")
    return Loaded(loaded.model.to(device), loaded.tokenizer, REAL)


def _place(name: str) -> Path:
    folder = data_folder()
    if folder is None or not (folder / name).is_dir():
        raise DataError(
            f"expected a folder {name}/ in the folder that the environment variable {ENVIRONMENT} names, found none. Put "
            "the model there (a folder saved by transformers, or a GGUF file); --quick needs none."
        )
    return folder / name


def measured(setting: Setting, *, first: int | None = None, **options: Any) -> Record:
    """The real model on wikitext-2 (validation and test parts); quickly: the tiny one on walks.

    `first`: only so many tokens from the beginning of the text are given to it.
    """
    loaded = real_model(setting)
    if setting.quick:
        text: Any = walks(160, 64, seed=1)
        options = {
            **options,
            "tokens": min(options.get("tokens", 10**6), 10**6),
            "classes": min(options.get("classes", 0), 20),
        }
    else:
        found = load_text("wikitext-2")
        text, setting.checksums["wikitext-2"] = found.documents, found.checksum
        options = {"tokens": TOKENS, "batch_size": 8 if setting.device == "cpu" else 32, **options}
    if first is not None:
        whole = pieces_of(text, loaded.tokenizer).ids
        text = whole[: max(1, round(first / len(whole[0])))]
        options["tokens"] = 10**9
    record = probe_lm(
        loaded.model, text, tokenizer=loaded.tokenizer, progress=setting.progress, name=loaded.name, **options
    )
    setting.checksums["tokens"] = record.provenance["data_sha256"]
    return record


@cache
def tiny() -> GPT:
    """A GPT that has learnt a Markov chain for a moment: something for quick runs."""
    torch.manual_seed(0)
    model = GPT(vocabulary=128, width=32, depth=6, heads=4, context=64)
    recipe = TextRecipe(steps=120, batch_size=16, context=32, learning_rate=3e-3, warmup=10)
    train_text(model, walks(400, 64, seed=0).reshape(-1), recipe, progress=False)
    return model.eval()


def walks(documents: int, length: int, *, seed: int, size: int = 120) -> Tensor:
    """Documents of a Markov chain over `size` tokens with four successors each."""
    generator = torch.Generator().manual_seed(seed)
    successors = torch.randint(0, size, (size, 4), generator=torch.Generator().manual_seed(7))
    ids = torch.randint(0, size, (documents, length), generator=generator)
    for t in range(1, length):
        choice = torch.randint(0, 4, (documents,), generator=generator)
        ids[:, t] = successors[ids[:, t - 1], choice]
    return ids


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on (one stream), and held-out pieces to measure on."""

    vocabulary: int
    train: Tensor
    held_out: list[Tensor]
    checksum: str


def books(setting: Setting) -> Corpus:
    """Classic books in byte pairs, the last six held out; quickly: walks."""
    if setting.quick:
        return Corpus(128, walks(400, 64, seed=0).reshape(-1), list(walks(160, 64, seed=1)), "walks")
    corpus = _books()
    setting.checksums["classic-books"] = corpus.checksum
    return corpus


@cache
def _books() -> Corpus:
    text = load_text("classic-books")
    tokenizer = train_vocabulary(text.documents[:-HELD_OUT], VOCABULARY)
    train, held = (
        pieces_of(part, tokenizer, length=CONTEXT, documents="cut").ids
        for part in (text.documents[:-HELD_OUT], text.documents[-HELD_OUT:])
    )
    return Corpus(VOCABULARY, torch.cat(train), [piece for piece in held if len(piece) == CONTEXT], text.checksum)


@dataclass(frozen=True)
class Shaped:
    """What kind of model, how deep and how wide, trained how."""

    kind: str
    depth: int
    width: int
    seed: int
    steps: int
    batch_size: int = 64

    @property
    def name(self) -> str:
        """Kind, depth × width, seed."""
        return f"{self.kind} {self.depth}×{self.width}, seed {self.seed}"

    def recipe(self, context: int) -> TextRecipe:
        """The same for every size, but for the rate, which falls with the width."""
        rate = 1e-3 * (256 / self.width) ** 0.5
        task: Any = "masked" if self.kind == "masked" else "next"
        warmup = min(100, self.steps // 5)
        return TextRecipe(self.steps, self.batch_size, context, rate, warmup, task=task, seed=self.seed)

    def model(self, vocabulary: int, context: int) -> TextModel:
        """Freshly drawn."""
        torch.manual_seed(self.seed)
        size: dict[str, Any] = {"vocabulary": vocabulary, "width": self.width, "depth": self.depth, "context": context}
        if self.kind == "recurrent":
            return Recurrent(**size)
        return GPT(**size, heads=max(1, self.width // 64), causal=self.kind == "gpt")


def trained(setting: Setting, shaped: Shaped, corpus: Corpus, at_steps: tuple[int, ...] = ()) -> dict[int, TextModel]:
    """The model after each of the chosen steps and at the end; kept in the folder, where other experiments find it."""
    if setting.quick:
        shaped = replace(shaped, batch_size=8)
    steps = tuple(sorted({*at_steps, shaped.steps}))
    setting.networks += 1
    setting.used_seeds.add(shaped.seed)
    context = len(corpus.held_out[0])
    places = {step: _kept(setting, shaped, corpus, step) for step in steps}
    if all(place is not None and place.exists() for place in places.values()):
        return {step: load_text_model(place) for step, place in places.items() if place is not None}
    model = shaped.model(corpus.vocabulary, context)
    found: dict[int, TextModel] = {}

    def visit(step: int) -> None:
        copy = shaped.model(corpus.vocabulary, context)
        copy.load_state_dict({name: value.detach().cpu() for name, value in model.state_dict().items()})
        found[step] = copy.eval()
        place = places[step]
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            save_text_model(copy, place)

    train_text(
        model,
        corpus.train,
        shaped.recipe(context),
        at_steps=steps,
        visit=visit,
        progress=setting.progress,
        device=setting.device,
    )
    return found


def _kept(setting: Setting, shaped: Shaped, corpus: Corpus, step: int) -> Path | None:
    if setting.folder is None:
        return None
    key = json.dumps([asdict(shaped), corpus.checksum, step], sort_keys=True)
    return setting.folder.parent / "language-models" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.pt"


def measured_own(setting: Setting, model: TextModel, corpus: Corpus, **options: Any) -> Record:
    """A model of our own on held-out books."""
    return probe_lm(
        model, corpus.held_out, mask_id=corpus.vocabulary - 1, device=setting.device, length=CONTEXT,
        batch_size=32, progress=setting.progress, **options,
    )  # fmt: skip
