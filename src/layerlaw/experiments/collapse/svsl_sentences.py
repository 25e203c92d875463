"""SVSL beside plain fine-tuning on sentences: an encoder on CoLA, RTE, MRPC and SST-2 (the language part of their Table 1).

    layerlaw reproduce svsl_sentences            4 tasks × 3 pairs of 10 epochs (on a GPU; --workers 4); wants the
                                                 encoder in LAYERLAW_DATA/minilm, tables in LAYERLAW_DATA/glue and sst2
    layerlaw reproduce svsl_sentences --quick    a tiny BERT with random weights on invented words

The paper has BERT-base-uncased (12 layers). Here MiniLM-L6 stands in for it: a BERT encoder of 6 layers and width 384,
distilled and then trained on pairs of sentences. As the authors: 32 tokens, cut or padded, all of them features (of
padding too), batches of 8, AdamW at 5e-5, 10 epochs; ours are a rate that rises over a tenth of the steps and falls to 0,
weight decay 0.01, a linear head on the first token, and for SST-2 8,550 of its 67,349 training sentences. Both of a pair
have one seed: the same head, the same order, the same dropout. α and γ are the authors' (γ at the same relative depth),
with the penalty summed over the batch as in their code.

After every epoch: mismatch of the nearest class center (means of the training sentences) at the embedded tokens, every
layer and the logits, on training and dev sentences. Judged, on another model than the paper's: the gain in the task's
metric at the end over the pairs (t test; Matthews correlation for CoLA, accuracy for the others), and conjectures 7, 8
and 11 with the terminal phase from 98.5 % train accuracy on, as the authors have it for language.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.advice.courses import course_panel, course_series, spread_words, zero_words
from layerlaw.experiments.collapse.svsl import LABELS, NOTHING, PLAIN, SVSL, gain_rows, verdict_rows
from layerlaw.experiments.numbers import Claim, above, row
from layerlaw.experiments.sentences import (
    Classifier,
    Sentences,
    SentenceTask,
    Tuning,
    encoder_of,
    glue_task,
    is_layer,
    tuned,
)
from layerlaw.experiments.setting import Setting
from layerlaw.files import made_folder, write_json
from layerlaw.lab.svsl import SVSL as Penalty
from layerlaw.outcome import Cell, Outcome, Row, Table
from layerlaw.probing import probe
from layerlaw.sheet import Panel, Sheet
from layerlaw.verdict.conjectures import TrainingCourse, check_conjectures, training_course

TITLE = "SVSL beside plain fine-tuning: an encoder on CoLA, RTE, MRPC and SST-2"
LENGTH, MOST = 32, 8_550  # tokens; training sentences: all but of SST-2 (CoLA has 8,551)
INTERPOLATED = 0.985  # train accuracy of the interpolation threshold for language, as the authors have it
TUNING = Tuning(MOST, 10, rate=5e-5, batch_size=8)
QUICK_TUNING = Tuning(96, 16, rate=3e-3, batch_size=16)
QUICK_ALPHA = 1e-4
LAYERS = 12  # of the authors' encoder
STAND_IN = "MiniLM-L6 (6 layers, distilled, trained on pairs of sentences) stands in for BERT-base-uncased (12 layers)."
BESIDE = "not judged: another model"


@dataclass(frozen=True)
class PublishedTask:
    """A task of the authors: α, γ, their metric at the end and at the threshold (plain, SVSL)."""

    title: str
    alpha: float
    first: int
    at_end: tuple[float, float]
    at_threshold: tuple[float, float]
    correlation: bool = False

    def first_layer(self, layers: int) -> int:
        """γ at the same relative depth, among so many layers.

        >>> [TASKS[name].first_layer(6) for name in TASKS]
        [1, 6, 6, 5]
        """
        return -(-self.first * layers // LAYERS)


TASKS = {
    "cola": PublishedTask("CoLA", 5e-6, 1, (0.5346, 0.5554), (0.5159, 0.5291), correlation=True),
    "rte": PublishedTask("RTE", 1e-7, 11, (0.5523, 0.5957), (0.5884, 0.5812)),
    "mrpc": PublishedTask("MRPC", 1e-7, 11, (0.7426, 0.7525), (0.7083, 0.7426)),
    "sst2": PublishedTask("SST-2", 4.132e-5, 10, (0.8842, 0.8876), (0.8796, 0.8842)),
}


@dataclass(frozen=True)
class FineTuned:
    """One fine-tuning: its course, and the task's metric on the dev sentences after every epoch."""

    course: TrainingCourse
    metric: tuple[float, ...]

    @property
    def at_threshold(self) -> float | None:
        """The metric at the interpolation threshold."""
        epoch = self.course.interpolation
        return None if epoch is None else self.metric[self.course.epochs.index(epoch)]


Arms = dict[str, list[FineTuned]]


