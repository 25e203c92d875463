"""All modules of a network and what they hold, by one walk: torch's own generators inside generators take several times as
long, which counts where a network is measured again and again."""

from __future__ import annotations

from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

PLAIN: set[type] = {Tensor, nn.Parameter}
"""Types of tensors that are nothing but their numbers, and may be put in one piece with others."""


def walk(network: nn.Module) -> list[nn.Module]:
    """Every module once, in the order of `network.modules()`.

    >>> inner = nn.ReLU()
    >>> [type(module).__name__ for module in walk(nn.Sequential(inner, nn.Sequential(nn.Tanh()), inner))]
    ['Sequential', 'ReLU', 'Sequential', 'Tanh']
    """
    found: dict[int, nn.Module] = {}
    todo: list[nn.Module | None] = [network]
    while todo:
        module = todo.pop()
        if module is None or id(module) in found:
            continue
        found[id(module)] = module
        if module._modules:
            todo.extend(reversed(list(module._modules.values())))
    return list(found.values())


def named(network: nn.Module) -> dict[str, nn.Module]:
    """The same by name, as `network.named_modules()` names them.

    >>> list(named(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))))
    ['', '0', '1', '1.0']
    """
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    todo: list[tuple[str, nn.Module | None]] = [("", network)]
    while todo:
        name, module = todo.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found[name] = module
        if module._modules:
            front = f"{name}." if name else ""
            todo.extend([(front + key, child) for key, child in reversed(list(module._modules.items()))])
    return found


def class_of(module: nn.Module) -> type[nn.Module]:
    """The class that a module was made with: torch gives one whose weights it spreads over ranks (`fully_shard`) a class of
    its own, of another name, made of that and of torch's.

    >>> class_of(nn.ReLU()).__name__
    'ReLU'
    """
    kind = type(module)
    made = kind.__module__.startswith("torch.distributed.") and len(kind.__bases__) == 2
    before = kind.__bases__[-1]
    return before if made and issubclass(before, nn.Module) and kind.__name__.endswith(before.__name__) else kind


def parameters_in(modules: list[nn.Module]) -> list[Tensor]:
    """The parameters of these modules, each once, as `network.parameters()` gives those of all of them."""
    return _each_once([tensor for module in modules for tensor in module._parameters.values()])


def buffers_in(modules: list[nn.Module]) -> list[Tensor]:
    """Their buffers, each once."""
    return _each_once([tensor for module in modules for tensor in module._buffers.values()])


def in_a_row(tensors: list[Tensor]) -> Tensor:
    """A copy of the numbers of dense tensors of one dtype and device, one behind the other, by one call for all of them.

    >>> in_a_row([Tensor([[0, 1]]), Tensor([2])])
    tensor([0., 1., 2.])
    """
    if len(tensors) == 1:  # of which the other call makes no copy
        return tensors[0].reshape(-1).clone()
    found: Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return found


def _each_once(tensors: list[Tensor | None]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())
