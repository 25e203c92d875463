"""Tasks: which rows are looked at, and which tokens stand around them."""

import pytest
import torch
from language_models import DEPTH, FAMILIES, MASK, VOCABULARY, WIDTH, family, probed, walks
from torch import nn

from layerlaw.errors import InputError
from layerlaw.lm.tasks import SHUFFLES, MaskedTokens, NextToken, Spans, targets_of


def test_next_token_rows_have_all_wanted_neighbors():
    batch = NextToken((-1, 1, 2)).batch([torch.arange(10, 16), torch.arange(20, 24)], [0, 1])
    assert batch.inputs["attention_mask"].tolist() == [[1] * 6, [1] * 4 + [0] * 2]
    tokens = batch.inputs["input_ids"].reshape(-1)[batch.rows]
    assert tokens.tolist() == [11, 12, 13, 21]
    assert batch.around[-1].tolist() == [10, 11, 12, 20]
    assert batch.around[1].tolist() == [12, 13, 14, 22]
    assert batch.around[2].tolist() == [13, 14, 15, 23]


def test_masked_rows_hold_the_mask_and_the_target_is_what_stood_there():
    pieces = [torch.arange(100, 400), torch.arange(500, 600)]
    batch = MaskedTokens(MASK, before=(1,), after=(2,), seed=5).batch(pieces, [0, 1])
    ids = batch.inputs["input_ids"].reshape(-1)
    assert (ids[batch.rows] == MASK).all()
    assert (ids == MASK).sum() == len(batch.rows)
    whole = torch.cat([torch.tensor([1]), pieces[0], torch.tensor([2])])
    first = batch.rows < 302
    assert torch.equal(whole[batch.rows[first]], batch.around[1][first])
    assert 0.1 < len(batch.rows) / 400 < 0.2


def test_what_is_masked_does_not_depend_on_the_batch():
    pieces = [torch.arange(100, 300), torch.arange(500, 560), torch.arange(600, 640)]
    task = MaskedTokens(MASK)
    together = task.batch(pieces, [0, 1, 2]).around[1].tolist()
    alone = [token for i, piece in enumerate(pieces) for token in task.batch([piece], [i]).around[1].tolist()]
    assert together == alone


def test_spans_can_be_put_back_together():
    task = Spans(sentinels=tuple(range(999, 900, -1)), start=0, end=1)
    for number in range(20):
        piece = torch.arange(10, 10 + 7 * (number + 2))
        source, label, real = task.corrupted(piece, torch.Generator().manual_seed(number))
        hidden, current = {}, None
        for token, is_token in zip(label.tolist(), real.tolist(), strict=True):
            if is_token:
                hidden[current].append(token)
            else:
                current = token
                hidden[current] = []
        rebuilt = []
        for token in source.tolist()[:-1]:
            rebuilt += hidden.get(token, [token])
        assert rebuilt == piece.tolist()
        assert int(real.sum()) == max(len(hidden), round(0.15 * len(piece)))


def test_sentinels_that_nobody_names_are_told():
    class Named:
        unk_token_id = 1

        def convert_tokens_to_ids(self, token):
            return 149 - int(token[10:-1]) if int(token[10:-1]) < 20 else 1

    model, ids = family("t5"), walks(120)
    guessed, named = (probed(model, ids, tokenizer=t, groups=1) for t in (None, Named()))
    assert any("names no sentinels (<extra_id_0>, …)" in note for note in guessed.notes)
    assert not any("sentinel" in note for note in named.notes)
    assert [s.values for s in guessed.sites] == [s.values for s in named.sites]  # fewer than 20 are used


def test_the_decoder_of_a_span_task_reads_what_was_told_before():
    batch = Spans(sentinels=(99, 98, 97), start=7, end=None).batch([torch.arange(10, 40)], [0])
    before = batch.inputs["decoder_input_ids"][0].tolist()
    assert before[0] == 7
    assert before[1] == 99
    following = [*before[1:], None]
    told = [following[row] for row in batch.rows.tolist()]
    assert told[:-1] == batch.around[1].tolist()[:-1]


def test_targets_are_functions_of_the_token():
    counts = torch.tensor([5, 0, 9, 1])
    found = {t.name: t.codes() for t in targets_of(["rank", "shuffled", "onehot"], 4, None, counts, 0)}
    assert found["rank"].flatten().argsort().tolist() == [2, 0, 3, 1]
    assert (found["id"].diff(dim=0) > 0).all()
    assert found["shuffled"].shape == (4, SHUFFLES)
    for column in found["shuffled"].T:
        assert torch.equal(column.sort().values, found["id"].flatten())
    assert set(found["onehot"].flatten().tolist()) == {-1.0, 1.0}


