"""Training a language model on one long text: recipe, batches, loop, and the loss on another text."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import InputError, LayerlawError, check_choice, check_seed, check_whole
from layerlaw.lab.networks.text_model import TextModel
from layerlaw.lab.recipe import check_positive
from layerlaw.lab.trainer import check_device, steps
from layerlaw.lab.training import visited
from layerlaw.progress import Progress, choose
from layerlaw.threads import on_cpu

TextTask = Literal["next", "masked"]
FINAL_SHARE = 0.1  # of the learning rate, at the last step
READ_EVERY = 50  # steps


@dataclass(frozen=True)
class TextRecipe:
    """How one language model is trained: AdamW, linear warm-up, then a cosine down to a tenth of the learning rate.

    A step sees `batch_size` windows of `context` tokens. `task` is "next" (predict the next token) or "masked" (BERT's
    scheme on `mask_share` of the tokens). Weight decay acts on the matrices alone. `clip` bounds the norm of the
    gradient (`math.inf`: no bound).
    """

    steps: int = 2000
    batch_size: int = 64
    context: int = 256
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    task: TextTask = "next"
    mask_share: float = 0.15
    seed: int = 666

    def __post_init__(self) -> None:
        check_choice("task", self.task, get_args(TextTask))
        check_whole(1, steps=self.steps, batch_size=self.batch_size, context=self.context)
        check_whole(0, warmup=self.warmup)
        check_seed(self.seed)
        check_positive(self, "learning_rate")
        check_positive(self, "weight_decay", or_zero=True)
        if not _is_number(self.clip) or not self.clip > 0:
            raise InputError(f"clip: expected a positive number (math.inf: no clipping), got {self.clip!r}.")
        if not _is_number(self.mask_share) or not 0 < self.mask_share < 1:
            raise InputError(f"mask_share: expected a share between 0 and 1, got {self.mask_share!r}.")
        if self.warmup >= self.steps:
            cure = "Train longer or warm up less"
            raise InputError(f"warmup: expected fewer than the {self.steps} steps, got {self.warmup}. {cure}.")
        betas: Any = self.betas
        if not (isinstance(betas, tuple | list) and [_is_number(b) and 0 <= b < 1 for b in betas] == [True, True]):
            raise InputError(f"betas: expected two numbers from 0 to below 1, got {betas!r}.")
        object.__setattr__(self, "betas", tuple(betas))

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: full after the warm-up, a tenth at the last step.

        >>> [round(TextRecipe(steps=7, warmup=2, learning_rate=1.0).rate_at(step), 3) for step in range(7)]
        [0.333, 0.667, 1.0, 0.868, 0.55, 0.232, 0.1]
        """
        if step < self.warmup:
            return self.learning_rate * (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        return self.learning_rate * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * done)) / 2)

    def optimizer_for(self, model: nn.Module) -> torch.optim.AdamW:
        """AdamW with decay on the weights of linear and embedding layers only: not on norms, filters, rates, biases."""
        matrices = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
        decayed = [p for p in model.parameters() if id(p) in matrices]
        others = [p for p in model.parameters() if id(p) not in matrices]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas, fused=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `TextRecipe(**data)` is the way back."""
        return asdict(self)


class TextBatch(NamedTuple):
    """What goes in (B, T), at which places (B, k) an answer is wanted (`None`: everywhere), and the answers (B, k)."""

    inputs: Tensor
    places: Tensor | None
    answers: Tensor


def masked_tokens(windows: Tensor, *, mask_id: int, share: float, generator: torch.Generator) -> TextBatch:
    """BERT's scheme: of a share of the places 80 % show the mask, 10 % a random token, 10 % the token itself.

    The same number of places in every window, at least one. Random tokens are drawn from those before `mask_id`.
    The draws are made on the CPU, so that they are the same on every device.
    """
    B, T = windows.shape
    k = max(1, round(share * T))
    places = torch.rand(B, T, generator=generator).topk(k, dim=1).indices  # k places, all choices equally likely
    lot = torch.rand(B, k, generator=generator)
    other = torch.randint(mask_id, (B, k), generator=generator)
    places, lot, other = (drawn.to(windows.device) for drawn in (places, lot, other))
    answers = windows.gather(1, places)
    shown = torch.where(lot < 0.8, mask_id, torch.where(lot < 0.9, other, answers))
    return TextBatch(windows.scatter(1, places, shown), places, answers)


def cross_entropy(
    model: TextModel, inputs: Tensor, places: Tensor | None, answers: Tensor, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy in nats of the answers; the head works at their places only."""
    h = model.hidden(inputs)
    if places is not None:
        h = h.gather(1, places[..., None].expand(-1, -1, h.shape[-1]))  # (B, k, width)
    logits = model.head(h).float()
    return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction=reduction)


