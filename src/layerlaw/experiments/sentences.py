"""What the experiments on sentences need: GLUE tasks, a BERT encoder with a head, its fine-tuning, its records.

Quickly: sentences of invented words, and a tiny BERT with random weights.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layerlaw.data.official import ENVIRONMENT, find, read_bytes
from layerlaw.errors import DataError
from layerlaw.experiments.setting import Setting, model_folder
from layerlaw.lab.trainer import Recorded, steps
from layerlaw.lm.loading import Loaded, drawn, load
from layerlaw.lm.twins import untrained_twin
from layerlaw.probing import probe
from layerlaw.progress import Progress, choose
from layerlaw.provenance import parameter_digest
from layerlaw.record import Record

CLASSES = ("negative", "positive")
LENGTH = 64  # tokens; 4 of the 67,349 training sentences have more
POOL = 16  # batches whose sentences are sorted by length together: little padding, and still mixed
MEASURED = 100  # sentences in a batch when measuring
CLIP = 1.0  # the most that the gradient's norm may be
TINY: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 32,
}  # fmt: skip
FIRST_WORD = 4  # of the invented words: the ids below are [PAD], [CLS], [SEP] and one that is not used
Token = Literal["first", "mean"]


@dataclass(frozen=True)
class Sentences:
    """Token ids of sentences (or pairs of them, one behind the other) and their labels (n,).

    `types` are 1 at the second sentence of a pair; `length`: tokens to which all are padded, not to the longest of a batch.
    """

    ids: tuple[tuple[int, ...], ...]
    labels: Tensor
    types: tuple[tuple[int, ...], ...] | None = None
    length: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, index: Sequence[int]) -> dict[str, Tensor]:
        """Chosen sentences, padded to the longest of them or to the length of all."""

        def padded(rows: list[Tensor]) -> Tensor:
            together = nn.utils.rnn.pad_sequence(rows, batch_first=True)
            return nn.functional.pad(together, (0, max(0, self.length - together.shape[1])))

        rows = [torch.tensor(self.ids[i]) for i in index]
        found = {"input_ids": padded(rows), "attention_mask": padded([torch.ones_like(row) for row in rows])}
        if self.types is not None:
            found["token_type_ids"] = padded([torch.tensor(self.types[i]) for i in index])
        return found | {"labels": self.labels[list(index)]}

    def batches(self) -> list[dict[str, Tensor]]:
        """All of them for measuring, the longest first."""
        order = sorted(range(len(self)), key=lambda i: -len(self.ids[i]))
        return [self.batch(order[i : i + MEASURED]) for i in range(0, len(order), MEASURED)]

    def first(self, count: int) -> Sentences:
        """The first so many."""
        types = None if self.types is None else self.types[:count]
        return Sentences(self.ids[:count], self.labels[:count], types, self.length)


@dataclass(frozen=True)
class SentenceTask:
    """Sentences to train on, of which the first `measured` are also measured (balanced), and sentences to test on."""

    train: Sentences
    measured: int
    dev: Sentences


@dataclass(frozen=True)
class GlueTable:
    """How the tables of a task are laid out: folders, lines of head, columns of the texts and of the label, the labels."""

    folders: tuple[str, ...]
    head: int
    columns: int
    texts: tuple[slice, ...]
    label: int
    labels: tuple[str, str] = ("0", "1")


GLUE = {
    "sst2": GlueTable(("sst2", "SST-2", "glue/SST-2"), 1, 2, (slice(0, -1),), -1),
    "cola": GlueTable(("glue/CoLA", "CoLA", "cola"), 0, 4, (slice(3, None),), 1),
    "rte": GlueTable(("glue/RTE", "RTE", "rte"), 1, 4, (slice(1, 2), slice(2, 3)), 3, ("not_entailment", "entailment")),
    "mrpc": GlueTable(("glue/MRPC", "MRPC", "mrpc"), 1, 5, (slice(3, 4), slice(4, 5)), 0),
}


@dataclass(frozen=True)
class Tuning:
    """AdamW with weight decay .01, a rate that rises over a tenth of the steps and falls to 0 in a line, dropout .1."""

    sentences: int
    epochs: int
    rate: float = 5e-5
    batch_size: int = 32


class Classifier(nn.Module):
    """An encoder and a linear head on the first token of its last layer; the encoder's own pooler is not used."""

    def __init__(self, encoder: nn.Module, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width: int = encoder.config.hidden_size  # type: ignore[union-attr, assignment]
            self.head = nn.Linear(width, len(CLASSES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Scores (n, 2)."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        states = self.encoder(**given).last_hidden_state  # (n, T, d)
        scores: Tensor = self.head(self.dropout(states[:, 0]))
        return scores


def encoder_of(setting: Setting, seed: int, *, trained: bool) -> nn.Module:
    """MiniLM-L6 from LAYERLAW_DATA/minilm, or its twin with random weights; quickly: tiny BERTs, both random."""
    if setting.quick:
        return drawn("bert", seed=seed if trained else seed + 1, **TINY)
    model = _minilm().model
    setting.checksums["minilm weights"] = parameter_digest(model) or ""
    if trained:
        return copy.deepcopy(model)
    return untrained_twin(model, seed).model


@cache
def _minilm() -> Loaded:
    return load(model_folder("minilm", "the encoder MiniLM-L6 (a folder saved by transformers)"), dtype="float32")


def sentence_task(setting: Setting, seed: int, each: int, sentences: int) -> SentenceTask:
    """Drawn with the seed: `each` training sentences of either class, then others up to `sentences`; the dev sentences."""
    if setting.quick:
        return SentenceTask(invented(sentences, seed=seed), 2 * each, invented(100, seed=seed + 1))
    (texts, labels), dev = (_table(setting, "sst2", name) for name in ("train", "dev"))
    chosen = chosen_of(labels, each, sentences, seed)
    train = _encoded([texts[i] for i in chosen], labels[chosen])
    return SentenceTask(train, 2 * each, _encoded(*dev))


def glue_task(setting: Setting, name: str, length: int, most: int) -> SentenceTask:
    """All training sentences (or as many as `most`, drawn once) and the dev sentences, cut and padded to `length` tokens."""
    if setting.quick:
        made = SentenceTask(invented(most, seed=0), most, invented(100, seed=1))
        return replace(made, train=replace(made.train, length=length), dev=replace(made.dev, length=length))
    (texts, labels), dev = (_table(setting, name, part) for part in ("train", "dev"))
    chosen = torch.arange(len(labels)) if len(labels) <= most else chosen_of(labels, 0, most, seed=0)
    train = _encoded([texts[i] for i in chosen], labels[chosen], length)
    return SentenceTask(train, len(train), _encoded(*dev, length))


def chosen_of(labels: Tensor, each: int, total: int, seed: int) -> Tensor:
    """Indices in random order: first `each` of either class, then as many others as make `total`."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    front = torch.cat([order[labels[order] == k][:each] for k in range(len(CLASSES))])
    rest = order[~torch.isin(order, front)]
    return torch.cat([front, rest])[:total]


def parsed(content: str, name: str, where: str) -> tuple[list[tuple[str, ...]], Tensor]:
    """Sentences (or pairs) and labels of a GLUE table."""
    task, texts, labels = GLUE[name], [], []
    for number, line in enumerate(content.split("\n")[task.head :], start=1 + task.head):
        if not line:
            continue
        fields = line.rstrip("\r").split("\t")
        label = fields[task.label] if len(fields) >= task.columns else None
        if label not in task.labels:
            expected = f"{task.columns} columns between tabs, one of them {' or '.join(task.labels)}"
            raise DataError(f"{name}, {where}, line {number}: expected {expected}, got {line[:80]!r}.")
        texts.append(tuple("\t".join(fields[part]).strip() for part in task.texts))
        labels.append(task.labels.index(label))
    return texts, torch.tensor(labels)


def _table(setting: Setting, name: str, part: str) -> tuple[list[tuple[str, ...]], Tensor]:
    _minilm()  # the larger of what may be missing is asked for first
    task, file = GLUE[name], f"{part}.tsv"
    path = find(task.folders, (file,))
    if path is None:
        raise DataError(
            f"{name}: expected {file} (as in GLUE) in a folder {task.folders[0]}/ in the folder that the environment "
            f"variable {ENVIRONMENT} names, found none. --quick needs none."
        )
    content = read_bytes(path)
    setting.checksums[f"{name} {part}"] = hashlib.sha256(content).hexdigest()
    return parsed(content.decode("utf-8-sig"), name, part)


def _encoded(texts: list[tuple[str, ...]], labels: Tensor, length: int = 0) -> Sentences:
    """Token ids; `length`: so many tokens for each, cut or padded."""
    found = _minilm().tokenizer(*map(list, zip(*texts, strict=True)), truncation=True, max_length=length or LENGTH)
    ids, types = (tuple(map(tuple, found[part])) for part in ("input_ids", "token_type_ids"))
    return Sentences(ids, labels, types if len(texts[0]) > 1 else None, length)


def invented(count: int, *, seed: int) -> Sentences:
    """As many of either class, in turn: 3 to 12 words, two thirds of them of the class's own half of the words."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    half = (TINY["vocab_size"] - FIRST_WORD) // 2
    ids = []
    for label in labels.tolist():
        n = int(torch.randint(3, 13, (1,), generator=generator))
        own = torch.rand(n, generator=generator) < 2 / 3
        words = torch.randint(half, (n,), generator=generator) + half * torch.where(own, label, 1 - label) + FIRST_WORD
        ids.append((1, *words.tolist(), 2))
    return Sentences(tuple(ids), labels)


def tuned(
    model: Classifier,
    data: Sentences,
    tuning: Tuning,
    *,
    seed: int,
    device: str,
    progress: bool | Progress,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    visit: Callable[[int], None] | None = None,
) -> None:
    """Fine-tune in place on all the sentences, in float32; `visit` is called after every epoch, in eval mode.

    On CUDA, sentences of one length are taken through steps that are recorded once and replayed.
    """
    model.to(device).train()
    where = torch.device(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=tuning.rate, weight_decay=0.01, fused=True, capturable=where.type == "cuda"
    )
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    batches = [index for _ in range(tuning.epochs) for index in mixed(data, tuning.batch_size, generator)]
    n, warmup = len(batches), max(1, len(batches) // 10)

    def loss_of(index: list[int]) -> Tensor:
        batch = {name: value.to(device) for name, value in data.batch(index).items()}
        labels = batch.pop("labels")
        return loss(model(**batch), labels)

    def rate_at(step: int) -> float:
        return tuning.rate * min((step + 1) / warmup, (n - step) / (n - warmup + 1))

    shown = choose(progress)(batches, "fine-tuning", n)
    taken: Iterable[object] = steps(model, optimizer, shown, loss_of, rate_at, clip=CLIP)
    if where.type == "cuda" and data.length:
        sizes = sorted({len(index) for index in batches}, reverse=True)
        taken = RecordedTuning(model, data, optimizer, loss, where).steps(shown, rate_at, sizes)
    for step, _ in enumerate(taken, start=1):
        if visit is not None and step % (n // tuning.epochs) == 0:
            model.eval()
            visit(step // (n // tuning.epochs))
            model.train()
    model.eval()


class RecordedTuning(Recorded):
    """Steps of fine-tuning on sentences that lie on the device, all of one length; recorded where that can be done."""

    def __init__(
        self,
        model: Classifier,
        data: Sentences,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor],
        device: torch.device,
    ) -> None:
        self.device, self.optimizer, self.model, self.loss = device, optimizer, model, loss
        self.modules = (model, *([loss] if isinstance(loss, nn.Module) else []))
        self.captured, self._graphs = device.type == "cuda", {}
        self._inputs = {name: value.to(device) for name, value in data.batch(range(len(data))).items()}
        self._labels = self._inputs.pop("labels")
        # Of a mask (n, T) transformers asks whether it hides anything, and would wait for the answer; one that is added to
        # the scores (n, 1, 1, T) is taken as it is.
        hidden = 1 - self._inputs["attention_mask"].float()
        self._inputs["attention_mask"] = (hidden * torch.finfo(torch.float32).min)[:, None, None]
        self._rate = torch.zeros((), device=device)

    def steps(
        self, batches: Iterable[list[int]], rate_at: Callable[[int], float], sizes: Sequence[int]
    ) -> Iterator[None]:
        """One step per batch."""
        if self.captured:
            self._capture(sizes)
        for number, index in enumerate(batches):
            self._rate.fill_(rate_at(number))
            rows = torch.tensor(index).to(self.device, non_blocking=True)
            (self._graphs[len(index)] if self.captured else self.step)(rows)
            yield

    def step(self, rows: Tensor) -> None:
        """One step on these sentences."""
        for _ in steps(self.model, self.optimizer, [rows], self._loss_of, lambda _: self._rate, clip=CLIP):
            pass

    def _loss_of(self, rows: Tensor) -> Tensor:
        scores = self.model(**{name: value[rows] for name, value in self._inputs.items()})
        return self.loss(scores, self._labels[rows])


def mixed(data: Sentences, batch_size: int, generator: torch.Generator) -> list[list[int]]:
    """One epoch in batches: every sentence once, in random order, batches of sentences of like length."""
    order = torch.randperm(len(data), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = sorted(order[start : start + POOL * batch_size], key=lambda i: len(data.ids[i]))
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def measured(setting: Setting, kind: str, seed: int, given: SentenceTask, tuning: Tuning | None) -> dict[Token, Record]:
    """Records of one network, by its first token and by the mean over tokens; kept in the folder where there is one.

    kind    "untrained": random weights; else MiniLM-L6, fine-tuned when there is a tuning
    """
    setting.networks += 1
    setting.used_seeds.add(seed)
    encoder = encoder_of(setting, seed, trained=kind != "untrained")
    tokens: tuple[Token, ...] = ("first", "mean")
    data = [given.measured, given.train.ids, given.dev.ids, setting.checksums.get("minilm weights")]
    tuned_how = tuning and asdict(tuning)
    places = {token: setting.kept([(kind, seed, token, tuned_how), data], "json") for token in tokens}
    if all(place is not None and place.exists() for place in places.values()):
        return {token: Record.load(place) for token, place in places.items() if place is not None}
    model = Classifier(encoder, seed)
    if tuning is not None:
        how: dict[str, Any] = {"seed": seed, "device": setting.device, "progress": setting.progress}
        tuned(model, given.train.first(tuning.sentences), tuning, **how)
    records = {token: record_of_network(setting, model, given, token) for token in tokens}
    for token, place in places.items():
        records[token].name = f"{kind}, {token}, seed {seed}"
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            records[token].save(place)
    return records


def record_of_network(setting: Setting, model: nn.Module, given: SentenceTask, token: Token) -> Record:
    """D along the layers in eval mode; the embedded input only for the mean, since all first tokens are the same there."""
    sites: list[Any] = [is_layer] if token == "first" else ["encoder.embeddings", is_layer]
    return probe(
        model, given.train.first(given.measured).batches(), test=given.dev.batches(), sites=sites, reduce=token,
        device=setting.device, classes=CLASSES, progress=setting.progress,
    )  # fmt: skip


def is_layer(name: str, _: nn.Module) -> bool:
    """Whether a module is a layer of the encoder."""
    return re.fullmatch(r"encoder\.encoder\.layer\.\d+", name) is not None
