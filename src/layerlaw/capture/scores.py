"""Which part of a model's output are its class scores: the only one, the one that is called logits, or the last of several.

Of several tensors of shape (n, K) those are features that come from a part of the weights only; what comes from all that
another comes from, and more, is closer to the end. Where that and the number of classes leave more than one, the user says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.errors import CaptureError, InputError, shown
from layerlaw.threads import users_device

AUTO, WHOLE = "auto", "output"
FEATURES = (
    "pooler_output",
    "last_hidden_state",
    "hidden_states",
    "features",
    "embedding",
    "embeddings",
)  # by their names
POOLED = ("pooler_output", "embedding", "embeddings", "features", "last_hidden_state")
ScoreChoice = str | int | Callable[[Any], Any] | None
Place = tuple[Any, ...]


@dataclass(frozen=True)
class Scores:
    """How the class scores (n, K) or (n,) are read from a model's output: at a `place`, or by the user's own function.

    `given`: the user said where they are, so that they are trusted. Without a place and a function there are none.
    """

    place: Place | None = None
    function: Callable[[Any], Any] | None = None
    given: bool = False

    def __str__(self) -> str:
        if self.function is not None:
            return "by a function"
        return "none" if self.place is None else "".join(f"[{key!r}]" for key in self.place) or "the output"

    def of(self, output: Any) -> Tensor | None:
        """The scores in one output; `None` where it has none."""
        if self.function is not None:
            with users_device():
                return _as_scores(self.function(output))
        return None if self.place is None else _as_scores(_at(output, self.place))


NO_SCORES = Scores()


def find_scores(
    network: nn.Module, batch: Batch, output: Any, choice: ScoreChoice = AUTO, *, classes: int | None = None
) -> Scores:
    """Where the scores are in the `output` that the network, in its probing state, gave for a small batch.

    `choice` is an index, a key, a function of the output, "output" itself where that is a tensor, or "auto"; `None` looks
    for them too, but none is no error. `classes` is how many the user spoke of.
    """
    if choice is not None and not (isinstance(choice, str) and choice == AUTO):
        return _chosen(choice, output, len(batch.labels))
    n, found = len(batch.labels), dict(_tensors(output))
    named = {place: tensor for place, tensor in found.items() if "logits" in place}
    others = {place: tensor for place, tensor in found.items() if not any(key in FEATURES for key in place)}
    pool = {place: t for place, t in (named or others).items() if t.dim() in (1, 2) and len(t) == n}
    if len(pool) < 2:
        return Scores(next(iter(pool), None))
    last = _last(network, batch, pool, classes)
    if last is None and choice == AUTO:
        raise CaptureError(
            f"which output are the class scores? The model returns {_listed(pool)}. Say it by scores=, an index, a key or a "
            "function of the output that gives (n, K), or scores=None: no decision of the network is looked at."
        )
    return Scores(last)


def told_by(scores: Tensor | None, samples: int, *, from_layer: bool) -> tuple[int | None, float]:
    """How many classes scores of so many samples tell apart, and above which threshold a single one means class 1."""
    if scores is None or len(scores) != samples:
        return None, 0.0
    single = scores.dim() == 1 or scores.shape[1] == 1
    # A single score that no weight layer gives and that lies in 0 … 1 is a probability.
    probability = single and not from_layer and bool(((scores >= 0) & (scores <= 1)).all())
    return _columns(scores), 0.5 if probability else 0.0


def are_probabilities(scores: Tensor) -> bool:
    """Whether these are probabilities of classes, or their logarithms: single ones in 0 … 1, or such as sum to 1."""
    if scores.dim() == 1 or scores.shape[1] == 1:
        return bool(((scores >= 0) & (scores <= 1)).all())
    for values in (scores.detach().double(), scores.detach().double().exp()):
        if bool((values >= 0).all()) and bool((values.sum(1) - 1).abs().max() < 1e-2):
            return True
    return False


def main_output(output: Any, samples: int) -> Tensor | None:
    """The tensor that an output without scores is for: what it calls pooled, else features by their names, else the last
    of shape (n, d), else the last of all; each with as many rows as there are samples."""
    found = {place: tensor for place, tensor in _tensors(output) if tensor.dim() > 1 and len(tensor) == samples}
    for name in POOLED:
        if called := [tensor for place, tensor in found.items() if name in place]:
            return called[-1]
    flat = [tensor for tensor in found.values() if tensor.dim() == 2]
    return next(reversed(flat or list(found.values())), None)


def _chosen(choice: Any, output: Any, samples: int) -> Scores:
    if isinstance(choice, bool) or not (isinstance(choice, (str, int)) or callable(choice)):
        raise InputError(f"scores: expected an index, a key, a function of the output, or None, got {shown(choice)}.")
    own = callable(choice) and not isinstance(choice, (str, int))
    place: Place = () if choice == WHOLE and isinstance(output, Tensor) else (choice,)
    made = Scores(function=choice, given=True) if own else Scores(place=place, given=True)
    try:
        with users_device():
            value = choice(output) if own else _at(output, place)
    except Exception as error:  # the user's own function raises anything
        value = f"{type(error).__name__}: {error}"
    if (found := _as_scores(value)) is None or len(found) != samples:
        came = (
            f"a tensor of shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else str(value)[:200]
        )
        there = _listed(dict(_tensors(output))) or "no floating-point tensor"
        which = "this function" if own else repr(choice)
        raise InputError(f"scores: expected class scores (n, K) at {which}, got {came}. The model returns {there}.")
    return made


def _last(network: nn.Module, batch: Batch, pool: Mapping[Place, Tensor], classes: int | None) -> Place | None:
    """The one that is closest to the end and has a column for each class; `None` where that is not one."""
    fits = [place for place, tensor in pool.items() if classes is None or _columns(tensor) == classes]
    graph = _graph(network, batch, list(pool))
    if graph is None:
        return fits[0] if len(fits) == 1 and classes is not None else None
    weights, after = graph
    final = [place for place in pool if not any(weights[place] < weights[other] for other in pool)]
    ends = [place for place in final if place in fits]
    if not ends and fits:
        return None  # features with a column for each class, and something else behind them
    ends = ends or final
    # Of scores and what is made from them without weights (probabilities), the scores.
    first = [place for place in ends if all(other in after[place] for other in ends if other != place)]
    return first[0] if len(first) == 1 else None


def _graph(
    network: nn.Module, batch: Batch, places: Sequence[Place]
) -> tuple[dict[Place, frozenset[int]], dict[Place, set[Place]]] | None:
    """Of the tensors at these places, on which weights each depends, and which of the others depend on it.

    From one more forward with gradients; `None` where the model does not allow one.
    """
    parameters = [p for p in network.parameters() if p.is_floating_point() and p.dim() >= 2]
    with ExitStack() as stack, torch.enable_grad():
        for parameter in parameters:
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(True)
        given = batch.copy()
        try:
            with users_device():
                output = network(*given.args, **given.kwargs)
            tensors = [_at(output, place) for place in places]
            sources = [*parameters, *(t for t in tensors if t.requires_grad)]
            found: list[list[Tensor | None]] = []
            for tensor in tensors:
                known = tensor.requires_grad and bool(sources)
                options: Any = {"allow_unused": True, "retain_graph": True}
                found.append(list(torch.autograd.grad(tensor.sum(), sources, **options)) if known else [])
        except (RuntimeError, LookupError, AttributeError, TypeError):
            return None
    count, attached = len(parameters), [p for p, t in zip(places, tensors, strict=True) if t.requires_grad]
    weights: dict[Place, frozenset[int]] = {}
    after: dict[Place, set[Place]] = {place: set() for place in places}
    for place, row in zip(places, found, strict=True):
        weights[place] = frozenset(i for i, gradient in enumerate(row[:count]) if gradient is not None)
        for source, gradient in zip(attached, row[count:], strict=False):
            if gradient is not None and source != place:
                after[source].add(place)
    return weights, after


def _tensors(value: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """Every floating-point tensor in an output, other than masks, with the indices, keys and fields that lead to it."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_nested and value.is_floating_point():
            yield place, value
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(getattr(value, "logits", None), Tensor):
        parts = (("logits", value.logits),)
    for key, part in parts:
        if "mask" not in str(key):
            yield from _tensors(part, (*place, key))


def _at(value: Any, place: Place) -> Any:
    """What lies at a place; an index counts the values of a dictionary."""
    for key in place:
        if isinstance(value, Tensor):
            raise LookupError("the output is one tensor")
        if isinstance(value, Mapping):
            value = value[key] if key in value or not isinstance(key, int) else list(value.values())[key]
        else:
            value = getattr(value, key) if isinstance(key, str) else value[key]
    return value


def _as_scores(value: Any) -> Tensor | None:
    if isinstance(value, Tensor) and hasattr(value, "full_tensor"):  # in parts on several ranks, all of which are here
        value = value.full_tensor()
    good = isinstance(value, Tensor) and value.layout == torch.strided and value.is_floating_point()
    return value if good and value.dim() in (1, 2) else None


def _columns(tensor: Tensor) -> int:
    """How many classes scores tell apart: two where there is a single score."""
    return 2 if tensor.dim() == 1 or tensor.shape[1] == 1 else tensor.shape[1]


def _listed(found: Mapping[Place, Tensor]) -> str:
    shown = [f"{''.join(f'[{key!r}]' for key in place) or 'a tensor'} {tuple(t.shape)}" for place, t in found.items()]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
