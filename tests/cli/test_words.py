"""What commands say of arguments: the options of the command line, never those of Python."""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import layerlaw

import layerlaw as ll
from disk import full_disk
from layerlaw.cli import main
from layerlaw.cli.app import HINT, in_options

MODEL = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(16, 10), nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x):
        x = self.body(x.flatten(1))
        return self.a(x), self.b(x)

def two():
    return Two()

def fails(size=4):
    raise ValueError(f"got size={size}")

def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))
"""
WIDE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)).double()
    x, y = torch.randn(90, 8).double(), torch.arange(90) % 3
    return net, (x + y[:, None], y)

def loaded():
    net, (x, y) = make()
    return net, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
"""
SMALL = ("--size", "4", "--per-class", "20", "--no-test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words_model.py").write_text(MODEL)
    sys.modules.pop("words_model", None)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("two",), "Say it by --scores, an index, a key"),
        (("two",), "or --scores none: no decision"),
        (("plain", "--sites", "blocks"), "--sites blocks: no repeated module class"),
        (("plain", "--sites", "blocks"), "Use --sites layers, or name the modules"),
        (
            ("plain", "--memory-gib", "1e-6"),
            "or use --reduce mean, fewer classes (--classes …), fewer samples, other sites",
        ),
        (("plain", "--batchnorm", "train"), "--batchnorm: 'train' is now 'batch'"),
        (("plain", "--reduce", "sum"), "--reduce: expected one of flatten, mean"),
        (("plain", "--classes", "0,30"), "pass --scores none"),
        (("plain", "--sites", "a*", "--sites", "b*"), "matches no module"),
        (
            ("plain", "--sites", "0,2"),
            "site '0,2' matches no module of the model. Several are given as --sites 0 --sites 2.",
        ),
    ],
)
def test_errors_name_options(refused: Callable[..., str], folder: Path, arguments: tuple[str, ...], words: str) -> None:
    model, *options = arguments
    assert words in refused("probe", f"words_model.py:{model}", *SMALL, *options)


def test_lines_of_the_users_own_code_stay_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["layerlaw", "probe", "words_model.py:fails"])
    with pytest.raises(SystemExit):
        main()
    assert 'raise ValueError(f"got size={size}")' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("probe", "pass scores=None", "pass --scores none"),
        ("probe", "reduce='mean', 'first' or 'last'", "--reduce mean, first or last"),
        ("probe", "weighting='samples' or 'classes'.", "--weighting samples or classes."),
        ("probe", "sites=['auto', 'logits'].", "--sites auto --sites logits."),
        ("probe", "uncertainty=True, or give memory_gib=3.1", "--uncertainty, or give --memory-gib 3.1"),
        ("probe", "or uncertainty=False", "or --no-uncertainty"),
        ("probe", "Leave linear=True out", "Leave --linear out"),
        ("probe", "pass normalize=(mean, std), measured", "pass --normalize mean,std, measured"),
        ("probe", "pass size= to bring", "pass --size to bring"),
        ("probe", "data: expected a thing", "data: expected a thing"),
        ("probe", "record.law(branches=True) takes", "record.law(branches=True) takes"),
        ("probe", "such as cat=3,dog=5", "such as cat=3,dog=5"),
        ("lm", "null=True (or --null) shows", "--null shows"),
        ("lm", "wants it. Use bos=True (or --bos).", "wants it. Use --bos."),
        ("report", "weighting='classes'", "--weighting classes"),
        ("imbalance", "pass scores=None", "pass scores=None"),
        ("sites", "classes=[…]", "--classes …"),
    ],
)
def test_arguments_become_the_options_of_the_command(
    monkeypatch: pytest.MonkeyPatch, command: str, text: str, words: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["layerlaw", command])
    with pytest.raises(SystemExit):  # an incomplete call: the commands are there now
        main()
    assert in_options(text) == words


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        ("--data flat/", "flat: expected one sub-folder", "flat: expected one sub-folder"),
        ("--data ./flat", "flat: expected one sub-folder", "flat: expected one sub-folder"),
        ("--data x --flat", "flat: expected a thing", "--flat: expected a thing"),
        ("--classes 0", "classes: expected two", "--classes: expected two"),
        ("--classes=0", "classes: expected two", "--classes: expected two"),
        ("--class-map cat=3", "classes: expected numbers", "--class-map: expected numbers"),
        ("--data folder", "classes: expected at least 2", "classes: expected at least 2"),
    ],
)
def test_only_what_the_user_wrote_is_called_an_option(
    monkeypatch: pytest.MonkeyPatch, arguments: str, text: str, words: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["layerlaw", "probe"])
    with pytest.raises(SystemExit):  # an incomplete call: the commands are there now
        main()
    monkeypatch.setattr(sys, "argv", ["layerlaw", "probe", *arguments.split()])
    assert in_options(text) == words


