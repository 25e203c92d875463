"""The command line through its real entry point."""

import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import layerlaw

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    hidden = [part for _ in range(4) for part in (nn.Linear(100, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 100))]
    return nn.Sequential(*hidden, nn.Linear(100, 10))

def with_data():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 10
    x = torch.randn(10, 100, generator=g)[y] + torch.randn(120, 100, generator=g)
    return make(), (x, y)

not_a_model = 3

def a_class():
    return nn.Linear

def words():
    return make(), (torch.randn(6, 100), list("ababab"))

def fails():
    return 1 / 0
"""
IMAGES = ("--size", "10", "--flat", "--per-class", "20", "--no-test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    (path / "model.py").write_text(MODEL)
    return path


def test_help_names_every_command_and_warns_that_code_is_run(folder: Path) -> None:
    text = layerlaw("--help", cwd=folder).stdout
    assert all(name in text for name in ("demo", "probe", "sites", "report"))
    assert "runs your own code" in " ".join(layerlaw("probe", "--help", cwd=folder).stdout.replace("│", " ").split())


def test_the_version_is_printed(folder: Path) -> None:
    assert layerlaw("--version", cwd=folder).stdout.strip() == "0.1.0"


def test_probe_prints_a_table_and_writes_record_and_page(folder: Path) -> None:
    done = layerlaw("probe", "model.py:make", *IMAGES, "--out", "r.json", "--page", "p.html", cwd=folder)
    assert "NC1" in done.stdout
    assert json.loads((folder / "r.json").read_text())["format"] == "layerlaw record"
    assert (folder / "p.html").stat().st_size < 6_000_000


def test_json_is_one_object_on_standard_output(folder: Path) -> None:
    done = layerlaw("probe", "model.py:with_data", "--json", "--null", "--sites", "layers", cwd=folder)
    data = json.loads(done.stdout)
    assert len(data["rows"]) == 9
    assert {"rho", "pearson", "greenwood_p", "evenness", "trend", "holds", "equal_steps", "verdict"} <= set(data["law"])
    assert data["law"]["holds"] is False
    assert data["law"]["objections"] == ["D does not fall with depth"]
    assert data["rows"][0]["separation_untrained"] == pytest.approx(data["rows"][0]["separation"])
    assert "NC1" in done.stderr


def test_parts_and_the_best_linear_map_are_options(folder: Path) -> None:
    done = layerlaw("probe", "model.py:with_data", "--json", "--parts", "--linear", "--page", "parts.html", cwd=folder)
    data = json.loads(done.stdout)
    kinds = [part["kind"] for part in data["parts"]]
    assert kinds[:4] == ["map", "normalization", "nonlinearity", "map"]
    first = data["parts"][0]
    assert first["change"] == pytest.approx(math.log(first["values"]["separation"] / first["before"]["separation"]))
    assert any("ln D changes by" in line for line in data["verdict"])
    assert any(row.get("separation_linear") for row in data["rows"])
    assert 'data-panel="parts"' in (folder / "parts.html").read_text(encoding="utf-8")


def test_a_file_of_arrays_may_hold_targets(folder: Path) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 100, generator=g)
    data = {"x": x, "y": x[:, :10] * x[:, 10:20], "x_test": x[:50], "y_test": x[:50, :10]}
    np.savez(folder / "targets.npz", **{name: value.numpy() for name, value in data.items()})
    torch.save(data, folder / "targets.pt")
    found = []
    for name in ("targets.npz", "targets.pt"):
        arguments = ("probe", "model.py:make", "--data", name, "--json", "--page", "targets.html")
        found.append(json.loads(layerlaw(*arguments, cwd=folder).stdout))
    assert found[0]["rows"] == found[1]["rows"]
    assert found[0]["law"]["quantity"] == "D_reg"
    assert found[0]["r_squared"] < 1
    assert "test_target_separation" in found[0]["rows"][0]
    np.savez(folder / "nameless.npz", data=np.zeros(3))
    for arguments, words in (
        (
            ("--data", "nameless.npz"),
            "expected arrays of numbers under the names x and y (and x_test, y_test), got data",
        ),
        (("--data", "none.npz"), "the file cannot be read"),
        (("--data", "targets.npz", "--flat"), "here the data come from targets.npz, as they are"),
    ):
        assert words in layerlaw("probe", "model.py:make", *arguments, cwd=folder, code=1).stderr


def test_sites_lists_the_dry_run(folder: Path) -> None:
    done = layerlaw("sites", "model.py:make", "--shape", "100", "--json", cwd=folder)
    data = json.loads(done.stdout)
    assert [row["features"] for row in data["sites"]] == [100, 20] * 4 + [100]
    assert (data["no_sites"], data["no_trunk"]) == ({}, "")
    assert data["classifier"] == "16"
    assert "weight layer" in layerlaw("sites", "model.py:make", "--size", "10", "--flat", cwd=folder).stdout


def test_report_compares_records(folder: Path) -> None:
    for name in ("a", "b"):
        layerlaw("probe", "model.py:with_data", "--name", name, "--out", f"{name}.json", cwd=folder)
    done = layerlaw("report", "a.json", "b.json", "-o", "both.html", "--json", cwd=folder)
    data = json.loads(done.stdout)
    assert (data["page"], data["records"]) == ("both.html", ["a", "b"])
    assert [law["points"] for law in data["laws"]] == [9, 9]
    assert done.stderr.startswith("The law holds in 0 of 2 records.")  # the same network, twice
    assert "· b: No law: D does not fall with depth." in done.stderr


def test_weights_are_loaded_without_unpickling_code(folder: Path) -> None:
    net = runpy.run_path(str(folder / "model.py"))["make"]()  # no import: other tests have a model.py too
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, folder / "good.pt")
    layerlaw("probe", "model.py:with_data", "--weights", "good.pt", cwd=folder)
    torch.save(net, folder / "whole.pt")  # a pickled module, not weights
    done = layerlaw("probe", "model.py:with_data", "--weights", "whole.pt", cwd=folder, code=1)
    assert "not loaded for safety" in done.stderr
    (folder / "cut.pt").write_bytes((folder / "good.pt").read_bytes()[:500])
    assert (
        "cut short: download"
        in layerlaw("probe", "model.py:with_data", "--weights", "cut.pt", cwd=folder, code=1).stderr
    )
    from safetensors.torch import save_file

    save_file(net.state_dict(), folder / "good.safetensors")
    layerlaw("probe", "model.py:with_data", "--weights", "good.safetensors", cwd=folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probe", "model.py"), "expected 'file.py:make'"),
        (("probe", "nothing.py:make"), "expected a Python file, found none"),
        (
            ("probe", "model.py:mak"),
            "has no 'mak'. Did you mean 'make'? It defines: make, with_data, a_class, words, fails.",
        ),
        (("probe", "model.py:a_class"), "got the class Linear itself: return Linear(…)."),
        (("probe", "model.py:words"), "got strings such as 'a'. Number the classes from 0"),
        (("probe", "model.py:words"), "in Python `classes` takes their names."),
        (("probe", "model.py:make", "--per-class", "0"), "--per-class: expected a whole number of at least 1, got 0."),
        (("probe", "model.py:with_data", "--batchnorm", "train"), "batchnorm: 'train' is now 'batch'"),
        (("probe", "model.py:with_data", "--scores", "logits"), "scores: expected class scores (n, K) at 'logits'"),
        (("probe", "model.py:with_data", "--labels", "5"), "--labels 5: expected an index of the 2 items of a batch"),
        (("probe", "model.py:with_data", "--class-map", "a=1"), "here the data come from your own code"),
        (("probe", "model.py:not_a_model"), "expected a callable that returns a model"),
        (("probe", "model.py:with_data", "--sites", "1x"), "matches no module"),
        (
            ("probe", "model.py:with_data", "--batchnorm", "fast"),
            "batchnorm: expected one of running, batch, whole, got 'fast'",
        ),
        (("probe", "model.py:with_data", "--classes", "a,b"), "expected numbers separated by commas"),
        (("probe", "model.py:make", "--data", "fashion_mnist_sampel"), "fashion_mnist_sample"),
        (("probe", "model.py:make"), "(2, 1, 28, 28)"),
        (("probe", "model.py:make"), "--flat"),
        (("probe", "model.py:with_data", "--flat"), "here the data come from your own code"),
        (("probe", "model.py:make", "--out", "r.html", "--page", "r.html"), "expected one file for the record"),
        (("probe", "model.py:fails"), "failed with ZeroDivisionError: division by zero"),
        (("report", "none.json"), "found nothing there"),
        (("sites", "model.py:make", "--shape", "a"), "shape: expected positive whole numbers"),
        (("demo", "--out", "model.py"), "expected a folder, got a file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_one(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = layerlaw(*arguments, cwd=folder, code=1)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("probe", "m.py:make", "--mode", "train"),
            "--mode is now --batchnorm ('train' is now 'batch', 'eval' is 'running')",
        ),
        (("sites", "m.py:make", "--normalise=none"), "--normalise is now --normalize"),
        (("depth", "--optimiser", "sgd"), "--optimiser is now --optimizer"),
    ],
)
def test_old_options_are_answered_with_their_new_names(
    refused: Callable[..., str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(*arguments)


def test_an_error_is_json_too_when_json_is_asked_for(folder: Path) -> None:
    done = layerlaw("report", "none.json", "--json", cwd=folder, code=1)
    assert json.loads(done.stdout)["error"]["type"] == "DataError"


def test_the_demo_leaves_records_and_a_page(folder: Path) -> None:
    done = layerlaw("demo", "--quick", "--out", "demo", "--json", cwd=folder)
    data = json.loads(done.stdout)
    assert data["law"]["points"] == 8
    assert data["law"]["pearson"] < -0.99
    assert data["test_accuracy"] > 0.7
    assert data["law"]["holds"]
    assert data["law"]["evenness"] == pytest.approx(data["law"]["effective_layers"] / 7)
    assert data["law"]["equal_steps"]
    assert "evenness 0.9" in done.stderr.split("With the paper's protocol")[1]
    assert (folder / data["page"]).is_file()
    assert len(list((folder / "demo").glob("*.json"))) == 6
    film = (folder / data["movie"]).read_text(encoding="utf-8")
    assert '"steps":["0","1","2","3","4","5","6","8","11","15","20","22","30","43","60"]' in film
    assert 'id="collapse"' in film


BLOCKS = """
import torch
from torch import nn

