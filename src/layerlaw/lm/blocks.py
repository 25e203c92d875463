"""The blocks of a language model, found by structure: a list of modules through which the tokens pass one after another.

No family is named here. In a dry run a block is a child of a list (nn.ModuleList or nn.Sequential) that turns a tensor
(batch, time, width) into another of the same shape; of several such lists the one that holds the most parameters and is not
inside another is taken, in an encoder-decoder the one that runs last. Where that is not what is wanted, they are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layerlaw.capture.trace import first_tensor, modules_of, tensors_in
from layerlaw.errors import CaptureError
from layerlaw.lm.naming import LEAST_BLOCKS, common_home, named_modules, tree

Norm = Literal["rms", "layer", "none"]


@dataclass(frozen=True)
class Blocks:
    """Names of the blocks in the order they run (a shared one several times), what they are, and the norm after them.

    `picks` says which of the tensors that a block returns is its hidden state; `seen`, its batch and time in the dry run;
    `linked`, whether every block takes what the one before has given; `whole`, whether they are also all of their list, so
    that the embedded text enters the first.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    picks: tuple[int, ...]
    seen: tuple[int, int]
    width: int
    norm: Norm
    eps: float
    norm_name: str = ""
    home: str = ""
    named: bool = False
    linked: bool = True
    whole: bool = True
    others: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        kinds = ", ".join(dict.fromkeys(self.types))
        after = f"{self.norm} norm '{self.norm_name}' behind them" if self.norm != "none" else "no norm behind them"
        home = f" in '{self.home}'" if self.home else ""
        return f"{len(self.names)} blocks of type {kinds}{home}, width {self.width}, {after}"


@dataclass
class _Call:
    name: str
    entered: int
    given: tuple[int, int] | None
    taken: tuple[int, ...]
    left: int = -1
    gave: tuple[int, ...] = ()
    result: tuple[int, int] | None = None
    pick: int = 0


def find_blocks(model: nn.Module, inputs: Mapping[str, Tensor], named: str | Sequence[str] | None = None) -> Blocks:
    """Run the model once on a few tokens and find its blocks, or those that are `named`; an error shows its tree.

    named   a list of modules ("model.layers"), a pattern ("layers.*.mlp"), or names of modules, with commas or as a list
    """
    modules = modules_of(model)
    chosen = None if named is None else named_modules(modules, named)
    calls, kept = _trace(model, modules, inputs)
    del kept  # held every tensor while the calls were written down, so that no memory was used twice
    if chosen is not None:
        home, mine = common_home(chosen), _calls_of(chosen, calls)
        siblings = {call.name for call in calls if call.name.rpartition(".")[0] == home and call.gave == mine[0].gave}
        return _described(modules, calls, mine, home, named=True, whole=_linked(mine) and siblings == set(chosen))
    lists = _lists(modules, calls)
    if not lists:
        raise CaptureError(
            "no blocks found: expected a list of at least two modules (nn.ModuleList or nn.Sequential) through which tokens "
            "pass as (batch, time, width). If they are in none, name them (blocks, or --blocks). The model's tree:\n"
            f"{tree(modules)}"
        )
    # An encoder-decoder runs its decoder last; otherwise the list with the most parameters, of those that pass on directly.
    decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    size = {home: sum(p.numel() for p in modules[home].parameters()) for home in lists}
    if decoder:
        large = [home for home in lists if 4 * size[home] >= max(size.values())]
        home = max(large, key=lambda h: lists[h][-1].left)
    else:
        home = max(lists, key=lambda h: (_linked(lists[h]), size[h], -lists[h][0].entered))
    others = tuple(other for other in lists if other != home)
    return _described(modules, calls, lists[home], home, whole=_linked(lists[home]), others=others)


