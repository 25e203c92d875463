"""`layerlaw lm` through its real entry point, on tiny random models.

Loading transformers takes seconds, so most runs are made in this process; one whole run and the torchrun pair are processes.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from layerlaw.cli import main  # noqa: E402
from layerlaw.record import Record  # noqa: E402

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
SHORT = ("--length", "32", "--tokens", "1600", "--groups", "4")
Run = Callable[..., Any]

MAKE = """
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

def make():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=24, n_layer=3, n_head=2, n_positions=64))

def with_tokenizer():
    return make(), AutoTokenizer.from_pretrained("tiny")

def with_data():
    return make(), [1, 2, 3]

def unmasked():
    tokenizer = AutoTokenizer.from_pretrained("tiny")
    tokenizer.mask_token = None
    return make(), tokenizer
"""


def markov_documents(documents: int, sentences: int) -> list[str]:
    """Sentences in which every word is followed by one of five."""
    draw = random.Random(0)
    words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2)) for _ in range(40)]
    after = {word: draw.sample(words, 5) for word in words}

    def sentence() -> str:
        chain = [draw.choice(words)]
        while len(chain) < 10:
            chain.append(draw.choice(after[chain[-1]]))
        return " ".join(chain).capitalize() + "."

    return [" ".join(sentence() for _ in range(sentences)) for _ in range(documents)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a tokenizer, and four models: a Llama, one whose vocabulary is too small, a headless BERT, one of the lab."""
    import torch

    path = tmp_path_factory.mktemp("lm")
    documents = markov_documents(10, 20)
    (path / "text.jsonl").write_text("\n".join(json.dumps({"text": document}) for document in documents))
    (path / "short.txt").write_text(documents[0][:60])
    (path / "empty.txt").write_text("")
    (path / "bad.gguf").write_bytes(b"GGUF" + bytes(range(200)))
    (path / "bad.json").write_text("{}")
    (path / "bare").mkdir()
    (path / "model.py").write_text(MAKE)
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<eos>", "<mask>"], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(documents, trainer)
    words.save(str(path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", mask_token="<mask>")
    size = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    torch.manual_seed(0)
    llama = transformers.LlamaConfig(vocab_size=320, max_position_embeddings=64, **size)
    few = transformers.LlamaConfig(vocab_size=100, max_position_embeddings=64, **size)
    bert = transformers.BertConfig(vocab_size=320, max_position_embeddings=64, **size)
    for name, model in (
        ("tiny", transformers.LlamaForCausalLM(llama)),
        ("few", transformers.LlamaForCausalLM(few)),
        ("bert", transformers.BertModel(bert)),
    ):
        model.save_pretrained(path / name)
        fast.save_pretrained(path / name)
    from layerlaw.lab import GPT, save_text_model

    save_text_model(GPT(vocabulary=320, width=24, depth=3, heads=2, context=64), path / "lab.pt")
    return path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the entry point here; gives standard output and standard error."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("RANK", "WORLD_SIZE", "LAYERLAW_DATA"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, code: int = 0) -> Any:
        monkeypatch.setattr(sys, "argv", ["layerlaw", "lm", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert (left.value.code or 0) == code, said.out + said.err
        return said

    return call


def test_a_page_that_fails_does_not_cost_the_measurement(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("no room")

    monkeypatch.setattr("layerlaw.cli.classifier.write_page", broken)
    said = run("tiny", "--text", "text.jsonl", *SHORT, "--page", "lost.html", "--out", "kept.json")
    assert "The page lost.html could not be written (ZeroDivisionError: no room)." in " ".join(said.out.split())
    record = Record.load(folder / "kept.json")
    assert "residual" in record.columns
    assert record.notes[-1].startswith("The page lost.html could not be written")


def test_the_standard_deviation_of_the_untrained_weights_is_an_option(run: Run, folder: Path) -> None:
    run("tiny", "--text", "text.jsonl", *SHORT, "--null", "--null-std", "0.3", "--out", "wide.json")
    record = Record.load(folder / "wide.json")
    assert (record.settings["null_std"], record.settings["null_std_from"]) == (0.3, "as requested")
    said = run("tiny", "--text", "text.jsonl", *SHORT, "--null-std", "0.3", code=1)
    assert "--null-std: expected with --null" in said.err


def test_a_lens_is_an_option_and_stands_in_the_record(run: Run, folder: Path) -> None:
    said = run(
        "tiny", "--text", "text.jsonl", *SHORT, "--lens", "linear", "--lens-tokens", "200", "--json", "--out", "l.json"
    )
    about = json.loads(said.out)["lens"]
    record = Record.load(folder / "l.json")
    assert about == record.settings["lens"]
    assert about["kind"] == "linear"
    assert all(site.values["linear_lens_loss"] is not None for site in record.sites)
    said = run("tiny", "--text", "text.jsonl", *SHORT, "--lens", "tuned", code=1)
    assert "lens: expected one of logit, linear, got 'tuned'" in said.err


def test_a_whole_run_prints_blocks_and_table_and_writes_record_and_page(folder: Path) -> None:
    command = [str(Path(sys.executable).parent / "layerlaw"), "lm", "tiny", "--text", "text.jsonl", *SHORT]
    command += ["--null", "--out", "whole.json", "--page", "whole.html"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("found: 4 blocks of type LlamaDecoderLayer in 'model.layers', width 24")
    assert "text: text.jsonl, 10 documents" in done.stdout
    assert done.stderr == ""  # no bars, no warnings of transformers
    record = Record.load(folder / "whole.json")
    assert record.kind.name == "language model"
    assert record.provenance["command"]["text"] == "text.jsonl"
    assert record.provenance["text"]["documents"] == 10
    assert "residual_held_out_untrained" in record.columns
    assert "<html" in (folder / "whole.html").read_text(encoding="utf-8")[:500].lower()


def test_json_is_one_object_with_laws_with_and_without_the_last_block(run: Run) -> None:
    said = run("tiny", "--text", "text.jsonl", *SHORT, "--json", "--null", "--target", "id,embedding", "--classes", "5")
    data = json.loads(said.out)
    assert {"residual", "residual_held_out", "residual_untrained", "residual_embedding", "separation"} <= set(
        data["law"]
    )
    assert not any("adjusted" in column or "log_se" in column for column in data["law"])
    law = data["law"]["residual_held_out"]
    assert law["all_blocks"]["points"] == 4
    assert law["without_last"]["points"] == 3
    assert law["all_blocks"]["errors"]["groups"] == 4
    assert [row["site"] for row in data["rows"]] == ["embedded input", *(f"model.layers.{i}" for i in range(4))]
    assert data["settings"]["task"] == "next"
    assert data["provenance"]["text"]["name"] == "text.jsonl"
    assert "4 blocks" in said.err


@pytest.mark.parametrize("model", ["model.py:make", "model.py:with_tokenizer", "lab.pt"])
def test_models_of_ones_own_code_and_of_the_lab_are_measured(run: Run, model: str) -> None:
    words = () if model.endswith("with_tokenizer") else ("--tokenizer", "tokenizer.json")
    data = json.loads(run(model, "--text", "text.jsonl", *SHORT, *words, "--name", "mine", "--json").out)
    assert data["name"] == "mine"
    assert len(data["rows"]) == 4
    assert all(0 < row["residual"] < 1 for row in data["rows"])


def test_other_tasks_and_options_reach_the_measure(run: Run) -> None:
    options = ("--task", "masked", "--normalize", "none", "--documents", "pack", "--no-bos", "--groups", "2")
    data = json.loads(run("bert", "--text", "text.jsonl", "--length", "32", *options, "--seed", "3", "--json").out)
    settings = data["settings"]
    assert [settings[key] for key in ("task", "normalize", "long_documents", "seed")] == ["masked", "none", "pack", 3]
    assert settings["groups"] == 2


def test_a_mask_that_the_tokenizer_does_not_name_is_an_option(run: Run) -> None:
    found = run(
        "model.py:unmasked", "--text", "text.jsonl", "--length", "32", "--task", "masked", "--mask-id", "1", "--json"
    )
    assert json.loads(found.out)["settings"]["task"] == "masked"


def test_requesting_more_tokens_than_there_are_is_noted(run: Run) -> None:
    data = json.loads(run("tiny", "--text", "text.jsonl", "--length", "32", "--tokens", "90000", "--json").out)
    assert any("fewer tokens than were requested" in note for note in data["notes"])


def test_transformers_speaks_again_afterwards(run: Run) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    run("tiny", "--text", "text.jsonl", *SHORT)
    run("nobody/nothing", "--text", "text.jsonl", code=1)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny", "--text", "empty.txt"), "empty.txt: expected text, got an empty file"),
        (("tiny", "--text", "short.txt"), "expected more predicted tokens than features"),
        (("tiny", "--text", "none.txt"), "none.txt: expected a text file"),
        (("tiny", "--text", "wikitext2"), "did you mean 'wikitext-2'"),
        (("tiny", "--text", "wikitext-2"), "LAYERLAW_DATA not set"),
        (("tiny", "--text", "text.jsonl", "--articles"), "articles: expected with 'wikitext-2'"),
        (("few", "--text", "text.jsonl"), "expected token ids 0 … 99"),
        (("tiny", "--text", "text.jsonl", "--target", "id,meaning"), "--target: expected some of id, embedding"),
        (("tiny", "--text", "text.jsonl", "--lens", "foo"), "--lens: expected one of logit, linear, got 'foo'"),
        (("model.py:unmasked", "--text", "text.jsonl", "--task", "masked"), "a mask token, got none. Pass --mask-id"),
        (("bert", "--text", "text.jsonl", "--target", "embedding"), "with an output embedding"),
        (("nobody/nothing", "--text", "text.jsonl"), "HF_HUB_OFFLINE is set"),
        (("bare", "--text", "text.jsonl"), "'bare': expected a language model"),
        (("bad.gguf", "--text", "text.jsonl"), "bad.gguf"),
        (("none.gguf", "--text", "text.jsonl"), "expected a GGUF file, found none"),
        (("tiny", "--text", "text.jsonl", "--device", "cuda:99"), "device: cannot compute on 'cuda:99'"),
        (("tiny", "--text", "text.jsonl", "--dtype", "int8"), "dtype: expected one of float32"),
        (("tiny", "--text", "text.jsonl", "--task", "guess"), "task: expected one of next, masked, span"),
        (("tiny", "--text", "text.jsonl", "--documents", "split"), "documents: expected one of cut, truncate, pack"),
        (("tiny", "--text", "text.jsonl", "--length", "1"), "length: expected a whole number of at least 2"),
        (("tiny", "--text", "text.jsonl", "--tokens", "1"), "tokens: expected a whole number of at least 2, got 1"),
        (("tiny", "--text", "text.jsonl", "--bos"), "expected a tokenizer with a BOS token"),
        (("tiny", "--text", "text.jsonl", "--out", "none/r.json"), "expected the folder none to exist"),
        (
            ("tiny", "--text", "text.jsonl", "--out", "empty.txt/r.json"),
            "expected empty.txt to be a folder, got a file",
        ),
        (("tiny", "--text", "text.jsonl", "--out", "r.html", "--page", "r.html"), "expected one file for the record"),
        (("nofolder", "--text", "text.jsonl"), "and there is no folder of that name here. HF_HUB_OFFLINE is set"),
        (("tiny", "--text", "text.jsonl", "--page", "bare"), "expected the name of a file to write, got a folder"),
        (("tiny", "--text", "text.jsonl", "--tokenizer", "none.json"), "or a tokenizer.json, found none"),
        (("tiny", "--text", "text.jsonl", "--tokenizer", "bad.json"), "expected a tokenizer.json as the package"),
        (("tiny", "--text", "text.jsonl", "--tokenizer", "./none"), "expected the folder of a tokenizer"),
        (("tiny", "--text", "text.jsonl", "--tokenizer", "bare"), "'bare': expected a language model or tokenizer"),
        (("lab.pt", "--text", "text.jsonl"), "name one with --tokenizer"),
        (("none.pt", "--text", "text.jsonl", "--tokenizer", "tokenizer.json"), "found nothing there"),
        (("model.py:make", "--text", "text.jsonl"), "return (model, tokenizer), or use --tokenizer"),
        (
            ("model.py:with_data", "--text", "text.jsonl"),
            "expected a callable that returns a model or (model, tokenizer)",
        ),
        (("model.py:nothing", "--text", "text.jsonl"), "has no 'nothing'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_one(run: Run, arguments: tuple[str, ...], words: str) -> None:
    said = run(*arguments, code=1)
    assert words.lower() in said.err.lower()
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("transformers", ("tiny",), "lm"),
        ("transformers", ("lab.pt", "--tokenizer", "tokenizer.json"), "lm"),
        ("accelerate", ("tiny", "--device-map", "auto"), "lm"),
        ("gguf", ("bad.gguf",), "gguf"),
        ("datasets", ("tiny", "--text", "owner/corpus"), "datasets"),
    ],
)
def test_a_missing_package_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, package: str, arguments: tuple[str, ...], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails from here on
    arguments = arguments if "--text" in arguments else (*arguments, "--text", "text.jsonl")
    error = run(*arguments, code=1).err
    assert f"'{package}'" in error
    assert f"pip install 'layerlaw[{extra}]'" in error


def test_two_processes_measure_what_one_measures(folder: Path, run: Run) -> None:
    options = ("tiny", "--text", "text.jsonl", *SHORT, "--batch-size", "3", "--classes", "4")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in each of the two: another number of threads rounds a forward otherwise
    try:
        run(*options, "--out", "one.json")
    finally:
        torch.set_num_threads(threads)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "layerlaw", "lm", *options, "--out", "two.json", "--json"]
    pair = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=ENVIRONMENT
    )
    try:
        said, errors = pair.communicate(timeout=120)
    finally:
        pair.terminate()  # it ends its workers; a plain kill would leave them
        pair.wait(60)
    assert pair.returncode == 0, errors
    assert len(json.loads(said)["rows"]) == 5  # one object: the second process is silent
    one, two = Record.load(folder / "one.json"), Record.load(folder / "two.json")
    assert two.provenance["processes"] == 2
    assert one.settings == two.settings
    assert one.columns == two.columns
    for column in one.columns:
        assert two.column(column) == pytest.approx(one.column(column), rel=1e-9, abs=1e-9)


def test_processes_that_cannot_meet_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert "Start them with torchrun" in run("tiny", "--text", "text.jsonl", code=1).err
    assert "under torchrun" in run("tiny", "--text", "text.jsonl", "--device-map", "auto", code=1).err
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "every process takes its own GPU" in run("tiny", "--text", "text.jsonl", "--device", "cuda:0", code=1).err
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert (
        "device: cannot compute on 'cuda:99'" in run("tiny", "--text", "text.jsonl", "--device", "cuda:99", code=1).err
    )
    monkeypatch.setenv("LOCAL_RANK", "99")
    assert "a GPU for each process" in run("tiny", "--text", "text.jsonl", "--device", "cuda", code=1).err
    monkeypatch.setenv("RANK", "1")
    said = run("tiny", "--text", "text.jsonl", "--json", code=1)
    assert said.out == ""
    assert said.err.startswith("rank 1: error: ")
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert "WORLD_SIZE: expected a number" in run("tiny", "--text", "text.jsonl", code=1).err