def make(seed=0):
    torch.manual_seed(seed)
    pair = lambda: nn.Sequential(nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh())
    return nn.Sequential(*(pair() for _ in range(4)), nn.Linear(100, 10))

def other():
    return make(1)
"""


def test_modules_are_found_in_records_of_one_network_and_of_seeds(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(BLOCKS)
    for make in ("make", "other"):
        where = ("--sites", "layers", "--out", f"{make}.json")
        layerlaw("probe", f"blocks.py:{make}", *IMAGES, *where, cwd=tmp_path)
    done = layerlaw("modules", "make.json", "--out", "found", cwd=tmp_path)
    assert done.stdout.startswith("Modules: ")
    assert all(
        word in done.stdout for word in ("Greenwood p", "permutation p", "layers", "blocks", "found/modules.json")
    )
    assert (tmp_path / "found" / "modules.png").read_bytes().startswith(b"\x89PNG")
    both = json.loads(layerlaw("modules", "make.json", "other.json", "--json", cwd=tmp_path).stdout)
    assert [level["modules"] for level in both["levels"]] == [[8, 8], [4, 4]]
    taken_in = json.loads(layerlaw("modules", "make.json", "--branches", "--json", cwd=tmp_path).stdout)
    assert [level["modules"] for level in taken_in["levels"]] == [[8], [4]]  # there are none here
    again = layerlaw("modules", "make.json", "make.json", cwd=tmp_path, code=1)
    assert "two records of the same network" in again.stderr
    page = layerlaw("report", "make.json", "other.json", "-o", "page.html", cwd=tmp_path)
    assert "page: page.html" in page.stdout
    assert 'id="all-modules-panel"' in (tmp_path / "page.html").read_text()
