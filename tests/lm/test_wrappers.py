"""Models as people have them: adapted, wrapped, quantized, offloaded. They are run as they are, and nothing is lost."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
import transformers as tf
from language_models import DEPTH, MASK, SIZE, VOCABULARY, WIDTH, family, probed, walks
from sklearn.linear_model import LinearRegression
from torch import nn

from layerlaw.errors import CaptureError, DataError, InputError
from layerlaw.lm import load, probe_lm
from layerlaw.lm.chosen_tokens import FrequentTokens, PlaneSample
from layerlaw.lm.weights import quantization_of, weight_count
from layerlaw.verdict import judge

IDS = walks()
RANGE = 0.02


def values(record, column="residual"):
    return [site.values[column] for site in record.sites]


class Prompt(nn.Module):
    """As PEFT wraps a model: `base_model` is the model itself, which never sees the learned states before the text."""

    def __init__(self, base, tokens=5):
        super().__init__()
        torch.manual_seed(0)
        self.base_model, self.config = base, base.config
        self.prompt = nn.Parameter(torch.randn(tokens, WIDTH))

    def forward(self, input_ids):
        text = self.base_model.get_input_embeddings()(input_ids)
        before = self.prompt.to(text.dtype).expand(len(text), -1, -1)
        return self.base_model(inputs_embeds=torch.cat([before, text], 1))


def last_states(model, ids, behind=0):
    """What the last block gives, through the whole of what was handed over."""
    kept = []
    block = next(m for name, m in model.named_modules() if name.endswith(f"layers.{DEPTH - 1}"))
    hook = block.register_forward_hook(lambda m, a, out: kept.append(out if torch.is_tensor(out) else out[0]))
    with torch.no_grad():
        model(input_ids=ids)
    hook.remove()
    return kept[0][:, behind:]


def direct(model, behind=0, eps=1e-6):
    """PR of the last block by scikit-learn."""
    X = last_states(model, IDS, behind)[:, :-1].reshape(-1, WIDTH).double().numpy()
    X = X / np.sqrt((X**2).mean(1, keepdims=True) + eps)
    y = IDS[:, 1:].reshape(-1).numpy().astype(float)
    return 1 - LinearRegression().fit(X, y).score(X, y)


def test_a_wrapper_that_puts_a_prompt_before_the_text_is_not_bypassed():
    base = family("llama").double()
    model = Prompt(base)
    record = probed(model, IDS, tokens=10**6, groups=1, null=True)
    assert values(record)[-1] == pytest.approx(direct(model, behind=5), abs=1e-8)
    assert abs(values(record)[-1] - values(probed(base, IDS, tokens=10**6, groups=1))[-1]) > 1e-4
    with torch.no_grad():
        scores = model(IDS).logits[:, 5:-1]
    expected = float(nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), IDS[:, 1:].reshape(-1)))
    assert record.settings["loss"] == pytest.approx(expected, rel=0.03)  # of some of the tokens
    assert record.settings["null_std"] == RANGE


def test_the_twin_of_a_wrapper_draws_its_base_as_the_configuration_says():
    base = family("llama")
    plain, wrapped = (probed(m, IDS, groups=1, null=True) for m in (base, Prompt(base, tokens=0)))
    assert values(wrapped, "residual_untrained") == pytest.approx(values(plain, "residual_untrained"), abs=1e-6)


KINDS = {
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 5}, 0),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 5}, 5),
    "p-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 5, "encoder_hidden_size": 16}, 5),
    "lora": ("LoraConfig", {"r": 4, "init_lora_weights": False, "target_modules": ["q_proj", "up_proj"]}, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_peft_are_measured_as_they_run(kind):
    peft = pytest.importorskip("peft", reason="needs peft")
    maker, options, behind = KINDS[kind]
    torch.manual_seed(0)
    base = family("llama").double()
    model = peft.get_peft_model(copy.deepcopy(base), getattr(peft, maker)(task_type="CAUSAL_LM", **options)).double()
    model.eval()
    record = probed(model, IDS, tokens=10**6, groups=1, null=True)
    assert values(record)[-1] == pytest.approx(direct(model, behind), abs=1e-8)
    assert record.settings["null_std"] == RANGE
    if kind == "lora":  # an adapter that is not trained adds nothing
        plain = probed(base, IDS, tokens=10**6, groups=1, null=True)
        assert values(record, "residual_untrained") == pytest.approx(values(plain, "residual_untrained"), abs=1e-9)


def test_the_folder_of_an_adapter_loads_its_base(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft")
    base = family("llama")
    base.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, target_modules=["q_proj"])
    model = peft.get_peft_model(base, config).eval()
    model.save_pretrained(tmp_path / "adapter")
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    said["base_model_name_or_path"] = str(tmp_path / "base")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(said))
    loaded = load(tmp_path / "adapter", tokenizer=object())
    assert loaded.name == "adapter"
    assert values(probe_lm(loaded, IDS, progress=False)) == pytest.approx(values(probed(model, IDS)), abs=1e-6)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, "does not say which model it belongs to; load both yourself"),
        ([], "expected an adapter_config.json of PEFT"),
    ],
)
def test_an_adapter_without_a_base_says_what_it_needs(tmp_path, said, told):
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match=told):
        load(tmp_path)


def test_an_adapter_whose_base_is_not_there_says_so(tmp_path):
    pytest.importorskip("peft", reason="needs peft")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "./not/here"}))
    with pytest.raises(DataError, match=r"this is an adapter of './not/here', which was not found; load both yourself"):
        load(tmp_path)


def dynamic(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


class Packed(nn.Module):
    """A linear map whose weights are no parameters."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features, self.hidden = linear.in_features, linear.out_features, [linear]

    def forward(self, x):
        return self.hidden[0](x)


