"""LawCallback in real trainings with the Trainer of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from training_parts import differences

from layerlaw.errors import DataError, InputError, MissingExtraError
from layerlaw.integrations import transformers as ours
from layerlaw.record import LANGUAGE_MODEL, Record

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which the Trainer needs")
from trainer_parts import Sentences, trained, trainer_of

LawCallback = ours.LawCallback
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of transformers itself


@pytest.mark.parametrize("kind", ["classifier", "language model"])
def test_a_training_is_bit_by_bit_the_same_with_and_without_it(kind: str, tmp_path: Path) -> None:
    alone = trained(trainer_of(tmp_path, kind))
    trainer = trainer_of(tmp_path, kind)
    watch = LawCallback(trainer, every_n_epochs=3)
    trainer.add_callback(watch)
    watched = trained(trainer)
    assert len(alone["losses"]) == 40
    assert differences(alone, watched) == []
    assert [record.settings["step"] for record in watch.records] == [0, 3, 6, 8]
    blocks = [site.name for site in watch.records[-1].sites if site.in_fit]
    if kind == "language model":
        assert watch.records[-1].kind == LANGUAGE_MODEL
        assert blocks == [f"model.layers.{i}" for i in range(4)]
    else:
        assert sum(watch.records[-1].counts) == 80
        assert watch.records[-1].settings["reduce"] == "first"  # the pooler of BERT reads the first token
        assert len(blocks) >= 4


def test_it_measures_after_so_many_steps_and_logs_what_the_trainer_logs(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "classifier", logging_strategy="epoch")
    watch = LawCallback(trainer, every_n_steps=15, at_end=False, folder=tmp_path / "records")
    trainer.add_callback(watch)
    trained(trainer)
    assert [(r.settings["step"], r.settings["step_unit"]) for r in watch.records] == [(s, "step") for s in (0, 15, 30)]
    history = trainer.state.log_history
    said = [row["step"] for row in history if "layerlaw/accuracy" in row]
    assert said == [0, 15, 30]
    assert len([row for row in history if "loss" in row]) == 8  # one of each epoch, none forgotten
    names = ["layerlaw.html", "movie.html", *(f"step-{step:06d}.json" for step in (0, 15, 30))]
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == names


ENDS = [(2, [0, 1]), (5, [0, 1]), (6, [0, 1, 2]), (8, [0, 1, 2]), (10, [0, 1, 2])]  # five steps are an epoch


@pytest.mark.parametrize(("steps", "measured"), ENDS)
def test_a_training_that_ends_in_the_midst_of_an_epoch_is_measured_then(
    steps: int, measured: list[int], tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, "classifier", max_steps=steps)
    watch = LawCallback(trainer)
    trainer.add_callback(watch)
    trained(trainer)
    assert [record.settings["step"] for record in watch.records] == measured
    again = LawCallback(trainer).monitor.measure(0)
    assert again is not None
    assert again.sites[-1].values == watch.records[-1].sites[-1].values


def test_samples_in_a_list_go_through_the_collator_too(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "classifier")
    rows = [dict(Sentences(30)[i]) for i in range(30)]
    for given in (rows, tuple(rows), [row | {"labels": int(row["labels"])} for row in rows]):
        record = LawCallback(trainer, data=given, test=given[:20]).monitor.measure(0)
        assert record is not None
        assert (sum(record.counts), sum(record.test_counts)) == (30, 20)
    batches = [trainer.data_collator(rows[:15]), trainer.data_collator(rows[15:])]
    record = LawCallback(trainer, data=batches, reduce="mean").monitor.measure(0)
    assert record is not None
    assert sum(record.counts) == 30


def test_a_loss_that_is_due_at_the_same_moment_is_logged(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "classifier", logging_strategy="epoch", num_train_epochs=2)
    trainer.add_callback(LawCallback(trainer))
    trained(trainer)
    history = trainer.state.log_history
    assert [row["step"] for row in history if "loss" in row] == [5, 10]
    assert [row["step"] for row in history if "layerlaw/accuracy" in row] == [0, 5, 10]


def test_what_the_trainer_reports_to_gets_all_numbers_and_the_picture(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = trainer_of(tmp_path, "classifier", report_to=["tensorboard"], num_train_epochs=2)
    watch = LawCallback(trainer)
    trainer.add_callback(watch)
    trained(trainer)
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    site = watch.records[0].sites[-1]
    assert [event.step for event in events.Scalars(f"layerlaw/separation/{site.name}")] == [0, 1, 2]
    assert "train/layerlaw/accuracy" in events.Tags()["scalars"]  # by the trainer's own log
    assert events.Tags()["images"] == ["layerlaw/law"]


def test_the_law_ends_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerlaw.integrations.monitor import Monitor

    measured = Monitor._measured

    def lawful(self: Monitor) -> Record:
        record = measured(self)
        for i, site in enumerate(site for site in record.sites if site.in_fit):
            site.values["separation"] = 0.5**i
        return record

    monkeypatch.setattr(Monitor, "_measured", lawful)
    trainer = trainer_of(tmp_path, "classifier")
    trainer.add_callback(LawCallback(trainer, stop=3))
    trained(trainer)
    assert trainer.state.global_step == 10


def test_a_measurement_that_fails_does_not_end_the_training(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "classifier", num_train_epochs=2)
    watch = LawCallback(trainer, data=[({"input_ids": torch.ones(4, 6).long()}, torch.zeros(4).long())])
    trainer.add_callback(watch)
    with pytest.warns(UserWarning, match="layerlaw monitor") as told:
        trained(trainer)
    first, last = [str(one.message) for one in told if "layerlaw monitor" in str(one.message)]
    assert "epoch 0 could not be measured" in first
    assert "0 of 3 measurements were made; the last that failed: " in last
    assert trainer.state.global_step == 10
    assert watch.records == []


class Uneven(Sentences):
    """Sentences of different lengths, which a collator pads."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        row = super().__getitem__(i)
        length = 6 + i % 5
        return {"input_ids": row["input_ids"][:length].clone(), "labels": row["labels"]}


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    ids = torch.nn.functional.pad(ids, (0, 10 - ids.shape[1]))
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.stack([r["labels"] for r in rows])}


