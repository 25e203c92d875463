"""probe_lm: what a record holds, and that batches, groups, processes and normalizations do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import torch.distributed as dist
import transformers
from language_models import DEPTH, MASK, VOCABULARY, WIDTH, family, probed, walks

import layerlaw as ll
from layerlaw.capture.network import untrained
from layerlaw.errors import CaptureError, InputError
from layerlaw.lab import GPT
from layerlaw.lm import load, pieces_of, probe_lm, stream
from layerlaw.lm.loss import loss_note
from layerlaw.lm.tasks import MaskedTokens, Spans
from layerlaw.lm.twins import untrained_twin

HERE = Path(__file__).parent


def values(record, column="residual"):
    return [site.values[column] for site in record.sites]


def test_record_has_one_row_per_block_and_a_law():
    record = probed(family("llama"), walks(), null=True, targets="id,embedding", classes=10)
    frame = record.to_pandas()
    assert frame["site"].tolist() == ["embedded input", *(f"model.layers.{i}" for i in range(DEPTH))]
    assert {"residual", "residual_held_out", "residual_embedding", "residual_untrained", "separation"} <= set(frame)
    assert record.law("residual").points == DEPTH
    assert record.kind.name == "language model"
    assert record.settings["classes"] == 10
    assert record.settings["tokens"] == record.counts[0] == record.settings["pieces"] * 63
    again = ll.Record.from_dict(record.to_dict())
    assert again.sites == record.sites


def test_batches_do_not_change_the_record():
    model = family("gpt2").double()
    one, many = (probed(model, walks(), batch_size=size) for size in (1, 16))
    for a, b in zip(one.sites, many.sites, strict=True):
        assert a.values == pytest.approx(b.values, rel=1e-9)
        assert a.left_out["residual"] == pytest.approx(b.left_out["residual"], rel=1e-9)


@pytest.mark.parametrize("lens", ["logit", "linear"])
@pytest.mark.parametrize("shortest", [2, 20], ids=["few rows of a batch are used", "most are"])
def test_blocks_whose_sums_grow_in_parts_give_the_same_record(monkeypatch, lens, shortest):
    """As on a GPU in half precision, here in float64."""
    uneven = [ids[: shortest + (i if i % 3 else 20)] for i, ids in enumerate(walks(40))]
    how = {"targets": "embedding,previous", "classes": 5, "words": [7, 9], "lens": lens, "batch_size": 3}
    one = probed(family("llama"), uneven, **how)
    taken = []
    monkeypatch.setattr(stream, "worth_growing", lambda X: taken.append(X) or True)
    other = probed(family("llama"), uneven, **how)
    assert taken
    for a, b in zip(one.sites, other.sites, strict=True):
        assert b.values == pytest.approx(a.values, rel=1e-9)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes leave."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        __file__,
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_two_processes_give_the_record_of_one(ranks):
    alone = ranked_record()
    for rank in range(2):
        record = ll.Record.load(ranks / f"{rank}.json")
        assert record.provenance["processes"] == 2
        assert record.counts == alone.counts
        for a, b in zip(record.sites, alone.sites, strict=True):
            assert a.values == pytest.approx(b.values, rel=1e-9)
            torch.testing.assert_close(torch.tensor(a.plane), torch.tensor(b.plane))
        assert record.plane_labels == alone.plane_labels


def test_sharded_processes_with_unequal_batches_give_the_record_of_one(ranks):
    """Of 3 batches one process has 2; it would wait for the other for ever inside the forward."""
    alone = uneven_record(family("llama").double())
    for rank in range(2):
        for name in ("sharded", "group"):
            record = ll.Record.load(ranks / f"{name} {rank}.json")
            assert record.provenance["processes"] == 2
            assert record.counts == alone.counts
            assert values(record) == pytest.approx(values(alone), rel=1e-9)
        assert (ranks / f"null {rank}.txt").read_text().startswith("null=True: expected a model that is whole on every")
        assert "got different ones in 'model.norm.weight'" in (ranks / f"weights {rank}.txt").read_text()
        assert (
            (ranks / f"text {rank}.txt").read_text().startswith("text: expected the same text on all 2 ranks, got diff")
        )


def test_the_models_own_loss_is_that_of_transformers_and_a_poor_one_is_told():
    ids, model = walks(), family("llama")
    few = [row[: 5 + i] for i, row in enumerate(ids[:20])]  # of unequal length, padded together
    with torch.no_grad():
        each = [model(input_ids=row[None], labels=row[None]).loss * (len(row) - 1) for row in few]
    expected = float(sum(each)) / sum(len(row) - 1 for row in few)
    record = probed(model, few, groups=1, tokens=10**6)
    assert record.settings["loss"] == pytest.approx(expected, abs=1e-4)  # as it is rounded
    assert record.settings["loss_tokens"] == sum(len(row) - 1 for row in few)
    record = probed(model, ids)
    with torch.no_grad():
        expected = float(model(input_ids=ids, labels=ids).loss)
    assert record.settings["loss"] == pytest.approx(expected, rel=0.02)  # of 2,048 tokens or more, not of all
    body = probed(family("llama").model, ids)
    assert "loss" not in body.settings
    assert any(note.startswith("No output layer was found in LlamaModel") for note in body.notes)
    model.lm_head.weight.data[3] = torch.nan
    broken = probed(model, ids)
    assert "loss" not in broken.settings
    assert any("scores of tokens are not finite" in note for note in broken.notes)


def test_masked_and_span_models_have_their_own_loss_and_a_poor_one_is_told():
    ids = walks()
    for name, task in (
        ("bert", MaskedTokens(MASK)),
        ("t5", Spans(tuple(range(VOCABULARY - 1, VOCABULARY // 2, -1)), 0, 1)),
    ):
        model = family(name)
        record = probed(model, ids, mask_id=MASK, tokens=10**6, groups=2)
        batch = task.batch(list(ids), range(len(ids)))
        with torch.no_grad():
            scores = model(**batch.inputs).logits.flatten(0, 1)[batch.rows]
        expected = float(torch.nn.functional.cross_entropy(scores, batch.around[1]))
        assert record.settings["loss"] == pytest.approx(expected, abs=1e-4)  # as it is rounded
        assert record.settings["loss_tokens"] == record.settings["tokens"] == len(batch.rows)
        assert any(note.startswith(f"The model's own loss on this text is {expected:.2f}") for note in record.notes)
    assert "loss" not in probed(family("bert"), ids, task="next").settings  # which its head was not trained for


def test_a_loss_clearly_above_that_of_frequencies_is_told_where_there_is_context():
    told = torch.full((100,), 32)
    assert loss_note(4.7, told, 100) == ""  # ln 100 is 4.6
    assert "is 5.20 nats per token; how often each token comes gives 4.61 by itself" in loss_note(5.2, told, 100)
    assert loss_note(5.2, told, 1000) == ""  # three tokens in a piece: nobody could know more
    assert loss_note(None, told, 100) == ""


def ranked_record():
    options = {"targets": "id,embedding", "classes": 8, "words": [3, 5, 7], "null": True, "batch_size": 2}
    options |= {"lens": "linear", "lens_tokens": 100}
    return probed(family("llama").double(), walks(), **options)


def measured(model, kind):
    return probed(model, walks(), normalize=kind)


def test_normalizations_differ_and_standardized_is_layer_norm():
    llama, neox = family("llama").double(), family("gpt_neox").double()
    kinds = [values(measured(llama, kind))[-1] for kind in ("fresh", "none", "standardized")]
    assert len({round(value, 9) for value in kinds}) == 3
    plain, standard = (values(measured(neox, kind)) for kind in ("fresh", "standardized"))
    assert plain == pytest.approx(standard, abs=1e-4)  # the same but for its epsilon


def test_the_null_is_drawn_anew_and_the_model_is_not_touched():
    model = family("llama")
    twin = untrained_twin(model, 3).model
    assert type(twin) is type(model)
    assert not torch.equal(twin.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)
    again = untrained_twin(model, 3).model
    assert torch.equal(twin.lm_head.weight, again.lm_head.weight)
    record = probed(model, walks(), null=True)
    assert values(record) != values(record, "residual_untrained")
    assert "residual_held_out_untrained" in record.columns


def test_a_model_of_the_lab_is_measured_like_any_other():
    torch.manual_seed(0)
    model = GPT(vocabulary=VOCABULARY, width=WIDTH, depth=4, heads=4, context=64)
    record = probed(model, walks(), targets="embedding", null=True)
    assert len(record.sites) == 5
    assert record.settings["norm"] == "rms"
    assert record.settings["task"] == "next"
    twin = untrained_twin(model, 0)
    assert isinstance(twin.model, GPT)
    assert torch.equal(next(twin.model.parameters()), next(untrained(model).parameters()))
    masked = GPT(vocabulary=VOCABULARY, width=WIDTH, depth=4, heads=4, context=64, causal=False)
    assert probed(masked, walks(), mask_id=MASK).settings["task"] == "masked"


def test_too_few_tokens_for_the_width_are_told():
    record = probed(family("llama"), walks(5, 64), groups=1)
    assert any("Only 9.8 tokens per feature" in note for note in record.notes)
    assert record.sites[1].values.get("residual_held_out") is None


def test_memory_decides_about_groups():
    record = probed(family("llama"), walks(), memory_gib=1e-4)
    assert record.settings["groups"] == 5
    assert any("5 groups instead of 8" in note for note in record.notes)
    record = probed(family("llama"), walks(), memory_gib=1e-9)
    assert record.settings["groups"] == 1
    assert any("no held-out values" in note for note in record.notes)


def test_words_beyond_the_sample_are_not_missing_and_those_at_the_end_of_pieces_are():
    ids = walks()
    common = ids[:, :-1].reshape(-1).unique().tolist()
    many = probed(family("llama"), ids, words=common, tokens=10**6)
    assert not any("Of the words" in note for note in many.notes)
    ids[:, -1] = VOCABULARY - 1
    record = probed(family("llama"), ids, words=[VOCABULARY - 1, common[0]])
    assert any(f"'{VOCABULARY - 1}' does not come among the tokens that were used" in note for note in record.notes)


def test_words_are_pictured_at_every_block():
    ids = walks()
    words = ids.reshape(-1).bincount().topk(3).indices.tolist()
    record = probed(family("llama"), ids, words=words)
    assert record.words == [str(word) for word in words]
    assert record.classes == []
    assert not any("Of the words" in note for note in record.notes)
    never = probed(family("llama"), ids, words=[words[0], VOCABULARY - 1])
    assert f"Of the words, '{VOCABULARY - 1}' does not come among the tokens that were used." in never.notes
    assert all(len(site.plane) == len(record.plane_labels) > 50 for site in record.sites)
    assert set(record.plane_labels) == {0, 1, 2}


def test_separation_of_frequent_tokens_equals_that_of_the_collected_states():
    ids = walks(40, 64, size=20)
    model = family("llama").double()
    record = probed(model, ids, classes=5, tokens=10**6)
    kept = []
    hook = model.model.layers[1].register_forward_hook(lambda m, a, o: kept.append(o if torch.is_tensor(o) else o[0]))
    with torch.no_grad():
        model(input_ids=ids)
    hook.remove()
    X = torch.nn.functional.rms_norm(kept[0][:, :-1].reshape(-1, WIDTH), (WIDTH,), eps=1e-6)
    y = ids[:, 1:].reshape(-1)
    chosen = (
        torch.argsort(ids.reshape(-1).bincount(minlength=VOCABULARY), descending=True, stable=True)[:5].sort().values
    )
    rows = torch.isin(y, chosen)
    expected = ll.separation_fuzziness(X[rows], torch.searchsorted(chosen, y[rows]))
    assert record.sites[2].values["separation"] == pytest.approx(float(expected), rel=1e-10)


def test_a_model_and_a_text_are_taken_in_every_form(tmp_path):
    model = family("llama").double()
    model.save_pretrained(tmp_path)
    text = [" ".join(map(str, piece.tolist())) for piece in walks()]
    expected = values(probe_lm(model, walks(), progress=False))
    assert values(probe_lm(load(model, tokenizer=Numbers()), text, progress=False)) == expected
    assert values(probe_lm(model, pieces_of(text, Numbers()), progress=False)) == expected
    from_disk = probe_lm(load(tmp_path, tokenizer=Numbers(), dtype="float64", name="mine"), text, progress=False)
    assert values(from_disk) == expected
    assert from_disk.name == "mine"
    fewer = probe_lm(model, pieces_of(walks(), tokens=1280, length=32, groups=4), progress=False)
    assert (fewer.settings["tokens"], fewer.settings["length"], fewer.settings["groups"]) == (40 * 31, 32, 4)


@pytest.mark.parametrize("name", ["tokenizer", "dtype", "device_map", "mask_id", "name"])
def test_options_of_loading_say_where_they_are_now(name):
    with pytest.raises(TypeError, match=rf"probe_lm: '{name}' is an argument of lm.load\(model, {name}=…\)"):
        ll.probe_lm(family("llama"), walks(), **{name: None})


@pytest.mark.parametrize("name", ["length", "documents", "tokens", "bos", "groups"])
def test_options_of_the_text_say_where_they_are_now(name):
    with pytest.raises(TypeError, match=rf"probe_lm: '{name}' is an argument of lm.pieces_of\(text, {name}=…\)"):
        ll.probe_lm(family("llama"), walks(), **{name: None})


def test_a_name_that_never_was_an_option_is_refused():
    with pytest.raises(TypeError, match=r"probe_lm\(\) got an unexpected keyword argument 'colour'"):
        ll.probe_lm(family("llama"), walks(), colour=1)


def test_a_model_spread_and_offloaded_by_accelerate_gives_the_same_record(tmp_path):
    model = family("llama")
    model.save_pretrained(tmp_path / "model")
    alone = probed(model, walks())
    layers = {f"model.layers.{i}": "disk" if i == 1 else "cpu" for i in range(DEPTH)}
    others = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    spread = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map={**layers, **others}, offload_folder=tmp_path / "off"
    )
    record = probed(spread, walks())
    assert record.provenance["parameters_sha256"] is None
    for a, b in zip(record.sites, alone.sites, strict=True):
        assert a.values == pytest.approx(b.values, rel=1e-6)
    with pytest.raises(InputError, match="expected none beside device_map"):
        probed(spread, walks(), device="cpu")


def test_a_missing_bos_is_noticed():
    class Led(GPT):
        """A model that is lost without token 1 in front, of every text or of one that begins with a certain token."""

        first = None

        def forward(self, input_ids, attention_mask=None):
            logits = super().forward(input_ids, attention_mask)
            sure = 20 * torch.nn.functional.one_hot(input_ids.roll(-1, 1), VOCABULARY)
            helped = (input_ids[:, :1] == 1) & (self.first is None or input_ids[:, 1:2] == self.first)
            return logits + sure * helped[..., None]

    model = Led(vocabulary=VOCABULARY, width=WIDTH, depth=2, heads=4, context=80)
    text = [" ".join(map(str, piece.tolist())) for piece in walks()]
    record = probed(model, text, tokenizer=Numbers())
    assert record.notes[0].startswith("No BOS was put in front, but with one the loss on the first ")
    assert record.notes[0].endswith("this model wants it. Use bos=True (or --bos).")
    assert probed(model, text, tokenizer=Numbers(), batch_size=1).notes[0] == record.notes[0]
    record = probed(model, text, tokenizer=Numbers(), bos=True)
    assert record.settings["bos"] == 1
    assert not any("wants it" in note for note in record.notes)
    model.first = int(text[0].split()[0])  # of one piece, where it helps: an accident
    assert not any("wants it" in note for note in probed(model, text, tokenizer=Numbers()).notes)


class Numbers:
    """A tokenizer for texts of numbers, with a BOS that it does not put itself."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

    def __call__(self, text, add_special_tokens=True, verbose=True):
        return {"input_ids": [int(word) for word in text.split()] if text != "a" else [4]}