def run(setting: Setting) -> Outcome:
    """Fine-tune every pair, report what came out."""
    rows: list[Row] = []
    mismatch: list[Panel] = []
    metrics: list[Panel] = []
    lines: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    shown: list[TrainingCourse] = []
    for name, pairs in all_pairs(setting, ("sst2",) if setting.quick else tuple(TASKS)).items():
        about, arms = TASKS[name], {arm: list(map(named, some)) for arm, some in pairs.items()}
        verdicts = check_conjectures(*([one.course for one in arms[arm]] for arm in (PLAIN, SVSL)))
        verdicts = [v for v in verdicts if v.number != 12]  # that is the gain, of the task's own metric
        rows += [r for arm in arms for r in _ends(f"{name}/{arm}", arms[arm], about, arm)]
        gains = [b.metric[-1] - a.metric[-1] for a, b in zip(*arms.values(), strict=True)]
        claim = above(0, round(about.at_end[1] - about.at_end[0], 6)).of("other model")
        rows += gain_rows(f"{name}/svsl-minus-plain/dev-metric", gains, claim)
        rows += verdict_rows(name, verdicts, kind="other model")
        notes += [f"{about.title}: {v.sentence}" for v in verdicts]
        mismatch += [_mismatch(f"{about.title}, {LABELS[arm]}", some) for arm, some in arms.items()]
        metrics.append(_metrics(about, arms))
        shown += [one.course for some in arms.values() for one in some]
        lines += _lines(about, arms, setting.seeds())
    columns = ("task", "training", "seed", "interpolation epoch", "metric there", "metric at the end", "train acc.")
    over_mismatch, over_metrics = (spread_words(shown, some, len(setting.seeds()) > 1) for some in (mismatch, metrics))
    sheets = [
        Sheet(
            "Mismatch of the nearest class center over fine-tuning, training sentences",
            mismatch,
            2,
            f"{zero_words(mismatch)} {over_mismatch}".lstrip(),
        ),
        Sheet("The task's metric on dev sentences", metrics, 2, over_metrics),
    ]
    notes += [] if setting.quick else [STAND_IN, f"SST-2: {MOST:,} of 67,349 training sentences."]
    return Outcome("svsl_sentences", TITLE, rows, sheets, [Table("Every fine-tuning", columns, lines)], notes)


def all_pairs(setting: Setting, tasks: Sequence[str]) -> dict[str, Arms]:
    """Plain and with SVSL, for every task and seed; with several workers each in a process of its own."""
    jobs = [(name, arm, seed) for name in tasks for seed in setting.seeds() for arm in (PLAIN, SVSL)]
    found: dict[str, Arms] = {name: {PLAIN: [], SVSL: []} for name in tasks}
    if (setting.workers or 1) == 1:
        for name in tasks:
            given = _given(setting, name)
            for _, arm, seed in (job for job in jobs if job[0] == name):
                found[name][arm].append(fine_tuned(setting, name, arm, seed, *given))
        return found
    quiet = replace(setting, progress=False)
    with ProcessPoolExecutor(setting.workers, get_context("spawn")) as pool:
        for (name, arm, _), (one, known) in zip(jobs, pool.map(partial(_elsewhere, quiet), jobs), strict=True):
            found[name][arm].append(one)
            setting.networks += known.networks
            setting.used_seeds |= known.used_seeds
            setting.checksums |= known.checksums
    return found


def _given(setting: Setting, name: str) -> tuple[SentenceTask, Tuning]:
    tuning = QUICK_TUNING if setting.quick else TUNING
    return glue_task(setting, name, LENGTH, tuning.sentences), tuning


def _elsewhere(setting: Setting, job: tuple[str, str, int]) -> tuple[FineTuned, Setting]:
    """One of them in another process, and what the setting there has come to know."""
    torch.set_num_threads(1)
    return fine_tuned(setting, *job, *_given(setting, job[0])), setting


def fine_tuned(setting: Setting, name: str, arm: str, seed: int, given: SentenceTask, tuning: Tuning) -> FineTuned:
    """One fine-tuning, kept in the folder where there is one."""
    about = TASKS[name]
    setting.networks += 1
    setting.used_seeds.add(seed)
    model = Classifier(encoder_of(setting, seed, trained=True), seed)
    sites = site_names(model)
    alpha = 0.0 if arm == PLAIN else QUICK_ALPHA if setting.quick else about.alpha
    first = sites[about.first_layer(len(sites) - 1)]
    key = [name, seed, alpha, first, asdict(tuning), given.train.ids, given.dev.ids]
    key.append(setting.checksums.get("minilm weights"))
    place = setting.kept(key, "json")
    if place is not None and place.exists():
        return _read(json.loads(place.read_text(encoding="utf-8")))
    loss: Any = nn.functional.cross_entropy
    if arm == SVSL:
        loss = Penalty(model, alpha=alpha, sites=sites, first=first, reduction="authors")
    records, metric = {}, []

    def visit(epoch: int) -> None:
        how: dict[str, Any] = {"uncertainty": False, "device": setting.device, "progress": False}
        data, test = given.train.batches(), given.dev.batches()
        records[epoch] = probe(model, data, test=test, sites=[*sites, "logits"], **how)
        metric.append(metric_of(decisions(model, given.dev, setting.device), given.dev.labels, about))

    how: dict[str, Any] = {"seed": seed, "device": setting.device, "progress": setting.progress}
    tuned(model, given.train, tuning, loss=loss, visit=visit, **how)
    found = FineTuned(training_course(records, threshold=INTERPOLATED), tuple(metric))
    if place is not None:
        write_json(made_folder(place.parent) / place.name, asdict(found))
    return found


