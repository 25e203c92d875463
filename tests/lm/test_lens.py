"""Lenses equal a direct computation: the same model cut off behind each block, and scikit-learn's map before its head."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from language_models import DEPTH, ENDS, FAMILIES, MASK, SIZE, VOCABULARY, WIDTH, family, probed, walks
from sklearn.linear_model import LinearRegression

from layerlaw.errors import InputError
from layerlaw.lm import lens as lenses
from layerlaw.lm.anatomy import dry_inputs
from layerlaw.lm.blocks import find_blocks
from layerlaw.lm.lens import StateReader, bytes_beside
from layerlaw.lm.loss import Head
from layerlaw.lm.stream import TextPlan
from layerlaw.lm.tasks import MaskedTokens
from layerlaw.lm.text_budget import affordable

IDS = walks(40, 48)
ALL = {"tokens": 10**6, "lens_tokens": 10**6, "groups": 2}
NARROW = {"hidden_size": WIDTH, "word_embed_proj_dim": 16, "ffn_dim": 64, "num_hidden_layers": DEPTH}
KEYS = {"num_key_value_heads": 2}
RECURRENT = {**{name: SIZE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
             "intermediate_size": 96, "lru_width": WIDTH, "attention_window_size": 16}  # fmt: skip

# What stands between the blocks and the scores: (model class, configuration, where the blocks are, what is read by)
HEADS = {
    "rms norm": (*FAMILIES["llama"][:2], "model.layers", "model.norm, lm_head"),
    "tied": ("LlamaForCausalLM", {**SIZE, **KEYS, "tie_word_embeddings": True}, "model.layers", "model.norm, lm_head"),
    "layer norm, tied": (*FAMILIES["gpt2"][:2], "transformer.h", "transformer.ln_f, lm_head"),
    "no norm": (*FAMILIES["gpt1"][:2], "transformer.h", "lm_head"),
    "soft cap": ("Gemma2ForCausalLM", {**SIZE, **KEYS, "head_dim": 8, "final_logit_softcapping": 0.7}, "model.layers",
                 "model.norm, lm_head, soft cap 0.7"),
    "soft cap by another name": ("RecurrentGemmaForCausalLM", {**RECURRENT, "logits_soft_cap": 0.7}, "model.layers",
                                 "model.final_norm, lm_head, soft cap 0.7"),
    "soft cap of small scores": (*FAMILIES["gemma2"][:2], "model.layers", "model.norm, lm_head, soft cap 30"),
    "scores times a factor": ("CohereForCausalLM", {**SIZE, **KEYS, **ENDS, "logit_scale": 0.3}, "model.layers",
                              "model.norm, lm_head, × 0.3"),
    "scores divided": ("GraniteForCausalLM", {**SIZE, **KEYS, "logits_scaling": 0.4}, "model.layers",
                       "model.norm, lm_head, × 2.5"),
    "projection": ("OPTForCausalLM", {"vocab_size": VOCABULARY, **NARROW, "num_attention_heads": 4, **ENDS},
                   "model.decoder.layers", "model.decoder.final_layer_norm, model.decoder.project_out, lm_head"),
    "state space": (*FAMILIES["mamba"][:2], "backbone.layers", "backbone.norm_f, lm_head"),
}  # fmt: skip


def built(name):
    cls, config, *_ = HEADS[name]
    maker = getattr(tf, cls)
    tf.logging.set_verbosity_error()
    torch.manual_seed(3)
    model = maker(maker.config_class(**config)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.15)
            else:
                parameter.uniform_(0.5, 1.5)  # norms that are not bare
    return model


def cut_off(model, home, inputs):
    """The scores of the model with its first 0 … L blocks alone."""
    parent, _, child = home.rpartition(".")
    blocks, owner, scores = model.get_submodule(home), model.get_submodule(parent), []
    for count in range(len(blocks) + 1):
        setattr(owner, child, blocks[:count])
        with torch.no_grad():
            scores.append(model(**inputs).logits)
    setattr(owner, child, blocks)
    return torch.stack(scores)


def numbers(scores, told):
    """Loss, accuracy, agreement, settled of every site from scores (S, n, V)."""
    losses = torch.stack([F.cross_entropy(s.double(), told) for s in scores]).numpy()
    guess = scores.argmax(-1).numpy()
    same = guess == guess[-1]
    settled = [same[s:].all(0).mean() for s in range(len(same))]
    return {"loss": losses, "accuracy": (guess == told.numpy()).mean(1), "agreement": same.mean(1), "settled": settled}


def same(record, expected, lens="lens", abs=1e-6):
    for name, values in expected.items():
        assert record.column(f"{lens}_{name}") == pytest.approx(list(values), abs=abs), name


@pytest.mark.parametrize("name", HEADS)
def test_the_logit_lens_is_the_model_cut_off_behind_each_block(name):
    model = built(name)
    record = probed(model, IDS, lens="logit", **ALL)
    scores = cut_off(model, HEADS[name][2], {"input_ids": IDS, "use_cache": False})[:, :, :-1]
    same(record, numbers(scores.flatten(1, 2), IDS[:, 1:].flatten()))
    assert record.settings["lens"]["read_by"] == HEADS[name][3]
    assert record.settings["lens"]["tokens"] == record.settings["tokens"] == IDS[:, 1:].numel()
    assert record.sites[-1].values["lens_loss"] == pytest.approx(record.settings["loss"], abs=1e-4)  # as it is rounded


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_of_an_encoder_masked_tokens_are_read(name):
    model = family(name).double()
    record = probed(model, IDS, mask_id=MASK, lens="logit", **ALL)
    batch = MaskedTokens(MASK, seed=0).batch(list(IDS), range(len(IDS)))
    scores = cut_off(model, FAMILIES[name][4], batch.inputs).flatten(1, 2)[:, batch.rows]
    same(record, numbers(scores, batch.around[1]))
    assert record.sites[-1].values["lens_loss"] == pytest.approx(record.settings["loss"], abs=1e-4)


def test_of_an_encoder_decoder_the_spans_are_read_through_its_factor():
    record = probed(family("t5").double(), IDS, lens="logit", **ALL)
    about = record.settings["lens"]
    assert about["read_by"] == f"decoder.final_layer_norm, decoder.dropout, × {WIDTH**-0.5:.4g}, lm_head"
    assert about["tokens"] == record.settings["tokens"]
    assert record.sites[-1].values["lens_agreement"] == 1
    assert record.sites[-1].values["lens_loss"] == pytest.approx(record.settings["loss"], abs=1e-4)


def test_float32_models_are_read_to_six_digits():
    model = built("rms norm").float()
    record = probed(model, IDS, lens="logit", **ALL)
    scores = cut_off(model, "model.layers", {"input_ids": IDS, "use_cache": False})[:, :, :-1]
    expected = numbers(scores.flatten(1, 2), IDS[:, 1:].flatten())
    assert record.column("lens_loss") == pytest.approx(list(expected["loss"]), abs=1e-6)


def test_losses_over_a_large_vocabulary_keep_seven_digits():
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**{**SIZE, "vocab_size": 30_000}, initializer_range=0.3)).eval()
    dry = dry_inputs(model, torch.device("cpu"))
    reader = StateReader.of(model, find_blocks(model, dry), Head.of(model, dry), dry)
    rows, told = torch.randn(200, WIDTH) * 5, torch.randint(0, 30_000, (200,))
    losses, predicted = reader.read(rows, told)
    with torch.no_grad():
        scores = model.lm_head(model.model.norm(rows)).double()
    assert float(losses.mean()) == pytest.approx(float(F.cross_entropy(scores, told)), abs=3e-7)
    assert torch.equal(predicted, scores.argmax(-1))


@pytest.mark.parametrize("name", ["rms norm", "layer norm, tied", "no norm", "soft cap"])
def test_the_linear_lens_is_least_squares_on_other_documents_before_the_head(name):
    model = built(name)
    record = probed(model, IDS, lens="linear", **ALL)
    home = HEADS[name][2]
    states = [s[:, :-1].reshape(-1, WIDTH) for s in hidden_states(model, home)]
    bare = [normalized(s.numpy(), name) for s in states]
    here = np.repeat(np.arange(len(IDS)) < len(IDS) // 2, IDS.shape[1] - 1)  # the first group is read, the other fitted
    told = IDS[:, 1:].flatten()[here]
    maps = [LinearRegression().fit(X[~here], bare[-1][~here]).predict(X[here]) for X in bare[:-1]]
    tail = [model.get_submodule(part) for part in HEADS[name][3].removesuffix(", soft cap 0.7").split(", ")]
    scores = []
    for X in (*map(torch.from_numpy, maps), states[-1][here]):
        with torch.no_grad():
            for module in tail:
                X = module(X)
        scores.append(0.7 * torch.tanh(X / 0.7) if name == "soft cap" else X)
    same(record, numbers(torch.stack(scores), told), "linear_lens")
    same(record, numbers(cut_off(model, home, {"input_ids": IDS})[:, :, :-1].flatten(1, 2)[:, here], told))
    assert record.settings["lens"]["fitted_tokens"] == int((~here).sum())


def hidden_states(model, home):
    """What enters the first block, and what every block gives."""
    kept, blocks = [], model.get_submodule(home)
    hooks = [blocks[0].register_forward_pre_hook(lambda m, args: kept.append(args[0]))]
    hooks += [
        b.register_forward_hook(lambda m, args, out: kept.append(out if torch.is_tensor(out) else out[0]))
        for b in blocks
    ]
    with torch.no_grad():
        model(input_ids=IDS)
    for hook in hooks:
        hook.remove()
    return kept


def normalized(X, name):
    if name == "no norm":
        return X
    X = X - X.mean(1, keepdims=True) if name.startswith("layer") else X
    eps = 1e-5 if name.startswith("layer") else 1e-6
    return X / np.sqrt((X**2).mean(1, keepdims=True) + eps)


@pytest.mark.parametrize("kind", ["logit", "linear"])
def test_batches_and_the_size_of_a_product_change_nothing(kind, monkeypatch):
    model = built("rms norm")
    whole = probed(model, IDS, lens=kind, **ALL)
    held = []
    scores = StateReader.scores
    monkeypatch.setattr(StateReader, "scores", lambda self, rows: held.append(len(rows)) or scores(self, rows))
    monkeypatch.setattr(lenses, "AT_ONCE", 20 * VOCABULARY)
    monkeypatch.setattr(lenses, "TOGETHER", 50)
    streamed = probed(model, IDS, lens=kind, batch_size=3, **ALL)
    for column in (c for c in whole.columns if "lens" in c):
        assert streamed.column(column) == pytest.approx(whole.column(column), abs=1e-9), column
    assert max(held[1 + (kind == "linear") :]) <= 20  # after the trial: scores of all tokens are never held


def test_a_sample_of_tokens_is_spread_over_all_pieces_and_is_that_of_the_loss():
    model = built("rms norm")
    record = probed(model, IDS, lens="logit", tokens=10**6, groups=2, lens_tokens=300)
    about = record.settings["lens"]
    assert about["tokens"] == pytest.approx(300, rel=0.1)
    assert about["pieces"] == len(IDS)
    assert record.settings["loss_tokens"] == about["tokens"]
    assert record.sites[-1].values["lens_loss"] == pytest.approx(record.settings["loss"], abs=1e-4)
    assert record.sites[1].values["lens_excess_se"] > 0 == record.sites[-1].values["lens_excess_se"]
    usual = probed(model, IDS, lens="logit", tokens=10**6, groups=2)
    assert usual.settings["lens"]["tokens"] == pytest.approx(
        IDS.numel() / (DEPTH + 1), rel=0.1
    )  # as the head on all tokens


def test_the_lens_changes_no_other_number():
    model = built("layer norm, tied")
    plain, read = (probed(model, IDS, groups=2, lens=lens) for lens in (None, "linear"))
    shared = [c for c in plain.columns if "lens" not in c]
    assert all(plain.column(c) == read.column(c) for c in shared)
    assert not any("lens" in c for c in plain.columns)
    assert "lens" not in plain.settings


ANSWERS = {
    "another lens": ({"lens": "tuned"}, "lens: expected one of logit, linear, got 'tuned'"),
    "tokens without a lens": ({"lens_tokens": 9}, "lens_tokens: expected with lens='logit' or 'linear', got 9 without"),
    "no tokens": ({"lens": "logit", "lens_tokens": 0}, "lens_tokens: expected a whole number of at least 1, got 0"),
    "one group": ({"lens": "linear", "groups": 1}, "groups: expected at least 2 with lens='linear', got 1"),
    "standardized": ({"lens": "linear", "normalize": "standardized"}, "normalize: expected 'fresh' or 'none' with lens="),
    "named parts": ({"lens": "logit", "blocks": "model.layers.*.mlp"}, "found no such way. Leave lens out, or measure the"),
    "another task": ({"lens": "logit", "task": "masked", "mask_id": MASK}, "trained for, 'next', got 'masked'"),
    "memory": ({"lens": "linear", "memory_gib": 1e-5}, "memory_gib: the linear lens takes .* beside .* two groups"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_what_cannot_be_read_is_answered(case):
    options, message = ANSWERS[case]
    with pytest.raises(InputError, match=message.replace(" got", ".* got")):
        probed(family("llama"), IDS, **options)


def test_models_without_scores_and_scores_that_are_made_otherwise_are_answered():
    with pytest.raises(InputError, match="lens: expected a model that gives scores of tokens, got BertModel"):
        probed(family("bert_base"), IDS, mask_id=MASK, lens="logit", groups=2)

    class Squared(tf.LlamaForCausalLM):
        def forward(self, input_ids, **more):
            out = super().forward(input_ids, **more)
            out.logits = out.logits**2
            return out

    with pytest.raises(InputError, match="lens: expected a head whose finite scores the model returns as they are"):
        probed(Squared(tf.LlamaConfig(**SIZE)).eval(), IDS, lens="logit", groups=2)
    with pytest.raises(InputError, match="text: expected at least 2 pieces with lens='linear'"):
        probed(family("llama"), walks(1, 100), lens="linear")


def test_a_norm_between_the_blocks_and_the_head_that_reads_more_than_the_state_is_answered():
    class Skipping(tf.LlamaForCausalLM):
        """The head reads the last state and the embedded text."""

        def forward(self, input_ids, **more):
            last = self.model(input_ids, **more).last_hidden_state
            return tf.modeling_outputs.CausalLMOutput(logits=self.lm_head(last + self.model.embed_tokens(input_ids)))

    with pytest.raises(
        InputError, match=r"nothing but modules in a row between 'model.layers.2' and the head 'lm_head'"
    ):
        probed(Skipping(tf.LlamaConfig(**SIZE)).eval(), IDS, lens="logit", groups=2)


def test_a_head_that_fails_on_the_way_costs_the_lens_alone(monkeypatch):
    read, calls = StateReader.read, []

    def failing(self, rows, told):
        calls.append(len(rows))
        if len(calls) > 3:
            raise RuntimeError("no more memory.")
        return read(self, rows, told)

    monkeypatch.setattr(StateReader, "read", failing)
    record = probed(built("rms norm"), IDS, lens="linear", **ALL)
    assert "The lens could not be read (RuntimeError: no more memory)." in record.notes
    assert all(site.values["lens_loss"] is None for site in record.sites)
    assert all(site.values["residual"] is not None for site in record.sites)


def test_scores_that_are_not_finite_leave_no_number_and_a_note(monkeypatch):
    scores = StateReader.scores
    monkeypatch.setattr(
        StateReader, "scores", lambda self, rows: scores(self, rows) * (1 if len(rows) < 40 else torch.nan)
    )
    record = probed(built("rms norm"), IDS, lens="logit", **ALL)  # the trial was of fewer tokens
    assert record.column("lens_loss") == record.column("lens_agreement") == [None] * (DEPTH + 1)
    assert any(
        n.startswith("The lens has read no finite scores at embedded input, model.layers.0") for n in record.notes
    )


def test_the_memory_of_the_linear_lens_is_a_matrix_per_site_and_some_states():
    model = family("llama")
    plan = TextPlan(find_blocks(model, dry_inputs(model, torch.device("cpu"))), ())
    assert bytes_beside(plan, 100, 30) == (DEPTH + 1) * (8 * WIDTH**2 + 8 * WIDTH * 130)
    alone, _ = affordable(None, plan, 1e-4)
    beside, note = affordable(None, plan, 1e-4, 60_000)
    assert 2 <= beside < alone
    assert f"{beside} groups instead of 8" in note


def test_prompt_tuning_is_read_as_it_runs():
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    torch.manual_seed(0)
    model = peft.get_peft_model(family("llama"), config).eval().double()
    record = probed(model, IDS, lens="logit", **ALL)
    with torch.no_grad():
        scores = model(input_ids=IDS).logits[:, -IDS.shape[1] : -1]
    expected = F.cross_entropy(scores.flatten(0, 1), IDS[:, 1:].flatten())
    assert record.sites[-1].values["lens_loss"] == pytest.approx(float(expected), abs=1e-6)
