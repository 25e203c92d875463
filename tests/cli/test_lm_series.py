"""`layerlaw lm` on several models, revisions and texts: one row each, one page, the same tokens where tokenizers agree."""

import json
import math
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from layerlaw.cli import main  # noqa: E402
from layerlaw.record import Record  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}<t>{{ m.role }}:{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<t>assistant:{% endif %}"
)
SHORT = ("--length", "32", "--tokens", "1500", "--groups", "4")


def documents():
    """Two texts in which every word is followed by one of three."""
    generator = torch.Generator().manual_seed(0)
    words = ["".join("bdfgklmn"[i % 8] + "aeiou"[i % 5] + "rst"[i % 3]) + str(i % 7) for i in range(60)]
    after = torch.randint(0, 60, (60, 3), generator=generator)

    def text(length):
        at, out = 0, []
        for pick in torch.randint(0, 3, (length,), generator=generator).tolist():
            at = int(after[at, pick])
            out.append(words[at])
        return " ".join(out)

    return [[text(150) for _ in range(8)] for _ in range(2)]


def save_model(folder: Path, seed: int, *, layers: int = 3) -> None:
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=320, max_position_embeddings=64, num_key_value_heads=2, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A run with three checkpoints and one tokenizer above them, two single models, two texts."""
    path = tmp_path_factory.mktemp("series")
    both = documents()
    for name, texts in zip(("one", "two"), both, strict=True):
        (path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    how = {"initial_alphabet": alphabet, "show_progress": False, "special_tokens": ["<eos>", "<t>"]}
    words.train_from_iterator(both[0], tokenizers.trainers.BpeTrainer(vocab_size=320, **how))
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    chatting = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", chat_template=TEMPLATE)
    plain.save_pretrained(path / "run")
    for seed, name in enumerate(("run/step0", "run/step20", "run/step1000", "base", "tuned", "copy")):
        save_model(path / name, min(seed, 4))
    for name in ("base", "copy"):
        plain.save_pretrained(path / name)
    chatting.save_pretrained(path / "tuned")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    bert = transformers.BertConfig(vocab_size=320, max_position_embeddings=64, **shape)
    transformers.BertForMaskedLM(bert).save_pretrained(path / "encoder")
    masking = {"mask_token": "<t>", "bos_token": "<eos>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **masking).save_pretrained(path / "encoder")
    save_model(path / "begun", 7)
    begins = tokenizers.processors.TemplateProcessing(single="<t> $A", special_tokens=[("<t>", 1)])
    words.post_processor = begins
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<t>").save_pretrained(path / "begun")
    return path


def run(monkeypatch, capsys, place, *arguments, code=0):
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.argv", ["layerlaw", "lm", *arguments, "--json"])
    left = 0
    try:
        main()
    except SystemExit as leaving:
        left = leaving.code or 0
    out = capsys.readouterr()
    assert left == code, out.err
    return json.loads(out.out)


@pytest.fixture
def layerlaw(monkeypatch, capsys, place):
    return lambda *arguments, **more: run(monkeypatch, capsys, place, *arguments, **more)


def test_a_folder_without_a_tokenizer_is_answered_as_such(layerlaw, place):
    from layerlaw.lm import load

    config = transformers.GPT2Config(vocab_size=32, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(place / "alone" / "gpt")
    answer = layerlaw("alone/gpt", "--text", "one.jsonl", code=1)
    said = answer["error"]["message"]
    assert said.startswith("no tokenizer in alone/gpt: expected its files (tokenizer.json) beside the model.")
    assert "--tokenizer" in said
    assert load(place / "alone" / "gpt").tokenizer is None


def test_revisions_of_a_local_run_make_one_page_along_the_steps(layerlaw, place):
    found = layerlaw(
        "run",
        "--revision",
        "step1000,step0,step20",
        "--text",
        "one.jsonl",
        *SHORT,
        "--page",
        "steps.html",
        "--out",
        "kept",
    )
    assert [r["name"] for r in found["records"]] == ["run step1000", "run step0", "run step20"]
    assert [r["settings"]["step"] for r in found["records"]] == [1000, 0, 20]
    assert len({r["provenance"]["data_sha256"] for r in found["records"]}) == 1
    assert found["paired"] == []  # checkpoints are compared along the steps
    page = (place / "steps.html").read_text()
    assert 'data-panel="training"' in page
    assert "From step 0 to 1k PR of the last block goes from" in page.replace("&nbsp;", " ")
    assert "Means and 95% intervals" not in page  # they are no networks that differ in their seed
    again = [Record.load(path) for path in found["files"]]
    assert [record.name for record in again] == [r["name"] for r in found["records"]]


def test_a_list_of_folders_does_the_same(layerlaw, place):
    found = layerlaw("run/step0", "run/step20", "--text", "one.jsonl", *SHORT, "--page", "folders.html")
    assert [r["settings"]["step"] for r in found["records"]] == [0, 20]
    page = (place / "folders.html").read_text()
    assert 'data-panel="training"' in page
    assert 'data-panel="paired"' in page
    assert [(pair["base"], pair["other"]) for pair in found["paired"]] == [("step0", "step20")]


def test_the_terminal_tells_the_difference_of_a_pair_also_of_its_records(layerlaw, place, monkeypatch, capsys):
    found = layerlaw("base", "tuned", "--text", "one.jsonl", *SHORT, "--out", "pair")
    sentence = found["paired"][0]["sentence"]
    monkeypatch.setattr("sys.argv", ["layerlaw", "report", *found["files"], "--out", "pair-again.html"])
    with pytest.raises(SystemExit, match="0"):
        main()
    told = " ".join(capsys.readouterr().out.split())
    assert sentence in told
    assert "images" not in told


def test_texts_of_one_name_are_told_apart_by_their_folders(layerlaw, place):
    for folder in ("here", "there"):
        (place / folder).mkdir()
        (place / folder / "text.jsonl").write_bytes(
            (place / ("one.jsonl" if folder == "here" else "two.jsonl")).read_bytes()
        )
    layerlaw("base", "--text", "here/text.jsonl", "--text", "there/text.jsonl", *SHORT, "--page", "same.html")
    page = (place / "same.html").read_text()
    assert "base · here/text.jsonl" in page
    assert "base · there/text.jsonl" in page


def test_one_piece_of_text_says_what_makes_groups(layerlaw, place):
    (place / "piece.txt").write_text(documents()[0][0][:130])
    found = layerlaw("base", "--text", "piece.txt", "--length", "64")
    assert found["settings"]["pieces"] == 1
    length = found["settings"]["length"]
    expected = f"The text is one piece of {length} tokens: shorter pieces (length={length // 8}) can be held out."
    assert expected in " ".join(found["verdict"])


def test_several_texts_have_one_row_each_and_are_not_mixed(layerlaw, place):
    found = layerlaw("base", "--text", "one.jsonl", "--text", "two.jsonl", *SHORT, "--page", "texts.html")
    texts = [r["provenance"]["text"]["name"] for r in found["records"]]
    assert [Path(name).name for name in texts] == ["one.jsonl", "two.jsonl"]
    alone = layerlaw("base", "--text", "two.jsonl", *SHORT)
    assert found["records"][1]["rows"] == alone["rows"]
    page = (place / "texts.html").read_text()
    assert "base · one.jsonl" in page
    assert "base · two.jsonl" in page


def test_base_and_tuned_are_compared_on_the_same_ids_block_by_block(layerlaw, place):
    found = layerlaw("base", "tuned", "--text", "one.jsonl", *SHORT, "--page", "pair.html")
    (pair,) = found["paired"]
    assert (pair["base"], pair["other"]) == ("base", "tuned")
    base, tuned = ([row for row in r["rows"] if row["site"] != "embedded input"] for r in found["records"])
    expected = [math.log(b["residual_held_out"] / a["residual_held_out"]) for a, b in zip(base, tuned, strict=True)]
    assert [block["change"] for block in pair["blocks"]] == pytest.approx(expected)
    assert all(block["error"] > 0 for block in pair["blocks"])
    assert 'data-panel="paired"' in (place / "pair.html").read_text()


def test_every_model_has_the_special_tokens_of_its_own_tokenizer(layerlaw):
    both = layerlaw("base", "encoder", "--text", "one.jsonl", *SHORT)  # cut alike, but only the encoder's has a mask
    alone = layerlaw("encoder", "--text", "one.jsonl", *SHORT)
    assert [r["settings"]["task"] for r in both["records"]] == ["next", "masked"]
    assert both["records"][1]["rows"] == alone["rows"]
    begun = layerlaw("begun", "base", "--text", "one.jsonl", *SHORT)  # only the first has a BOS
    assert [r["settings"]["bos"] for r in begun["records"]] == [1, None]


def test_the_same_weights_twice_differ_by_nothing(layerlaw):
    found = layerlaw("tuned", "copy", "--text", "one.jsonl", *SHORT)
    (pair,) = found["paired"]
    assert {(block["change"], block["error"]) for block in pair["blocks"]} == {(0.0, 0.0)}
    assert pair["sentence"] == "'copy' has the same PR as 'tuned' at every block."


def test_a_chat_is_put_around_every_piece_and_is_said(layerlaw):
    found = layerlaw("tuned", "--text", "one.jsonl", *SHORT, "--chat", "user")
    assert found["settings"]["chat"] == "user"
    assert found["settings"]["bos"] is None
    plain = layerlaw("tuned", "--text", "one.jsonl", *SHORT)
    assert found["rows"][1]["residual"] != plain["rows"][1]["residual"]
    answer = layerlaw("base", "--text", "one.jsonl", *SHORT, "--chat", "user", code=1)
    assert "expected a tokenizer with a chat template" in answer["error"]["message"]
    assert "--tokenizer" in answer["error"]["message"]
    both = layerlaw("base", "tuned", "--tokenizer", "tuned", "--text", "one.jsonl", *SHORT, "--chat", "assistant")
    assert len(both["paired"]) == 1


def test_one_that_fails_does_not_cost_the_others(layerlaw, place):
    found = layerlaw("base", "nowhere", "--text", "one.jsonl", *SHORT, "--out", "some", code=1)
    assert [r["name"] for r in found["records"]] == ["base"]
    assert list(found["failed"]) == ["nowhere"]
    assert len(list((place / "some").glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "--revision", "step0,step7"), "expected a folder 'step7' in it, as a local revision; there are step0"),
        (
            ("run",),
            "got a folder that holds step0, step20, step1000. Choose some: --revision step0,step20, or run/step0.",
        ),
        (("base", "base"), "expected each of them once"),
        (("base", "--revision", " , "), "expected names such as step1000,step2000"),
        (("base", "tuned", "--out", "one.json"), "expected a folder for several records"),
        (("base", "--chat", "robot"), "--chat: expected one of user, assistant, got 'robot'"),
        (("base", "--chat", "user", "--bos"), "expected one of them: a chat template says itself"),
    ],
)
def test_what_cannot_be_is_answered(layerlaw, arguments, told):
    found = layerlaw(*arguments, "--text", "one.jsonl", *SHORT, code=1)
    message = found["error"]["message"] if "error" in found else " ".join(found["failed"].values())
    assert told in message