def _read(data: dict[str, Any]) -> FineTuned:
    course = data["course"]
    for split, rows in course["mismatch"].items():
        course["mismatch"][split] = tuple(map(tuple, rows))
        course["accuracy"][split] = tuple(course["accuracy"][split])
    course |= {"epochs": tuple(course["epochs"]), "sites": tuple(course["sites"])}
    return FineTuned(TrainingCourse(**course), tuple(data["metric"]))


def named(one: FineTuned) -> FineTuned:
    """The same with sites called as a reader would: embedded, layer 1, …, logits."""
    names = ("embedded", *(f"layer {i}" for i in range(1, len(one.course.sites) - 1)), "logits")
    return replace(one, course=replace(one.course, sites=names))


def site_names(model: nn.Module) -> list[str]:
    """The embedded tokens and the layers."""
    layers = [name for name, module in model.named_modules() if is_layer(name, module)]
    return ["encoder.embeddings", *layers]


@torch.no_grad()
def decisions(model: nn.Module, data: Sentences, device: str) -> Tensor:
    """The classes that the model decides for, in the order of the sentences."""
    found = []
    for start in range(0, len(data), 100):
        batch = data.batch(range(start, min(start + 100, len(data))))
        found.append(model(**{k: v.to(device) for k, v in batch.items() if k != "labels"}).argmax(1).cpu())
    return torch.cat(found)


def metric_of(decided: Tensor, labels: Tensor, about: PublishedTask) -> float:
    """Accuracy, or Matthews' correlation of decisions and labels of two classes (0 where one of them does not vary).

    >>> metric_of(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), TASKS["cola"])
    0.5773502691896258
    """
    if not about.correlation:
        return float((decided == labels).double().mean())
    a, b = (t.double() - t.double().mean() for t in (decided, labels))
    spread = float(a.square().sum() * b.square().sum()) ** 0.5
    return float(a @ b) / spread if spread else 0.0


def _ends(name: str, some: Sequence[FineTuned], about: PublishedTask, arm: str) -> list[Row]:
    i = int(arm == SVSL)
    values: dict[str, Any] = {
        "dev-metric": ([one.metric[-1] for one in some], Claim(about.at_end[i], tolerance=BESIDE)),
        "dev-metric-at-threshold": ([one.at_threshold for one in some], Claim(about.at_threshold[i], tolerance=BESIDE)),
        "train-accuracy": ([one.course.accuracy["train"][-1] for one in some], Claim()),
        "interpolation-epoch": ([one.course.interpolation for one in some], Claim()),
        "first/train-mismatch": ([one.course.mismatch["train"][-1][0] for one in some], Claim()),
        "last-layer/train-mismatch": ([one.course.mismatch["train"][-1][-2] for one in some], Claim()),
    }
    why = f"the training sentences were not fitted to {INTERPOLATED:.1%}"
    return [
        row(f"{name}/{what}", found, claim, reason=why if "threshold" in what or "epoch" in what else NOTHING)
        for what, (found, claim) in values.items()
    ]


def _mismatch(title: str, some: Sequence[FineTuned]) -> Panel:
    courses = [one.course for one in some]
    curves = [
        course_series(name, courses, [[row[i] for row in course.mismatch["train"]] for course in courses])
        for i, name in enumerate(courses[0].sites)
    ]
    return course_panel(title, courses, curves, "mismatch", log_y=True)


def _metrics(about: PublishedTask, arms: Arms) -> Panel:
    title = f"{about.title}, {'Matthews correlation' if about.correlation else 'accuracy'}"
    courses = {arm: [one.course for one in some] for arm, some in arms.items()}
    curves = [course_series(LABELS[arm], courses[arm], [one.metric for one in some]) for arm, some in arms.items()]
    return course_panel(title, [course for some in courses.values() for course in some], curves, "metric")


def _lines(about: PublishedTask, arms: Arms, seeds: Sequence[int]) -> list[tuple[Cell, ...]]:
    return [
        (about.title, LABELS[arm], seed, one.course.interpolation, one.at_threshold, one.metric[-1],
         one.course.accuracy["train"][-1])
        for arm, some in arms.items()
        for seed, one in zip(seeds, some, strict=True)
    ]  # fmt: skip