def test_a_sketch_is_near_the_exact_one_hot_residual():
    ids = walks(80, 64, size=60)
    model = family("llama").double()
    record = probed(model, ids, targets="onehot", groups=2, tokens=10**6)
    with torch.no_grad():
        kept = []
        hook = model.model.layers[-1].register_forward_hook(
            lambda m, a, o: kept.append(o if torch.is_tensor(o) else o[0])
        )
        model(input_ids=ids)
        hook.remove()
    X = kept[0][:, :-1].reshape(-1, 32)
    X = torch.nn.functional.rms_norm(X, (32,), eps=1e-6)
    A = torch.cat([X, torch.ones(len(X), 1)], 1)
    Y = torch.nn.functional.one_hot(ids[:, 1:].reshape(-1), VOCABULARY).double()
    left = (Y - A @ torch.linalg.lstsq(A, Y).solution).square().sum()
    exact = float(left / (Y - Y.mean(0)).square().sum())
    assert record.sites[-1].values["residual_onehot"] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", {"targets": "id,color"}, "targets: expected some of id, embedding, .*, got 'color'"),
        ("bert_base", {"targets": "embedding"}, "expected a model with an output embedding"),
        ("bert", {"targets": "previous"}, "belong to next-token prediction"),
        ("llama", {"task": "span"}, "expected an encoder-decoder"),
        ("t5", {"task": "masked"}, "expected 'span' for an encoder-decoder"),
        ("bert", {"mask_id": 150}, "mask_id: expected a token id 0 … 149, got 150"),
        ("llama", {"task": "masked", "mask_id": None}, "expected a tokenizer with a mask token"),
        ("llama", {"task": "translate"}, "task: expected one of next, masked, span"),
        ("llama", {"normalize": "batch"}, "normalize: expected one of fresh, none, standardized"),
        ("llama", {"batch_size": 0}, "batch_size: expected a whole number of at least 1"),
        ("llama", {"classes": 1}, "classes: expected 0"),
        ("llama", {"groups": 0}, "groups: expected a whole number of at least 1"),
        ("llama", {"memory_gib": float("nan")}, "memory_gib: expected a positive"),
        ("llama", {"tokens": 1}, "tokens: expected a whole number of at least 2"),
        ("llama", {"tokens": 30}, "expected more predicted tokens than features, got 29 for 32"),
        ("llama", {"words": ["war"]}, "words: expected token ids where there is no tokenizer"),
        ("llama", {"words": [5, 5]}, "words: expected different words"),
        ("llama", {"words": "war"}, "words: expected a list of words, got the string"),
        ("llama", {"tokens": 3.5}, "tokens: expected a whole number of at least 2, got 3.5"),
        ("llama", {"length": "64"}, "length: expected a whole number"),
        ("llama", {"targets": 5}, "targets: expected names, got 5"),
        ("llama", {"bos": "yes"}, "bos: expected True, False or None"),
        ("llama", {"seed": "a"}, "seed: expected a whole number"),
        ("llama", {"dtype": "float16"}, "this one is loaded already"),
        ("llama", {"device": "nowhere"}, "device: cannot compute on 'nowhere'"),
    ],
)
def test_bad_options_are_answered(name, options, message):
    with pytest.raises(InputError, match=message):
        probed(family(name), walks(), **{"mask_id": MASK, "progress": False, **options})


def test_a_task_against_the_way_a_model_reads_is_told():
    both = probed(family("bert"), walks(), task="next", groups=1)
    assert "The model reads both ways: the next token is among what it reads" in " ".join(both.notes)
    forward = probed(family("llama"), walks(), task="masked", mask_id=MASK, groups=1)
    assert "The model reads forward only" in " ".join(forward.notes)
    assert "reads" not in " ".join(probed(family("llama"), walks(), groups=1).notes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": 20}, r"got 19 for 32. Use more than tokens=20; 20 per feature"),
        (
            {"length": 3, "targets": "next2,previous"},
            "a token has all the neighbors that are needed, got none in pieces",
        ),
    ],
)
def test_too_few_tokens_are_told_with_what_to_do(options, said):
    with pytest.raises(InputError, match=said):
        probed(family("llama"), walks(), groups=1, progress=False, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"groups": "8"}, "groups: expected a whole number of at least 1, got '8'"),
        ({"groups": 2.5}, "groups: expected a whole number"),
        ({"memory_gib": "2"}, "memory_gib: expected a number of GiB"),
        ({"mask_id": "a"}, "mask_id: expected a whole number"),
        ({"blocks": 5}, "blocks: expected names of modules, got 5"),
        ({"words": 5}, "words: expected a list of words or token ids, got 5"),
        ({"words": [3.5]}, "words: expected words or token ids, got 3.5"),
        ({"words": [True]}, "words: expected words or token ids, got True"),
        ({"words": [VOCABULARY]}, f"words: expected token ids 0 … {VOCABULARY - 1}, got {VOCABULARY}"),
    ],
)
def test_options_of_a_wrong_kind_are_told(options, said):
    with pytest.raises(InputError, match=said):
        probed(family("llama"), walks(), progress=False, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "albert", "llama", "gpt2", "mamba", "rwkv"])
def test_the_task_that_fits_does_not_depend_on_the_dtype(name, dtype):
    record = probed(family(name).to(dtype), walks(), mask_id=MASK, groups=1)
    assert record.settings["task"] == FAMILIES[name][2]


def test_an_encoder_in_bfloat16_has_the_residuals_of_the_same_in_float32():
    exact, rounded = (
        probed(family("bert").to(d or torch.float32), walks(), mask_id=MASK, groups=1) for d in (None, torch.bfloat16)
    )
    for a, b in zip(exact.sites, rounded.sites, strict=True):
        assert a.values["residual"] == pytest.approx(b.values["residual"], abs=0.02)


class SharedScale(nn.Module):
    """A causal model whose states are rounded on a scale that all pieces of a batch share, as int8 activations are."""

    def __init__(self, reach=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.reach, self.table = reach, nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, input_ids):
        x = self.table(input_ids)
        for layer in self.layers:
            x = x + layer(x).tanh() + self.reach * x.roll(-1, 1)
            step = x.abs().max() / 127
            x = (x / step).round() * step
        return x


def test_rounding_that_other_pieces_change_too_is_not_taken_for_reading_ahead():
    assert probed(SharedScale(), walks(), groups=1).settings["task"] == "next"
    assert probed(SharedScale(0.5), walks(), mask_id=MASK, groups=1).settings["task"] == "masked"


def test_ids_beyond_the_vocabulary_are_told():
    with pytest.raises(InputError, match="expected token ids 0 … 149, as the model has embeddings, got 150"):
        probed(family("llama"), walks() + 47)