def test_every_argument_that_a_message_names_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["layerlaw", "probe"])
    with pytest.raises(SystemExit):
        main()
    arguments, found = set(inspect.signature(ll.probe).parameters), set()
    for part in ("capture", "probing", "verdict", "data", "stats"):
        for path in (Path(ll.__file__).parent / part).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docs = {
                ast.get_docstring(node, clean=False)
                for node in ast.walk(tree)
                if hasattr(node, "body") and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docs:
                    found |= {hint[0] for hint in HINT.finditer(node.value) if hint[1] in arguments}
    assert len(found) > 10
    left = {hint for hint in found if in_options(hint) == hint}
    assert not left


def test_notes_and_findings_are_printed_in_options_and_kept_in_arguments(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "300")
    call = ["layerlaw", "probe", "words_model.py:plain", *SMALL, "--scores", "none", "--out", "r.json"]
    for argv in (call, ["layerlaw", "report", "r.json", "--out", "r.html"]):
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        assert "(no accuracy, mismatch, NC3, NC4): --scores none." in capsys.readouterr().out
    assert any("scores=None" in note for note in ll.Record.load("r.json").notes)


def test_many_forwards_are_told_in_options_where_standard_error_is_no_terminal(tmp_path: Path) -> None:
    """One line, without the line of code that called."""
    (tmp_path / "wide.py").write_text(WIDE)
    done = layerlaw("probe", "wide.py:make", "--memory-gib", "4.5e-5", "--uncertainty", "--json", cwd=tmp_path)
    (said,) = [line for line in done.stderr.splitlines() if "forwards over" in line]
    told = r"warning: (\d+) forwards over the data are needed within --memory-gib 4\.5e-05; --memory-gib (\S+) takes (\d+)\."
    found = re.fullmatch(told, said)
    assert found
    assert int(found[1]) > 20 > int(found[3])
    done = layerlaw("probe", "wide.py:make", "--memory-gib", found[2], "--uncertainty", "--json", cwd=tmp_path)
    assert "warning" not in done.stderr


def test_the_batch_size_of_a_loader_is_told_as_an_option(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    done = layerlaw("probe", "wide.py:loaded", "--batch-size", "20", cwd=tmp_path, code=1)
    assert done.stderr.strip() == "error: --batch-size: leave it out. The DataLoader given as data has its own (64)."


def test_a_file_that_finds_no_room_is_named_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    monkeypatch.setattr(sys, "argv", ["layerlaw", "merge", str(tmp_path), "--out", str(out)])
    with full_disk(1000), pytest.raises(SystemExit):
        main()
    assert f"error: {out}: expected space on the disk for this file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [("depth", "--quick", "--depths", "3,4", "--out", "d"), ("reproduce", "fig1", "--quick", "--out", "d")]
)
def test_the_engine_that_is_asked_for_reaches_the_sweep(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    monkeypatch.setattr(sys, "argv", ["layerlaw", *command, "--engine", "ray"])
    with pytest.raises(SystemExit):
        main()
    assert "error: --engine ray needs the package 'ray': pip install 'layerlaw[ray]'" in capsys.readouterr().err
