"""SVSL beside plain fine-tuning on sentences, quickly; how the tables of GLUE are read."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from experiments_recorded import Quick, quick_fixture

from layerlaw.errors import DataError
from layerlaw.experiments import sentences
from layerlaw.experiments.collapse import svsl_sentences
from layerlaw.experiments.collapse.svsl_sentences import TASKS, decisions, fine_tuned, metric_of
from layerlaw.experiments.setting import Setting

quick = quick_fixture("svsl_sentences")
FEW = sentences.Tuning(24, 2, rate=1e-3, batch_size=8)


def setting(folder: Path | None = None) -> Setting:
    return Setting(quick=True, progress=False, folder=folder)


def test_the_training_sentences_are_fitted_and_the_last_layer_collapses(quick: Quick) -> None:
    for arm in ("plain", "svsl"):
        assert quick.row(f"sst2/{arm}/train-accuracy").ours >= 0.985
        assert quick.row(f"sst2/{arm}/last-layer/train-mismatch").ours <= 0.02
        assert quick.row(f"sst2/{arm}/interpolation-epoch").ours <= 16
    assert quick.row("sst2/conjecture-7/train").ours is not None
    assert quick.row("sst2/plain/dev-metric").paper == 0.8842
    assert all(row.reproduced is None or row.kind == "other model" for row in quick.outcome.rows)


def test_pages_have_a_curve_for_every_layer_and_shade_the_terminal_phase(quick: Quick) -> None:
    mismatch, metric = quick.outcome.sheets
    assert [panel.title for panel in mismatch.panels] == ["SST-2, plain", "SST-2, SVSL"]
    names = ["embedded", *(f"layer {i}" for i in range(1, 7)), "logits"]
    assert [series.label for series in mismatch.panels[0].series] == names
    assert mismatch.panels[0].shaded == (quick.row("sst2/plain/interpolation-epoch").ours, 16)
    assert [series.label for series in metric.panels[0].series] == ["plain", "SVSL"]


def test_without_a_penalty_both_of_a_pair_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svsl_sentences, "QUICK_ALPHA", 0.0)
    given = sentences.glue_task(setting(), "sst2", 16, 24)
    one, other = (fine_tuned(setting(), "sst2", arm, 3, given, FEW) for arm in ("plain", "svsl"))
    assert one == other
    monkeypatch.setattr(svsl_sentences, "QUICK_ALPHA", 1e-2)
    assert fine_tuned(setting(), "sst2", "svsl", 3, given, FEW).course.mismatch != one.course.mismatch


def test_what_was_fine_tuned_is_read_back_and_not_tuned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = sentences.glue_task(setting(), "sst2", 16, 24)
    first = fine_tuned(setting(tmp_path), "sst2", "plain", 3, given, FEW)
    monkeypatch.setattr(svsl_sentences, "tuned", lambda *a, **k: pytest.fail("tuned again"))
    assert fine_tuned(setting(tmp_path), "sst2", "plain", 3, given, FEW) == first


def test_several_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, two = Setting(quick=True, progress=False), Setting(quick=True, progress=False, folder=tmp_path, workers=2)
    monkeypatch.setattr(svsl_sentences, "QUICK_TUNING", FEW)
    short = (
        "from layerlaw.experiments.collapse import svsl_sentences as s; from layerlaw.experiments import sentences; "
    )
    short += "s.QUICK_TUNING = sentences.Tuning(24, 2, rate=1e-3, batch_size=8)"
    (tmp_path / "sitecustomize.py").write_text(short)  # the other processes are to be as quick
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    one, other = (svsl_sentences.all_pairs(some, ("sst2",)) for some in (alone, two))
    for arm, some in one["sst2"].items():
        for a, b in zip(some, other["sst2"][arm], strict=True):
            assert a.metric == pytest.approx(b.metric, abs=0.05)
            assert a.course.accuracy["train"] == pytest.approx(b.course.accuracy["train"], abs=0.1)
    assert (two.networks, two.used_seeds) == (alone.networks, alone.used_seeds) == (2, {666})
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert svsl_sentences.all_pairs(replace(two, workers=None), ("sst2",)) == other  # and is read back by one


def test_mismatch_is_that_of_all_tokens_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    given = sentences.glue_task(setting(), "sst2", 16, 24)
    kept: list[Any] = []
    real = svsl_sentences.tuned

    def tuned(model: Any, *arguments: Any, **how: Any) -> None:
        real(model, *arguments, **how)
        kept.append(model)

    monkeypatch.setattr(svsl_sentences, "tuned", tuned)
    found = fine_tuned(setting(), "sst2", "plain", 3, given, FEW)
    batch = given.train.batch(range(24))
    assert batch["input_ids"].shape == (24, 16)
    with torch.no_grad():
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        states = kept[0].encoder(**inputs, output_hidden_states=True).hidden_states
    decided = decisions(kept[0], given.train, "cpu")
    expected = []
    for X in (s.flatten(1).double() for s in states):
        means = torch.stack([X[batch["labels"] == k].mean(0) for k in (0, 1)])
        expected.append(float((torch.cdist(X, means).argmin(1) != decided).double().mean()))
    assert found.course.mismatch["train"][-1][:-1] == pytest.approx(expected)


def test_matthews_correlation_is_that_of_the_four_counts() -> None:
    decided, labels = torch.tensor([1] * 7 + [0] * 9), torch.tensor([1] * 4 + [0] * 3 + [1] * 2 + [0] * 7)
    tp, fp, fn, tn = 4, 3, 2, 7
    expected = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert metric_of(decided, labels, TASKS["cola"]) == pytest.approx(expected, rel=1e-12)
    assert metric_of(torch.ones(3), torch.tensor([0, 1, 1]), TASKS["cola"]) == 0
    assert metric_of(decided, labels, TASKS["rte"]) == pytest.approx(11 / 16)


@pytest.mark.parametrize(
    ("name", "content", "texts", "labels"),
    [
        ("cola", "gj04\t1\t\tIt rode.\nx\t0\t*\tRode it.\n", [("It rode.",), ("Rode it.",)], [1, 0]),
        ("rte", "index\ta\tb\tlabel\n0\tIt is.\tIs it?\tentailment\n", [("It is.", "Is it?")], [1]),
        ("mrpc", "Quality\t1\t2\ta\tb\n0\t5\t6\tIt is.\tIs it?\r\n", [("It is.", "Is it?")], [0]),
    ],
)
def test_tables_of_glue_are_read(name: str, content: str, texts: list[Any], labels: list[int]) -> None:
    found, numbers = sentences.parsed(content, name, "train")
    assert (found, numbers.tolist()) == (texts, labels)


def test_a_bad_line_is_named() -> None:
    with pytest.raises(DataError, match=r"rte, dev, line 2: expected 4 columns .* not_entailment or entailment, got"):
        sentences.parsed("index\ta\tb\tlabel\n0\tIt is.\tentailment\n", "rte", "dev")


def test_pairs_tell_the_model_where_the_second_sentence_begins() -> None:
    data = sentences.Sentences(((1, 5, 2, 6, 2), (1, 7, 2)), torch.tensor([0, 1]), ((0, 0, 0, 1, 1), (0, 0, 1)), 6)
    batch = data.batch([1, 0])
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [3, 5]
    model = sentences.Classifier(sentences.encoder_of(setting(), 1, trained=True), 1).eval()
    with torch.no_grad():
        inputs = {k: v for k, v in batch.items() if k != "labels"}
        assert not torch.allclose(model(**inputs), model(**{**inputs, "token_type_ids": None}))


def without_dropout(seed: int) -> sentences.Classifier:
    model = sentences.Classifier(sentences.encoder_of(setting(), seed, trained=True), seed)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    model.encoder.config.attention_probs_dropout_prob = 0.0
    return model


def tuned_weights(how: str, device: str = "cpu") -> list[torch.Tensor]:
    data = sentences.glue_task(setting(), "sst2", 16, 20).train
    model, tuning = without_dropout(3), sentences.Tuning(20, 2, rate=1e-3, batch_size=8)
    if how == "as tuned":
        sentences.tuned(model, data, tuning, seed=5, device=device, progress=False)
        return [p.detach().cpu() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.to(device).train().parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    generator = torch.Generator().manual_seed(5)
    batches = [index for _ in range(2) for index in sentences.mixed(data, 8, generator)]
    n, first = len(batches), 1
    loss = torch.nn.functional.cross_entropy
    trainer = sentences.RecordedTuning(model, data, optimizer, loss, torch.device(device))

    def rate_at(step: int) -> float:
        return 1e-3 * min((step + 1) / first, (n - step) / (n - first + 1))

    assert len(list(trainer.steps(batches, rate_at, [8, 4]))) == n
    return [p.detach().cpu() for p in model.parameters()]


def test_steps_on_resident_sentences_are_those_of_the_plain_loop() -> None:
    for a, b in zip(tuned_weights("as tuned"), tuned_weights("resident"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_on_a_gpu_are_those_of_the_plain_loop_on_the_cpu() -> None:
    for a, b in zip(tuned_weights("as tuned", "cuda"), tuned_weights("as tuned"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)
