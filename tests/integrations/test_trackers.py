"""What trackers are given, read back from the files of real ones."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_parts import Blobs, network

import layerlaw as ll
from layerlaw.errors import InputError
from layerlaw.integrations.trackers import FunctionTracker, scalars, tracker_of, trackers_of
from layerlaw.record import Record, SiteRow

PAIR = (Blobs().x, Blobs().y)


def watched(to: Any) -> ll.Monitor:
    """Three measurements, every fifth epoch, and the page."""
    with ll.Monitor(network(), PAIR, every=5, to=to) as monitor:
        for epoch in range(11):
            monitor(epoch)
    return monitor


def test_numbers_are_named_by_measure_and_site_and_none_of_them_is_about_another() -> None:
    record = ll.probe(network(), PAIR, test=PAIR, progress=False)
    found = scalars(record)
    assert found["layerlaw/test_separation/4"] == record.sites[1].values["test_separation"]
    assert not [name for name in found if name.endswith(("_log_se", "_low", "_high")) or "/rank/" in name]
    assert all(isinstance(value, float) for value in found.values())
    assert found["layerlaw/test_accuracy"] == record.test_accuracy


def test_a_law_without_steps_down_has_no_trend_as_on_the_page() -> None:
    rows = [
        SiteRow(f"fc{i}", "Linear", (4,), 4, values={"separation": d}) for i, d in enumerate((12.8, 8.1, 10.1, 13.8))
    ]
    record = Record(name="rising", classes=["a", "b"], sites=rows)
    assert (record.law().evenness, record.law().trend) == (None, 0.0)
    found = scalars(record)
    assert "layerlaw/rho" in found
    assert not {"layerlaw/trend", "layerlaw/evenness"} & found.keys()


def test_tensorboard_files_hold_numbers_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        monitor = watched(writer)
    events = EventAccumulator(str(tmp_path)).Reload()
    for site in monitor.records[0].sites:
        found = [(event.step, event.value) for event in events.Scalars(f"layerlaw/separation/{site.name}")]
        row = monitor.records[0].position(site.name)
        known = [(r.settings["step"], pytest.approx(r.sites[row].values["separation"])) for r in monitor.records]
        assert found == known
    assert events.Scalars("layerlaw/rho")[0].value == pytest.approx(monitor.records[0].law().rho)
    images = events.Images("layerlaw/law")
    assert [image.step for image in images] == [0, 5, 10]
    assert images[0].encoded_image_string.startswith(b"\x89PNG")
    assert (tmp_path / "layerlaw.html").exists()


def test_a_wandb_run_without_network_gets_numbers_picture_and_page(tmp_path: Path, monkeypatch: Any) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=str(tmp_path), project="layerlaw") as run:
        taken: list[Any] = []
        real = run.log_artifact
        monkeypatch.setattr(run, "log_artifact", lambda artifact: taken.append(artifact) or real(artifact))
        run.log({"loss": 1.0})  # the run's own steps go on as they like
        monitor = watched(run)
        run.log({"loss": 0.5})
        summary = dict(run.summary)
    wandb.teardown()  # its service writes on after the end of the run
    record = monitor.records[-1]
    assert summary["layerlaw/separation/0"] == pytest.approx(record.sites[0].values["separation"])
    assert summary["layerlaw/step"] == 10
    assert summary["loss"] == 0.5
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wandb"))
    assert written.count(b"layerlaw/separation/0") >= 3
    assert [(one.name.partition(":")[0], list(one.manifest.entries)) for one in taken] == [
        ("layerlaw-page", ["layerlaw.html"])
    ]
    assert len(list(tmp_path.rglob("*.png"))) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of what mlflow uses
def test_mlflow_gets_numbers_picture_and_page(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    store = f"sqlite:///{tmp_path}/runs.db"
    mlflow.set_tracking_uri(store)
    experiment = mlflow.create_experiment("law", artifact_location=str(tmp_path / "artifacts"))
    with mlflow.start_run(experiment_id=experiment) as run:
        monitor = watched(mlflow)
    client = mlflow.tracking.MlflowClient(store)
    found = client.get_metric_history(run.info.run_id, "layerlaw/separation/0")
    known = [(r.settings["step"], pytest.approx(r.sites[0].values["separation"])) for r in monitor.records]
    assert [(metric.step, metric.value) for metric in found] == known
    kept = {one.path for one in client.list_artifacts(run.info.run_id, "layerlaw")}
    assert kept == {"layerlaw/layerlaw.html", *(f"layerlaw/law-{step:06d}.png" for step in (0, 5, 10))}


def test_a_tracker_is_known_by_its_methods() -> None:
    called: list[str] = []

    def method(name: str) -> Any:
        return lambda *given, **named: called.append(name)

    names = ("log_metrics", "log_figure", "log_artifact")
    mlflow = SimpleNamespace(**{name: method(name) for name in names})
    tracker_of(mlflow).numbers({"layerlaw/separation/a[0]": 1.0}, 3)
    tracker_of(mlflow).picture(None, 3)
    tracker_of(mlflow).page(Path("page.html"))
    assert called == list(names)
    assert isinstance(tracker_of(print), FunctionTracker)
    assert len(trackers_of([print, mlflow])) == 2
    assert trackers_of(()) == []
    for wrong in ("wandb", 3, dict, SimpleNamespace(log=print)):
        with pytest.raises(InputError, match="to: expected a SummaryWriter, a wandb run, the module mlflow"):
            tracker_of(wrong)


def test_names_that_mlflow_does_not_take_are_changed_for_it() -> None:
    taken: list[dict[str, float]] = []
    mlflow = SimpleNamespace(
        log_metrics=lambda values, step: taken.append(values), log_figure=print, log_artifact=print
    )
    tracker_of(mlflow).numbers({"layerlaw/separation/blocks[0]#2": 1.0}, 0)
    assert taken == [{"layerlaw/separation/blocks_0__2": 1.0}]


def test_no_tracker_and_no_framework_is_imported_unless_given() -> None:
    code = """
import sys, torch, layerlaw as ll
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
monitor = ll.Monitor(net, (torch.randn(20, 4), torch.arange(20) % 2), to=lambda values, step: None)
monitor(0)
import layerlaw.integrations.trackers
strangers = {"tensorboard", "wandb", "mlflow", "lightning", "pytorch_lightning", "transformers", "matplotlib", "plotly"}
print(sorted(strangers & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
