"""Train a language model on one long text, and its loss on another: random windows, AdamW, the recipe's schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.errors import InputError, LayerlawError
from layerlaw.lab.engine import check_device
from layerlaw.lab.text_model import TextModel
from layerlaw.lab.text_recipe import TextRecipe
from layerlaw.lab.text_task import Asked, ask_masked, ask_next, cross_entropy
from layerlaw.progress import Progress, choose

READ_EVERY = 50


def train_text(
    model: TextModel,
    ids: Tensor,
    recipe: TextRecipe,
    *,
    at_steps: Collection[int] = (),
    visit: Callable[[int], object] | None = None,
    progress: bool | Progress = True,
    device: str | torch.device | None = None,
    compile: bool = False,
) -> list[float]:
    """Train in place; returns the loss of each step in nats. `visit(step)` is called after the chosen steps (0: before).

    `ids` (n,) is the whole tokenized text. For masked training the last id of the vocabulary is the mask and must not
    occur in the text. Training stops early when `visit` returns `True` (that very object). `device` moves the model
    (default: it stays where it is). On CUDA in bfloat16 autocast, with `torch.compile` if asked; float32 elsewhere.
    """
    place = _place(model, device)
    text = _checked(model, ids, recipe, least=recipe.context + 1).to(place)
    if compile and place.type != "cuda":
        raise InputError(f"compile: expected False on the device '{place}', got True. It is for CUDA only.")
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizer = recipe.optimizer_for(model)
    loss_of = torch.compile(cross_entropy) if compile else cross_entropy
    length = recipe.context + (recipe.task == "next")
    offsets = torch.arange(length, device=place)
    losses = _Losses()
    if visit is not None and 0 in at_steps and visit(0) is True:
        model.eval()
        return []
    model.train()
    for step in choose(progress)(range(1, recipe.steps + 1), "training", recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(step - 1)
        starts = torch.randint(len(text) - length + 1, (recipe.batch_size, 1), generator=generator)
        asked = _ask(model, text[starts.to(place) + offsets], recipe, generator)
        # never bfloat16 on a CPU: some of them die of it
        with torch.autocast(place.type, dtype=torch.bfloat16, enabled=place.type == "cuda"):
            loss = loss_of(model, *asked)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        losses.add(loss.detach())
        if visit is not None and step in at_steps:
            losses.read()
            if visit(step) is True:
                break
            model.train()
    model.eval()
    return losses.read()


@torch.no_grad()
def text_loss(model: TextModel, ids: Tensor, recipe: TextRecipe) -> float:
    """Mean cross-entropy in nats on a held-out text, in float32; lower is better, ln(vocabulary) is chance.

    The text is cut into windows of `recipe.context` tokens, each token asked for once. For the masked task the masks
    are drawn with the recipe's seed: the same every time.
    """
    place = _place(model, None)
    ahead = int(recipe.task == "next")
    text = _checked(model, ids, recipe, least=1 + ahead).to(place)
    generator = torch.Generator().manual_seed(recipe.seed)
    T = recipe.context
    whole = (len(text) - ahead) // T
    windows = text.unfold(0, T + ahead, T)[:whole] if whole else text.new_empty(0, T + ahead)
    batches = [*torch.split(windows, recipe.batch_size)] if whole else []
    if (len(text) - ahead) % T:
        batches.append(text[None, whole * T :])  # what is left over, shorter
    total, count = torch.zeros((), dtype=torch.float64, device=place), 0
    before = model.training
    model.eval()
    with torch.autocast(place.type, enabled=False):
        for batch in batches:
            asked = _ask(model, batch, recipe, generator)
            total += cross_entropy(model, *asked, reduction="sum")
            count += asked.answers.numel()
    model.train(before)
    return float(total) / count


class _Losses:
    """Losses of the steps, read from the device only now and then: every reading makes a GPU wait."""

    def __init__(self) -> None:
        self._known: list[float] = []
        self._unread: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        self._unread.append(loss)
        if len(self._unread) == READ_EVERY:
            self.read()

    def read(self) -> list[float]:
        """All losses so far; raises at the first that is not a finite number."""
        if self._unread:
            self._known += torch.stack(self._unread).tolist()
            self._unread = []
        for step, loss in enumerate(self._known, start=1):
            if not math.isfinite(loss):
                raise LayerlawError(
                    f"training diverged at step {step}: expected a finite loss, got {loss}. "
                    "Use a lower learning rate, a longer warm-up or a smaller clip."
                )
        return self._known


def _ask(model: TextModel, windows: Tensor, recipe: TextRecipe, generator: torch.Generator) -> Asked:
    if recipe.task == "next":
        return ask_next(windows)
    return ask_masked(windows, mask_id=model.vocabulary - 1, share=recipe.mask_share, generator=generator)


def _place(model: TextModel, device: str | torch.device | None) -> torch.device:
    given: Any = model
    if not isinstance(given, TextModel):
        raise InputError(f"model: expected a GPT or a Recurrent of layerlaw.lab, got {type(given).__name__}.")
    if device is not None:
        check_device(str(device))
        model.to(device)
    return model.embedding.weight.device


def _checked(model: TextModel, ids: Tensor, recipe: TextRecipe, *, least: int) -> Tensor:
    """The ids as int64, if model, text and recipe go together."""
    given: Any = ids
    whole = isinstance(given, Tensor) and not (given.is_floating_point() or given.is_complex())
    if not whole or given.ndim != 1 or given.dtype == torch.bool:
        came = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise InputError(f"ids: expected a tensor (n,) of whole numbers, the tokens of the whole text, got {came}.")
    if recipe.context > model.context:
        raise InputError(
            f"context: expected at most the {model.context} tokens of the model, the recipe has {recipe.context}. "
            "Make a model of longer context, or a recipe of shorter."
        )
    if model.causal != (recipe.task == "next"):
        sees = "no later token (causal)" if model.causal else "all tokens, the next one too (causal=False)"
        raise InputError(
            f"task: expected {'next' if model.causal else 'masked'!r} for a model that sees {sees}, got {recipe.task!r}."
            + (" Make GPT(…, causal=False) for masked training." if model.causal else "")
        )
    if len(ids) < least:
        raise InputError(
            f"ids: expected at least {least} tokens for windows of {recipe.context}, got {len(ids)}. "
            "Take a longer text or a shorter context."
        )
    ids = ids.long()
    low, high = (int(end) for end in ids.aminmax())
    beyond = model.vocabulary - (recipe.task == "masked")
    if low < 0 or high >= beyond:
        why = f" (the last one, {beyond}, is the mask)" if recipe.task == "masked" else ""
        raise InputError(
            f"ids: expected 0 … {beyond - 1}, the model's vocabulary{why}, got {low if low < 0 else high}. "
            "Was the text made by another tokenizer, or the model with too small a vocabulary?"
        )
    return ids