def _described(
    modules: Mapping[str, nn.Module],
    calls: list[_Call],
    chosen: list[_Call],
    home: str,
    *,
    named: bool = False,
    whole: bool,
    others: tuple[str, ...] = (),
) -> Blocks:
    norm_name, norm, eps = _norm_after(modules, calls, chosen[-1])
    return Blocks(
        names=tuple(call.name for call in chosen),
        types=tuple(type(modules[call.name]).__name__ for call in chosen),
        picks=tuple(call.pick for call in chosen),
        seen=(chosen[-1].gave[0], chosen[-1].gave[1]),
        width=chosen[-1].gave[2],
        norm=norm,
        eps=eps,
        norm_name=norm_name,
        home=home,
        named=named,
        linked=_linked(chosen),
        whole=whole,
        others=others,
    )


def _linked(calls: list[_Call]) -> bool:
    return all(after.given == before.result for before, after in itertools.pairwise(calls))


def _calls_of(names: Sequence[str], calls: list[_Call]) -> list[_Call]:
    """The calls of modules named by hand, in the order they end; all must give hidden states of one width."""
    found = sorted((call for call in calls if call.name in set(names)), key=lambda call: call.left)
    idle = [name for name in names if all(call.name != name for call in found)]
    if idle:
        raise CaptureError(f"blocks: '{idle[0]}' was not called in the dry run, so it gives no hidden states.")
    for call in found:
        if len(call.gave) != 3 or call.gave != found[0].gave:
            expected = (
                "(batch, time, width)" if len(found[0].gave) != 3 else f"{found[0].gave} as '{found[0].name}' does"
            )
            raise CaptureError(f"blocks: expected '{call.name}' to give {expected}, got {call.gave or 'no tensor'}.")
    return found


def _trace(
    model: nn.Module, modules: Mapping[str, nn.Module], inputs: Mapping[str, Tensor]
) -> tuple[list[_Call], list[Tensor]]:
    calls: list[_Call] = []
    kept: list[Tensor] = []
    stack: list[_Call] = []
    clock = iter(range(2**62))

    def look(tensor: Tensor | None) -> tuple[tuple[int, int] | None, tuple[int, ...]]:
        if tensor is None:
            return None, ()
        kept.append(tensor)
        return (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version), tuple(tensor.shape)

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        given, taken = look(_entering(args, kwargs))
        stack.append(_Call(name, next(clock), given, taken))
        calls.append(stack[-1])

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        call = stack.pop()
        call.left = next(clock)
        seen = [look(tensor) for tensor in tensors_in(output)]
        # A block may hand its input on beside what it has made of it.
        new = (i for i, (key, shape) in enumerate(seen) if shape == call.taken and key != call.given)
        call.pick = next(new, 0)
        if seen:
            call.result, call.gave = seen[call.pick]

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.callback(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(partial(leave, name)).remove)
        run(model, inputs, where="the dry run")
    return calls, kept


