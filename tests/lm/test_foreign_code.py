"""A model folder is data: its code is never run unless the user says so in Python, and nobody is asked."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import layerlaw
from layerlaw.errors import DataError, InputError, LayerlawError
from layerlaw.lm import load, load_tokenizer

SOURCES = sorted(Path(layerlaw.__file__).parent.rglob("*.py"))
CODE = "from pathlib import Path\nPath(__file__).with_name('ran').write_text('')\nPath({ran!r}).write_text('')\n"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch) -> Path:
    """A folder whose config, model and tokenizer are classes of its own."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    folder = tmp_path / "hostile"
    folder.mkdir()
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoModel": "evil.Model"}
    config = {"model_type": "evil", "architectures": ["EvilForCausalLM"], "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    tokens = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "evil.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    return folder


def test_code_of_a_model_is_not_run_and_the_answer_says_how_to(hostile: Path) -> None:
    with pytest.raises(
        DataError, match=r"brings Python code of its own \(auto_map\).*trust_remote_code=True\) runs it"
    ):
        load(hostile)
    assert not (hostile.parent / "ran").exists()


def test_code_of_a_tokenizer_is_not_run(hostile: Path) -> None:
    (hostile / "config.json").unlink()
    with pytest.raises(DataError):
        load_tokenizer(hostile)
    assert not (hostile.parent / "ran").exists()


def test_a_yes_on_standard_input_changes_nothing_and_json_stays_json(hostile: Path) -> None:
    """As `yes | layerlaw lm FOLDER --text t.txt --json`."""
    (hostile.parent / "t.txt").write_text("some words\n" * 200)
    command = [str(Path(sys.executable).parent / "layerlaw"), "lm", str(hostile), "--text", "t.txt", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, input="y\n" * 100, capture_output=True, text=True, cwd=hostile.parent, timeout=240, env=environment
    )
    assert done.returncode == 1
    assert "trust_remote_code=True" in json.loads(done.stdout)["error"]["message"]
    assert "Traceback" not in done.stderr
    assert not (hostile.parent / "ran").exists()


def test_who_says_so_in_python_is_obeyed(hostile: Path, monkeypatch) -> None:
    import transformers

    asked = []
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda where, **how: asked.append(how) or 1 / 0)
    for trust in (False, True):
        with pytest.raises(LayerlawError):
            load(hostile, trust_remote_code=trust)
    assert [how["trust_remote_code"] for how in asked] == [False, True]
    with pytest.raises(InputError, match="trust_remote_code: expected one of True, False, got 'yes'"):
        load(hostile, trust_remote_code="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_attention_code_that_would_be_downloaded_is_refused(tmp_path: Path, name: str) -> None:
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **shape, name: "stranger/kernel"}))
    with pytest.raises(DataError, match=r"attention code .stranger/kernel"):
        load(tmp_path)


@pytest.mark.parametrize(
    "architectures", [["pipeline"], ["logging"], ["AutoTokenizer"], [3], "Llama", [["x"]], {"a": 1}]
)
def test_an_architecture_is_a_model_of_transformers_or_nothing(tmp_path: Path, architectures: object) -> None:
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    config = {"model_type": "llama", **shape, "architectures": architectures}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError):  # there are no weights
        load(tmp_path)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"base_model_name_or_path": 5}, "expected the name of a model as base_model_name_or_path, got 5"),
        ({"base_model_name_or_path": "x", "megatron_config": {"a": 1}}, "expected an adapter without megatron_config"),
        ({"base_model_name_or_path": "x", "tokenizer_kwargs": {"trust_remote_code": True}}, "without tokenizer_kwargs"),
        ([1], "expected an adapter_config.json of PEFT"),
    ],
)
def test_an_adapter_that_names_other_code_is_refused(tmp_path: Path, about: object, message: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_nothing_in_the_package_trusts_code_or_runs_a_pickle_of_the_user() -> None:
    """Every loader of transformers says what it trusts; torch reads weights only, numpy no objects."""
    # jobs handed to a child; a reader that knows five names; what ranks of one job send each other
    of_own_children = {"processes.py", "cifar.py", "ranks.py"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = ast.unparse(node.func)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            where = f"{path.name}:{node.lineno}"
            if called.endswith(".from_pretrained") and ".Auto" in called:
                assert "trust_remote_code" in given, where
            assert called != "torch.load" or given.get("weights_only") == "True", where
            assert called not in ("np.load", "numpy.load") or given.get("allow_pickle", "False") == "False", where
            assert called not in ("pickle.load", "pickle.loads") or path.name in of_own_children, where
            assert called not in ("yaml.load", "joblib.load", "torch.hub.load"), where
