"""Candidates compared: the lowest final D, the one-standard-error rule, and what speaks against it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from layerlaw.advice.caveats import caveats, failures
from layerlaw.advice.choice_sheet import choice_sheet
from layerlaw.advice.paired import standard_error
from layerlaw.advice.rule import Guess, Rival, by_rate, compared, decide, middle, more_accurate, objection, relative
from layerlaw.advice.trial import Candidate
from layerlaw.files import json_safe, write_json
from layerlaw.sheet import Sheet
from layerlaw.wording import number, percent

Kind = Literal["depth", "width", "shape"]
FORMAT, VERSION = "layerlaw choice", 1


@dataclass(frozen=True)
class Choice:
    """Which candidate to take, and everything it was decided by.

    `best` has the lowest mean log D after the last hidden layer (over its noise floor where last widths differ);
    `recommended` is the one with the fewest parameters that is no more than one standard error of the paired difference
    behind it, or `None` where nothing was learned or D does not fall. `by_accuracy` is the candidate of best validation
    accuracy where it is ahead of the recommended one by more than one standard error. `headline` says all this first,
    `caveats` what else speaks against it. `test_accuracies` are those of the recommended candidate, one per seed.
    """

    kind: Kind
    candidates: tuple[Candidate, ...]
    best: Candidate
    recommended: Candidate | None
    headline: str
    caveats: tuple[str, ...]
    by_accuracy: Candidate | None = None
    test_accuracies: tuple[float, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: Kind,
        candidates: Sequence[Candidate],
        *,
        validation: int = 0,
        guess: Guess | None = None,
        **known: Any,
    ) -> Choice:
        """Decide among candidates; `validation` is the number of samples behind every validation accuracy.

        `guess` says what guessing reaches: without it, whether anything was learned is not asked.
        """
        best, chosen = decide(candidates)
        against = objection(candidates, chosen, guess)
        if against is not None:
            said = tuple(failures(candidates))
            return cls(kind, tuple(candidates), best, None, f"No recommendation: {against}.", said, **known)
        rival = more_accurate(candidates, chosen, validation)
        headline = _headline(best, chosen, rival, over_floor=relative(candidates))
        said = tuple(caveats(kind, candidates, best, chosen, rival, validation))
        top = None if rival is None else rival.candidate
        return cls(kind, tuple(candidates), best, chosen, headline, said, top, **known)

    @property
    def over_floor(self) -> bool:
        """Whether candidates are compared by D over its noise floor (D with shuffled labels), not by D itself."""
        return relative(self.candidates)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The recommendation, then the caveats, then the accuracy on test data."""
        return (self.headline, *self.caveats, self.last_sentence)

    @property
    def test_accuracy(self) -> float | None:
        """Mean accuracy of the recommended candidate on test data, which nothing was chosen by."""
        return fmean(self.test_accuracies) if self.test_accuracies else None

    @property
    def last_sentence(self) -> str:
        """The last number, in words, or what its absence means."""
        if self.recommended is None:
            return "Nothing was tried on test data: train longer, try other learning rates, or look at the data first."
        if not self.test_accuracies:
            return "Without test data: the validation part also chose the learning rates, so its accuracies flatter."
        score = with_error(self.test_accuracy, standard_error(self.test_accuracies))
        return f"On the test data, which nothing was chosen by, {self.recommended.label} is right in {score}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "recommended": None if self.recommended is None else self.recommended.label,
            "recommended_by_accuracy": None if self.by_accuracy is None else self.by_accuracy.label,
            "best": self.best.label,
            "compared_by": "separation_over_permuted" if self.over_floor else "separation",
            "recommended_by_rate": {f"{rate:g}": c.label for rate, c in by_rate(self.candidates).items()},
            "sentences": self.sentences,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "test_accuracy": self.test_accuracy,
            "test_accuracy_error": standard_error(self.test_accuracies),
            "provenance": self.provenance,
        }
        return {key: json_safe(value) for key, value in plain.items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """The figure as plain data: final D with its range over seeds, accuracy below. `pages.draw_sheet` draws it."""
        return choice_sheet(self)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in self.sentences[1:])])


def with_error(share: float | None, error: float | None) -> str:
    """A share with its standard error: 81.2 ± 0.4%."""
    return percent(share) if error is None else f"{percent(share)[:-1]} ± {100 * error:.1f}%"


def _headline(best: Candidate, chosen: Candidate, rival: Rival | None, *, over_floor: bool) -> str:
    trial = chosen.trial
    values = compared(trial, over_floor)
    what = "D over its noise floor (the last widths differ)" if over_floor else "final D"
    spread = f" [{number(min(values))}, {number(max(values))}] over {len(values)} seeds" if len(values) > 1 else ""
    value = f"{number(middle(trial, over_floor))}{spread}"
    if chosen is best:
        why = f"has the lowest {what}, {value}"
    else:
        lowest = f"{number(middle(best.trial, over_floor))} at {best.label}"
        why = f"is the smallest whose {what}, {value}, is within one standard error of the lowest ({lowest})"
    accuracy = with_error(trial.accuracy, trial.accuracy_error)
    if rival is None:
        return f"Take {chosen.label}: it {why}; validation accuracy {accuracy}, learning rate {trial.rate:g}."
    against = f"{percent(rival.candidate.trial.accuracy)[:-1]} against {percent(trial.accuracy)}"
    by = "D over its noise floor" if over_floor else "D"
    return (
        f"By {by} take {chosen.label}; by validation accuracy take {rival.candidate.label} ({against}). "
        f"{chosen.label[0].upper()}{chosen.label[1:]} {why}; learning rate {trial.rate:g}."
    )
