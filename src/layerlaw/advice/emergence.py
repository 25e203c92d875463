"""When did the law appear: after interpolation? before the last layer converged? And a rule to stop by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from layerlaw.advice.history import Fitted, History, Moment, fitted, moments
from layerlaw.errors import InputError
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import LITTLE, LawFit

FEWEST = 5  # points: four make no law


def law_holds(fit: LawFit | None, *, r: float = -0.99, p: float = 0.05) -> bool:
    """Whether log D falls on a line (Pearson ≤ r), more evenly than chance (Greenwood < p), without a rise, over ≥ 5 points.

    With the default r and p this is the verdict "The law holds" of `LawFit`.

    >>> from layerlaw.law import fit_law
    >>> law_holds(fit_law([32, 16, 8, 4, 2, 1])), law_holds(fit_law([32, 31, 30, 4, 2, 1]))
    (True, False)
    """
    _check_rule(r, p)
    return (
        fit is not None
        and fit.points >= FEWEST
        and not fit.rising
        and fit.values[-1] <= LITTLE * fit.values[0]
        and fit.pearson is not None
        and fit.pearson <= r
        and fit.greenwood_p is not None
        and fit.greenwood_p < p
    )


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

    @property
    def sentence(self) -> str:
        """The order in which they came."""
        return " ".join([self._law(), self._interpolation(), self._convergence()])

    def _law(self) -> str:
        if self.epoch is None:
            best = min((probe.pearson for probe in self.probes if probe.pearson is not None), default=None)
            seen = sum(probe.holds for probe in self.probes)
            most = "" if best is None else f", r at best {best:.3f}".replace("-", "−")
            return f"The law never held at {self.patience} probes in a row (at {seen} of {len(self.probes)}{most})."
        lasting = "at every probe from then on" if self.lasting else "but not at every later probe"
        return f"The law held from epoch {self.epoch} (confirmed at epoch {self.confirmed}), {lasting}."

    def _interpolation(self) -> str:
        if all(probe.accuracy is None for probe in self.probes):
            return "Whether the training data were fitted is not known."
        if self.interpolation is None:
            return "The training data were not fitted by the last probe."
        return f"The training data were fitted {self._against(self.interpolation)}."

    def _convergence(self) -> str:
        if self.convergence is None:
            return "D of the last layer was still moving at the end."
        return f"D of the last layer settled {self._against(self.convergence)}."

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
    r: float = -0.99,
    p: float = 0.05,
    batchnorm: BatchNormMode = "batch",
    accuracies: Mapping[int, float] | None = None,
    interpolated: float = 0.999,
    within: float = 0.05,
) -> Emergence:
    """When the law appeared in a training, beside interpolation and the convergence of the last layer.

    `history` is a `lab.Run` that was measured at several epochs, its readings, or a mapping from epochs to fits, records or
    D along depth (then `accuracies` tells the training accuracy by epoch). The law holds as `law_holds` says. D of the
    last layer has settled when |log D − log D_end| ≤ log(1 + within) from there on, at two probes or more. All epochs are
    those of probes: what happens between two of them is seen at the second.

    >>> straight, bent = [32.0, 16, 8, 4, 2, 1], [32.0, 30, 28, 4, 2, 1]
    >>> found = emergence({0: bent, 10: straight, 20: straight}, patience=2, accuracies={0: 0.5, 10: 0.9, 20: 1.0})
    >>> found.epoch, found.confirmed, found.interpolation, found.convergence
    (10, 20, 20, 0)
    """
    rule = UntilLaw(patience, r=r, p=p)
    seen = moments(history, batchnorm=batchnorm, accuracies=accuracies, least=1)
    for moment in seen:
        rule._see(moment)
    probes = tuple(_probe(moment, law_holds(moment.fit, r=r, p=p)) for moment in seen)
    fits = (probe.epoch for probe in probes if probe.accuracy is not None and probe.accuracy >= interpolated)
    lasting = rule.since is not None and all(probe.holds for probe in probes if probe.epoch >= rule.since)
    return Emergence(
        rule.since, rule.stopped, lasting, next(fits, None), _settled(probes, math.log1p(within)), patience, probes
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

    def __init__(self, patience: int = 3, every: int = 1, *, r: float = -0.99, p: float = 0.05) -> None:
        for name, value in (("patience", patience), ("every", every)):
            if value < 1:
                raise InputError(f"{name}: expected at least 1, got {value}.")
        _check_rule(r, p)
        self.patience, self.every, self.r, self.p = patience, every, r, p
        self.since: int | None = None
        """The epoch from which the law has held, once that is sure."""
        self.stopped: int | None = None
        """The epoch at which it became sure."""
        self._row: list[int] = []
        self._last: int | None = None

    def __repr__(self) -> str:
        rule = f"UntilLaw(patience={self.patience}, every={self.every}, r={self.r:g}, p={self.p:g})"
        if self.stopped is not None:
            return f"{rule}: the law has held since epoch {self.since}, known at epoch {self.stopped}"
        if self._last is None:
            return f"{rule}: no probe yet"
        return f"{rule}: held at the last {len(self._row)} of {self.patience} probes needed, up to epoch {self._last}"

    def due(self, epoch: int) -> bool:
        """Whether a probe is wanted after this epoch."""
        return epoch % self.every == 0

    def update(self, epoch: int, law: Fitted) -> bool:
        """Tell what a probe found (a `LawFit`, a `Record`, or D along depth); returns whether to stop now."""
        return self._see(Moment(epoch, _enough(fitted(law))))

    def _see(self, moment: Moment) -> bool:
        if self._last is not None and moment.epoch <= self._last:
            raise InputError(f"epoch: expected one after {self._last}, got {moment.epoch}.")
        self._last = moment.epoch
        self._row = [*self._row, moment.epoch] if law_holds(moment.fit, r=self.r, p=self.p) else []
        if self.stopped is None and len(self._row) >= self.patience:
            self.since, self.stopped = self._row[0], moment.epoch
        return self.stopped is not None


def _check_rule(r: float, p: float) -> None:
    if not -1 <= r < 0:
        raise InputError(f"r: expected a correlation from −1 to below 0 (log D falls along depth), got {r:g}.")
    if not 0 < p <= 1:
        raise InputError(f"p: expected a probability above 0 and up to 1, got {p:g}.")


def _enough(fit: LawFit | None) -> LawFit | None:
    if fit is not None and fit.points < FEWEST:
        raise InputError(
            f"until the law: expected D at {FEWEST} places along depth or more, got {fit.points}: so few make no law, and "
            "the training would never stop."
        )
    return fit


def _probe(moment: Moment, holds: bool) -> Probe:
    fit = moment.fit
    if fit is None:
        return Probe(moment.epoch, holds, None, None, None, None, moment.accuracy)
    return Probe(moment.epoch, holds, fit.pearson, fit.greenwood_p, fit.rho, fit.values[-1], moment.accuracy)


def _settled(probes: tuple[Probe, ...], width: float) -> int | None:
    """The first epoch from which log D of the last layer stays this near its end; `None` if only the end itself does."""
    found: list[int] = []
    end = probes[-1].last
    for probe in reversed(probes):
        if end is None or probe.last is None or abs(math.log(probe.last / end)) > width:
            break
        found.append(probe.epoch)
    return found[-1] if len(found) > 1 else None
