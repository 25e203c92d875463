"""When did the law appear in a training: after interpolation? before the last layer converged? And a rule to stop by.

It needs no training of its own: D along depth at several epochs comes as a mapping, or from anything with measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from layerlaw.errors import InputError
from layerlaw.law import FEWEST_POINTS, LawFit, fit_law
from layerlaw.record import Record
from layerlaw.wording import correlation

Fitted = LawFit | Record | Sequence[float | None] | Any
"""What a law can be fitted to: a fit, a record, or D along depth (a list, an array, a tensor)."""
History = Mapping[int, Fitted] | Iterable[Any] | Any
"""Epochs → what a law can be fitted to; or a `lab.Run`, or its measurements."""


@dataclass(frozen=True)
class Moment:
    """What was seen after one epoch; `fit` is `None` where D is not defined at every layer."""

    epoch: int
    fit: LawFit | None
    accuracy: float | None = None


def moments(
    history: History, *, batchnorm: str = "batch", accuracies: Mapping[int, float] | None = None, least: int = 2
) -> list[Moment]:
    """The moments in the order of their epochs.

    `batchnorm` chooses among the measurements of a run (training data only), whose accuracy is that of eval mode where it
    was measured; `accuracies` adds what records and numbers lack.
    """
    if isinstance(history, Mapping):
        found = [Moment(epoch, fitted(what), getattr(what, "accuracy", None)) for epoch, what in history.items()]
    else:
        measurements: Iterable[Any] = getattr(history, "measurements", history)
        train = [m for m in measurements if m.split == "train"]
        used = {m.epoch: m.accuracy for m in train if m.batchnorm == "running"}  # batch statistics cost some accuracy
        chosen = [m for m in train if m.batchnorm == batchnorm]
        fits = [_fit(m.separation, getattr(m, "step", "layer")) for m in chosen]
        found = [Moment(m.epoch, fit, used.get(m.epoch, m.accuracy)) for m, fit in zip(chosen, fits, strict=True)]
    known = accuracies or {}
    found = sorted((replace(m, accuracy=known.get(m.epoch, m.accuracy)) for m in found), key=lambda m: m.epoch)
    if len(found) < least:
        raise InputError(
            f"history: expected D along depth at {least} epochs or more (BatchNorm {batchnorm}, training data), got "
            f"{len(found)}. Measure more often: Schedule(epochs=…) in a sweep, at_epochs=… in a plain loop."
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
        return _fit([site.values.get(what.leading) for site in what.sites if site.in_fit], what.step_name)
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


def _fit(what: Sequence[float | None], step: str = "layer") -> LawFit | None:
    known = [value for value in what if value is not None and math.isfinite(value) and value > 0]
    return replace(fit_law(known), step=step) if len(known) == len(what) else None


def step_of(seen: Iterable[Moment]) -> str:
    """What a step along depth is called at these moments."""
    return next((moment.fit.step for moment in seen if moment.fit is not None), "layer")


@dataclass(frozen=True)
class Probe:
    """One moment of the training: did the law hold, by which numbers; D of the last layer, accuracy on the training data."""

    epoch: int
    holds: bool
    pearson: float | None
    greenwood_p: float | None
    rho: float | None
    last: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Emergence:
    """Three epochs, each `None` where it never came.

    `epoch`: the first from which the law held at `patience` probes in a row; `confirmed`: the last of those, when an
    observer could know; `lasting`: whether it held at every later probe. `interpolation`: the first probe at which the
    training data were fitted. `convergence`: the first from which D of the last layer stayed near its final value.
    """

    epoch: int | None
    confirmed: int | None
    lasting: bool
    interpolation: int | None
    convergence: int | None
    patience: int
    probes: tuple[Probe, ...]
    step: str = "layer"

    @property
    def sentence(self) -> str:
        """The order in which they came."""
        if self.epoch is None:
            best = min((probe.pearson for probe in self.probes if probe.pearson is not None), default=None)
            seen = f"at {sum(probe.holds for probe in self.probes)} of {len(self.probes)}"
            most = "" if best is None else f", r at best {correlation(best)}"
            law = f"The law never held at {self.patience} probes in a row ({seen}{most})."
        else:
            lasting = "at every probe from then on" if self.lasting else "but not at every later probe"
            law = f"The law held from epoch {self.epoch} (confirmed at epoch {self.confirmed}), {lasting}."
        if all(probe.accuracy is None for probe in self.probes):
            data = "Whether the training data were fitted is not known."
        elif self.interpolation is None:
            data = "The training data were not fitted by the last probe."
        else:
            data = f"The training data were fitted {self._against(self.interpolation)}."
        last = "site" if self.step == "step" else self.step
        if self.convergence is None:
            return f"{law} {data} D of the last {last} was still moving at the end."
        return f"{law} {data} D of the last {last} settled {self._against(self.convergence)}."

    def _against(self, epoch: int) -> str:
        if self.epoch is None:
            return f"at epoch {epoch}"
        if epoch == self.epoch:
            return f"at the same probe (epoch {epoch})"
        return f"{'before' if epoch < self.epoch else 'after'} the law appeared (epoch {epoch})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "sentence": self.sentence}

    def __str__(self) -> str:
        return self.sentence


def emergence(
    history: History,
    *,
    patience: int = 3,
    batchnorm: str = "batch",
    accuracies: Mapping[int, float] | None = None,
    interpolated: float = 0.999,
    within: float = 0.05,
) -> Emergence:
    """When the law appeared in a training, beside interpolation and the convergence of the last layer.

    `history` is a `lab.Run` that was measured at several epochs, its measurements, or a mapping from epochs to fits,
    records or D along depth (then `accuracies` gives the training accuracy by epoch). The law holds as `LawFit.holds`
    says. D of the last layer has settled when |log D − log D_end| ≤ log(1 + within) from there on, at two probes or more.
    All epochs are those of probes: what happens between two of them is seen at the second.

    >>> straight, bent = [32.0, 16, 8, 4, 2, 1], [32.0, 30, 28, 4, 2, 1]
    >>> found = emergence({0: bent, 10: straight, 20: straight}, patience=2, accuracies={0: 0.5, 10: 0.9, 20: 1.0})
    >>> found.epoch, found.confirmed, found.interpolation, found.convergence
    (10, 20, 20, 0)
    """
    rule, probes = UntilLaw(patience), []
    seen = moments(history, batchnorm=batchnorm, accuracies=accuracies, least=1)
    for moment in seen:
        holds, fit = rule._see(moment), moment.fit
        r_found, p_found = (None, None) if fit is None else (fit.pearson, fit.greenwood_p)
        rho, last = (None, None) if fit is None else (fit.rho, fit.values[-1])
        probes.append(Probe(moment.epoch, holds, r_found, p_found, rho, last, moment.accuracy))
    right = (probe.epoch for probe in probes if probe.accuracy is not None and probe.accuracy >= interpolated)
    lasting = rule.since is not None and all(probe.holds for probe in probes if probe.epoch >= rule.since)
    settled = _settled(probes, math.log1p(within))
    return Emergence(
        rule.since, rule.stopped, lasting, next(right, None), settled, patience, tuple(probes), step_of(seen)
    )


class UntilLaw:
    """Early stopping by the law: stop when it has held at `patience` probes in a row, one every `every` epochs.

    "We need to train a neural network at least until the law of equi-separation comes into effect" (He & Su): at least. In
    an 8-layer network like theirs, trained for 300 epochs, it held from epoch 10 on, long before the training data were
    fitted (epoch 110) and D of the last layer settled (180); ask for what else you need before you stop. In a loop of your
    own (`law_of` stands for a probe such as `ll.probe(network, data, batchnorm="batch")`):

    >>> law_of = lambda epoch: [32.0, 16, 8, 4, 2, 1] if epoch >= 30 else [32.0, 30, 28, 4, 2, 1]
    >>> rule = UntilLaw(patience=3, every=10)
    >>> for epoch in range(100):
    ...     if rule.due(epoch) and rule.update(epoch, law_of(epoch)):
    ...         break
    >>> epoch, rule.since
    (50, 30)

    With `lab.train`, which stops when `visit` returns `True`:

        train(network, x, y, recipe, at_epochs=range(0, recipe.epochs + 1, rule.every),
              visit=lambda epoch: rule.update(epoch, probe(network, (x, y), batchnorm="batch")))
    """

    def __init__(self, patience: int = 3, every: int = 1) -> None:
        for name, value in (("patience", patience), ("every", every)):
            if value < 1:
                raise InputError(f"{name}: expected at least 1, got {value}.")
        self.patience, self.every = patience, every
        self.since: int | None = None
        """The epoch from which the law has held, once that is sure."""
        self.stopped: int | None = None
        """The epoch at which it became sure."""
        self._row: list[int] = []
        self._last: int | None = None

    def __repr__(self) -> str:
        rule = f"UntilLaw(patience={self.patience}, every={self.every})"
        if self.stopped is not None:
            return f"{rule}: the law has held since epoch {self.since}, known at epoch {self.stopped}"
        if self._last is None:
            return f"{rule}: no probe yet"
        return f"{rule}: held at the last {len(self._row)} of {self.patience} probes needed, up to epoch {self._last}"

    def due(self, epoch: int) -> bool:
        """Whether a probe is due after this epoch."""
        return epoch % self.every == 0

    def update(self, epoch: int, law: Fitted) -> bool:
        """Take in what a probe found (a `LawFit`, a `Record`, or D along depth); returns whether to stop now."""
        fit = fitted(law)
        if fit is not None and fit.points < FEWEST_POINTS:
            raise InputError(
                f"until the law: expected D at {FEWEST_POINTS} places along depth or more, got {fit.points}: so few make "
                "no law, and the training would never stop."
            )
        self._see(Moment(epoch, fit))
        return self.stopped is not None

    def _see(self, moment: Moment) -> bool:
        """Whether the law holds at this moment, which is counted."""
        if self._last is not None and moment.epoch <= self._last:
            raise InputError(f"epoch: expected one after {self._last}, got {moment.epoch}.")
        self._last = moment.epoch
        holds = moment.fit is not None and moment.fit.holds is True
        self._row = [*self._row, moment.epoch] if holds else []
        if self.stopped is None and len(self._row) >= self.patience:
            self.since, self.stopped = self._row[0], moment.epoch
        return holds


def _settled(probes: Sequence[Probe], width: float) -> int | None:
    """The first epoch from which log D of the last layer stays this near its end; `None` if only the end itself does."""
    found: list[int] = []
    end = probes[-1].last
    for probe in reversed(probes):
        if end is None or probe.last is None or abs(math.log(probe.last / end)) > width:
            break
        found.append(probe.epoch)
    return found[-1] if len(found) > 1 else None
