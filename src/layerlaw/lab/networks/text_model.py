"""What all language models of the lab share, mixers of tokens apart; and their files, which run no pickled code."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import DataError, InputError
from layerlaw.files import as_path, check_format
from layerlaw.packed import read_torch, unpacked_limit, write_torch

FORMAT = "layerlaw text model"
VERSION = 1
EMBEDDING_STD = 0.02
NORM_EPS = 1e-6


class Block(nn.Module):
    """x + mixer(norm x), then x + MLP(norm x); the MLP is four times as wide, with a GELU and no biases.

    In the mixer tokens see one another: mixer(x, real) with `real` (B, T) false at padding, (B, T, width) → (B, T, width);
    its linear layer `output` writes to the residual stream.
    """

    def __init__(self, width: int, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.mixer = mixer
        self.mlp_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        x = x + self.mixer(self.mixer_norm(x), real)
        x = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return x


class TextModel(nn.Module):
    """Token ids → logits of the next (or the hidden) token; the base of `GPT` and `Recurrent`.

    `causal` says that no token sees a later one, `arguments` what the model is made again from, `kinds` is who derives
    from it directly: what a file can hold.
    """

    kinds: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if TextModel in cls.__bases__:
            TextModel.kinds[cls.__name__] = cls

    def __init__(
        self, *, vocabulary: int, width: int, context: int, mixers: Sequence[nn.Module], causal: bool, **arguments: Any
    ) -> None:
        super().__init__()
        self.vocabulary, self.width, self.depth, self.context = vocabulary, width, len(mixers), context
        self.causal = causal
        shape = {"vocabulary": vocabulary, "width": width, "depth": self.depth, "context": context}
        self.arguments: dict[str, int | bool] = shape | arguments
        self.embedding = nn.Embedding(vocabulary, width)
        blocks = [Block(width, mixer) for mixer in mixers]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.head = nn.Linear(width, vocabulary, bias=False)
        # GPT-2's scheme, with its 0.02 at width 768 (= 1/√(3·768)) carried over to other widths.
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(3 * module.in_features))
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        for block in blocks:
            for weight in (block.mixer.get_parameter("output.weight"), block.down.weight):
                weight.data /= math.sqrt(2 * self.depth)  # 2·depth of them add up in the residual stream
        self.head.weight = self.embedding.weight

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Everything but the head: (B, T) ids → (B, T, width), after the final norm."""
        shape = tuple(input_ids.shape)
        if len(shape) != 2 or not 1 <= shape[1] <= self.context:
            expected = f"expected (texts, tokens) with 1 … {self.context} tokens (the context of the model)"
            raise InputError(f"input_ids: {expected}, got the shape {shape}. Cut longer texts into windows.")
        if attention_mask is not None and attention_mask.shape != shape:
            expected = f"expected the shape of input_ids, {shape} (1 at tokens, 0 at padding)"
            raise InputError(f"attention_mask: {expected}, got {tuple(attention_mask.shape)}.")
        real = None if attention_mask is None else attention_mask.bool()
        x: Tensor = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, real)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, T) ids → (B, T, vocabulary) logits; what `attention_mask` marks with 0 is seen by no other token."""
        return self.head(self.hidden(input_ids, attention_mask))  # type: ignore[no-any-return]


def save_text_model(model: TextModel, path: str | os.PathLike[str]) -> Path:
    """Write a model to one file, whole or not at all."""
    kind = type(model).__name__
    if TextModel.kinds.get(kind) is not type(model):
        raise InputError(f"model: expected a {' or a '.join(TextModel.kinds)} of layerlaw.lab, got {kind}.")
    state = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    del state["head.weight"]  # it is the embedding
    file = {"format": FORMAT, "version": VERSION, "kind": kind, "arguments": model.arguments, "state": state}
    return write_torch(path, file)


def load_text_model(path: str | os.PathLike[str]) -> TextModel:
    """A model as it was saved, on the CPU and in eval mode."""
    path = as_path(path, "model.pt")
    file = read_torch(path, what="a file written by save_text_model", sealed=True)
    check_format(file, "text model", VERSION, where=str(path), writer="save_text_model")
    try:
        kind, arguments, state = TextModel.kinds[file["kind"]], file["arguments"], file["state"]
        _check_claims(arguments, state)
        model: TextModel = kind(**arguments)
        model.load_state_dict({**state, "head.weight": state["embedding.weight"]})
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RuntimeError,
        MemoryError,
        InputError,
    ) as error:
        wrong = " ".join(line.strip() for line in str(error).splitlines()[:3])[:300]
        expected = f"expected a whole {FORMAT} of version {VERSION}, but a part is missing or wrong: {wrong}"
        raise DataError(f"{path}: {expected}. Save it again with save_text_model.") from None
    return model.eval()


def _check_claims(arguments: dict[str, Any], state: dict[str, Tensor]) -> None:
    """The size that a file claims for its model, compared with the weights it holds, before such a model is made."""
    if not all(isinstance(value, int) for value in arguments.values()):
        raise InputError(f"arguments: expected whole numbers, got {arguments!r:.200}")
    if not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError("state: expected tensors")
    held = {
        "vocabulary": len(state["embedding.weight"]),
        "width": state["embedding.weight"].shape[1],
        "depth": len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
    }
    for name, count in held.items():
        if arguments[name] != count:
            raise InputError(f"{name}: expected {count}, as of the weights in the file, got {arguments[name]}")
    # No weight tells the context; tables of positions are made for it.
    tables = 4 * arguments["context"] * arguments["depth"] * arguments["width"] // max(1, arguments.get("heads", 1))
    if tables > unpacked_limit(sum(tensor.nbytes for tensor in state.values())):
        raise InputError(f"context: expected fewer tokens for weights of this size, got {arguments['context']}")
