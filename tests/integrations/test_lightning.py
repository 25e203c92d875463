"""LawMonitor in real trainings with Lightning."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_parts import Blobs, differences

from layerlaw.errors import InputError, MissingExtraError
from layerlaw.integrations import lightning as ours
from layerlaw.record import Record

lightning = pytest.importorskip("lightning", reason="lightning is not installed")
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger  # noqa: E402
from lightning_parts import Classifier, trained  # noqa: E402

LawMonitor = ours.LawMonitor
HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of lightning itself


@pytest.mark.parametrize("val", [False, True], ids=["training", "with validation"])
def test_a_training_is_bit_by_bit_the_same_with_and_without_it(val: bool) -> None:
    alone, _ = trained(val=val)
    watch = LawMonitor(every_n_epochs=3)
    watched, _ = trained(watch, val=val)
    assert len(alone["losses"]) == 40
    assert differences(alone, watched) == []
    assert [record.settings["step"] for record in watch.records] == [0, 3, 6, 8]


def test_checkpoints_follow_the_law_also_at_epochs_without_a_measurement(tmp_path: Path) -> None:
    key = "layerlaw/separation/12"
    for val in (False, True):
        best = ModelCheckpoint(tmp_path / str(val), monitor=key, save_top_k=-1, filename="{epoch}")
        early = EarlyStopping(monitor="layerlaw/rho", patience=100)
        watch = LawMonitor(every_n_epochs=3)
        _, trainer = trained(early, best, watch, val=val, enable_checkpointing=True)
        assert watch.monitor is not None
        known = [record.sites[3].values["separation"] for record in watch.records]
        assert float(trainer.callback_metrics[key]) == known[-1]
        assert float(best.best_model_score) == min(known[1:])  # type: ignore[arg-type]
        assert len(best.best_k_models) == 8  # one of every epoch


def test_it_logs_numbers_pictures_and_the_page_through_every_logger(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [TensorBoardLogger(tmp_path, name="board"), CSVLogger(tmp_path, name="table")]
    watch = LawMonitor(every_n_epochs=4, folder=tmp_path / "records")
    trained(watch, logger=loggers)
    events = EventAccumulator(loggers[0].log_dir).Reload()
    found = events.Scalars("layerlaw/separation/0")
    assert [event.step for event in found] == [0, 20, 40]
    assert found[2].value == pytest.approx(watch.records[2].sites[0].values["separation"])
    assert {"layerlaw/accuracy", "layerlaw/rho", "loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Images("layerlaw/law")] == [0, 20, 40]
    assert (Path(loggers[0].log_dir) / "layerlaw.html").stat().st_size > 10_000
    assert "layerlaw/separation/0" in (Path(loggers[1].log_dir) / "metrics.csv").read_text()
    names = ["epoch-000000.json", "epoch-000004.json", "epoch-000008.json", "layerlaw.html", "movie.html"]
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == names


def test_numbers_reach_mlflow_through_its_logger(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from lightning.pytorch.loggers import MLFlowLogger

    store = f"sqlite:///{tmp_path}/runs.db"
    logger = MLFlowLogger("law", tracking_uri=store, artifact_location=str(tmp_path / "artifacts"))
    trained(LawMonitor(every_n_epochs=8), logger=logger)
    client = mlflow.tracking.MlflowClient(store)
    found = client.get_metric_history(logger.run_id, "layerlaw/separation/0")
    assert [metric.step for metric in found] == [0, 40]
    assert {one.path for one in client.list_artifacts(logger.run_id, "layerlaw")} == {
        "layerlaw/law-000000.png", "layerlaw/law-000040.png", "layerlaw/layerlaw.html",
    }  # fmt: skip


def test_the_law_ends_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerlaw.integrations.monitor import Monitor

    measured = Monitor._measured

    def lawful(self: Monitor) -> Record:
        record = measured(self)
        for i, site in enumerate(site for site in record.sites if site.in_fit):
            site.values["separation"] = 0.5**i
        return record

    monkeypatch.setattr(Monitor, "_measured", lawful)
    watch = LawMonitor(stop=2)
    _, trainer = trained(watch)
    assert trainer.current_epoch == 1
    assert [record.settings["step"] for record in watch.records] == [0, 1]
    watch = LawMonitor()
    assert trained(watch)[1].current_epoch == 8


def test_a_measurement_that_fails_does_not_end_the_training(recwarn: pytest.WarningsRecorder) -> None:
    watch = LawMonitor(data=(torch.full((30, 12), torch.nan), torch.arange(30) % 3))
    with pytest.warns(UserWarning, match="epoch 0 could not be measured .*NaN"):
        _, trainer = trained(watch)
    assert trainer.current_epoch == 8
    assert watch.records == []


class TwoParts(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(2, 2)


def test_the_network_is_the_module_with_a_forward_or_its_only_child_or_what_was_named() -> None:
    class WithForward(Classifier):
        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

    whole, inner, two = WithForward(), Classifier(), TwoParts()
    assert ours.network_in(whole) is whole
    assert ours.network_in(inner) is inner.net
    assert ours.network_in(two, "net") is two.net
    with pytest.raises(InputError, match=r"children with weights: net, other.. Pass model='name of one'"):
        ours.network_in(two)
    with pytest.raises(InputError, match="model: expected the name of one of net, other, got 'head'"):
        ours.network_in(two, "head")


def test_bad_input_is_answered() -> None:
    with pytest.raises(InputError, match="every_n_epochs: expected a whole number of at least 1, got 0"):
        LawMonitor(every_n_epochs=0)
    with pytest.raises(InputError, match="stop: expected True, a number of measurements, or UntilLaw"):
        LawMonitor(stop="law")
    with pytest.raises(TypeError, match=r"LawMonitor\(\) got an .* 'every'. Did you mean 'every_n_epochs'"):
        LawMonitor(every=2)
    LawMonitor(test=(Blobs().x, Blobs().y), uncertainty=True)

    class Trainer:
        train_dataloader: Any = None

    with pytest.raises(
        InputError, match=r"expected a trainer with a train loader, got none. Pass LawMonitor\(data=…\)"
    ):
        ours._train_loader(Trainer())
    Trainer.train_dataloader = {"a": [1], "b": [2]}
    with pytest.raises(InputError, match="expected one train loader, got several"):
        ours._train_loader(Trainer())


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "Callback", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'layerlaw\[lightning\]'"):
        LawMonitor()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_two_processes_train_as_without_it_and_measure_together(tmp_path: Path) -> None:
    paths = f"{HERE}:{HERE.parents[1] / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [*command, str(HERE / "lightning_parts.py"), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    both = [torch.load(tmp_path / f"rank {rank}.pt", weights_only=False) for rank in range(2)]
    for found in both:
        assert len(found["alone"]["losses"]) == 40
        assert differences(found["alone"], found["watched"]) == []
    assert both[0]["alone"]["losses"] != both[1]["alone"]["losses"]  # each has its share
    names = [f"epoch {epoch}" for epoch in (0, 2, 4, 6, 8)]
    for name in names:
        first, second = (Record.load(tmp_path / f"rank {rank}, {name}.json") for rank in range(2))
        assert [site.values for site in first.sites] == [site.values for site in second.sites]
        assert sum(first.counts) == len(Blobs(151))  # every sample once, none repeated
        assert first.provenance["processes"] == 2
    assert (tmp_path / "metrics 0.txt").read_text() == (tmp_path / "metrics 1.txt").read_text()
    written = sorted(path.stem for path in (tmp_path / "records").glob("*.json"))
    assert written == [f"epoch-{epoch:06d}" for epoch in (0, 2, 4, 6, 8)]
