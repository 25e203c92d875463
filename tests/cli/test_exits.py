"""`layerlaw exit` and `layerlaw paths` through the real entry point."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from command_line import layerlaw
from PIL import Image

from layerlaw.advice import EarlyExit

MODEL = """
import torch
def make():
    torch.manual_seed(0)
    places = 3 * torch.randn(3, 9)
    y, yt = torch.arange(120) % 3, torch.arange(90) % 3
    x, xt = places[y] + torch.randn(120, 9), places[yt] + torch.randn(90, 9)
    # so wide that an exit is faster than the network on any machine
    layers = [part for i in range(4) for part in (torch.nn.Linear(256 if i else 9, 256), torch.nn.ReLU())]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(256, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, (x, y), (xt, yt)
"""


IMAGES = """
import torch
def make():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    with torch.no_grad():  # dark, gray, bright: by the mean of the pixels
        net[1].weight.fill_(1 / 16); net[1].bias.zero_(); net[2].weight.fill_(1 / 8); net[2].bias.zero_()
        net[3].weight.copy_(torch.tensor([[-4.0], [0.0], [4.0]]).expand(3, 8) / 8)
        net[3].bias.copy_(torch.tensor([1.2, 0.0, -3.0]))
    return net
"""


def test_exit_says_its_sentence_first_and_leaves_files(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    done = layerlaw("exit", "model.py:make", "--tolerance", "0.05", "--out", "found", cwd=tmp_path)
    first = done.stdout.splitlines()[0]
    assert first.startswith(("The raw input decides", "The last "))
    assert "With a linear read-out instead of class means" in done.stdout
    assert "whole network" in done.stdout
    folder = tmp_path / "found"
    data = json.loads((folder / "exit.json").read_text())
    assert data["sentence"].startswith(first.split(",")[0][:20])
    assert len(data["sites"]) == 5
    assert (folder / "exit.png").read_bytes().startswith(b"\x89PNG")
    assert "Each sample on its own" in (folder / "exit.html").read_text()
    namespace: dict = {}
    exec(MODEL, namespace)
    net, _, (xt, _) = namespace["make"]()
    with torch.no_grad():
        assert EarlyExit.load(folder / "exit.safetensors", net)(xt).shape == (90, 3)


def test_exit_without_test_data_says_so_first_and_names_what_the_command_takes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("return net, (x, y), (xt, yt)", "return net, (x, y)"))
    done = layerlaw("exit", "model.py:make", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert data["sentence"].startswith("Judged without test data")
    assert "test accuracy" not in done.stderr
    assert "--data with a test split" in " ".join(done.stderr.split())
    assert "test=" not in done.stderr
    assert any("--data with a test split" in note for note in data["notes"])


def test_paths_lists_what_was_decided_last_and_leaves_files(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    done = layerlaw("paths", "model.py:make", "--out", "found", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert len(data["rows"]) == 90
    assert len(data["last"]) == 10
    assert "decided at" in done.stderr
    assert (tmp_path / "found" / "paths.png").read_bytes().startswith(b"\x89PNG")
    assert "The 10 that were decided last" in (tmp_path / "found" / "paths.html").read_text()


def test_exit_and_paths_take_a_class_map_and_tell_of_labels_numbered_otherwise(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(IMAGES)
    for k, (name, level) in enumerate((("bright", 240), ("dark", 15), ("gray", 128))):
        for split, n in (("train", 30), ("test", 30)):
            (tmp_path / "pictures" / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = (level + torch.randint(-15, 16, (4, 4))).clamp(0, 255).to(torch.uint8).numpy()
                Image.fromarray(pixels).save(tmp_path / "pictures" / split / name / f"{k}{i}.png")
    how = ("model.py:make", "--data", "pictures", "--normalize", "none", "--channels", "1", "--json")
    right = ("--class-map", "dark=0,gray=1,bright=2")
    for command in ("exit", "paths"):
        wrong = json.loads(layerlaw(command, *how, cwd=tmp_path).stdout)
        told = " ".join(wrong["notes"])
        assert "--class-map cat=3,dog=5" in told
        assert "numbered" in told
        data = json.loads(layerlaw(command, *how, *right, cwd=tmp_path).stdout)
        assert data["accuracy"] > 0.95
        assert "classes: dark = 0, gray = 1, bright = 2 (--class-map)" in " ".join(data["notes"])
        assert "by chance" not in " ".join(data["notes"])


def test_commands_that_need_decisions_refuse_to_do_without(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    for command in ("exit", "paths"):
        assert "--scores: expected" in refused(command, "model.py:make", "--scores", "none")


def test_paths_without_samples_of_a_class_names_the_option(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("return net, (x, y)", "return net, (x[y < 2], y[y < 2])"))
    assert "--classes" in refused("paths", "model.py:make")


def test_data_that_nobody_named_are_told(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def make(classes=5):\n"
        "    torch.manual_seed(0)\n"
        "    layers = [torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, classes)]\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), *layers)\n"
        "def ten():\n"
        "    return make(10)\n"
    )
    said = " ".join(refused("exit", "model.py:make", "--size", "8").split())
    assert "expected labels in 0 … 4 (5 classes), got 9" in said
    assert (
        "No data were given, so fashion_mnist_sample (embedded) was taken. Name the model's own data by --data" in said
    )
    assert "return (model, data, test)" in said
    assert "--scores none" not in said
    data = json.loads(layerlaw("exit", "model.py:ten", "--size", "8", "--json", cwd=tmp_path).stdout)
    assert "data: fashion_mnist_sample (embedded; --data names another)" in data["notes"]
    assert data["sentence"].startswith("The network itself is near chance: its accuracy on ")  # it is not trained


def test_bad_options_are_answered(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    assert "tolerance: expected a share from 0 to below 1, got 2.0" in refused(
        "exit", "model.py:make", "--tolerance", "2"
    )
    assert "by: expected one of centers, linear, best" in refused("exit", "model.py:make", "--by", "magic")
