"""Class counts as groups: classes of one size are interchangeable, so all that matters is which sizes there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError, LabelError

Array = npt.NDArray[np.float64]
Counts = Sequence[int] | Mapping[int, int] | npt.NDArray[Any]
MOST = 2**53  # whole numbers beyond this are not exact in double precision
MOST_C = 1e8
MOST_Q = 20.0
# What to do about a bad number of samples, and about a bad number of classes
SAMPLES = ("Count samples, do not weigh them.", "Drop classes without samples.", "Scale all counts.")
CLASSES = ("Count classes.", "A group has at least one class.", "No data set has so many classes.")


@dataclass(frozen=True)
class Groups:
    """Classes by their number of samples, the largest first.

    >>> from layerlaw.peeled import solve
    >>> g = solve([10, 1000, 10], E_W=1, E_H=1).groups
    >>> g.sizes, g.classes, g.member
    (array([1000.,   10.]), array([1., 2.]), array([1, 0, 1]))
    """

    sizes: Array  # (G,) samples in each class of the group, falling
    classes: Array  # (G,) how many classes have that size
    member: npt.NDArray[np.intp] | None = field(default=None, repr=False)
    """(K,) the group of each class, in the order the counts came in; `None`: group after group."""

    @property
    def K(self) -> int:
        """Classes in all."""
        return int(self.classes.sum())

    @property
    def N(self) -> float:
        """Samples in all."""
        return float(self.sizes @ self.classes)

    @property
    def shares(self) -> Array:
        """(G,) n_g / N, the share of one class of the group in all samples."""
        return self.sizes / self.N

    @property
    def pair(self) -> tuple[int, int, float]:
        """Of two groups K_A, K_B and log R, R = n_A/n_B."""
        K_A, K_B = self.classes
        return int(K_A), int(K_B), math.log(self.sizes[0]) - math.log(self.sizes[1])

    @property
    def members(self) -> npt.NDArray[np.intp]:
        """(K,) the group of each class."""
        if self.member is not None:
            return self.member
        return np.repeat(np.arange(len(self.sizes)), self.classes.astype(np.intp))

    def __len__(self) -> int:
        return len(self.sizes)


def grouped(counts: Counts) -> Groups:
    """Groups of a sequence of samples per class, or of a mapping {samples in a class: how many such classes}.

    A `Counter` is taken for what it is, samples per label.

    >>> len(grouped({5000: 3, 50: 7})), grouped({5000: 3, 50: 7}).K
    (2, 10)
    """
    if isinstance(counts, Groups):
        return counts
    counts = list(counts.values()) if isinstance(counts, Counter) else counts
    if isinstance(counts, Mapping):
        where = "counts, a mapping {samples in a class: number of such classes}"
        pairs = [(whole(n, where, SAMPLES), whole(m, f"{where}, at {n}", CLASSES)) for n, m in counts.items()]
        sizes, classes = np.array(sorted(pairs, reverse=True), float).reshape(-1, 2).T
        member = None
    else:
        expected = "counts: expected a sequence of whole numbers, one per class, got"
        try:
            raw = np.asarray(counts)
            values = raw.astype(np.float64) if raw.dtype.kind in "iufO" else None
        except (TypeError, ValueError, OverflowError):
            raise LabelError(f"{expected} {counts!r}.") from None
        if values is None or values.ndim != 1:
            raise LabelError(f"{expected} shape {raw.shape} of {raw.dtype}.")
        for i in np.flatnonzero(~(values >= 1) | (values != np.floor(values)) | (values > MOST))[:1]:
            whole(raw[i], f"counts[{i}]", SAMPLES)
        unique, place, many = np.unique(values, return_inverse=True, return_counts=True)
        sizes, classes, member = unique[::-1].copy(), many[::-1].astype(np.float64), len(unique) - 1 - place
    if (K := int(classes.sum())) < 2:
        raise LabelError(f"counts: expected at least 2 classes, got {K}. One class has nothing to be separated from.")
    return Groups(sizes, classes, member)


def check_budgets(E_W: object, E_H: object) -> float:
    """c = √(E_W E_H), all that the angles and the loss depend on."""
    rows = "Measure it as the mean of ‖w_k‖² over the rows of the classifier."
    features = "Measure it as the mean of ‖h‖² over the samples of a class, then over the classes."
    c = math.sqrt(positive(E_W, "E_W", "budget", rows)) * math.sqrt(positive(E_H, "E_H", "budget", features))
    if not MOST_C**-1 < c < MOST_C:
        raise InputError(f"E_W, E_H: expected √(E_W E_H) between 1e-8 and 1e8, got {c:.3g}. Scale the features.")
    return c


def check_flag(value: object, name: str) -> None:
    """True or False; anything else, such as "no", would silently count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}: expected True or False, got {value!r}.")


def check_exponent(q: object) -> None:
    """The exponent of a norm on features whose corners, if any, L-BFGS can turn: above 20 it is nearly the largest entry."""
    if not 1 < positive(q, "q", "exponent") <= MOST_Q:
        why = "Else the norm has corners"
        raise InputError(f"q: expected an exponent above 1 and at most {MOST_Q:g}, got {q!r}. {why}.")


def listed(values: object, name: str, what: str) -> list[Any]:
    """A sequence that is not empty, as a list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name}: expected a sequence of {what}, got {values!r}. Put it in brackets.")
    if not (found := list(values)):
        raise InputError(f"{name}: expected at least one of {what}, got {values!r}.")
    return found


def positive(value: object, name: str, what: str = "number", todo: str = "") -> float:
    """A positive, finite number as a float."""
    number = isinstance(value, (float, int, np.floating, np.integer)) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:  # type: ignore[operator]
        raise InputError(f"{name}: expected a positive, finite {what}, got {value!r}. {todo}".rstrip())
    return float(value)  # type: ignore[arg-type]


def whole(value: Any, where: str, todo: tuple[str, str, str] = CLASSES) -> int:
    """A whole number ≥ 1, or a LabelError that says what it is instead; `todo`: if broken, too small, too large."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise LabelError(f"{where}: expected a whole number, got {value!r}. {todo[0]}")
    if not 1 <= value <= MOST:
        end, what = ("at least 1", todo[1]) if value < 1 else ("at most 2^53, beyond which none is exact", todo[2])
        raise LabelError(f"{where}: expected {end}, got {value!r}. {what}")
    return int(value)
