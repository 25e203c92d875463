"""D along depth at several epochs, from whatever holds it: a run, readings, records, fits or plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerlaw.errors import InputError
from layerlaw.lab import Measurement, Run
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import LawFit, fit_law
from layerlaw.record import Record

Fitted = LawFit | Record | Sequence[float | None] | Any
"""What a law can be fitted to: a fit, a record, or D along depth (a list, an array, a tensor)."""
History = Run | Sequence[Measurement] | Mapping[int, Fitted]


@dataclass(frozen=True)
class Moment:
    """What was seen after one epoch; `fit` is `None` where D is not defined at every layer."""

    epoch: int
    fit: LawFit | None
    accuracy: float | None = None


def moments(
    history: History,
    *,
    batchnorm: BatchNormMode = "batch",
    accuracies: Mapping[int, float] | None = None,
    least: int = 2,
) -> list[Moment]:
    """The moments in the order of their epochs.

    `mode` chooses among the readings of a run (training data only), whose accuracy is that of eval mode where it was
    measured; `accuracies` adds what records and numbers lack.
    """
    accuracies = accuracies or {}
    if isinstance(history, Mapping):
        found = [Moment(epoch, fitted(what), _accuracy(what)) for epoch, what in history.items()]
    else:
        measurements = [
            r for r in (history.measurements if isinstance(history, Run) else history) if r.split == "train"
        ]
        used = {
            r.epoch: r.accuracy for r in measurements if r.batchnorm == "running"
        }  # batch statistics cost some accuracy
        found = [
            Moment(r.epoch, _fit(r.separation), used.get(r.epoch, r.accuracy))
            for r in measurements
            if r.batchnorm == batchnorm
        ]
    found = sorted((Moment(m.epoch, m.fit, accuracies.get(m.epoch, m.accuracy)) for m in found), key=lambda m: m.epoch)
    if len(found) < least:
        raise InputError(
            f"history: expected D along depth at {least} epochs or more (BatchNorm {batchnorm}, training data), got "
            f"{len(found)}. "
            "Measure more often: Schedule(epochs=…) in a sweep, at_epochs=… in a plain loop."
        )
    if len({m.epoch for m in found}) < len(found):
        raise InputError(f"history: expected one measurement per epoch, got epochs {[m.epoch for m in found]}.")
    return found


def fitted(what: Fitted) -> LawFit | None:
    """The law through these numbers; `None` where one of them is missing, infinite or 0 (a diverged or dead network).

    >>> fitted([4.0, 2.0, 1.0]).rho, fitted([4.0, None, 1.0])
    (0.5, None)
    """
    if isinstance(what, LawFit):
        return what
    if isinstance(what, Record):
        return _fit([site.values.get("separation") for site in what.sites if site.in_fit])
    if hasattr(what, "tolist"):
        what = what.tolist()
    if not isinstance(what, Sequence) or isinstance(what, str) or len(what) < 2:
        raise InputError(f"history: expected a fit, a record, or at least 2 numbers along depth, got {what!r}.")
    for place, value in enumerate(what):
        if value is not None and (isinstance(value, str) or not hasattr(value, "__float__")):
            raise InputError(f"history: expected numbers along depth, got {value!r} at place {place}.")
        if value is not None and value < 0:
            raise InputError(f"history: expected D ≥ 0 everywhere along depth, got {value:g} at place {place}.")
    return _fit(what)


def _fit(what: Sequence[float | None]) -> LawFit | None:
    known = [value for value in what if value is not None and math.isfinite(value) and value > 0]
    return fit_law(known) if len(known) == len(what) else None


def _accuracy(what: Fitted) -> float | None:
    return what.accuracy if isinstance(what, Record) else None
