"""The network while it is probed: unwrapped, eager, in the chosen mode, and afterwards exactly as it was."""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from layerlaw.errors import CaptureError, InputError, check_seed
from layerlaw.module_tree import PLAIN, buffers_in, in_a_row, parameters_in, walk
from layerlaw.stats import all_reduce
from layerlaw.threads import alone, claimed, eager_calls, no_fast_path, on_cpu

COMPILERS = ("torch._dynamo", "torch.nn.attention.flex_attention")  # without them nothing is compiled
BatchNormMode = Literal["running", "batch", "whole"]


def network_of(model: nn.Module) -> nn.Module:
    """The network itself, without DataParallel, DistributedDataParallel or torch.compile around it."""
    network: Any = model
    while True:
        if isinstance(network, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            network = network.module
        elif isinstance(inner := getattr(network, "_orig_mod", None), nn.Module):  # torch.compile
            network = inner
        else:
            break
    if not isinstance(network, nn.Module):
        cure = ": layerlaw.integrations.by_name.load_named('timm:resnet18') loads one by its name" * isinstance(
            network, str
        )
        raise CaptureError(f"expected an nn.Module, got {type(network).__name__}{cure}.")
    modules = walk(network)
    if any(map(is_lazy, (*parameters_in(modules), *buffers_in(modules)))):
        lazy = [name for name, value in (*network.named_parameters(), *network.named_buffers()) if is_lazy(value)]
        # A dry run would give it its weights, and that is the user's to do.
        cure = "run one batch through it first"
        raise CaptureError(f"expected a model with its weights in place, got a lazy one ('{lazy[0]}'): {cure}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        scripted = [name for name, module in network.named_modules() if isinstance(module, torch.jit.ScriptModule)]
        what = f"the TorchScript module '{scripted[0]}' inside" if scripted[0] else "a TorchScript model"
        why = "its inner calls cannot be observed. Pass the module it was scripted or traced from"
        raise CaptureError(f"expected a plain nn.Module, got {what}: {why}.")
    return network


def device_of(network: nn.Module) -> torch.device | None:
    """The device of the first parameter or buffer that is in place; `None` for a network that has neither."""
    modules = walk(network)
    devices = [tensor.device for tensor in (*parameters_in(modules), *buffers_in(modules))]
    hooks = [vars(module).get("_hf_hook") for module in modules]  # of weights that accelerate has put away
    offloaded = [device for hook in hooks if (device := getattr(hook, "execution_device", None)) is not None]
    if devices and offloaded and any(device.type == "meta" for device in devices):
        return torch.device(offloaded[0])
    if devices and all(device.type == "meta" for device in devices):
        raise CaptureError("expected a model with its weights in place, got one on the meta device, which holds none.")
    return next((device for device in devices if device.type != "meta"), None)


def has_batchnorm(network: nn.Module) -> bool:
    """Whether batches are normalized somewhere in it."""
    return any(isinstance(module, _BatchNorm) for module in walk(network))


def said_of_device(error: Exception) -> str:
    """Why torch does not take a device, without the dot at the end; of a kind it does not know it lists twenty others."""
    said = str(error).strip().partition("\n")[0].split(". ")[0].rstrip(".!")
    return "torch knows no device of this name" if said.startswith("Expected one of") else f"torch says: {said}"


@contextmanager
def placed(network: nn.Module, device: str | torch.device | None) -> Iterator[torch.device | None]:
    """The network on a device (`None`: where it is), and afterwards back where it was; gives the device."""
    with claimed(network):
        home = device_of(network)
        if device is None:
            yield home
            return
        try:
            there = torch.device(device)
            torch.zeros(1, device=there).cpu()  # is there such a device, and does it hold numbers?
        except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError) as error:
            expected = "expected one such as 'cpu' or 'cuda:0' that is there"
            raise InputError(
                f"device: cannot compute on {str(device)!r}: {expected}. {said_of_device(error)}."
            ) from None
        try:
            network.to(there)
            yield there
        finally:
            if home is not None:
                network.to(home)


@contextmanager
def probing_state(network: nn.Module, batchnorm: BatchNormMode) -> Iterator[None]:
    """Eval mode, no gradients, no fast paths, eager calls; everything restored at the end, and no other thread meanwhile.

    `batchnorm="batch"` is the protocol of the law's authors: BatchNorm alone uses the statistics of the batch (its buffers
    stay untouched), Dropout stays off; "whole" does the same with one batch of all samples. So does SyncBatchNorm, with the
    batch of its own rank: ranks go at their own pace, and those outside of `ranks` not at all.

    Flags are set by hand: `train()` and `eval()` may be overridden and do more.
    """
    with ExitStack() as stack:
        stack.enter_context(claimed(network))
        stack.enter_context(torch.inference_mode(False))  # inference tensors do not tell when they are overwritten
        stack.enter_context(torch.no_grad())
        if any(name in sys.modules for name in COMPILERS):  # loading the first takes more than a second
            stack.enter_context(eager_calls)
        stack.enter_context(no_fast_path)
        modules = walk(network)
        if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
            stack.enter_context(alone())
        stack.callback(_put_flags_back, [(module, module.training) for module in modules])
        stack.callback(_put_buffers_back, _buffers_of(modules))
        for module in modules:
            _set(module, "training", False)
            if batchnorm != "running" and isinstance(module, _BatchNorm):
                stack.callback(setattr, module, "track_running_stats", module.track_running_stats)
                # In training without tracking, BatchNorm takes the batch's statistics and writes none.
                module.training, module.track_running_stats = True, False
        yield


def _set(module: nn.Module, name: str, value: bool) -> None:
    """A flag: plain ones without the way through `nn.Module.__setattr__`, which looks for parameters and modules first."""
    held = vars(module)
    if type(module).__setattr__ is nn.Module.__setattr__ and type(held.get(name)) is bool:
        held[name] = value
    else:
        setattr(module, name, value)


Buffers = list[tuple[list[tuple[nn.Module, str, Tensor]], Tensor]]


def _buffers_of(modules: list[nn.Module]) -> Buffers:
    """The buffers that are in place, those of one kind with their content in one piece: a GPU is asked once for all."""
    kinds: dict[Hashable, list[tuple[nn.Module, str, Tensor]]] = defaultdict(list)
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                plain = type(buffer) in PLAIN and buffer.layout == torch.strided and not buffer.is_quantized
                kinds[(buffer.device, buffer.dtype) if plain else id(buffer)].append((module, name, buffer))
    return [(alike, _content([buffer for *_, buffer in alike])) for alike in kinds.values()]


def _content(buffers: list[Tensor]) -> Tensor:
    """A copy of one buffer, or of several in a row."""
    return buffers[0].clone() if len(buffers) == 1 else in_a_row(buffers)


def _put_buffers_back(buffers: Buffers) -> None:
    for alike, content in buffers:
        held = [buffer for *_, buffer in alike]
        if not torch.equal(held[0] if len(held) == 1 else _content(held), content):
            parts = [content] if len(held) == 1 else torch.split(content, [b.numel() for b in held])
            for buffer, part in zip(held, parts, strict=True):
                if not torch.equal(buffer, part.view_as(buffer)):  # else others would see that it was written to
                    buffer.copy_(part.view_as(buffer))
        for module, name, buffer in alike:
            module._buffers[name] = buffer


def _put_flags_back(flags: list[tuple[nn.Module, bool]]) -> None:
    for module, training in flags:
        _set(module, "training", training)


# What samplers and loaders of torch and accelerate write down about the epochs that they have seen.
COUNTED = ("epoch", "iteration", "end_of_dataloader", "remainder")
INSIDE = ("base_dataloader", "batch_sampler", "sampler")
MOST_PARTS = 12  # of a loader: an object that answers to every name would have no end
ORDERLY = ("SequentialSampler", "BatchSampler", "DistributedSampler", "UnpaddedSampler", "BatchSamplerShard")


def parts_of(loader: Any) -> list[Any]:
    """A loader and what is inside of it: samplers, samplers of batches, loaders that another library has wrapped."""
    found: list[Any] = []
    todo = [loader]
    while todo and len(found) < MOST_PARTS:
        part = todo.pop(0)
        if part is not None and not any(part is one for one in found):
            found.append(part)
            todo += [getattr(part, name, None) for name in INSIDE]
    return found


def order_of(loader: DataLoader[Any]) -> str:
    """In words, in which order a loader gives its samples."""
    samplers = [part for part in parts_of(loader) if not isinstance(part, DataLoader)]
    if any(isinstance(part, RandomSampler) or getattr(part, "shuffle", False) is True for part in samplers):
        return "shuffled by the loader"
    own = [type(part).__name__ for part in samplers if type(part).__name__ not in ORDERLY]
    return f"chosen by the loader's {own[0]}" if own else "as given"


def places_of(data: Any) -> tuple[int, int] | None:
    """Where the samples of this rank are among those of all, as first place and step, where data of one order say so."""
    dealt: Any = data
    if isinstance(data, DataLoader):
        plain = type(data) is DataLoader and type(data.batch_sampler) is BatchSampler
        if not plain or order_of(data) != "as given":
            return None
        whole, dealt = isinstance(data.sampler, SequentialSampler), data.sampler
        if whole:
            dealt = data.dataset
        elif getattr(data.dataset, "places", None) is not None:  # a share of a share
            return None
        if isinstance(dealt, DistributedSampler):
            return (dealt.rank, dealt.num_replicas) if dealt.total_size == len(data.dataset) else None  # type: ignore[arg-type]
    found = getattr(dealt, "places", None)
    return found if isinstance(found, tuple) and len(found) == 2 else None


def unequal_shares(loader: Any) -> tuple[str, int]:
    """What a sampler does so that all ranks have equally many samples, and how many it repeats; else nothing.

    It repeats some samples, or leaves some out.
    """
    for part in parts_of(loader):
        n, dealt = None, None
        if isinstance(part, DistributedSampler):
            n, dealt = len(part.dataset), part.total_size  # type: ignore[arg-type]
        elif type(part).__name__ == "BatchSamplerShard":  # of accelerate
            with suppress(TypeError, AttributeError):
                inner, whole = part.batch_sampler, 1 if part.split_batches else part.num_processes
                n, each = len(inner.sampler), inner.batch_size * whole
                up = part.even_batches and not inner.drop_last
                dealt = n if not (up or inner.drop_last) else (-(-n // each) if up else n // each) * each
        if n is not None and dealt is not None and dealt != n:
            does = f"leaves out {n - dealt} of {n} samples"
            if dealt > n:
                does = f"repeats {dealt - n} of {n} samples (which count twice)"
            return f"the loader's {type(part).__name__} {does}, so that all ranks have equally many", max(0, dealt - n)
    return "", 0


_inside: Counter[int] = Counter()  # by thread: how often it is inside a `Randomness`
_first: list[Callable[[], object]] = []  # puts the generators of the process back to where the first of them found them
_lock = threading.Lock()


class Randomness:
    """The state of every random generator that loaders may draw from: rewound before each pass, restored after.

    Of the generators that all threads share, a thread that comes while others are inside takes the state that the first of
    them found: the last one out must not leave behind what another thread had drawn up to.
    """

    def __init__(self, *loaders: Any) -> None:
        places = [place for loader in loaders for place in parts_of(loader)]
        found = [getattr(place, "generator", None) for place in places]
        generators = [g for g in found if isinstance(g, torch.Generator)]
        self._rewinds: list[Callable[[], object]] = [partial(g.set_state, g.get_state()) for g in generators]
        for place in places:  # samplers and loaders that count how often they were gone through draw by that number
            own = getattr(place, "__dict__", {})
            self._rewinds += [partial(setattr, place, name, own[name]) for name in COUNTED if name in own]
            if isinstance(loading := getattr(own.get("gradient_state"), "dataloader_references", None), list):
                self._rewinds.append(partial(loading.__setitem__, slice(None), list(loading)))  # of accelerate

    def __enter__(self) -> Randomness:
        me = threading.get_ident()
        with _lock:
            alone = all(thread == me for thread in _inside)
            shared = _of_the_process() if alone else list(_first)
            if not _inside:
                _first[:] = shared
            _inside[me] += 1
        self._rewinds += shared
        return self

    def __exit__(self, *_: object) -> None:
        self.rewind()
        me = threading.get_ident()
        with _lock:
            _inside[me] -= 1
            if not _inside[me]:
                del _inside[me]

    def rewind(self) -> None:
        """Put every generator back to where it was."""
        for put_back in self._rewinds:
            put_back()


_seeded: ContextVar[int | None] = ContextVar("layerlaw seed of the process", default=None)


@contextmanager
def seeding(seed: int) -> Iterator[None]:
    """Every generator of the process set to the seed; for whoever saves their states in here it is where they began.

    To seed them takes a small part of the time that it takes to save and to set the state of NumPy's.
    """
    for put in _of_the_seed(seed):
        put()
    token = _seeded.set(seed)
    try:
        yield
    finally:
        _seeded.reset(token)


def _of_the_seed(seed: int) -> list[Callable[[], object]]:
    found: list[Callable[[], object]] = [
        partial(torch.default_generator.manual_seed, seed),  # torch.manual_seed takes a millisecond
        partial(random.seed, seed),
        partial(np.random.seed, seed % 2**32),  # data sets draw from it
    ]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append(partial(torch.cuda.manual_seed_all, seed))
    return found


def _of_the_process() -> list[Callable[[], object]]:
    if (seed := _seeded.get()) is not None:
        return _of_the_seed(seed)
    found: list[Callable[[], object]] = [
        partial(torch.set_rng_state, torch.get_rng_state()),
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state()),  # noqa: NPY002 - loaders draw from it
    ]
    if torch.cuda.is_available():
        found.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


@on_cpu
def untrained(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """A copy of the network with freshly drawn parameters: the null against which training is judged.

    Every module with `reset_parameters` draws anew; other floating-point parameters of two or more dimensions (class
    tokens, position tables, the parts of a normalized weight) are replaced by normal noise of their own standard
    deviation. BatchNorm buffers are reset; fresh ones (mean 0, variance 1) mean no normalization at all, so recalibrate
    them on the data: `probe(…, null=True)` does.
    """
    check_seed(seed)
    given = network_of(model)
    groups = [group for module in walk(given) if (group := getattr(module, "process_group", None)) is not None]
    network = copy.deepcopy(given, {id(group): group for group in groups})  # no process group can be copied
    if any(parameter.is_meta for parameter in network.parameters()):
        raise CaptureError("expected a model with its weights in place, got one on the meta device.")
    homes = {parameter.device for parameter in network.parameters()}
    if len(homes) == 1:
        network.cpu()  # drawn there, a seed means the same network on every device
    with Randomness(), torch.no_grad():
        torch.manual_seed(seed)
        for module in network.modules():
            before = [(parameter, parameter.clone()) for parameter in module.parameters(recurse=False)]
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
            for parameter, old in before:
                if parameter.is_floating_point() and parameter.dim() >= 2 and torch.equal(parameter, old):
                    parameter.normal_(0.0, float(old.std(correction=0)))
    return network.to(homes.pop()) if len(homes) == 1 else network


@contextmanager
def recalibrating(network: nn.Module) -> Iterator[None]:
    """BatchNorm buffers become the plain average of the statistics of every batch that is run inside, on any rank."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum, norm.training = None, True  # a cumulative average
    try:
        yield
        buffers = (norm.buffers() for norm in norms)
        averages = [(average, n) for mean, variance, n in buffers for average in (mean, variance)]
        sums = [t for buffer, n in averages for t in (buffer.double() * n.double(), n.double().reshape(1))]
        all_reduce(sums)
        for (buffer, _), total, count in zip(averages, sums[::2], sums[1::2], strict=True):
            buffer.copy_(total / count)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum, norm.training = momentum, False
