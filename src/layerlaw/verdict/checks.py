"""Demands on a record that a test of a model may make, for continuous integration: each is met or not, in one line.

And whether records were measured on the same data, by the fingerprints that they keep, and in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from layerlaw.errors import InputError
from layerlaw.law.words import law_numbers
from layerlaw.measures.columns import describe
from layerlaw.record import Record
from layerlaw.verdict import law_holds
from layerlaw.wording import percent

WORSE = 0.1  # by how much the final D may lie above that of a baseline
WORSE_ACCURACY = 0.01
FINGERPRINTS = {  # and beside them what is the same in every order of the samples
    "data_sha256": "",  # of language models and of older records
    "data_fingerprint": "data_samples",
    "test_fingerprint": "test_samples",
}
DECISIVE = ("reduce", "batchnorm")  # settings of a probe by which the features of the same site differ


@dataclass(frozen=True)
class Check:
    """One demand: what was asked, whether it is met, and the numbers that say so."""

    name: str
    passed: bool
    words: str

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'FAIL'}  {self.name}: {self.words}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def checked(
    record: Record,
    *,
    holds: Sequence[str] = (),
    max_final: float | None = None,
    min_accuracy: float | None = None,
    against: Record | None = None,
    worse: float = WORSE,
) -> list[Check]:
    """The demands, each answered.

    holds         columns of which the law must hold
    max_final     the most that D (D_reg, PR) of the last point of the law may be
    min_accuracy  the least accuracy, on test data where there are some
    against       an earlier record of the same sites: the law must hold where it held there, the final D be at most `worse`
                  (a share) above that one, accuracy at most one point below
    """
    for name, value in (("max_final_d", max_final), ("min_accuracy", min_accuracy), ("worse", worse)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name}: expected a number of at least 0, got {value}.")
    if min_accuracy is not None and min_accuracy > 1:
        raise InputError(f"min_accuracy: expected a share from 0 to 1 (0.95 is 95 %), got {min_accuracy:g}.")
    if not holds and max_final is None and min_accuracy is None and against is None:
        raise InputError(
            "check: expected at least one demand, got none: --holds, --max-final-d, --min-accuracy, --against."
        )
    found = [_holds(record, column) for column in holds]
    if max_final is not None:
        symbol, final = describe(record.leading).symbol, _final(record)
        found.append(Check(f"final {symbol}", final <= max_final, f"{final:.4g}, at most {max_final:g} was demanded"))
    if min_accuracy is not None:
        which, accuracy = _accuracy(record)
        if accuracy is None:
            raise InputError(f"min_accuracy: expected a record with an accuracy, '{record.name}' has none.")
        words = f"{percent(accuracy)}, at least {percent(min_accuracy)} was demanded"
        found.append(Check(which, accuracy >= min_accuracy, words))
    return found + (_against(record, against, worse) if against is not None else [])


def _holds(record: Record, column: str) -> Check:
    record.column(column)  # an unknown one is answered with those there are
    if not describe(column).law:
        raise InputError(f"holds: expected a column that carries a law, got '{column}'.")
    name = f"the law of {column} holds"
    try:
        fit = record.law(column)
    except InputError as error:
        return Check(name, False, str(error))
    said = law_holds(record, fit, record.law_errors(column))
    numbers = ", ".join([f"ρ = {fit.rho:.3f}", *law_numbers(fit)])
    against = ["too few points or samples to say"] if said is None else [] if said else fit.objections
    return Check(name, said is True, "; ".join([numbers, *against]))


def _final(record: Record) -> float:
    points = record.points()
    value = points[-1].values.get(record.leading) if points else None
    if value is None:
        raise InputError(f"record '{record.name}': expected {record.leading} at the last point of the law, got none.")
    return value


def _accuracies(record: Record) -> tuple[tuple[str, float | None], tuple[str, float | None]]:
    return ("test accuracy", record.test_accuracy), ("accuracy", record.accuracy)


def _accuracy(record: Record) -> tuple[str, float | None]:
    test, train = _accuracies(record)
    return train if test[1] is None else test


def _against(record: Record, base: Record, worse: float) -> list[Check]:
    sites = [[site.name for site in one.points()] for one in (record, base)]
    if record.kind != base.kind or sites[0] != sites[1] or record.leading != base.leading:
        came = f"{len(sites[0])} points of a {record.kind.name} against {len(sites[1])} of a {base.kind.name}"
        expected = "expected a record of the same kind, measured at the same sites"
        raise InputError(f"against: {expected}, got {came}. Measure both with the same --sites.")
    symbol, column = describe(record.leading).symbol, record.leading
    now, before = _final(record), _final(base)
    most = before * (1 + worse)
    words = f"{now:.4g} after {before:.4g}, at most {percent(worse)} above was demanded"
    found = [Check(f"final {symbol} against '{base.name}'", now <= most, words)]
    if _holds(base, column).passed:
        held = _holds(record, column)
        found.append(Check(f"the law still holds, as in '{base.name}'", held.passed, held.words))
    for (which, accuracy), (_, known) in zip(_accuracies(record), _accuracies(base), strict=True):
        if accuracy is not None and known is not None:  # on test data where both have some
            words = f"{percent(accuracy)} after {percent(known)}, at most one point below was demanded"
            passed = accuracy >= known - WORSE_ACCURACY - 1e-12
            found.append(Check(f"{which} against '{base.name}'", passed, words))
            break
    return found


def other_data(records: Sequence[Record]) -> str:
    """What is to be said of the data of several records, as "were measured on different data"; "" where all are the same.

    Records without a fingerprint say nothing. The same samples in another order, or dealt to other numbers of processes, are
    the same data; records from before that was written down are compared by their order alone.

    >>> a, b = (Record(name=name, sites=[], classes=[], provenance={"data_fingerprint": name}) for name in "ab")
    >>> other_data([a, b]), other_data([a, a])
    ('were measured on different data', '')
    """
    if not any(_differ(records, *kind) for kind in FINGERPRINTS.items()):
        return ""
    texts = {(record.provenance.get("text") or {}).get("sha256") for record in records}
    if len(texts) == 1 and None not in texts:
        return "are of one text, cut into other tokens or pieces"
    known = all(record.provenance.get("data_samples") is not None for record in records)
    mixed = not known and any("shuffled" in str(record.settings.get("order")) for record in records)
    return "may be of the same data: one was shuffled by its loader" if mixed else "were measured on different data"


def _differ(records: Sequence[Record], ordered: str, any_order: str) -> bool:
    """Whether fingerprints of one kind are of different samples."""
    known = [record for record in records if record.provenance.get(ordered) is not None]
    samples = {record.provenance.get(any_order) for record in known}
    return len({record.provenance[ordered] for record in known}) > 1 and (None in samples or len(samples) > 1)


def check_settings(records: Mapping[str, Record]) -> None:
    """Raise where the settings say that other features were measured; a record that does not tell one is left out of it."""
    for setting in DECISIVE:
        told = {name: found for name, one in records.items() if (found := one.settings.get(setting)) is not None}
        for name, value in told.items():
            first, expected = next(iter(told.items()))
            if value != expected:
                came = f"{expected!r} ({first!r}) and {value!r} ({name!r})"
                cure = f"Probe both with the same {setting}=… (layerlaw probe --{setting} …)"
                raise InputError(f"records: expected the same {setting} in all, got {came}. {cure}.")
