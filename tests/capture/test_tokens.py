"""Sequences: encoders in both batch orders, masks, windows, Hugging Face models."""

import os

import pytest
import torch
from capture_networks import Encoder, Window, clouds, seeded
from torch import nn

import layerlaw as ll

os.environ["HF_HUB_OFFLINE"] = "1"
K = 3


def padded(n: int = 60, tokens: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token features (n, T, 8), a mask that is true at padding, labels."""
    x, y = clouds(n, tokens, 8)
    lengths = 2 + torch.arange(n) % (tokens - 1)
    return x, torch.arange(tokens) >= lengths[:, None], y


def batches(x: torch.Tensor, padding: torch.Tensor, y: torch.Tensor, *, batch_first: bool) -> list[dict]:
    parts = [slice(i, i + 20) for i in range(0, len(y), 20)]
    order = (lambda v: v) if batch_first else (lambda v: v.transpose(0, 1))
    return [{"src": order(x[p]), "src_key_padding_mask": padding[p], "labels": y[p]} for p in parts]


def encoders() -> tuple[nn.Module, nn.Module]:
    first, second = seeded(Encoder, batch_first=True), Encoder(batch_first=False)
    second.load_state_dict(first.state_dict())
    return first, second


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_has_a_row_per_block_and_per_layer(batch_first: bool) -> None:
    network = encoders()[0 if batch_first else 1]
    data = batches(*padded(), batch_first=batch_first)
    blocks = ll.sites(network, data)
    assert blocks.why == "auto: 3 blocks of type TransformerEncoderLayer"
    assert [site.name for site in blocks.sites] == ["input", *(f"encoder.layers.{i}" for i in range(3)), "head"]
    layers = ll.sites(network, data, sites="layers")
    parts = [f"encoder.layers.{i}.{part}" for i in range(3) for part in ("self_attn", "linear1", "linear2")]
    assert [site.name for site in layers.sites] == [*parts, "head"]
    assert {site.axis for site in layers.sites[:-1]} == {0 if batch_first else 1}
    assert [site.shape for site in layers.sites[-3:]] == [(5, 8), (5, 16), (8,)]


@pytest.mark.parametrize("reduce", ["flatten", "mean", "max", "first", "last"])
def test_both_batch_orders_give_the_same_numbers_with_a_padding_mask(reduce: str) -> None:
    one, two = encoders()
    data = padded()
    how = {"reduce": reduce, "sites": "layers", "progress": False, "uncertainty": "jackknife"}
    a = ll.probe(one, batches(*data, batch_first=True), **how).to_pandas()
    b = ll.probe(two, batches(*data, batch_first=False), **how).to_pandas()
    assert len(a) == 10
    for column in ("separation", "separation_log_se", "nc1", "cdnv", "ncc_accuracy", "ncc_mismatch"):
        assert a[column].tolist() == pytest.approx(b[column].tolist(), rel=1e-4), column


def test_the_fast_path_is_off_while_probing_and_back_on_after() -> None:
    network = encoders()[0].eval()
    assert torch.backends.mha.get_fastpath_enabled()
    record = ll.probe(network, batches(*padded(), batch_first=True), sites="layers", progress=False)
    assert [site.name for site in record.sites][:2] == ["encoder.layers.0.self_attn", "encoder.layers.0.linear1"]
    assert torch.backends.mha.get_fastpath_enabled()


def test_as_many_samples_as_tokens_in_sequence_first_data_is_ambiguous() -> None:
    x, y = clouds(5, 5, 8)
    with pytest.raises(ll.LayerlawError, match=r"which axis are the samples.*5 entries on axes 0 and 1"):
        ll.sites(encoders()[1], [(x.transpose(0, 1), y)])


def test_two_samples_of_two_tokens_are_ambiguous() -> None:
    x, y = clouds(2, 2, 8)
    with pytest.raises(ll.LayerlawError, match=r"which axis are the samples.*a batch of 3 or more would tell"):
        ll.sites(encoders()[0], [(x, y)], sites="layers")


def test_windows_folded_into_axis_0_belong_to_their_samples() -> None:
    plan = ll.sites(seeded(Window), clouds(6, 8, 4)[0], sites="layers")
    assert [(site.name, site.fold, site.shape) for site in plan.sites] == [
        ("embed", 1, (8, 4)),
        ("inner", 4, (4, 2, 6)),
        ("head", 1, (6,)),
    ]


def test_windows_in_another_order_than_the_samples_are_left_out_and_listed() -> None:
    plan = ll.sites(seeded(Window, mixed=True), clouds(6, 8, 4)[0], sites="layers")
    assert [site.name for site in plan.sites] == ["embed", "head"]
    assert plan.dropped == ("inner (its 8 rows mix the samples in an order that is not theirs)",)


def test_windows_of_tiny_features_are_not_taken_for_equal() -> None:
    network = seeded(Window, mixed=True)
    with torch.no_grad():
        network.embed.weight.mul_(1e-7)
        network.embed.bias.mul_(1e-7)
    assert "mix the samples" in ll.sites(network, clouds(6, 8, 4)[0], sites="layers").dropped[0]


def bert() -> nn.Module:
    from transformers import AutoModelForSequenceClassification, BertConfig

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        num_labels=K,
    )
    return seeded(AutoModelForSequenceClassification.from_config, config)


def words(n: int = 60, tokens: int = 6) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % K
    ids = torch.randint(1, 14, (n, tokens), generator=generator) + 14 * y[:, None]
    lengths = 2 + torch.arange(n) % (tokens - 1)
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    parts = [slice(i, i + 20) for i in range(0, n, 20)]
    return [{"input_ids": ids[p] * mask[p], "attention_mask": mask[p], "labels": y[p]} for p in parts]


def test_bert_has_its_blocks_and_its_layers_with_query_key_and_value_as_one() -> None:
    network = bert()
    blocks = ll.sites(network, words())
    assert [site.name for site in blocks.sites] == [
        "embedded input",
        *(f"bert.encoder.layer.{i}" for i in range(3)),
        "classifier",
    ]
    layers = ll.sites(network, words(), sites="layers")
    parts = ["attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense"]
    expected = [f"bert.encoder.layer.{i}.{part}" for i in range(3) for part in parts]
    assert [site.name for site in layers.sites] == [*expected, "bert.pooler.dense", "classifier"]
    assert (layers.classifier, layers.classes) == ("classifier", K)


@pytest.mark.parametrize("reduce", ["flatten", "first", "last", "mean", "max"])
def test_the_numbers_of_bert_are_those_of_its_hidden_states(reduce: str) -> None:
    network, data = bert().eval(), words()
    record = ll.probe(network, data, reduce=reduce, progress=False)
    hidden: list[list[torch.Tensor]] = [[], [], [], []]
    for batch in data:
        inputs = {k: v for k, v in batch.items() if k != "labels"}
        with torch.no_grad():
            states = network(**inputs, output_hidden_states=True).hidden_states
        real = batch["attention_mask"].bool()
        for kept, state in zip(hidden, states, strict=True):
            kept.append(reduced(state, real, reduce))
    y = torch.cat([batch["labels"] for batch in data])
    for site, states in zip(record.sites, hidden, strict=False):
        expected = float(ll.separation_fuzziness(torch.cat(states).double(), y))
        assert site.values["separation"] == pytest.approx(expected, rel=1e-5)
    assert record.sites[-1].values["nc3"] is not None


def reduced(state: torch.Tensor, real: torch.Tensor, how: str) -> torch.Tensor:
    """Sample by sample, as one would by hand."""
    rows = []
    for tokens, mask in zip(state, real, strict=True):
        kept = tokens[mask]
        rows.append(
            {
                "flatten": tokens.flatten(),
                "first": kept[0],
                "last": kept[-1],
                "mean": kept.mean(0),
                "max": kept.amax(0),
            }[how]
        )
    return torch.stack(rows)


def test_batches_of_varying_length_cannot_be_flattened_but_can_be_averaged() -> None:
    data = words()
    data[1] = {k: v if k == "labels" else v[:, :4] for k, v in data[1].items()}
    with pytest.raises(ll.LayerlawError, match=r"varying length cannot be flattened: pad them .* reduce='mean'"):
        ll.probe(bert(), data, progress=False)
    assert len(ll.probe(bert(), data, reduce="mean", progress=False).sites) == 5


def test_gpt2_has_conv1d_rows_and_no_classifier_since_it_chooses_a_token_after_it() -> None:
    from transformers import AutoModelForSequenceClassification, GPT2Config

    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=3, n_head=2, num_labels=K, pad_token_id=0, eos_token_id=0
    )
    network = seeded(AutoModelForSequenceClassification.from_config, config)
    plan = ll.sites(network, words(), sites="layers")
    parts = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    expected = [f"transformer.h.{i}.{part}" for i in range(3) for part in parts]
    assert [site.name for site in plan.sites] == [*expected, "score"]
    assert {site.type for site in plan.sites[:-1]} == {"Conv1D"}
    record = ll.probe(network, words(), reduce="last", progress=False)
    assert [site.name for site in record.sites] == ["embedded input", *(f"transformer.h.{i}" for i in range(3))]
    assert record.accuracy is not None
    assert any("No NC2 and NC3 of the classifier: no weight layer's output" in note for note in record.notes)


def test_a_mask_in_floating_point_is_not_taken_for_the_input() -> None:
    data = [{**batch, "attention_mask": batch["attention_mask"].float()} for batch in words()]
    data = [dict(reversed(batch.items())) for batch in data]  # the mask before the ids
    assert ll.sites(bert(), data).sites[0].name == "embedded input"


def test_a_mask_that_does_not_fit_the_tokens_is_told() -> None:
    class Prefixed(Encoder):
        def forward(self, src, attention_mask=None):
            return super().forward(torch.cat([src[:, :1], src], 1))

    x, padding, y = padded()
    data = [{"src": x, "attention_mask": ~padding, "labels": y}]
    with pytest.raises(
        ll.LayerlawError, match=r"attention mask: expected shape \(2, 6\) like the tokens, got \(2, 5\)"
    ):
        ll.sites(seeded(Prefixed, batch_first=True), data, reduce="mean")


def test_a_sample_of_padding_only_is_told() -> None:
    data = words()
    data[2]["attention_mask"][3] = 0
    with pytest.raises(ll.LayerlawError, match="at least one real token in every sample, got padding only"):
        ll.probe(bert(), data, reduce="mean", progress=False)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_first_and_last_real_token_are_found_whatever_the_padding_side(side: str) -> None:
    from layerlaw.capture.plan import reduced as reduce_features

    tokens = torch.arange(24.0).reshape(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    mask = mask if side == "right" else mask.flip(1)
    first = reduce_features(tokens, "first", channels_last=True, mask=mask)
    last = reduce_features(tokens, "last", channels_last=True, mask=mask)
    start, end = ([0, 0], [1, 2]) if side == "right" else ([2, 1], [3, 3])
    assert torch.equal(first, tokens[[0, 1], start])
    assert torch.equal(last, tokens[[0, 1], end])


def test_flattened_tokens_are_noted_where_the_classifier_reads_one() -> None:
    data = batches(*padded(), batch_first=True)
    flat, pooled = (ll.probe(encoders()[0], data, reduce=how, progress=False) for how in ("flatten", "mean"))
    assert any(note.startswith("Tokens were flattened") for note in flat.notes)
    assert not any(note.startswith("Tokens were flattened") for note in pooled.notes)
