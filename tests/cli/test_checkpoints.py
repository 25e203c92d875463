"""`layerlaw checkpoints`: every checkpoint measured once, a movie of them, and answers to whatever is wrong with them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from command_line import layerlaw
from torch import nn

from layerlaw.cli import main
from layerlaw.cli.checkpoints import checkpoints_in
from layerlaw.cli.weights import load_weights
from layerlaw.errors import DataError, InputError
from layerlaw.record import Record

MODEL = """
import torch
from torch import nn

def net(width=12):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(),
                         nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))

def make(width=12):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    return net(width), (torch.randn(4, 8, generator=g)[y] + 0.5 * torch.randn(80, 8, generator=g), y)

def wide():
    return make(16)
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`layerlaw checkpoints` in this process and in a folder with a model and five checkpoints of it."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("run").mkdir()
    for step, state in trained().items():
        torch.save(state, f"run/net_step{step}.pt")

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["layerlaw", "checkpoints", *arguments, "--model", "model.py:make"])
        monkeypatch.delitem(sys.modules, "model", raising=False)
        with pytest.raises(SystemExit) as left:
            main()
        return Said(int(left.value.code or 0), *capsys.readouterr())

    return call


def trained() -> dict[int, dict[str, torch.Tensor]]:
    """States of a network on its way, at steps whose names do not sort as numbers do."""
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    net, (x, y) = scope["make"]()
    states = {0: {k: v.clone() for k, v in net.state_dict().items()}}
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(1, 101):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step in (2, 10, 30, 100):
            states[step] = {k: v.clone() for k, v in net.state_dict().items()}
    return states


def test_checkpoints_are_measured_in_natural_order_and_played(run: Run) -> None:
    said = run("run", "--out", "records", "--page", "movie.html", "--json")
    assert said.code == 0
    assert [record["name"] for record in said.data["records"]] == [f"step {n}" for n in (0, 2, 10, 30, 100)]
    assert said.data["page"] == "movie.html"
    text = Path("movie.html").read_text(encoding="utf-8")
    assert '"steps":["0","2","10","30","100"]' in text
    assert 'id="heat"' in text
    record = Record.load("records/step-000000100.json")
    assert record.settings["step"] == 100
    assert record.settings["step_unit"] == "step"
    assert record.provenance["checkpoint"]["file"] == "net_step100.pt"
    assert record.accuracy > 0.95 > Record.load("records/step-000000000.json").accuracy


def test_data_that_nobody_named_and_accuracy_by_chance_are_warned_of(run: Run) -> None:
    named = run("run", "--out", "records", "--json")
    assert named.data["warnings"] == []
    own = Path("model.py").read_text()
    Path("model.py").write_text(
        own.replace("nn.Linear(8, width)", "nn.Flatten(), nn.Linear(784, width)").replace("12, 4)", "12, 10)")
        + "\ndef make(width=12):\n    return net(width)\n"
    )
    scope: dict[str, Any] = {}
    exec(Path("model.py").read_text(), scope)
    Path("other").mkdir()
    torch.save(scope["make"]().state_dict(), "other/net_step1.pt")
    said = run("other", "--out", "others", "--per-class", "20", "--json")
    assert said.code == 0
    assert said.err.startswith("No data were named: all checkpoints are measured on the embedded fashion_mnist_sample.")
    assert "Accuracy is about chance at every checkpoint" in said.data["warnings"][1]
    assert said.data["warnings"][1] in said.err


def test_a_second_call_measures_only_what_is_new(run: Run) -> None:
    run("run", "--out", "records")
    kept = {path: path.stat().st_mtime_ns for path in Path("records").glob("*.json")}
    states = trained()
    torch.save(states[30], "run/net_step200.pt")  # a new one
    torch.save(states[2], "run/net_step10.pt")  # another file under a known name
    Path("records/step-000000002.json").write_text("{")  # a damaged record
    said = run("run", "--out", "records", "--json")
    assert said.code == 0
    assert said.data["kept"] == 3
    again = {path.name for path in Path("records").glob("*.json") if kept.get(path) != path.stat().st_mtime_ns}
    assert again == {"step-000000002.json", "step-000000010.json", "step-000000200.json"}
    assert run("run", "--out", "records", "--json", "--batchnorm", "batch").data["kept"] == 0  # asked in another way
    Path("model.py").write_text(MODEL + "\n# changed\n")
    assert run("run", "--out", "records", "--json", "--batchnorm", "batch").data["kept"] == 0


