"""`layerlaw imbalance` through the real entry point."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import layerlaw

from layerlaw.cli.advice import class_counts


def test_counts_are_read_in_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "counts.txt").write_text("5000\n5000\n50\n")
    assert class_counts(None, tmp_path / "counts.txt") == class_counts("5000×2;50", None) == [5000, 5000, 50]


MODEL = """
import torch
def make():
    torch.manual_seed(0)
    y = torch.cat([torch.zeros(40), torch.ones(40), torch.full((4,), 2), torch.full((4,), 3)]).long()
    x = torch.randn(88, 6) + 3 * torch.eye(6)[y]
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)), (x, y)
"""


def test_the_command_says_the_headline_first_and_leaves_files(tmp_path: Path) -> None:
    done = layerlaw("imbalance", "--counts", "5000x5,50x5", "--E-W", "1", "--E-H", "5", "--out", "found", cwd=tmp_path)
    assert done.stdout.startswith("Minority collapse predicted: one common row for 5 classes")
    assert "5 classes of 50 " in done.stdout
    assert "9×" in done.stdout
    assert json.loads((tmp_path / "found" / "forecast.json").read_text())["ratio"] == 100
    assert (tmp_path / "found" / "forecast.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_measures_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    done = layerlaw("imbalance", "--model", "model.py:make", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert data["ratio"] == 10
    assert data["by_use"]["c"] < data["by_norms"]["c"]
    assert "measured" in done.stderr
    assert len(data["accuracy"]) == 2
    assert all(0 <= share <= 1 for share in data["accuracy"])
    assert "right: share of these data" in done.stderr
    assert "the norms of a network that has not learned its data say little" in " ".join(done.stderr.split())
    assert "by the norm in use (c = " in done.stderr
    narrow = layerlaw("imbalance", "--model", "model.py:make", cwd=tmp_path, columns=80)
    assert "…" not in narrow.stdout
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    (tmp_path / "bare.py").write_text(MODEL.replace(", (x, y)", ""))
    bare = layerlaw("imbalance", "--model", "bare.py:make", "--E-W", "1", "--E-H", "5", cwd=tmp_path, code=1)
    assert "leave out --model and give --counts, --E-W and --E-H" in " ".join(bare.stderr.split())
    given = layerlaw("imbalance", "--model", "model.py:make", "--E-W", "1", "--E-H", "5", cwd=tmp_path)
    assert "the norm in use, which belongs to the measured ones, is left out" in " ".join(given.stdout.split())
    wrong = layerlaw("imbalance", "--model", "model.py:make", "--counts", "5,5", cwd=tmp_path, code=1)
    assert "expected 4 classes, one per row of the classifier, got 2" in wrong.stderr


def test_the_command_says_what_a_network_has_lost_and_refuses_broken_weights(tmp_path: Path) -> None:
    trained = MODEL.replace("return torch.nn.Sequential", "net = torch.nn.Sequential").replace(", (x, y)\n", "\n")
    dead = "    net[2].bias.data[:] = torch.tensor([9.0, 9.0, -99.0, -99.0])\n    return net, (x, y)\n"
    (tmp_path / "dead.py").write_text(trained + dead)
    done = layerlaw("imbalance", "--model", "dead.py:make", cwd=tmp_path)
    assert "Already lost in this network: accuracy of 2 classes on these data below half" in " ".join(
        done.stdout.split()
    )
    (tmp_path / "broken.py").write_text(
        trained + "    net[2].weight.data[0, 0] = float('nan')\n    return net, (x, y)\n"
    )
    broken = layerlaw("imbalance", "--model", "broken.py:make", cwd=tmp_path, code=1)
    assert "expected finite weights, got NaN or infinity" in " ".join(broken.stderr.split())


SCALED = """
import torch
def make():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 2))
    torch.nn.init.zeros_(net[1].weight)
    net[1].weight.data[1] = 1.0
    net[1].bias.data[:] = torch.tensor([128.0, 0.0])
    return net
"""


def test_pixels_of_another_scale_are_told_as_probe_tells_them(tmp_path: Path) -> None:
    """The network tells dark images from light ones between 0 and 1; pixels scaled to −1 … 1 are all dark to it."""
    image = pytest.importorskip("PIL.Image")
    for name, light in (("dark", 60), ("light", 180)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(12):
            image.new("L", (16, 16), light + k).save(tmp_path / "pictures" / name / f"{k}.png")
    (tmp_path / "scaled.py").write_text(SCALED)
    how = ["imbalance", "--model", "scaled.py:make", "--data", "pictures"]
    words = " ".join(layerlaw(*how, cwd=tmp_path).stdout.split())
    assert "pixels: may be scaled otherwise than in training" in words
    assert "100% with --normalize none" in words
    how += ["--normalize", "none"]
    right = " ".join(layerlaw(*how, cwd=tmp_path).stdout.split())
    assert "may be scaled otherwise" not in right
    turned = json.loads(layerlaw(*how, "--class-map", "dark=1,light=0", "--json", cwd=tmp_path).stdout)
    straight = json.loads(layerlaw(*how, "--class-map", "dark=0,light=1", "--json", cwd=tmp_path).stdout)
    assert (straight["accuracy"], turned["accuracy"]) == ([1.0], [0.0])
    told = layerlaw(*how, "--class-map", "dark=2,light=1", cwd=tmp_path, code=1)
    assert "--class-map: expected a class for every output of the model, from 0 on, got 1 and 2." in " ".join(
        told.stderr.split()
    )
    assert "has not learned" not in right


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected --counts, --counts-file, --data or --model"),
        (("--counts", "5"), "expected at least 2 classes"),
        (("--counts", "50,0"), "expected at least 1, got 0"),
        (("--counts", "50,-3"), "expected at least 1, got -3"),
        (("--counts", "50,2.5"), "expected whole numbers such as"),
        (("--counts", "50x0,5"), "with 1 to a million after 'x', got '50x0'"),
        (("--counts", "100x5,10x5"), "lose classes where √(E_W E_H) is below 2.13"),
        (("--counts", "50,5", "--E-W", "-1", "--E-H", "3"), "E_W: expected a positive, finite budget"),
        (("--counts", "50,5", "--weights", "w.pt"), "--weights: expected with --model"),
        (("--counts", "50,5", "--class-map", "a=0"), "--class-map: expected with --model, whose outputs it names"),
        (("--counts-file", "missing.txt"), "missing.txt: expected a text file of class counts"),
        (("--data", "nonsense", "--E-W", "1", "--E-H", "1"), "nonsense"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], words: str, refused: Callable[..., str]) -> None:
    assert words in refused("imbalance", *arguments)