@on_cpu
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
    (default: it stays where it is). On CUDA in bfloat16 autocast, with `torch.compile` on request; float32 elsewhere.
    """
    place = _place(model, device)
    text = _checked(model, ids, recipe, least=recipe.context + 1).to(place)
    if compile and place.type != "cuda":
        raise InputError(f"compile: expected False on the device '{place}', got True. It is for CUDA only.")
    generator = torch.Generator().manual_seed(recipe.seed)
    loss_fn = torch.compile(cross_entropy) if compile else cross_entropy
    length = recipe.context + (recipe.task == "next")
    offsets = torch.arange(length, device=place)

    def loss_of(step: int) -> Tensor:
        starts = torch.randint(len(text) - length + 1, (recipe.batch_size, 1), generator=generator)
        batch = _batch_of(model, text[starts.to(place) + offsets], recipe, generator)
        # never bfloat16 on a CPU: some of them die of it
        with torch.autocast(place.type, dtype=torch.bfloat16, enabled=place.type == "cuda"):
            return loss_fn(model, *batch)

    rounds = choose(progress)(range(1, recipe.steps + 1), "training", recipe.steps)
    trained = steps(model, recipe.optimizer_for(model), rounds, loss_of, recipe.rate_at, clip=recipe.clip)
    losses: list[float] = []
    unread: list[Tensor] = []
    for step, loss in enumerate(visited(model, trained, at_steps, visit), 1):
        unread.append(loss)
        if len(unread) == READ_EVERY or step in at_steps or step == recipe.steps:  # every reading makes a GPU wait
            losses += torch.stack(unread).tolist()
            unread.clear()
            wrong = next((i for i, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
            if wrong is not None:
                what = f"training diverged at step {wrong}: expected a finite loss, got {losses[wrong - 1]}"
                raise LayerlawError(f"{what}. Use a lower learning rate, a longer warm-up or a smaller clip.")
    return losses


@on_cpu
@torch.no_grad()
def text_loss(model: TextModel, ids: Tensor, recipe: TextRecipe) -> float:
    """Mean cross-entropy in nats on a held-out text, in float32; lower is better, ln(vocabulary) is chance.

    The text is cut into windows of `recipe.context` tokens, each token predicted once. For the masked task the masks
    are drawn with the recipe's seed: the same every time.
    """
    place = _place(model, None)
    ahead = int(recipe.task == "next")
    text = _checked(model, ids, recipe, least=1 + ahead).to(place)
    generator = torch.Generator().manual_seed(recipe.seed)
    T = recipe.context
    whole = (len(text) - ahead) // T
    windows = text.unfold(0, T + ahead, T)[:whole] if whole else text.new_empty(0, T + ahead)
    parts = [*torch.split(windows, recipe.batch_size)] if whole else []
    if (len(text) - ahead) % T:
        parts.append(text[None, whole * T :])  # what is left over, shorter
    total, count, before = torch.zeros((), dtype=torch.float64, device=place), 0, model.training
    model.eval()
    with torch.autocast(place.type, enabled=False):
        for part in parts:
            batch = _batch_of(model, part, recipe, generator)
            total += cross_entropy(model, *batch, reduction="sum")
            count += batch.answers.numel()
    model.train(before)
    return float(total) / count


def _batch_of(model: TextModel, windows: Tensor, recipe: TextRecipe, generator: torch.Generator) -> TextBatch:
    if recipe.task == "next":
        return TextBatch(windows[:, :-1], None, windows[:, 1:])  # every token but the first, from those before it
    return masked_tokens(windows, mask_id=model.vocabulary - 1, share=recipe.mask_share, generator=generator)


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
        most = f"at most the {model.context} tokens of the model, the recipe has {recipe.context}"
        raise InputError(f"context: expected {most}. Make a model of longer context, or a recipe of shorter.")
    if model.causal and recipe.task != "next":
        why = f"a model that sees no later token (causal), got {recipe.task!r}"
        raise InputError(f"task: expected 'next' for {why}. Make GPT(…, causal=False) for masked training.")
    if not model.causal and recipe.task == "next":
        raise InputError("task: expected 'masked' for a model that sees all tokens, the next one too (causal=False).")
    if len(ids) < least:
        expected = f"expected at least {least} tokens for windows of {recipe.context}"
        raise InputError(f"ids: {expected}, got {len(ids)}. Take a longer text or a shorter context.")
    ids = ids.long()
    low, high = (int(end) for end in ids.aminmax())
    beyond = model.vocabulary - (recipe.task == "masked")
    if low < 0 or high >= beyond:
        mask = f" (the last one, {beyond}, is the mask)" if recipe.task == "masked" else ""
        why = "Was the text made by another tokenizer, or the model with too small a vocabulary?"
        got = low if low < 0 else high
        raise InputError(f"ids: expected 0 … {beyond - 1}, the model's vocabulary{mask}, got {got}. {why}")
    return ids


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