def _entering(args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """By convention the hidden states come first, or under that name; masks and positions come behind."""
    hidden = kwargs.get("hidden_states")
    return hidden if isinstance(hidden, Tensor) else first_tensor((args, kwargs))


def run(model: nn.Module, inputs: Mapping[str, Tensor], *, where: str) -> Any:
    """One forward, without gradients; what the model cannot do is told with the shapes that went in."""
    try:
        with torch.no_grad():
            return model(**inputs)
    except torch.OutOfMemoryError as error:
        raise CaptureError(_no_memory(where)) from error
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        if "not enough memory" in str(error) or "can't allocate" in str(error):
            raise CaptureError(_no_memory(where)) from error
        shapes = ", ".join(
            f"{name} {tuple(value.shape)}" for name, value in inputs.items() if isinstance(value, Tensor)
        )
        raise CaptureError(
            f"the model failed in {where} ({shapes}): {type(error).__name__}: {error}. Does it take token ids as input_ids?"
        ) from error


def _no_memory(where: str) -> str:
    return (
        f"out of memory in {where}: use a smaller batch (batch_size=1), shorter pieces (length=256), a smaller dtype "
        "(dtype='bfloat16'), or spread the model (device_map='auto')."
    )


def _lists(modules: Mapping[str, nn.Module], calls: list[_Call]) -> dict[str, list[_Call]]:
    """Of every list of modules the calls that pass hidden states on, where there are at least two; outermost lists only."""
    found: dict[str, list[_Call]] = {}
    for home, module in modules.items():
        if not home or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        if any(home.startswith(f"{other}.") for other in found):
            continue
        inside = [c for c in calls if c.name.rpartition(".")[0] == home and len(c.gave) == 3 and c.taken == c.gave]
        if len(inside) >= LEAST_BLOCKS and any(p.dim() > 1 for c in inside[:1] for p in modules[c.name].parameters()):
            found[home] = sorted(inside, key=lambda c: c.entered)
    return found


def _norm_after(modules: Mapping[str, nn.Module], calls: list[_Call], last: _Call) -> tuple[str, Norm, float]:
    """The first module behind the last block that reads its output and divides by its size, and how."""
    behind = [c for c in calls if c.entered > last.left and c.given == last.result and c.taken == last.gave]
    for call in behind:
        module = modules[call.name]
        if (norm := _kind_of_norm(module, last.gave[2])) is not None:
            return call.name, norm, _epsilon(module)
    return "", "none", 0.0


def _kind_of_norm(module: nn.Module, d: int) -> Norm | None:
    """What a module does to a row: scaling it changes nothing in a norm, shifting it nothing in a layer norm."""
    if next(module.children(), None) is not None:
        return None
    first = next(module.parameters(), None)
    x = (10 * torch.linspace(-1.7, 2.3, d).sin()).reshape(1, 1, d)
    if first is not None:  # the weights of an offloaded module come when it is called
        x = x.to("cpu" if first.is_meta else first.device, first.dtype)
    try:
        with torch.no_grad():
            plain, scaled, shifted = (module(v) for v in (x, 4 * x, x + 32))
    except Exception:  # whatever it is, it is no norm of a row
        return None
    if not isinstance(plain, Tensor) or plain.shape != x.shape:
        return None
    near = partial(torch.allclose, rtol=2e-2, atol=2e-2 * float(plain.abs().max()))
    if not near(plain, scaled):
        return None
    return "layer" if near(plain, shifted) else "rms"


def _epsilon(module: nn.Module) -> float:
    for name in ("eps", "variance_epsilon", "epsilon", "norm_eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return 1e-6


Consume = Callable[[int, Tensor], None]


class Hooked:
    """Hands the output of every block to a consumer while the forward runs; always removed at the end."""

    def __init__(self, model: nn.Module, blocks: Blocks, consume: Consume, *, embedding: bool) -> None:
        self.model, self.blocks, self.consume, self.embedding = model, blocks, consume, embedding
        self._hooks = ExitStack()
        self._turn = 0

    def __enter__(self) -> Hooked:
        modules = modules_of(self.model)
        for name in dict.fromkeys(self.blocks.names):
            if self.embedding and name == self.blocks.names[0]:
                hook = modules[name].register_forward_pre_hook(self._before, with_kwargs=True)
                self._hooks.callback(hook.remove)
            self._hooks.callback(modules[name].register_forward_hook(self._after).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def run(self, inputs: Mapping[str, Tensor], *, where: str) -> Any:
        """One forward of one batch."""
        self._turn = 0
        output = run(self.model, inputs, where=where)
        if self._turn != len(self.blocks.names):
            raise CaptureError(
                f"{where}: expected {len(self.blocks.names)} calls of the blocks in '{self.blocks.home}' as in the dry run, "
                f"got {self._turn}: a varying number of calls makes no fixed layers."
            )
        return output

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._turn == 0:
            self._hand_over(0, _entering(args, kwargs))

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        pick = self.blocks.picks[self._turn % len(self.blocks.picks)]
        self._turn += 1
        self._hand_over(self._turn - 1 + self.embedding, next(itertools.islice(tensors_in(output), pick, None), None))

    def _hand_over(self, site: int, hidden: Tensor | None) -> None:
        if hidden is None or hidden.dim() != 3 or hidden.shape[-1] != self.blocks.width:
            raise CaptureError(
                f"'{self.blocks.home}': expected hidden states (batch, time, {self.blocks.width}), got "
                f"{'none' if hidden is None else tuple(hidden.shape)}."
            )
        self.consume(site, hidden.detach())