def test_test_data_go_through_the_collator_and_classes_have_the_names_of_the_model(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "classifier", num_train_epochs=1)
    trainer.train_dataset, trainer.data_collator = Uneven(), padded
    trainer.model.config.id2label = {0: "sport", 1: "food", 2: "code"}
    watch = LawCallback(trainer, test=Uneven(40))
    trainer.add_callback(watch)
    trained(trainer)
    assert [record.settings["step"] for record in watch.records] == [0, 1]
    assert [sum(record.test_counts) for record in watch.records] == [40, 40]
    assert watch.records[0].classes == ["sport", "food", "code"]
    given = LawCallback(trainer, data=Uneven(30))
    assert given.monitor.measure(0) is not None
    assert sum(given.records[0].counts) == 30
    trainer.data_collator = None
    with pytest.raises(
        DataError, match="data: expected samples that the trainer's collator makes a batch of, got Type"
    ):
        LawCallback(trainer)


def test_names_that_transformers_makes_up_are_no_names_of_classes(tmp_path: Path) -> None:
    watch = LawCallback(trainer_of(tmp_path, "classifier"))
    record = watch.monitor.measure(0)
    assert record is not None
    assert record.classes == ["0", "1", "2"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Sentences())


def test_bad_input_is_answered(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "classifier")
    with pytest.raises(InputError, match="every_n_epochs: expected a whole number of at least 1, got 0"):
        LawCallback(trainer, every_n_epochs=0)
    with pytest.raises(InputError, match=r"trainer: expected the Trainer that this callback is for.*got Sentences"):
        LawCallback(Sentences())
    with pytest.raises(TypeError, match=r"LawCallback\(\) got an .* 'every'. Did you mean 'every_n_epochs'"):
        LawCallback(trainer, every=2)
    trainer.train_dataset = Stream()
    with pytest.raises(InputError, match="got an IterableDataset without length"):
        LawCallback(trainer)
    trainer.train_dataset = None
    with pytest.raises(InputError, match=r"expected a trainer with a train_dataset, got none. Pass LawCallback"):
        LawCallback(trainer)
    assert LawCallback(trainer, data=[(torch.zeros(4, 6).long(), torch.arange(4) % 2)]).records == []


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "TrainerCallback", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'layerlaw\[lm\]'"):
        LawCallback(None)