def test_pieces_as_long_as_the_model_are_looked_at_too():
    model = GPT(vocabulary=VOCABULARY, width=WIDTH, depth=3, heads=4, context=64)
    text = [" ".join(map(str, piece.tolist())) for piece in walks()]
    record = probed(model, text, tokenizer=Numbers())
    assert record.settings["length"] == 64


def test_a_plain_model_may_call_its_ids_as_it_likes_and_know_no_mask():
    class Plain(torch.nn.Module):
        def __init__(self, seed=0):
            super().__init__()
            torch.manual_seed(seed)
            self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, idx):
            x = self.table(idx)
            for block in self.blocks:
                x = x + torch.tanh(block(x))
            return x

    ragged = [piece[: 30 + 5 * (i % 6)] for i, piece in enumerate(walks())]
    record = probed(Plain(), ragged)
    assert record.settings["task"] == "next"
    assert len(record.sites) == 3
    assert any("may be parts of blocks" in note for note in record.notes)  # the sums outside them are the states


def test_time_before_batches_is_told():
    class SequenceFirst(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, input_ids):
            x = self.table(input_ids).transpose(0, 1)
            for block in self.blocks:
                x = block(x)
            return x.transpose(0, 1)

    with pytest.raises(CaptureError, match="blocks with time along axis 0 are not supported"):
        probed(SequenceFirst(), walks())


