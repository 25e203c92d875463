"""Tiny random language models of many families, built offline, and text to run them on."""

import torch
import transformers as tf
from torch import Tensor, nn

from layerlaw.lm import load, pieces_of, probe_lm
from layerlaw.record import Record

VOCABULARY, WIDTH, DEPTH = 150, 32, 3
MASK = 3
SHAPE = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": DEPTH, "num_attention_heads": 4}
SIZE = {"vocab_size": VOCABULARY, **SHAPE}
SHORT = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": 128}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
T5 = {"d_model": WIDTH, "d_ff": 64, "num_layers": 2, "num_decoder_layers": DEPTH, "num_heads": 4, "d_kv": 8}
BART = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": DEPTH, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
DISTIL = {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": DEPTH, "n_heads": 4, "hidden_dim": 64}
STATE = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": DEPTH}

# family: (model class, configuration, task, norm behind the blocks, where the blocks are)
FAMILIES = {
    "llama": ("LlamaForCausalLM", {**SIZE, "num_key_value_heads": 2}, "next", "rms", "model.layers"),
    "gpt2": ("GPT2LMHeadModel", {**SHORT, **ENDS}, "next", "layer", "transformer.h"),
    "gpt_neox": ("GPTNeoXForCausalLM", SIZE, "next", "layer", "gpt_neox.layers"),
    "mistral": ("MistralForCausalLM", {**SIZE, "num_key_value_heads": 2}, "next", "rms", "model.layers"),
    "gemma": ("GemmaForCausalLM", {**SIZE, "num_key_value_heads": 2, "head_dim": 8}, "next", "rms", "model.layers"),
    "gemma2": ("Gemma2ForCausalLM", {**SIZE, "num_key_value_heads": 2, "head_dim": 8}, "next", "rms", "model.layers"),
    "phi": ("PhiForCausalLM", SIZE, "next", "layer", "model.layers"),
    "phi3": ("Phi3ForCausalLM", {**SIZE, **ENDS}, "next", "rms", "model.layers"),
    "qwen2": ("Qwen2ForCausalLM", {**SIZE, "num_key_value_heads": 2}, "next", "rms", "model.layers"),
    "qwen3": ("Qwen3ForCausalLM", {**SIZE, "num_key_value_heads": 2, "head_dim": 8}, "next", "rms", "model.layers"),
    "mamba": ("MambaForCausalLM", {**STATE, "state_size": 4}, "next", "rms", "backbone.layers"),
    "rwkv": ("RwkvForCausalLM", {**STATE, "attention_hidden_size": WIDTH}, "next", "layer", "rwkv.blocks"),
    "bloom": ("BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": DEPTH, "n_head": 4}, "next",
              "layer", "transformer.h"),
    "gpt1": ("OpenAIGPTLMHeadModel", SHORT, "next", "none", "transformer.h"),
    "bert": ("BertForMaskedLM", SIZE, "masked", "none", "bert.encoder.layer"),
    "bert_base": ("BertModel", SIZE, "masked", "none", "encoder.layer"),
    "roberta": ("RobertaForMaskedLM", SIZE, "masked", "none", "roberta.encoder.layer"),
    "distilbert": ("DistilBertForMaskedLM", DISTIL, "masked", "none", "distilbert.transformer.layer"),
    "albert": ("AlbertForMaskedLM", {**SIZE, "embedding_size": 16}, "masked", "none", "albert.encoder.albert_layer_groups"),
    "t5": ("T5ForConditionalGeneration", {"vocab_size": VOCABULARY, **T5, "decoder_start_token_id": 0}, "span", "rms",
           "decoder.block"),
    "bart": ("BartForConditionalGeneration", {"vocab_size": VOCABULARY, **BART, **HEADS}, "span", "none",
             "model.decoder.layers"),
}  # fmt: skip


def family(name: str, seed: int = 1) -> nn.Module:
    """A small random model of a family, with weights large enough that its blocks do something."""
    cls, config, *_ = FAMILIES[name]
    maker = getattr(tf, cls)
    tf.logging.set_verbosity_error()
    torch.manual_seed(seed)
    model = maker(maker.config_class(**config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.15)
    return model


def walks(documents: int = 60, length: int = 64, *, size: int = 100, seed: int = 0) -> Tensor:
    """Documents of a Markov chain with few successors per token: something there is to predict."""
    generator = torch.Generator().manual_seed(seed)
    successors = torch.randint(4, 4 + size, (4 + size, 3), generator=torch.Generator().manual_seed(7))
    ids = torch.empty(documents, length, dtype=torch.long)
    ids[:, 0] = torch.randint(4, 4 + size, (documents,), generator=generator)
    for t in range(1, length):
        choice = torch.randint(0, 3, (documents,), generator=generator)
        ids[:, t] = successors[ids[:, t - 1], choice]
    return ids


LOADING = ("tokenizer", "dtype", "device_map", "mask_id", "name")
CUTTING = ("length", "documents", "tokens", "bos", "groups", "chat")


def probed(model: nn.Module, text: object, **options: object) -> Record:
    """`probe_lm` with the options of `load` and `pieces_of` beside its own."""
    loading, cutting = ({name: options.pop(name) for name in names if name in options} for names in (LOADING, CUTTING))
    return probe_lm(load(model, **loading), pieces_of(text, **cutting), **{"progress": False, **options})
