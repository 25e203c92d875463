"""The conjectures of Ben-Shaul & Dekel over a training: does the nearest class center come to agree with the network?

Λ is the share of samples whose nearest class mean (of the training samples) is not the network's decision. From the
interpolation threshold (IT) on a training is in its terminal phase. Conjecture 7: there Λ falls with depth; 8: at each
layer it falls from IT to the end; 11: SVSL lowers it at every layer; 12: SVSL improves the test accuracy at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from statistics import NormalDist, fmean, stdev
from typing import Any

from layerlaw.errors import SHARE, InputError, demand, visible
from layerlaw.law import CHANCE, t_quantile
from layerlaw.record import Record
from layerlaw.wording import counted, joined, minus, percent, points

INTERPOLATED = 0.995  # train accuracy of the interpolation threshold, for images; the authors have .985 for language
STATEMENTS = {
    7: "in the terminal phase the mismatch falls with depth",
    8: "at each layer the mismatch falls from the interpolation threshold to the end",
    11: "in the terminal phase SVSL lowers the mismatch at every layer",
    12: "SVSL improves the test accuracy at the end",
}
Along = tuple[float | None, ...]  # one number per site


@dataclass(frozen=True)
class TrainingCourse:
    """A training at its measured epochs: mismatch of every site and accuracy by split, and how many samples there were."""

    epochs: tuple[int, ...]
    sites: tuple[str, ...]
    mismatch: Mapping[str, tuple[Along, ...]]  # by split; per epoch
    accuracy: Mapping[str, tuple[float | None, ...]]
    samples: Mapping[str, int]
    threshold: float = INTERPOLATED

    def __post_init__(self) -> None:
        demand(InputError, "course", threshold=(self.threshold, SHARE))
        if list(self.epochs) != sorted(set(self.epochs)):
            raise InputError(f"course: expected rising epochs, each once, got {self.epochs}.")
        for split, rows in self.mismatch.items():
            if len(rows) != len(self.epochs) or any(len(row) != len(self.sites) for row in rows):
                expected = f"{len(self.sites)} numbers at each of {len(self.epochs)} epochs"
                raise InputError(f"course: expected the {split} mismatch as {expected}, got {[len(r) for r in rows]}.")
            wrong = [v for row in rows for v in row if v is not None and not 0 <= v <= 1]
            if wrong or self.samples.get(split, 0) < 1:
                came = f"{wrong[0]}" if wrong else f"{self.samples.get(split)} samples"
                raise InputError(f"course: expected shares from 0 to 1 of {split} samples, got {came}.")

    @property
    def interpolation(self) -> int | None:
        """IT: the first measured epoch at which the train accuracy reaches the threshold; `None`: it never does."""
        pairs = zip(self.epochs, self.accuracy["train"], strict=True)
        return next((epoch for epoch, right in pairs if right is not None and right >= self.threshold), None)

    @property
    def terminal(self) -> tuple[int, ...]:
        """The measured epochs of the terminal phase: those after IT."""
        start = self.interpolation
        return () if start is None else tuple(epoch for epoch in self.epochs if epoch > start)

    def at(self, split: str, epoch: int) -> Along:
        """The mismatch along depth after an epoch."""
        return self.mismatch[split][self.epochs.index(epoch)]


History = Mapping[int, Record] | Sequence[Record] | Any
"""Epochs → records of `probe`; a `Monitor`, or records with their epoch as settings["step"], as it has them; or a `lab.Run`
whose schedule had collapse=True, or its measurements."""

Course = TrainingCourse | History


def training_course(history: History, *, threshold: float = INTERPOLATED, batchnorm: str = "running") -> TrainingCourse:
    """The course of a training from what was measured on the way; `batchnorm` chooses among the measurements of a run.

    What enters the first layer is left out where training has not changed it: the raw input, or what frozen layers give.
    """
    if isinstance(history, Mapping):
        given: list[Any] = list(history)  # epochs of NumPy are whole numbers too
        if wrong := [epoch for epoch in given if type(epoch) is bool or not isinstance(epoch, Integral)]:
            raise InputError(f"course: expected records by their epochs, {{1: record, …}}, got the key {wrong[0]!r}.")
        return _of_records(dict(sorted(history.items())), threshold)
    measurements: Any = getattr(history, "measurements", getattr(history, "records", history))
    if not _is_history(measurements):
        expected = "{1: record, …}, a Monitor or its records, or a lab.Run or its measurements"
        came = f"{type(history).__name__}{' with none or others' * isinstance(measurements, (list, tuple))}"
        raise InputError(f"course: expected {expected}, got {came}.")
    if isinstance(measurements[0], Record):
        return _of_records(_by_step(measurements), threshold)
    found = [m for m in measurements if m.batchnorm == batchnorm and m.split in ("train", "test")]
    by_split = {s: sorted((m for m in found if m.split == s), key=lambda m: m.epoch) for s in ("train", "test")}
    by_split = {split: some for split, some in by_split.items() if some}
    if not by_split.get("train"):
        expected = f"measurements of training samples in BatchNorm mode {batchnorm!r}"
        raise InputError(f"course: expected {expected}, got none.")
    train = by_split["train"]
    # D and the share nearest to their own class mean depend on nothing but the features.
    begins = [(m.separation[0], m.nearest[0]) for m in train if m.sites]
    fixed = len(begins) > 1 and None not in begins[0] and _unmoved(begins)
    raw = int(len(train[0].sites) > 1 and (train[0].sites[0] == "input" or fixed))
    return TrainingCourse(
        tuple(m.epoch for m in train),
        train[0].sites[raw:],
        {split: tuple(m.mismatch[raw:] for m in some) for split, some in by_split.items()},
        {split: tuple(m.accuracy for m in some) for split, some in by_split.items()},
        {split: some[0].samples for split, some in by_split.items()},
        threshold,
    )


def _is_history(given: Any) -> bool:
    """Whether these are records, or measurements of a run, of one training."""
    some = list(given) if isinstance(given, (list, tuple)) else []
    measured = any(hasattr(one, "batchnorm") for one in some[:1])
    return bool(some) and all(hasattr(one, "batchnorm") if measured else isinstance(one, Record) for one in some)


def _by_step(records: Sequence[Record]) -> dict[int, Record]:
    found: dict[int, Record] = {}
    for record in records:
        step: Any = record.settings.get("step")
        if type(step) is bool or not isinstance(step, Integral) or step in found:
            came = f"{step} twice" if step in found else "none" if step is None else repr(step)
            expected = 'expected each record to have its own epoch as settings["step"]'
            raise InputError(f"course: {expected}, got {came}. Give {{1: record, …}} instead.")
        found[int(step)] = record
    return dict(sorted(found.items()))


def _unmoved(values: Sequence[tuple[float | None, ...]]) -> bool:
    """Whether numbers are the same at every epoch, but for the order in which samples were added up."""
    pairs = [(a, b) for row in values for a, b in zip(row, values[0], strict=True)]
    return all(a == b or (None not in (a, b) and math.isclose(a or 0, b or 0, rel_tol=1e-5)) for a, b in pairs)


def _of_records(records: Mapping[int, Record], threshold: float) -> TrainingCourse:
    if not records:
        raise InputError("course: expected records by their epochs, {1: record, …}, got none.")
    last = list(records.values())[-1]
    rows = [site for site in last.sites if not site.branch and "ncc_mismatch" in site.values]
    names = [site.name for site in rows]
    if len(rows) > 1 and (names[0] == "input" or rows[0].at == "input"):
        first = [site.values for record in records.values() for site in record.sites if site.name == names[0]]
        fixed = _unmoved([(values.get("separation"), values.get("ncc_accuracy")) for values in first])
        names = names[names[0] == "input" or fixed :]
    mismatch, accuracy, counts = {}, {}, {}
    for split, beginning in (("train", ""), ("test", "test_")):
        table = []
        for epoch, record in records.items():
            values = {site.name: site.values.get(f"{beginning}ncc_mismatch") for site in record.sites}
            if any(name not in values for name in names):
                raise InputError(f"course: expected the sites {', '.join(names)} in epoch {epoch}, got {list(values)}.")
            table.append(tuple(values[name] for name in names))
        if any(value is not None for row in table for value in row):
            mismatch[split] = tuple(table)
            accuracy[split] = tuple(getattr(record, f"{beginning}accuracy") for record in records.values())
            counts[split] = sum(getattr(last, f"{beginning}counts"))
    if "train" not in mismatch:
        raise InputError("course: expected records with ncc_mismatch, got none: was the network's decision looked at?")
    return TrainingCourse(tuple(records), tuple(names), mismatch, accuracy, counts, threshold)


@dataclass(frozen=True)
class CounterExample:
    """Where a conjecture fails: `size` is by how much the mismatch is too high (of 12: the accuracy too low)."""

    layer: str
    epoch: int
    split: str
    size: float
    standard_error: float

    def __str__(self) -> str:
        where = f"{self.layer}, epoch {self.epoch}, {self.split}" if self.layer else f"epoch {self.epoch}, {self.split}"
        return visible(f"{where}: {100 * self.size:.2f} ± {100 * self.standard_error:.2f} points")


@dataclass(frozen=True)
class ConjectureVerdict:
    """Whether a conjecture holds: `True`, `False` with counter-examples, or `None` where the noise leaves it open.

    `checked` comparisons were made, `rises` of them went the wrong way at all; counter-examples are those of them that are
    beyond the noise, largest first. `gain` (of 12) is the mean difference in accuracy, `interval` its 95 % interval.
    """

    number: int
    split: str
    holds: bool | None
    counter_examples: tuple[CounterExample, ...]
    checked: int
    rises: int
    why: str = ""
    gain: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        word = {True: "holds", False: "fails", None: "is open"}[self.holds]
        found = f"Conjecture {self.number} ({STATEMENTS[self.number]}) {word} on {self.split} samples"
        if self.counter_examples:
            many = counted(len(self.counter_examples), "counter-example")
            return f"{found}: {many} in {self.checked} comparisons, the largest {self.counter_examples[0]}."
        return f"{found}{': ' * bool(self.why)}{self.why}."


@dataclass(frozen=True)
class _Difference:
    """One comparison: mean over trainings of a difference, its standard error; where it stood, and whether it had room."""

    layer: str
    epoch: int
    size: float
    error: float
    stood: float = 0.0
    room: bool = True


def check_conjectures(
    courses: Course | Sequence[Course], others: Course | Sequence[Course] | None = None
) -> list[ConjectureVerdict]:
    """Conjectures 7 and 8 of some trainings (seeds of one recipe); with `others`, trained with SVSL in pairs, 11 and 12.

    A training is a course, or what `training_course` makes one of: {epoch: record}, a Monitor, or a run.
    A difference is beyond the noise at more than so many standard errors that one of all comparisons would pass by chance in
    5 % of cases. The error is that of shares of so many samples, or that over the trainings where it is larger; a single
    training shows nothing of the noise of training itself.
    """
    plain = several_courses(courses)
    found = [check(plain, split) for split in plain[0].mismatch for check in (_falls_with_depth, _falls_in_time)]
    if others is not None:
        svsl = several_courses(others)
        if len(svsl) != len(plain):
            raise InputError(f"conjectures: expected pairs of trainings, got {len(plain)} and {len(svsl)} of them.")
        _check_alike(plain[0], svsl[0], "pairs of trainings with equal epochs and sites")
        found += [_lowers(plain, svsl, split) for split in plain[0].mismatch]
        found += [_improves(plain, svsl)] if "test" in plain[0].accuracy else []
    return found


def several_courses(courses: Course | Sequence[Course], threshold: float = INTERPOLATED) -> Sequence[TrainingCourse]:
    """The courses of one training or of several, all with the same epochs and sites; `threshold`: of what is none yet."""
    one = isinstance(courses, (Mapping, Record)) or hasattr(courses, "measurements") or _is_history(courses)
    given: Any = [courses] if one or not isinstance(courses, Iterable) else courses
    some = [c if isinstance(c, TrainingCourse) else training_course(c, threshold=threshold) for c in given]
    if not some:
        raise InputError("conjectures: expected courses with the same epochs and sites, got none.")
    for course in some:
        _check_alike(some[0], course, "courses with the same epochs and sites")
    return some


def _check_alike(one: TrainingCourse, other: TrainingCourse, expected: str) -> None:
    """Raise with what differs."""
    for what, field in {"epochs": "epochs", "sites": "sites", "splits": "mismatch"}.items():
        a, b = tuple(getattr(one, field)), tuple(getattr(other, field))
        if a != b:
            came = " and ".join(", ".join(map(str, some)) or "none" for some in (a, b))
            raise InputError(visible(f"conjectures: expected {expected}, got the {what} {came}."))


def _terminal(courses: Sequence[TrainingCourse]) -> tuple[int, ...]:
    """Epochs that are terminal in all of them."""
    return tuple(epoch for epoch in courses[0].terminal if all(epoch in course.terminal for course in courses))


def _falls_with_depth(courses: Sequence[TrainingCourse], split: str) -> ConjectureVerdict:
    found = []
    for epoch in (terminal := _terminal(courses)):
        rows = [course.at(split, epoch) for course in courses]
        for i in range(1, len(courses[0].sites)):
            pairs = [(row[i], row[i - 1]) for row in rows]
            found += _differences(courses, split, courses[0].sites[i], epoch, pairs)
    ends = [(row[-1], row[0]) for row in (course.at(split, terminal[-1]) for course in courses)] if terminal else []
    whole = _differences(courses, split, "", 0, ends)
    return _judged(7, courses, split, found, bool(whole) and _falls(whole[0]), "it does not fall beyond the noise")


def _falls_in_time(courses: Sequence[TrainingCourse], split: str) -> ConjectureVerdict:
    found = []
    starts = [course.interpolation for course in courses]
    if all(start is not None and course.terminal for start, course in zip(starts, courses, strict=True)):
        end = courses[0].epochs[-1]
        for i, layer in enumerate(courses[0].sites):
            both = zip(courses, starts, strict=True)
            pairs = [(c.at(split, end)[i], c.at(split, start)[i]) for c, start in both if start is not None]
            found += _differences(courses, split, layer, end, pairs)
    return _judged(8, courses, split, found, *_everywhere(found, "at the threshold"))


def _lowers(plain: Sequence[TrainingCourse], svsl: Sequence[TrainingCourse], split: str) -> ConjectureVerdict:
    found, last = [], []
    for epoch in (terminal := _terminal([*plain, *svsl])):
        rows = [(b.at(split, epoch), a.at(split, epoch)) for a, b in zip(plain, svsl, strict=True)]
        for i, layer in enumerate(plain[0].sites):
            here = _differences(plain, split, layer, epoch, [(theirs[i], ours[i]) for theirs, ours in rows])
            found += here
            last += here if epoch == terminal[-1] else []
    return _judged(11, [*plain, *svsl], split, found, *_everywhere(last, "without SVSL", " at the end"))


def _improves(plain: Sequence[TrainingCourse], svsl: Sequence[TrainingCourse]) -> ConjectureVerdict:
    pairs = [(b.accuracy["test"][-1], a.accuracy["test"][-1]) for a, b in zip(plain, svsl, strict=True)]
    gains = [b - a for b, a in pairs if a is not None and b is not None]
    if len(gains) < 2:
        why = "one pair of trainings has no interval"
        only = gains[0] if gains else None
        return ConjectureVerdict(12, "test", None, (), len(gains), sum(g < 0 for g in gains), why, only)
    gain, error = fmean(gains), stdev(gains) / math.sqrt(len(gains))
    half = t_quantile(len(gains) - 1) * error
    low, high = gain - half, gain + half
    worse = (CounterExample("", plain[0].epochs[-1], "test", -gain, error),) if high < 0 else ()
    holds = True if low > 0 else False if worse else None
    ends = f"{minus(f'{100 * low:.2f}')} to {minus(f'{100 * high:.2f}')} points"
    why = f"a gain of {points(gain, 2)}, 95 % interval {ends}{', is inside the noise' * (holds is None)}"
    return ConjectureVerdict(12, "test", holds, worse, len(gains), sum(g < 0 for g in gains), why, gain, (low, high))


def _differences(
    courses: Sequence[TrainingCourse], split: str, layer: str, epoch: int, pairs: Sequence[Along]
) -> list[_Difference]:
    """One comparison over the trainings, later minus earlier; none where a number is missing."""
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known or len(known) < len(pairs):
        return []
    n, m = courses[0].samples[split], len(known)
    sizes = [a - b for a, b in known]
    over_runs = stdev(sizes) / math.sqrt(m) if m > 1 else 0.0
    stood = fmean(b for _, b in known)
    to_zero = _Difference(layer, epoch, -stood, _noise([(0.0, b) for _, b in known], n))  # the largest fall there is
    return [_Difference(layer, epoch, fmean(sizes), max(_noise(known, n), over_runs), stood, _falls(to_zero))]


def _noise(pairs: Sequence[tuple[float, float]], n: int) -> float:
    """The standard error of a mean difference of shares of n samples, not 0 where no sample differs."""
    # Both shares are of the same samples, and mostly the same ones differ: as of independent ones is an upper bound.
    spread = [max(a * (1 - a) + b * (1 - b), (1 - 1 / n) / n) for a, b in pairs]
    return math.sqrt(fmean(spread) / n / len(pairs))


def _judged(
    number: int,
    courses: Sequence[TrainingCourse],
    split: str,
    found: Sequence[_Difference],
    confirmed: bool,
    open_words: str,
    exempt: str = "",
) -> ConjectureVerdict:
    """The verdict: counter-examples beyond the noise, else whether it is `confirmed` by differences that fall beyond it."""
    if not found:
        return ConjectureVerdict(number, split, None, (), 0, 0, _nothing_to_compare(courses))
    limit = NormalDist().inv_cdf(1 - CHANCE / len(found))
    wrong = sorted((d for d in found if d.size > limit * d.error), key=lambda d: -d.size)
    examples = tuple(CounterExample(d.layer, d.epoch, split, d.size, d.error) for d in wrong)
    rises = sum(d.size > 0 for d in found)
    holds = False if examples else True if confirmed else None
    go, noise = ("go" if rises > 1 else "goes"), ", inside the noise" * bool(rises)
    inside = f"{rises or 'none'} of {counted(len(found), 'comparison')} {go} the wrong way{noise}{exempt}"
    return ConjectureVerdict(number, split, holds, examples, len(found), rises, inside if holds else open_words)


def _nothing_to_compare(courses: Sequence[TrainingCourse]) -> str:
    """Why there is no comparison: the training did not come so far, or numbers are missing."""
    course = next((course for course in courses if not course.terminal), None)
    if course is None:
        return "there are not two mismatches to compare"
    reached = max((right for right in course.accuracy["train"] if right is not None), default=None)
    at, change = percent(course.threshold, 2), "threshold=… changes it"
    came = "train accuracy is not known" if reached is None else f"train accuracy reached {percent(reached, 2)}"
    if course.interpolation is not None:
        came += f", first at epoch {course.interpolation}, the last one measured"
    return f"no epoch of the terminal phase was measured: {came}; the threshold is {at} ({change})"


def _falls(difference: _Difference) -> bool:
    """Whether it falls beyond the noise."""
    return -difference.size > NormalDist().inv_cdf(1 - CHANCE) * difference.error


def _everywhere(found: Sequence[_Difference], when: str, end: str = "") -> tuple[bool, str, str]:
    """Whether it falls beyond the noise at every layer that has room to, and at one at least; if not, why; who had none."""
    still = [d.layer for d in found if d.room and not _falls(d)]
    words = f"it does not fall at every layer beyond the noise{end}"
    words += f" (not at {', '.join(still)})" if still else ""
    full = [d for d in found if not d.room]
    if not full:
        return bool(found) and not still, words, ""
    every, most = len(full) == len(found), max(d.stood for d in full)
    at = f"{percent(most, 2)}{' or less' * (len(full) > 1 and most > 0)} {when}"
    which = "every layer" if every else joined([d.layer for d in full])
    exempt = f"{which} stood at {at} and had no room to fall beyond the noise"
    return not (still or every), exempt if every else f"{words}; {exempt}", f"; {exempt}"