def test_what_is_told_is_named_after_the_task():
    record = probed(family("bert"), walks(), mask_id=MASK)
    assert record.settings["targets"] == {"id": "the masked token's id"}
    assert record.settings["pieces"] == 60  # a tokenizer that puts nothing around a text needs no room for it


def test_classes_are_the_most_frequent_of_the_tokens_that_are_told():
    model, front = family("gpt2").double(), VOCABULARY - 1
    ids = walks(120)[:, :30].clamp(max=VOCABULARY - 2)
    led = torch.cat([torch.full((len(ids), 1), front), ids], 1)  # it stands in front of every piece, and is never told
    record = probed(model, led, classes=6, groups=1, tokens=10**6)
    chosen = torch.bincount(ids.flatten(), minlength=VOCABULARY).argsort(descending=True, stable=True)[:6]
    with torch.no_grad():
        X = model(led, output_hidden_states=True).hidden_states[1][:, :-1].reshape(-1, WIDTH)
    X = torch.nn.functional.layer_norm(X, (WIDTH,)).numpy()
    y = ids.flatten().numpy()
    groups = [X[y == int(token)] for token in chosen]
    n, mean = sum(map(len, groups)), np.concatenate(groups).mean(0)
    within = sum((g - g.mean(0)).T @ (g - g.mean(0)) for g in groups) / n
    between = sum(len(g) * np.outer(g.mean(0) - mean, g.mean(0) - mean) for g in groups) / n
    expected = np.trace(within @ np.linalg.pinv(between, rcond=1e-10))
    assert record.sites[1].values["separation"] == pytest.approx(expected, rel=1e-6)