def packed(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Packed(child))
    return model


@pytest.mark.parametrize("quantize", [dynamic, packed])
def test_blocks_whose_linear_maps_have_no_parameters_are_found_and_measured(quantize):
    base = family("llama")
    model = quantize(copy.deepcopy(base))
    assert weight_count(model) == weight_count(base)
    record = probed(model, IDS, groups=1, null=True)
    assert record.settings["blocks"].startswith(f"{DEPTH} blocks of type LlamaDecoderLayer in 'model.layers'")
    assert values(record) == pytest.approx(values(probed(base, IDS, groups=1)), abs=0.02)
    assert record.provenance["quantization"].startswith(("Linear (torch.ao.nn.quantized", "Packed ("))
    assert record.provenance["parameters_sha256"] is None
    assert "Of quantized weights no checksum was made." in record.notes
    assert "loss" in record.settings


def test_weights_of_torchao_do_not_end_a_finished_pass():
    torchao = pytest.importorskip("torchao.quantization", reason="needs torchao")
    base = family("llama")
    model = copy.deepcopy(base)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    record = probed(model, IDS, groups=1, null=True, targets="embedding")
    assert values(record) == pytest.approx(values(probed(base, IDS, groups=1)), abs=0.01)
    assert record.provenance["quantization"].endswith("(torchao)")


def test_quantization_is_read_from_the_configuration_too():
    model = family("llama")
    assert quantization_of(model) is None
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    assert quantization_of(model) == "bitsandbytes, 4 bits"


def test_what_fails_after_the_pass_becomes_a_note(monkeypatch):
    def broken(*args, **kwargs):
        raise NotImplementedError("aten.view has no such overload")

    whole = probed(family("llama"), IDS, groups=1)
    monkeypatch.setattr("layerlaw.provenance.sha256", broken)
    monkeypatch.setattr("layerlaw.lm.loss.F.cross_entropy", broken)
    monkeypatch.setattr("layerlaw.lm.untrained_twin", broken)
    monkeypatch.setattr(PlaneSample, "planes", broken)
    monkeypatch.setattr(FrequentTokens, "separation", broken)
    record = probed(family("llama"), IDS, groups=1, null=True, words=[5, 6], classes=5)
    assert values(record) == values(whole)
    told = " ".join(record.notes)
    assert "own loss could not be computed (NotImplementedError" in told
    assert "The untrained model could not be measured (NotImplementedError: aten.view has no such overload)." in told
    assert "The words could not be pictured" in told
    assert "D of the frequent tokens could not be computed at 'model.layers.0'" in told
    assert record.provenance["parameters_sha256"] is None


def test_a_spared_head_gives_the_same_residuals_and_the_same_loss_as_one_that_is_not():
    class Whole(nn.Module):
        """Fails where it does not get the scores of every place."""

        def __init__(self, base):
            super().__init__()
            self.base, self.config = base, base.config

        def forward(self, input_ids, attention_mask=None):
            scores = self.base(input_ids=input_ids, attention_mask=attention_mask).logits
            return scores.reshape(*input_ids.shape, VOCABULARY)

    model = family("llama").double()
    spared, whole = (probed(m, IDS, groups=1, tokens=10**6) for m in (model, Whole(model)))
    assert values(spared) == values(whole)
    assert spared.settings["loss"] == pytest.approx(whole.settings["loss"], abs=0.05)  # of other tokens


