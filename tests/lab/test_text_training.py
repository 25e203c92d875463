"""Training language models: what is learnt, the schedule, masks, visits, files, and bad input."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_parts import Told, watched_rates
from text_parts import CHANCE, ENTROPY, VOCABULARY, best_loss, gpt, markov, recurrent, some_ids
from torch import nn
from torch.nn import functional as F

from layerlaw.errors import DataError, InputError, LayerlawError
from layerlaw.lab import GPT, TextRecipe, load_text_model, save_text_model, text_loss, train_text
from layerlaw.lab.networks.text_model import TextModel
from layerlaw.lab.text import TextBatch, cross_entropy, masked_tokens

TRAIN, TEST = markov(40_000, 1), markov(4_000, 2)
BASE = TextRecipe(steps=5, batch_size=4, context=16, learning_rate=0.01, warmup=2)
LEARN = TextRecipe(steps=170, batch_size=16, context=32, learning_rate=0.01, warmup=20)
MODELS = pytest.mark.parametrize("make", [gpt, recurrent], ids=["GPT", "Recurrent"])
Make = Callable[..., Any]


def quietly(model: TextModel, recipe: TextRecipe = BASE, **how: Any) -> list[float]:
    return train_text(model, TRAIN, recipe, progress=False, **how)


@MODELS
def test_a_markov_text_is_learnt_to_its_entropy_rate(make: Make) -> None:
    model = make()
    assert text_loss(model, TEST, LEARN) == pytest.approx(CHANCE, abs=0.1)
    losses = quietly(model, LEARN)
    best = best_loss(TEST)
    assert best == pytest.approx(ENTROPY, abs=0.05)
    assert best - 1e-3 < text_loss(model, TEST, LEARN) < best + 0.12
    assert (len(losses), losses[0]) == (170, pytest.approx(CHANCE, abs=0.1))


def test_hidden_tokens_are_learnt_from_those_around_them() -> None:
    circle = 5 * torch.arange(20_000) % 63  # every token tells the others; its frequency tells nothing
    model = gpt(causal=False)
    recipe = replace(LEARN, task="masked", steps=150)
    assert text_loss(model, circle[:3000], recipe) == pytest.approx(CHANCE, abs=0.1)
    train_text(model, circle, recipe, progress=False)
    assert text_loss(model, circle[:3000], recipe) < 0.7 * math.log(63)


@MODELS
def test_one_seed_gives_the_same_training_and_another_gives_another(make: Make) -> None:
    first, second = make(), make()
    assert quietly(first) == quietly(second)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert quietly(make(), replace(BASE, seed=1)) != quietly(make())
    masked = replace(BASE, task="masked")
    twins = [train_text(gpt(causal=False), markov(500, 3) % 63, masked, progress=False) for _ in range(2)]
    assert twins[0] == twins[1]


def test_it_does_what_anybody_would_write() -> None:
    model, plain = gpt(), gpt()
    losses = quietly(model)
    matrices = [p for p in plain.parameters() if p.ndim == 2]
    norms = [p for p in plain.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(666)
    for step in range(5):
        starts = torch.randint(40_000 - 16, (4, 1), generator=generator).flatten().tolist()
        x = torch.stack([TRAIN[s : s + 16] for s in starts])
        y = torch.stack([TRAIN[s + 1 : s + 17] for s in starts])
        for group in optimizer.param_groups:
            group["lr"] = BASE.rate_at(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(x).flatten(0, 1), y.flatten())
        loss.backward()
        norm = torch.stack([p.grad.square().sum() for p in plain.parameters()]).sum().sqrt()
        for p in plain.parameters():
            p.grad *= min(1.0, 1 / float(norm))
        optimizer.step()
        assert losses[step] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(model.blocks[1].up.weight, plain.blocks[1].up.weight, rtol=1e-3, atol=1e-5)


def test_every_window_of_the_text_can_be_drawn() -> None:
    short = torch.arange(7) % VOCABULARY  # windows of 4 + 1 tokens: three starts
    seen = set()

    class Watched(GPT):
        def hidden(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
            seen.update(tuple(row) for row in input_ids.tolist())
            return super().hidden(input_ids, attention_mask)

    model = Watched(vocabulary=VOCABULARY, width=8, depth=1, heads=1, context=4)
    train_text(model, short, replace(BASE, context=4, batch_size=32), progress=False)
    assert seen == {(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5)}


def test_the_rate_rises_linearly_and_falls_as_a_cosine_to_a_tenth() -> None:
    recipe = TextRecipe(steps=101, warmup=20, learning_rate=0.5)
    rates = [recipe.rate_at(step) for step in range(101)]
    assert rates[:20] == pytest.approx([0.5 * (step + 1) / 21 for step in range(20)])
    assert [rates[20], rates[60], rates[100]] == pytest.approx([0.5, 0.5 * 0.55, 0.05])
    assert rates[40] == pytest.approx(0.5 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2))
    assert TextRecipe(steps=1, warmup=0, learning_rate=0.5).rate_at(0) == 0.5


def test_the_steps_have_the_rates_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = watched_rates(monkeypatch, torch.optim.AdamW)
    quietly(gpt())
    assert rates == [BASE.rate_at(step) for step in range(5)]


@MODELS
def test_only_matrices_decay(make: Make) -> None:
    model = make()
    decayed, others = BASE.optimizer_for(model).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {names[id(p)].split(".")[-2] for p in decayed["params"]} <= {
        *("embedding", "input", "output", "up", "down", "pace", "select")
    }
    kinds = {".".join(names[id(p)].split(".")[-2:]) for p in others["params"]}
    assert kinds <= {
        *("mixer_norm.weight", "mlp_norm.weight", "norm.weight"),
        *("conv.weight", "pace.bias", "mixer.log_rate", "mixer.skip"),
    }
    assert len(decayed["params"]) + len(others["params"]) == len(names)


def test_masks_follow_the_scheme_of_bert() -> None:
    windows = torch.randint(99, (2000, 40), generator=torch.Generator().manual_seed(1))
    asked = masked_tokens(windows, mask_id=99, share=0.15, generator=torch.Generator().manual_seed(2))
    assert asked.places is not None
    assert asked.places.shape == asked.answers.shape == (2000, 6)
    assert all(len(set(row)) == 6 for row in asked.places.tolist())
    assert torch.equal(asked.answers, windows.gather(1, asked.places))
    assert asked.places.flatten().bincount(minlength=40).float().div(12_000 / 40).sub(1).abs().max() < 0.25
    shown = asked.inputs.gather(1, asked.places)
    masked, kept = (shown == 99).float().mean(), (shown == asked.answers).float().mean()
    assert float(masked) == pytest.approx(0.8, abs=0.015)
    assert float(kept) == pytest.approx(0.1 + 0.1 / 99, abs=0.012)
    random = shown[(shown != 99) & (shown != asked.answers)]
    assert len(random) / shown.numel() == pytest.approx(0.1 * 98 / 99, abs=0.012)
    assert random.unique().numel() == 99  # every token but the mask
    untouched = torch.ones_like(windows, dtype=torch.bool).scatter(1, asked.places, False)
    assert torch.equal(asked.inputs[untouched], windows[untouched])


def test_at_least_one_place_is_asked_for() -> None:
    asked = masked_tokens(torch.zeros(3, 2, dtype=torch.long), mask_id=9, share=0.01, generator=torch.Generator())
    assert asked.answers.shape == (3, 1)


@torch.no_grad()
def test_the_masked_loss_counts_the_chosen_places_alone() -> None:
    model = gpt(causal=False)
    inputs, places = some_ids(2, 10), torch.tensor([[3, 1], [0, 9]])
    answers = torch.tensor([[5, 6], [7, 8]])
    logits = model(inputs).log_softmax(-1)
    by_hand = -(logits[0, 3, 5] + logits[0, 1, 6] + logits[1, 0, 7] + logits[1, 9, 8]) / 4
    assert float(cross_entropy(model, inputs, places, answers)) == pytest.approx(float(by_hand), rel=1e-5)


@pytest.mark.parametrize("tokens", [2, 10, 17, 33, 100])
@torch.no_grad()
def test_the_loss_asks_for_every_token_of_the_text_once(tokens: int) -> None:
    model, text = gpt(), TEST[:tokens]
    total = 0.0
    for start in range(0, tokens - 1, 16):
        window = text[None, start : start + 17]
        asked = TextBatch(window[:, :-1], None, window[:, 1:])
        total += float(cross_entropy(model, *asked, reduction="sum"))
    model.train()
    assert text_loss(model, text, BASE) == pytest.approx(total / (tokens - 1), rel=1e-5)
    assert model.training  # as it was


def test_the_masked_loss_is_the_same_every_time() -> None:
    model, recipe = gpt(causal=False, vocabulary=VOCABULARY + 1), replace(BASE, task="masked")
    assert text_loss(model, TEST[:100], recipe) == text_loss(model, TEST[:100], recipe)
    assert text_loss(model, TEST[:100], recipe) != text_loss(model, TEST[:100], replace(recipe, seed=1))


def test_visits_come_after_the_chosen_steps_and_zero_is_before() -> None:
    model, seen = gpt(), []
    start = model.blocks[0].up.weight.detach().clone()

    def visit(step: int) -> None:
        seen.append((step, torch.equal(model.blocks[0].up.weight, start)))
        model.eval()

    quietly(model, at_steps=(0, 2, 5, 9), visit=visit)
    assert seen == [(0, True), (2, False), (5, False)]
    assert not model.training


def test_a_visit_changes_nothing_of_the_training() -> None:
    model = gpt()
    visited = quietly(model, at_steps=range(6), visit=lambda step: text_loss(model, TEST[:50], BASE))
    assert visited == quietly(gpt())


def test_a_visit_that_returns_true_ends_the_training_and_another_answer_does_not() -> None:
    assert len(quietly(gpt(), at_steps=range(6), visit=lambda step: step == 2)) == 2
    assert len(quietly(gpt(), at_steps=range(6), visit=lambda step: 1)) == 5
    model = gpt()
    assert quietly(model, at_steps=[0], visit=lambda step: True) == []
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), gpt().parameters(), strict=True))


def test_progress_is_told_of_every_step() -> None:
    told = Told()
    train_text(gpt(), TRAIN, BASE, progress=told)
    assert told.all == [("training", 5), 1, 2, 3, 4, 5]


@pytest.mark.parametrize("poisoned", [1, 3, 60])
def test_a_loss_that_is_not_a_number_stops_and_names_the_step(poisoned: int) -> None:
    model = gpt()

    def poison(step: int) -> None:
        model.norm.weight.data.fill_(torch.nan)

    recipe = replace(BASE, steps=70)
    words = rf"diverged at step {poisoned}: expected a finite loss, got nan\. Use a lower learning rate"
    with pytest.raises(LayerlawError, match=words):
        quietly(model, recipe, at_steps=[poisoned - 1], visit=poison)


def test_no_visit_sees_a_model_that_diverged() -> None:
    model, seen = gpt(), []

    def visit(step: int) -> None:
        seen.append(step)
        model.norm.weight.data.fill_(torch.nan)

    with pytest.raises(LayerlawError, match="diverged at step 2"):
        quietly(model, at_steps=(1, 3), visit=visit)
    assert seen == [1]


@MODELS
def test_a_model_comes_back_from_its_file(make: Make, tmp_path: Path) -> None:
    model = make()
    quietly(model)
    path = save_text_model(model, tmp_path / "model.pt")
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]  # nothing left of the writing
    back = load_text_model(path)
    assert type(back) is type(model)
    assert (back.arguments, back.causal, back.training) == (model.arguments, model.causal, False)
    assert torch.equal(back(some_ids()), model(some_ids()))
    assert back.head.weight is back.embedding.weight
    quietly(back)  # it can be trained on
    file = torch.load(path, weights_only=True)
    assert all(tensor.dtype == torch.float32 for tensor in file["state"].values())
    assert path.stat().st_size < 1.2 * 4 * sum(p.numel() for p in model.parameters()) + 10_000  # the tied weight once


def test_the_twin_and_a_half_precision_model_come_back_too(tmp_path: Path) -> None:
    twin = gpt(causal=False)
    assert not load_text_model(save_text_model(twin, tmp_path / "twin.pt")).causal
    back = load_text_model(save_text_model(twin.half(), tmp_path / "half.pt"))
    assert back.embedding.weight.dtype == torch.float32
    torch.testing.assert_close(back.norm.weight, twin.norm.weight.float())


def test_files_that_are_none(tmp_path: Path) -> None:
    whole = save_text_model(gpt(), tmp_path / "model.pt")
    file = torch.load(whole, weights_only=True)

    def written(**change: Any) -> Path:
        plain = {name: part for name, part in file.items() if name != "sha256"}  # as of an older version
        torch.save({**plain, **change}, tmp_path / "changed.pt")
        return tmp_path / "changed.pt"

    def raw(content: bytes) -> Path:
        (tmp_path / "raw.pt").write_bytes(content)
        return tmp_path / "raw.pt"

    cases: list[tuple[Callable[[], Path], str]] = [
        (lambda: tmp_path / "missing.pt", "missing.pt: expected a file written by save_text_model, found nothing"),
        (lambda: tmp_path, "expected a file written by save_text_model, got a folder"),
        (lambda: raw(whole.read_bytes()[:5000]), "got one that is damaged or cut short"),
        (lambda: raw(b""), "got an empty file, cut short"),
        (lambda: raw(b"hello"), "got another or a damaged file"),
        (lambda: raw(pickle.dumps(Path("x"), protocol=2)), "not loaded for safety"),
        (lambda: written(format="other"), "expected a layerlaw text model, got another torch file"),
        (lambda: written(version=2), "expected a layerlaw text model of version ≤ 1, got version 2. It was written by"),
        (lambda: written(kind="Oracle"), "a part is missing or wrong: 'Oracle'"),
        (lambda: written(state={}), "a part is missing or wrong: 'embedding.weight'"),
        (
            lambda: written(arguments={**file["arguments"], "depth": 4}),
            "a part is missing or wrong: depth: expected 3, as of the weights in the file, got 4",
        ),
        (lambda: written(arguments={**file["arguments"], "heads": 5}), "a part is missing or wrong: width: expected"),
        (lambda: written(arguments={"hats": 3}), "a part is missing or wrong"),
    ]
    for make, words in cases:
        with pytest.raises(DataError, match=re.escape(words)):
            load_text_model(make())
    with pytest.raises(DataError, match=r"expected the folder .* to exist"):
        save_text_model(gpt(), tmp_path / "nowhere" / "model.pt")
    with pytest.raises(InputError, match=r"model: expected a GPT or a Recurrent of layerlaw\.lab, got Linear"):
        save_text_model(nn.Linear(2, 2), tmp_path / "linear.pt")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "previous"}, "task: expected one of next, masked, got 'previous'"),
        *(
            ({name: value}, f"{name}: expected a whole number of at least 1, got {value}")
            for name, value in (("steps", 0), ("steps", 2.5), ("steps", True), ("batch_size", 0), ("context", -1))
        ),
        ({"learning_rate": 0.0}, "learning_rate: expected a positive number, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate: expected a positive number, got nan"),
        ({"learning_rate": "high"}, "learning_rate: expected a number, got 'high'"),
        ({"weight_decay": -1.0}, "weight_decay: expected a number ≥ 0, got -1.0"),
        ({"clip": 0.0}, "clip: expected a positive number (math.inf: no clipping), got 0.0"),
        ({"mask_share": 1.5}, "mask_share: expected a share between 0 and 1, got 1.5"),
        ({"warmup": 5}, "warmup: expected fewer than the 5 steps, got 5. Train longer or warm up less"),
        ({"warmup": -1}, "warmup: expected a whole number of at least 0, got -1"),
        ({"betas": (0.9, 1.0)}, "betas: expected two numbers from 0 to below 1, got (0.9, 1.0)"),
        ({"betas": 0.9}, "betas: expected two numbers from 0 to below 1, got 0.9"),
        ({"seed": -1}, "seed: expected a whole number of at least 0 and below 2⁶³, got -1"),
        ({"seed": 2**63}, "seed: expected a whole number of at least 0 and below 2⁶³"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_recipes_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        replace(BASE, **change)


def test_a_recipe_comes_back_from_json() -> None:
    recipe = replace(BASE, task="masked", betas=(0.8, 0.99))
    assert TextRecipe(**json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_no_clipping_can_be_asked_for() -> None:
    assert quietly(gpt(), replace(BASE, clip=math.inf)) != quietly(gpt(), replace(BASE, clip=0.01))


@pytest.mark.parametrize(
    ("model", "ids", "change", "words"),
    [
        (gpt, TRAIN[:16], {}, "ids: expected at least 17 tokens for windows of 16, got 16. Take a longer text"),
        (gpt, TRAIN + 1, {}, "ids: expected 0 … 63, the model's vocabulary, got 64. Was the text made by another"),
        (gpt, TRAIN - 1, {}, "ids: expected 0 … 63, the model's vocabulary, got -1"),
        (gpt, TRAIN.float(), {}, "ids: expected a tensor (n,) of whole numbers, the tokens of the whole text, got"),
        (gpt, TRAIN > 3, {}, "got torch.bool of shape (40000,)"),
        (gpt, TRAIN[None], {}, "got torch.int64 of shape (1, 40000)"),
        (gpt, [1, 2, 3], {}, "of whole numbers, the tokens of the whole text, got list"),
        (gpt, TRAIN, {"context": 33}, "context: expected at most the 32 tokens of the model, the recipe has 33"),
        (recurrent, TRAIN, {"task": "masked"}, "task: expected 'next' for a model that sees no later token (causal)"),
        (
            lambda: gpt(causal=False),
            TRAIN,
            {},
            "task: expected 'masked' for a model that sees all tokens, the next one",
        ),
        (
            lambda: gpt(causal=False),
            TRAIN,
            {"task": "masked"},
            "ids: expected 0 … 62, the model's vocabulary (the last one, 63, is the mask), got 63",
        ),
        (lambda: nn.Linear(2, 2), TRAIN, {}, "model: expected a GPT or a Recurrent of layerlaw.lab, got Linear"),
    ],
)
def test_models_texts_and_recipes_that_do_not_go_together(
    model: Callable[[], Any], ids: Any, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        train_text(model(), ids, replace(BASE, **change), progress=False)


def test_texts_too_short_for_a_loss() -> None:
    with pytest.raises(InputError, match=r"ids: expected at least 2 tokens .*, got 1"):
        text_loss(gpt(), TEST[:1], BASE)
    with pytest.raises(InputError, match=r"ids: expected at least 1 tokens .*, got 0"):
        text_loss(gpt(causal=False), TEST[:0], replace(BASE, task="masked"))


def test_devices_that_are_not_there() -> None:
    with pytest.raises(InputError, match="device: expected one that torch can use here"):
        quietly(gpt(), device="nowhere")
    with pytest.raises(
        InputError, match=r"compile: expected False on the device 'cpu', got True\. It is for CUDA only"
    ):
        quietly(gpt(), compile=True)
    assert quietly(gpt(), device="cpu") == quietly(gpt())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@MODELS
def test_a_gpu_learns_the_same(make: Make) -> None:
    model = make()
    train_text(model, TRAIN, LEARN, progress=False, device="cuda")
    assert text_loss(model, TEST, LEARN) < best_loss(TEST) + 0.12
