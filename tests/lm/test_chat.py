"""Chat templates and revisions: what stands in front of a piece is read and not predicted; names tell the training step."""

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from language_models import VOCABULARY, family, probed  # noqa: E402

from layerlaw.errors import InputError  # noqa: E402
from layerlaw.lm import load, pieces_of  # noqa: E402
from layerlaw.lm.loading import step_of  # noqa: E402

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}w1 {{ m.role }} {{ m.content }} w2 {% endfor %}"
    "{% if add_generation_prompt %}w3{% endif %}"
)
BARE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


def talking(template=TEMPLATE):
    """Words w0 … w149, a space apart, and a template."""
    known = {f"w{i}": i for i in range(VOCABULARY - 3)} | {"user": 147, "assistant": 148, "<s>": 149}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<s>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", unk_token="w0", chat_template=template
    )


def texts(documents=30, length=40):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 60, (documents, length), generator=generator)
    return [" ".join(f"w{i}" for i in row) for row in ids.tolist()], ids


@pytest.mark.parametrize(
    ("chat", "front"),
    [
        ("user", [149, 1, 147]),
        ("assistant", [149, 1, 147, 2, 3]),
        ([{"role": "user", "content": "w9 w8"}], [149, 1, 147, 9, 8, 2, 3]),
    ],
)
def test_the_template_up_to_the_text_stands_before_every_piece(chat, front):
    documents, ids = texts(3)
    pieces = pieces_of(documents, talking(), length=20, chat=chat).cut()
    size = 20 - len(front)
    assert all(piece[: len(front)].tolist() == front for piece in pieces.ids)
    assert pieces.ids[0][len(front) :].tolist() == ids[0, :size].tolist()
    assert pieces.tokens == ids.numel()
    assert (pieces.front, pieces.bos) == (len(front), 149)


def test_only_the_text_is_predicted_and_the_template_is_read():
    """PR of every block against NumPy on the very rows: from the last token of the template on."""
    model, (documents, ids) = family("gpt2"), texts()
    record = probed(model, documents, tokenizer=talking(), length=64, chat="user", groups=3)
    full = torch.cat([torch.tensor([[149, 1, 147]]).expand(len(ids), 3), ids], 1)
    with torch.no_grad():
        states = model(input_ids=full, output_hidden_states=True).hidden_states
    y = ids.reshape(-1).double().numpy()
    assert record.settings["tokens"] == len(y)
    for depth in (1, 2):  # what enters the norm behind the last block is not among them
        X = states[depth][:, 2:-1].reshape(len(y), -1).double().numpy()
        X = X - X.mean(1, keepdims=True)
        X = X / np.sqrt((X**2).mean(1, keepdims=True) + 1e-5)
        A = np.column_stack([X, np.ones(len(X))])
        left = y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
        expected = (left**2).sum() / ((y - y.mean()) ** 2).sum()
        assert record.sites[depth].values["residual"] == pytest.approx(expected, abs=2e-6)


def test_a_bos_alone_is_what_it_was():
    documents, _ = texts()
    led = probed(family("gpt2"), documents, tokenizer=talking(), length=30, bos=True, groups=3)
    front = probed(family("gpt2"), documents, tokenizer=talking(BARE), length=30, chat="user", groups=3)
    assert [site.values for site in led.sites] == [site.values for site in front.sites]


@pytest.mark.parametrize(
    ("chat", "template", "told"),
    [
        ("robot", TEMPLATE, "chat: expected one of user, assistant"),
        ([{"role": "user"}], TEMPLATE, "messages with a role and a content"),
        ("user", None, "expected a tokenizer with a chat template"),
        ("user", "{{ raise_exception('only systems') }}", "does not take these messages: only systems"),
        ("user", "always the same", "writes what the user says as it is"),
    ],
)
def test_what_no_template_can_do_is_answered(chat, template, told):
    with pytest.raises(InputError, match=told):
        pieces_of(texts(2)[0], talking(template), chat=chat).cut()


def test_chats_are_for_text_and_for_the_next_token():
    with pytest.raises(InputError, match="expected text, which a template is put around, got token ids"):
        pieces_of(torch.zeros(2, 8, dtype=torch.long), talking(), chat="user").cut()
    with pytest.raises(InputError, match="expected next-token prediction"):
        probed(family("bert"), texts()[0], tokenizer=talking(), mask_id=3, chat="user")
    with pytest.raises(InputError, match=r"length: expected the 3 tokens of the chat template and at least one token"):
        pieces_of(texts(2)[0], talking(), length=3, chat="user").cut()


@pytest.mark.parametrize(
    ("name", "step", "unit"),
    [
        ("EleutherAI/pythia-70m step143000", 143000, "step"), ("checkpoint-500", 500, "step"),
        ("stage1-step1000-tokens4B", 1000, "step"), ("epoch_3", 3, "epoch"), ("run iter=20", 20, "step"),
    ],
)  # fmt: skip
def test_a_name_tells_its_step(name, step, unit):
    assert step_of(name) == {"step": step, "step_unit": unit}
    record = probed(family("llama"), torch.randint(4, 90, (20, 30)), name=name, groups=2)
    assert record.settings["step"] == step


def test_a_name_without_a_step_tells_none():
    assert step_of("SmolLM2-135M-Instruct") == step_of("main") == {}
    with pytest.raises(InputError, match="revision are for models that are loaded here"):
        load(family("llama"), revision="step1")