@pytest.mark.parametrize("name", ["gemma2", "cohere", "granite"])
def test_scores_that_are_capped_or_scaled_behind_the_head_give_the_models_own_loss(name):
    if name == "gemma2":
        model = family("gemma2")
        model.config.final_logit_softcapping = 2.0
    else:
        shape = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": DEPTH}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1}
        scale = {"cohere": {"logit_scale": 0.3}, "granite": {"logits_scaling": 4.0}}[name]
        torch.manual_seed(0)
        config = tf.AutoConfig.for_model(name, **shape, **heads, eos_token_id=2, **scale)
        model = tf.AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            parameter.data.mul_(8 if parameter.dim() > 1 else 1)
    few = IDS[:4]
    with torch.no_grad():
        scores = model(input_ids=few).logits[:, :-1]
    expected = float(nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), few[:, 1:].reshape(-1)))
    record = probed(model, few, groups=1, tokens=10**6)
    assert record.settings["loss_tokens"] == 4 * 63
    assert record.settings["loss"] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])  # the head of the second is its embedding
@pytest.mark.parametrize("how", ["cpu_offload", "disk_offload"])
def test_an_offloaded_model_has_the_numbers_of_the_same_in_place(name, how, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    options = {"groups": 1, "null": True, "targets": "embedding"}
    plain = probed(family(name), IDS, **options)
    where = {"cpu_offload": (), "disk_offload": (tmp_path,)}[how]
    away = getattr(accelerate, how)(family(name), *where, execution_device="cpu")
    record = probed(away, IDS, **options)
    for a, b in zip(plain.sites, record.sites, strict=True):
        assert a.values == pytest.approx(b.values, rel=1e-5)
    assert record.settings["loss"] == pytest.approx(plain.settings["loss"], abs=1e-3)
    assert record.provenance["parameters_sha256"] is None
    with pytest.raises(InputError, match="device: expected none beside device_map or offloaded weights"):
        probed(away, IDS, device="cpu")


class ByHand(nn.Module):
    """Embeddings of tokens and places are plain parameters, and the first gives the scores too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tok_emb = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.pos_emb = nn.Parameter(torch.randn(80, WIDTH))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH))

    def forward(self, ids):
        x = self.tok_emb[ids] + self.pos_emb[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x @ self.tok_emb.T


def test_embeddings_that_are_plain_parameters_are_found():
    model = ByHand().double()
    record = probed(model, IDS, groups=1, null=True, targets="embedding", tokens=10**6)
    with torch.no_grad():
        scores = model(IDS)[:, :-1].reshape(-1, VOCABULARY)
    expected = float(nn.functional.cross_entropy(scores, IDS[:, 1:].reshape(-1)))
    assert record.settings["loss"] == pytest.approx(expected, rel=0.05)
    assert {"residual_embedding", "residual_untrained"} <= set(record.columns)
    with pytest.raises(InputError, match="got 150"):
        probed(model, IDS + 47)


def test_a_model_whose_states_are_several_per_token_is_refused():
    shape = {"hidden_size": WIDTH, "intermediate_size": [64] * 4, "num_hidden_layers": 4, "num_attention_heads": 4}
    small = {"num_key_value_heads": 2, "head_dim": 8, "laurel_rank": 4, "hidden_size_per_layer_input": 8}
    sizes = {"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0}
    kinds = {"layer_types": ["full_attention"] * 4, "activation_sparsity_pattern": [0.0] * 4, "pad_token_id": 0}
    torch.manual_seed(0)
    model = tf.Gemma3nForCausalLM(tf.Gemma3nTextConfig(**shape, **small, **sizes, **kinds)).eval()
    with pytest.raises(
        CaptureError, match=r"\(batch, time, width\), got \(4, 2, 7, 32\) in 'model.layers' \(4 of type Gem"
    ):
        probed(model, IDS)


def vision_transformer():
    shape = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return tf.ViTForImageClassification(tf.ViTConfig(image_size=8, patch_size=4, **shape))


def test_a_vision_transformer_is_sent_to_probe(tmp_path):
    said = "got ViTForImageClassification, which reads images. How layers separate classes is measured by ll.probe"
    with pytest.raises(InputError, match=said):
        probed(vision_transformer(), IDS)
    vision_transformer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=said):
        load(tmp_path)


def test_an_encoder_for_classes_is_measured_and_told_where_its_classes_are():
    torch.manual_seed(0)
    model = tf.BertForSequenceClassification(tf.BertConfig(**{**SIZE, "num_labels": 3})).eval()
    record = probed(model, IDS, mask_id=MASK, groups=1)
    assert record.notes[0].startswith("BertForSequenceClassification decides about classes;")
    assert judge(record).findings[0] == record.notes[0]  # before all that is said of its numbers
    assert not any("decides about classes" in note for note in probed(family("bert"), IDS, mask_id=MASK).notes)
