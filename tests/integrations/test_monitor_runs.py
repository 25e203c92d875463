"""A monitor over whole runs: the last epoch, runs that are resumed, data that are augmented, measurements that fail."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from training_parts import CLASSES, FEATURES, Blobs, draws, network, seed_everything

import layerlaw as ll
from layerlaw.errors import InputError
from layerlaw.integrations.undisturbed import drawn_anew
from layerlaw.record import Record

PAIR = (Blobs().x, Blobs().y)


def steps(monitor: ll.Monitor) -> list[int]:
    return [record.settings["step"] for record in monitor.records]


def run(model: nn.Module, epochs: range, **how: Any) -> ll.Monitor:
    with ll.Monitor(model, PAIR, **how) as monitor:
        for epoch in epochs:
            monitor(epoch)
    return monitor


def test_the_last_epoch_is_measured_at_the_end_once(tmp_path: Path) -> None:
    monitor = run(network(), range(10), every=5, folder=tmp_path)
    assert steps(monitor) == [0, 5, 9]
    assert (tmp_path / "epoch-000009.json").is_file()
    monitor.finish()  # a second measurement of an epoch would warn, which is an error here
    assert steps(monitor) == [0, 5, 9]


def test_it_is_not_where_nobody_wants_it_or_it_was_measured_or_the_training_failed() -> None:
    assert steps(run(network(), range(10), every=5, at_end=False)) == [0, 5]
    assert steps(run(network(), range(6), every=5)) == [0, 5]
    monitor = ll.Monitor(network(), PAIR, every=5)
    with suppress(KeyboardInterrupt), monitor:
        for epoch in range(3):
            monitor(epoch)
        raise KeyboardInterrupt
    assert steps(monitor) == [0]


def test_a_measurement_that_is_told_to_is_not_made_again_at_the_end() -> None:
    monitor = ll.Monitor(network(), PAIR, every=5)
    monitor(1)
    monitor.measure(1)
    monitor.finish()
    assert steps(monitor) == [1]


def test_a_resumed_run_has_the_earlier_epochs_on_page_and_movie_without_measuring_them(tmp_path: Path) -> None:
    run(network(), range(3), folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("epoch-*.json")}
    resumed = run(network(), range(3, 5), folder=tmp_path)
    assert steps(resumed) == [0, 1, 2, 3, 4]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert "from epoch 0 to 4" in (tmp_path / "movie.html").read_text(encoding="utf-8")
    assert repr(resumed) == "Monitor(every=1): 5 measured"


def test_a_run_that_begins_again_takes_nothing_up(tmp_path: Path) -> None:
    run(network(), range(3), folder=tmp_path)
    assert steps(run(network(), range(3), folder=tmp_path)) == [0, 1, 2]


def test_what_a_longer_run_left_in_the_folder_is_told(tmp_path: Path) -> None:
    run(network(), range(5), folder=tmp_path)
    with pytest.warns(UserWarning, match="still holds 2 of the records of an earlier run, from epoch 3 on: move them"):
        again = run(network(), range(3), folder=tmp_path)
    assert steps(again) == [0, 1, 2]
    again.finish()  # told once
    assert steps(run(network(), range(5), folder=tmp_path)) == [0, 1, 2, 3, 4]


def test_records_of_other_sites_or_another_unit_are_left_out(tmp_path: Path) -> None:
    run(network(), range(2), folder=tmp_path)
    other = ll.Monitor(network(), PAIR, folder=tmp_path, sites="layers", batchnorm="batch")
    record = Record.load(tmp_path / "epoch-000000.json")
    record.sites = record.sites[1:]
    record.save(tmp_path / "epoch-000000.json")
    record.settings["step_unit"] = "step"
    record.save(tmp_path / "step-000000.json")
    again = ll.Monitor(network(), PAIR, folder=tmp_path)
    with pytest.warns(UserWarning, match="1 of 2 earlier records in .* are of other sites"):
        again(2)
    assert steps(again) == [1, 2]
    other(5)
    assert steps(other) == [0, 1, 5]  # what it read before that file was changed


def test_records_of_other_data_are_left_out(tmp_path: Path) -> None:
    run(network(), range(2), folder=tmp_path)
    x, y = PAIR
    again = ll.Monitor(network(), (2 * x, y), folder=tmp_path)
    with pytest.warns(UserWarning, match="2 of 2 earlier records in .* were measured on other data"):
        again(2)
    assert steps(again) == [2]


def test_epochs_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    monitor = ll.Monitor(network(), PAIR, every=np.int64(2), folder=tmp_path)  # type: ignore[arg-type]
    for epoch in np.arange(3):
        monitor(epoch)
    assert steps(monitor) == [0, 2]
    assert steps(ll.Monitor(network(), PAIR, folder=tmp_path)) == []
    assert Record.load(tmp_path / "epoch-000002.json").settings["step"] == 2
    with pytest.raises(InputError, match=r"epoch: expected a whole number of at least 0, got 1\.5"):
        monitor(1.5)  # type: ignore[arg-type]


def test_a_folder_of_another_network_is_refused_before_the_training(tmp_path: Path) -> None:
    run(network(), range(2), folder=tmp_path)
    other = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    words = r"expected a folder for records of this network \(Sequential, 131 parameters\), got .*epoch-000000.json"
    with pytest.raises(InputError, match=f"{words}.*Choose another folder"):
        ll.Monitor(other, PAIR, folder=tmp_path)


def test_a_damaged_record_is_told_and_left_out(tmp_path: Path) -> None:
    run(network(), range(2), folder=tmp_path)
    (tmp_path / "epoch-000000.json").write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match="an earlier record is left out"):
        monitor = ll.Monitor(network(), PAIR, folder=tmp_path)
    monitor(2)
    assert steps(monitor) == [1, 2]


class Bad(Dataset[tuple[Tensor, Tensor]]):
    """Samples of different lengths, which nobody pads."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(FEATURES + i), torch.tensor(i % CLASSES)


