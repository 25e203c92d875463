"""Networks that a recipe can describe: a family is one file here."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from layerlaw.capture.network import has_batchnorm
from layerlaw.errors import InputError
from layerlaw.lab.losses import Description
from layerlaw.lab.samples import Samples

OTHER_WORDS = {"channels": "inputs", "in_channels": "inputs", "in_chans": "inputs", "num_classes": "classes"}

Precision = Literal["float32", "tf32", "bf16"]


class Architecture(Description):
    """What a network looks like: a frozen dataclass with `kind`, `classes` and `build`; `str()` is what messages show."""

    what: ClassVar[str] = "network"
    precision: ClassVar[Precision] = "tf32"  # of its products on a GPU, where a recipe does not say
    classes: int

    @classmethod
    def presets(cls) -> dict[str, Self]:
        """Members of the family that have a name of their own; none by default."""
        return {}

    @classmethod
    def named(cls, name: str, **changes: Any) -> Self:
        """The network of this name among those of all families (of a family: its own), with some fields changed.

        >>> str(Architecture.named("resnet18", inputs=1)), Architecture.named("resnet18", inputs=1).classes
        ('resnet18', 10)
        """
        cls.import_families()
        families = [kind for kind in cls.kinds.values() if issubclass(kind, cls)]
        known: dict[str, Self] = {n: preset for family in families for n, preset in family.presets().items()}
        if name not in known:
            near = difflib.get_close_matches(str(name).lower(), known, 1, 0.4)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"network: expected one of {', '.join(known)}, got {name!r}.{hint}")
        there: Any = known[name]
        fitting = [field.name for field in fields(there)]
        for field in changes:
            if field not in fitting:
                meant = OTHER_WORDS.get(field, "")
                near = [meant] if meant in fitting else difflib.get_close_matches(field, fitting, 1, 0.4)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise InputError(f"{name}: expected changes of {', '.join(fitting)}, got {field!r}.{hint}")
        return replace(there, **changes)  # type: ignore[no-any-return]

    @abstractmethod
    def build(self) -> nn.Module:
        """A fresh network, drawn from torch's global generator: (n, …) → logits (n, classes)."""

    @property
    def norm(self) -> bool:
        """Whether it has BatchNorm, which needs batches of at least two samples."""
        return has_batchnorm(_drawn(self))

    @property
    def depth(self) -> int:
        """How many layers `Recipe.layers` and `sweep(copied=…)` can name by number; 0: none."""
        return 0

    def layer_modules(self, layers: tuple[int, int]) -> set[str]:
        """Names of the modules that make up the layers a … b−1; none where there is no depth."""
        return set()

    def multiplications(self, sample: tuple[int, ...]) -> int:
        """Multiplications in one forward of one sample of this shape: what the work of a training is judged by."""
        return _tried(self, sample)[0]

    def check_inputs(self, sample: tuple[int, ...]) -> None:
        """Raise unless the network takes samples of this shape; by default two of them are run through it."""
        try:
            logits = _tried(self, sample)[1]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            came = f"{self}, whose forward fails: {error}"
            raise InputError(f"network: expected one that takes samples of shape {sample}, got {came}") from None
        if logits != (2, self.classes):
            raise InputError(f"network: expected logits (n, {self.classes}) of {self}, got {('n', *logits[1:])}.")

    def check(self, samples: Samples, batch_size: int) -> None:
        """Raise unless the network can be trained on these samples in batches of this size."""
        self.check_inputs(tuple(samples.inputs.shape[1:]))
        if samples.classes > self.classes:
            raise InputError(f"network: expected at most {self.classes} classes, got samples of {samples.classes}.")
        check_batches(self.norm, len(samples.labels), batch_size)


def check_batches(normalized: bool, n: int, batch_size: int) -> None:
    """Raise where BatchNorm, if there is any, would be trained on a batch of one sample."""
    if normalized and (n % batch_size == 1 or batch_size == 1):
        sizes = [*range(batch_size - 1, 1, -1), *range(max(2, batch_size), n + 1)]  # smaller ones first
        other = next((size for size in sizes if n % size != 1), None)
        cure = f"Choose another batch size, {other} for example" if other else "Pass more samples"
        alone = f"{n} samples in batches of {batch_size} leave one alone. {cure}"
        raise InputError(f"network: expected batches of at least 2 samples for BatchNorm, but {alone}.")


def none_alone(n: int, batch_size: int) -> int:
    """The largest batch size up to this one with which no batch of n samples has a single one; at least 1.

    >>> none_alone(61, 20), none_alone(1000, 128)
    (19, 128)
    """
    return next((size for size in range(batch_size, 1, -1) if n % size != 1), 1)


@lru_cache(4)
def _drawn(architecture: Architecture) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return architecture.build().eval()


@lru_cache(256)
@torch.no_grad()
def _tried(architecture: Architecture, sample: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Multiplications of its weight layers per sample, and the shape of the logits of two samples."""
    with FlopCounterMode(display=False) as counter:
        logits = _drawn(architecture)(torch.zeros(2, *sample))
    return counter.get_total_flops() // 4, tuple(logits.shape)  # two samples, a multiplication and an addition each


def is_tuple(values: object) -> bool:
    """Whether a field holds one value per stage or layer."""
    return isinstance(values, tuple)


def is_nested(values: object) -> bool:
    """Whether a field holds several values for each of several stages."""
    return isinstance(values, tuple) and bool(values) and all(isinstance(one, tuple) and one for one in values)


def part_of(state: Mapping[str, Tensor], name: str, size: tuple[int, ...]) -> Tensor:
    """One tensor of a state to start from."""
    if name not in state or tuple(state[name].shape) != size:
        came = tuple(state[name].shape) if name in state else "nothing"
        raise InputError(f"start: expected '{name}' of shape {size}, got {came}.")
    return state[name]


def same_numbers(a: Any, b: Any) -> bool:
    """Whether two states of networks, or several by name, hold the same numbers; a NaN is the same as a NaN."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_numbers(a[name], b[name]) for name in a)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.allclose(a.cpu(), b.cpu(), rtol=0, atol=0, equal_nan=True)