def test_files_of_every_kind_and_wrapping_are_read(run: Run) -> None:
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file
    states = trained()
    for path in Path("run").iterdir():
        path.unlink()
    save_file(states[0], "run/epoch=0.safetensors")
    torch.save({"state_dict": {f"net.{k}": v for k, v in states[2].items()}, "epoch": 1}, "run/epoch=1.ckpt")
    torch.save({"model": {f"module.{k}": v for k, v in states[10].items()}}, "run/epoch=2.pth")
    torch.save({f"_orig_mod.module.{k}": v for k, v in states[30].items()}, "run/epoch=10.pt")
    torch.save(states[30], "run/best.pt")
    said = run("run", "--json")
    assert said.code == 0
    assert "left out: run/best.pt (no epoch in its name)" in said.err
    digests = [record["provenance"]["parameters_sha256"] for record in said.data["records"]]
    assert [record["settings"]["step"] for record in said.data["records"]] == [0, 1, 2, 10]
    assert len(set(digests)) == 4
    assert Path("layerlaw-checkpoints/movie.html").is_file()


def test_the_first_that_does_not_fit_ends_it_and_names_the_keys(run: Run) -> None:
    state = trained()[0]
    state["head.bias"] = state.pop("8.bias")
    state["2.weight"] = torch.zeros(12, 7)
    torch.save(state, "run/net_step0.pt")
    said = run("run")
    assert said.code == 1
    words = " ".join(said.err.split())
    assert "run/net_step0.pt: the weights do not fit the model: 1 key is missing ('8.bias')" in words
    assert "1 key is surplus ('head.bias')" in words
    assert "'2.weight' has the shape (12, 7), the model's (12, 12)" in words


def test_a_later_one_that_fails_is_left_out_and_told(run: Run) -> None:
    Path("run/net_step10.pt").write_bytes(Path("run/net_step10.pt").read_bytes()[:200])
    broken = trained()[30]
    broken["0.weight"] = broken["0.weight"] * float("nan")
    torch.save(broken, "run/net_step30.pt")
    said = run("run", "--out", "records", "--json")
    assert said.code == 1
    assert [record["settings"]["step"] for record in said.data["records"]] == [0, 2, 100]
    assert sorted(said.data["failed"]) == ["run/net_step10.pt", "run/net_step30.pt"]
    assert Path("records/movie.html").is_file()


def test_no_checkpoints_are_an_answer(run: Run) -> None:
    Path("empty").mkdir()
    Path("note.pt").write_text("x")
    for given, words in (
        (("empty",), "empty: expected checkpoints in this folder (*.safetensors, *.pt"),
        (("nowhere",), "nowhere: expected a checkpoint or a folder of checkpoints, found none"),
        (("note.pt",), "expected the training step in each name, such as step1000.safetensors or epoch=3.ckpt"),
        (("run", "--out", "model.py"), "model.py: expected a folder, got a file"),
        (("run", "--page", "none/movie.html"), "none/movie.html: expected the folder none to exist"),
    ):
        said = run(*given)
        assert said.code == 1
        assert words in said.err
        assert len(said.err.strip().splitlines()) == 1


def test_two_checkpoints_of_one_step_are_refused(tmp_path: Path) -> None:
    for name in ("step7.pt", "net-step-007.pth"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"expected one of each step, got two of step 7: .*007\.pth and .*step7\.pt"):
        checkpoints_in([tmp_path])


def test_folders_of_a_trainer_and_names_with_two_numbers_are_understood(tmp_path: Path) -> None:
    for name in ("checkpoint-1000", "checkpoint-90"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
        (tmp_path / name / "optimizer.pt").touch()
    found, left_out = checkpoints_in([tmp_path])
    assert [(one.step, one.unit, one.path.parent.name) for one in found] == [
        (90, "step", "checkpoint-90"),
        (1000, "step", "checkpoint-1000"),
    ]
    assert left_out == []
    other = tmp_path / "lightning"
    other.mkdir()
    for name in ("epoch=0-step=50.ckpt", "epoch=0-step=100.ckpt", "epoch=1-step=150.ckpt", "last.ckpt"):
        (other / name).touch()
    found, left_out = checkpoints_in([other])
    assert [(one.step, one.unit) for one in found] == [(50, "step"), (100, "step"), (150, "step")]
    assert [path.name for path in left_out] == ["last.ckpt"]


def test_weights_without_counters_of_batchnorm_are_loaded_as_torch_loads_them(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = {key: value for key, value in model.state_dict().items() if "tracked" not in key}
    torch.save(state, tmp_path / "old.pt")
    load_weights(model, tmp_path / "old.pt")
    torch.save({"state_dict": 3}, tmp_path / "odd.pt")
    with pytest.raises(DataError, match="expected a state dict of tensors, got the keys"):
        load_weights(model, tmp_path / "odd.pt")


def test_the_command_is_there(tmp_path: Path) -> None:
    text = layerlaw("checkpoints", "--help", cwd=tmp_path).stdout
    assert "--model" in text
    assert "MODEL names your" in " ".join(text.split())
