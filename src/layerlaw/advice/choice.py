"""Candidates compared: the lowest final D, the one-standard-error rule, and what speaks against it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from layerlaw.advice.caveats import caveats
from layerlaw.advice.choice_sheet import choice_sheet
from layerlaw.advice.paired import standard_error
from layerlaw.advice.rule import by_rate, decide
from layerlaw.advice.trial import Candidate
from layerlaw.pages.numbers import number, percent
from layerlaw.pages.outcome import Sheet
from layerlaw.record import _finite, write_whole

Kind = Literal["depth", "width", "shape"]
FORMAT, VERSION = "layerlaw choice", 1


@dataclass(frozen=True)
class Choice:
    """Which candidate to take, and everything it was decided by.

    `best` has the lowest mean log D after the last hidden layer; `recommended` is the one with the fewest parameters
    that is no more than one standard error of the paired difference behind it. `headline` says so in one sentence,
    `caveats` what speaks against it. `test_accuracies` are those of the recommended candidate, one per seed.
    """

    kind: Kind
    candidates: tuple[Candidate, ...]
    best: Candidate
    recommended: Candidate
    headline: str
    caveats: tuple[str, ...]
    test_accuracies: tuple[float, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: Kind, candidates: Sequence[Candidate], *, validation: int = 0, **known: Any) -> Choice:
        """Decide among candidates; `validation` is the number of samples behind every validation accuracy."""
        best, recommended = decide(candidates)
        said = caveats(kind, candidates, best, recommended, validation)
        return cls(kind, tuple(candidates), best, recommended, _headline(best, recommended), tuple(said), **known)

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
            "recommended": self.recommended.label,
            "best": self.best.label,
            "recommended_by_rate": {f"{rate:g}": c.label for rate, c in by_rate(self.candidates).items()},
            "sentences": self.sentences,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "test_accuracy": self.test_accuracy,
            "test_accuracy_error": standard_error(self.test_accuracies),
            "provenance": self.provenance,
        }
        return {key: _finite(value) for key, value in plain.items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_whole(path, json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False))

    def sheet(self) -> Sheet:
        """The figure as plain data: final D with its range over seeds, accuracy below. `pages.draw_sheet` draws it."""
        return choice_sheet(self)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in self.sentences[1:])])


def with_error(share: float | None, error: float | None) -> str:
    """A share with its standard error: 81.2 ± 0.4%."""
    return percent(share) if error is None else f"{percent(share)[:-1]} ± {100 * error:.1f}%"


def _headline(best: Candidate, recommended: Candidate) -> str:
    trial = recommended.trial
    seeds = len(trial.finals)
    D = number(trial.separation)
    spread = f" [{number(min(trial.finals))}, {number(max(trial.finals))}] over {seeds} seeds" if seeds > 1 else ""
    if recommended is best:
        why = f"it has the lowest final D, {D}{spread}"
    else:
        why = (
            f"its final D of {D}{spread} is within one standard error of the lowest ({number(best.trial.separation)} at "
            f"{best.label}), and it is smaller"
        )
    accuracy = with_error(trial.accuracy, trial.accuracy_error)
    return f"Take {recommended.label}: {why}; validation accuracy {accuracy}, learning rate {trial.rate:g}."
