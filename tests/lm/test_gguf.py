"""GGUF files: what they say (quantization, BOS), and what they do not say (how the weights were drawn)."""

import sys

import numpy as np
import pytest
import torch
from language_models import VOCABULARY, family, probed, walks

from layerlaw.errors import InputError
from layerlaw.lm import Loaded, load, pieces_of, probe_lm
from layerlaw.lm.loading import GGUFHeader
from layerlaw.lm.twins import KNOWN, untrained_twin

gguf = pytest.importorskip("gguf", reason="needs gguf")
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def written(path, model, *, add_bos=None, scores=False):
    """A small Llama as a GGUF file of 8-bit weights, with a tokenizer of single letters: of merges, or of scores."""
    c, file = model.config, gguf.GGUFWriter(str(path), "llama")
    file.add_block_count(c.num_hidden_layers)
    file.add_context_length(8192)
    file.add_embedding_length(c.hidden_size)
    file.add_feed_forward_length(c.intermediate_size)
    file.add_head_count(c.num_attention_heads)
    file.add_head_count_kv(c.num_key_value_heads)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(c.vocab_size)
    file.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    tokens = ["<unk>", "<s>", "</s>", *(chr(0x21 + i) for i in range(90)), "!!", *["▁"] * scores]
    tokens += [f"w{i}" for i in range(c.vocab_size - len(tokens))]
    file.add_tokenizer_model("llama" if scores else "gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list(tokens)
    file.add_token_types([3] * 3 + [1] * (c.vocab_size - 3))
    if scores:
        file.add_token_scores([0.0] * 3 + [-float(i) for i in range(c.vocab_size - 3)])
    else:
        file.add_token_merges(["! !"])
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    if add_bos is not None:
        file.add_add_bos_token(add_bos)
    for name, tensor in model.state_dict().items():
        name, array = name.removesuffix(".weight"), tensor.numpy()
        here = ENDS.get(name)
        if here is None:
            _, _, block, part = name.split(".", 3)
            here = f"blk.{block}.{PARTS[part]}"
        if here.endswith(("attn_q", "attn_k")):  # the files hold the halves of every head interleaved
            heads = c.num_attention_heads if here.endswith("q") else c.num_key_value_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        array = np.ascontiguousarray(array)
        if array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            file.add_tensor(f"{here}.weight", gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            file.add_tensor(f"{here}.weight", array)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def text():
    return ["".join(chr(0x21 + i - 4) for i in piece.tolist()) for piece in walks(size=80)]


def test_a_quantized_file_is_said_to_be_one_and_its_untrained_weights_are_a_guess(tmp_path):
    pytest.importorskip("accelerate", reason="needs accelerate")
    model = family("llama")
    record = probe_lm(written(tmp_path / "small.gguf", model), walks(), null=True, progress=False)
    assert record.provenance["quantization"] == "Q8_0 (GGUF)"
    assert record.provenance["dtype"] == "float32"  # in which it computes
    assert (record.settings["null_std"], record.settings["null_std_from"]) == (0.02, "the usual one of LlamaConfig")
    assert any(note.startswith("The file does not say how its weights were drawn") for note in record.notes)
    plain = probed(model, walks(), null=True)
    for a, b in zip(record.sites, plain.sites, strict=True):
        assert a.values["residual"] == pytest.approx(b.values["residual"], abs=0.01)
    assert plain.provenance["quantization"] is None
    assert plain.settings["null_std_from"] == "as its configuration says"
    assert not any("were drawn" in note for note in plain.notes)


@pytest.mark.parametrize(
    ("said", "wanted", "bos"), [(True, None, 1), (False, None, None), (True, False, None), (False, True, 1)]
)
def test_the_file_says_whether_a_bos_stands_before_a_text_and_a_request_comes_first(tmp_path, said, wanted, bos):
    pytest.importorskip("accelerate", reason="needs accelerate")
    path = written(tmp_path / "small.gguf", family("llama"), add_bos=said)
    record = probe_lm(path, pieces_of(text(), bos=wanted), progress=False)
    assert record.settings["bos"] == bos


def test_the_bos_of_the_file_serves_a_tokenizer_that_has_none_and_leaves_token_ids_alone():
    loaded = Loaded(family("llama"), Letters(), "small", None, GGUFHeader("Q4_0 (GGUF)", bos=True, bos_id=2))
    assert probe_lm(loaded, text(), progress=False).settings["bos"] == 2
    assert probe_lm(loaded, walks(), progress=False).settings["bos"] is None


class Letters:
    """A tokenizer of single letters that knows no BOS."""

    def __call__(self, text, add_special_tokens=True, verbose=True):
        return {"input_ids": [4 + ord(letter) - 0x21 for letter in text]}


def test_a_known_model_is_drawn_as_it_was_and_a_request_comes_first():
    model = family("llama")
    size = {"hidden_size": 576, "num_hidden_layers": 30, "max_position_embeddings": 8192}
    assert ("llama", *size.values()) in KNOWN
    for name, value in size.items():
        setattr(model.config, name, value)
    model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim = 9, 3, 64
    twin = untrained_twin(model, 0, unsaid=True)
    assert (twin.std, twin.source) == (1 / 24, "that of SmolLM2-135M")
    assert float(twin.model.model.layers[3].self_attn.q_proj.weight.detach().std()) == pytest.approx(1 / 24, rel=0.01)
    assert untrained_twin(model, 0).std == 0.02
    assert untrained_twin(model, 0, unsaid=True, std=0.1).source == "as requested"


def test_a_tokenizer_of_scores_as_sentencepiece_makes_them_is_read_without_that_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)  # an import of it fails
    path = written(tmp_path / "small.gguf", family("llama"), scores=True)
    tokenizer = load(str(path)).tokenizer
    ids = tokenizer("a!! b", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁", "a", "!!", "▁", "b"]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "mamba"])
def test_the_standard_deviation_of_the_untrained_weights_may_be_chosen(name):
    twin = untrained_twin(family(name), 0, std=0.3)
    assert twin.std == 0.3
    table = twin.model.get_input_embeddings().weight
    assert float(table.detach().std()) == pytest.approx(0.3, rel=0.1)


def test_a_chosen_standard_deviation_is_in_the_record_and_changes_the_twin_alone():
    usual, wide = (probed(family("llama"), walks(), null=True, null_std=std) for std in (None, 0.4))
    assert wide.settings["null_std"] == 0.4
    for a, b in zip(usual.sites, wide.sites, strict=True):
        assert a.values["residual"] == b.values["residual"]
    assert usual.sites[-1].values["residual_untrained"] != wide.sites[-1].values["residual_untrained"]
    small = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32))
    assert float(untrained_twin(small, 0, std=0.3).model[0].weight.detach().std()) == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("llama", {"null_std": 0.1}, "null_std: expected with null=True"),
        ("llama", {"null": True, "null_std": -1.0}, "null_std: expected a positive number, got -1.0"),
        (
            "t5",
            {"null": True, "null_std": 0.1},
            "expected a configuration with initializer_range or init_std, got T5Con",
        ),
        ("llama", {"null": True, "null_std": "a"}, "null_std: expected a positive number, got 'a'"),
    ],
)
def test_a_standard_deviation_that_is_none_is_told(name, options, said):
    with pytest.raises(InputError, match=said):
        probed(family(name), walks(), **options)