def test_the_training_data_are_measured_where_the_test_data_fail() -> None:
    monitor = ll.Monitor(network(), PAIR, test=Bad())
    with pytest.warns(UserWarning, match="the test data could not be measured .*, the training data were"):
        record = monitor(0)
    assert record is not None
    assert record.test_accuracy is None
    assert record.accuracy is not None
    assert len(record.points()) == 5
    assert any(
        note.startswith("The test data could not be measured (DataError: test, batch 0") for note in record.notes
    )
    assert monitor(1) is not None  # told once


def test_measurements_that_failed_are_counted_at_the_end_once() -> None:
    monitor = ll.Monitor(network(), Bad())
    with pytest.warns(UserWarning, match="epoch 0 could not be measured"):
        monitor(0)
    monitor(1)
    with pytest.warns(
        UserWarning, match="0 of 2 measurements were made; the last that failed: DataError: data, batch 0"
    ):
        monitor.finish()
    monitor.finish()


def test_data_that_are_drawn_anew_are_told_in_the_record() -> None:
    augmented, plain = DataLoader(Blobs(), batch_size=16), DataLoader(TensorDataset(*PAIR), batch_size=16)
    for data, told in ((augmented, True), (plain, False), (PAIR, False), (Blobs(), True)):
        record = ll.Monitor(network(), data)(0)
        assert record is not None
        assert any("augmentation" in note for note in record.notes) is told


class OwnNoise(TensorDataset):
    """Noise from a generator that the data set holds, at every second sample."""

    def __init__(self) -> None:
        super().__init__(*PAIR)
        self.own = torch.Generator().manual_seed(1)

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return {"x": x + (i % 2) * torch.rand((), generator=self.own), "more": [y]}


def test_so_is_noise_of_a_generator_that_the_data_hold_and_nothing_is_disturbed() -> None:
    data = OwnNoise()
    state = data.own.get_state()
    seed_everything(4)
    expected = draws()
    seed_everything(4)
    for loader in (DataLoader(data, shuffle=True), DataLoader(data, num_workers=1), DataLoader(data, batch_size=3)):
        assert drawn_anew(loader)
    assert torch.equal(data.own.get_state(), state)
    assert draws() == expected


def test_nan_and_words_and_data_that_fail_are_no_augmentation() -> None:
    rows = [{"x": torch.tensor([torch.nan, 1.0]), "word": "a"}] * 4

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return rows[i]

    assert not drawn_anew(Rows())
    assert not drawn_anew(Bad())
    assert not drawn_anew(rows)