def test_a_wrapper_that_carries_the_configuration_of_another_has_an_untrained_twin_too():
    class Wrapped(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.config = base, base.config

        def forward(self, input_ids):
            return self.base(input_ids=input_ids)

    record = probed(Wrapped(family("gpt2")), walks(), null=True, groups=1)
    assert record.sites[-1].values["residual_untrained"] != record.sites[-1].values["residual"]


def test_a_tokenizer_of_the_library_tokenizers_is_taken_too():
    words = [f"w{i}" for i in range(VOCABULARY)]
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model, ids = family("llama").double(), walks(80)
    text = [" ".join(words[i] for i in piece) for piece in ids.tolist()]
    spelled = probed(model, text, tokenizer=bare, groups=1)
    assert values(spelled) == values(probed(model, ids, groups=1))


def uneven_record(model, seed=0, **how):
    return probed(model, walks(60, seed=seed), batch_size=20, groups=1, tokens=10**6, **how)


def sharded():
    """A model whose weights are spread over the processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = family("llama").double(), init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def said(act):
    try:
        act()
    except ll.LayerlawError as error:
        return str(error)
    return "no error"


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ranked_record().save(folder / f"{rank}.json")
    uneven_record(sharded()).save(folder / f"sharded {rank}.json")
    uneven_record(family("llama").double(), ranks=dist.new_group([0, 1])).save(folder / f"group {rank}.json")
    (folder / f"null {rank}.txt").write_text(said(lambda: uneven_record(sharded(), null=True)))
    other = family("llama")
    torch.nn.init.constant_(other.model.norm.weight, 1 + rank)
    (folder / f"weights {rank}.txt").write_text(said(lambda: uneven_record(other)))
    (folder / f"text {rank}.txt").write_text(said(lambda: uneven_record(family("llama"), seed=rank)))
    dist.barrier()
    os._exit(0)  # a sharded model keeps a group of its own alive, whose threads may abort Python while it shuts down


if __name__ == "__main__":
    main(Path(sys.argv[1]))
