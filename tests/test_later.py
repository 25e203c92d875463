"""Values that are worked out when they are first looked at."""

import copy
import gc
import pickle
from dataclasses import asdict, dataclass, field, replace

import pytest

from layerlaw import later
from layerlaw.later import Later, looked_at


@looked_at(points=list)
@dataclass
class Row:
    """A row with a picture."""

    name: str
    points: list[int] = field(default_factory=list)


class Made:
    """Counts how often it was made."""

    def __init__(self, value: object) -> None:
        self.value, self.times = value, 0

    def __call__(self) -> object:
        self.times += 1
        return self.value


def test_a_value_is_made_once_and_only_when_somebody_looks() -> None:
    made = Made([1, 2])
    row = Row("a", Later(made))  # type: ignore[arg-type]
    assert made.times == 0
    assert row.points == [1, 2]
    assert row.points is row.points
    assert made.times == 1


def test_whatever_reads_a_row_finds_the_value() -> None:
    def row() -> Row:
        return Row("a", Later(lambda: [1, 2]))  # type: ignore[arg-type]

    plain = Row("a", [1, 2])
    assert row() == plain
    assert asdict(row()) == asdict(plain)
    assert repr(row()) == repr(plain)
    assert replace(row(), name="b").points == [1, 2]
    for twin in (copy.copy(row()), copy.deepcopy(row()), pickle.loads(pickle.dumps(row()))):
        assert twin == plain


def test_a_copy_holds_the_value_itself() -> None:
    made = Made([1, 2])
    twin = copy.deepcopy(Row("a", Later(made)))  # type: ignore[arg-type]
    assert vars(twin)["points"] == [1, 2]
    assert made.times == 1


def test_a_plain_value_is_taken_as_the_class_says() -> None:
    row = Row("a", (1, 2))  # type: ignore[arg-type]
    assert row.points == [1, 2]
    row.points = (3,)  # type: ignore[assignment]
    assert row.points == [3]
    assert Row("a").points == []


def test_a_failure_is_told_to_whoever_looks_and_again_to_the_next() -> None:
    row = Row("a", Later(lambda: 1 // 0))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            row.points  # noqa: B018


def test_of_values_that_hold_too_much_the_oldest_are_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "MOST_HELD", 1000)
    monkeypatch.setattr(later, "_waiting", type(later._waiting)())
    monkeypatch.setattr(later, "_held", 0)
    made = [Made(i) for i in range(5)]
    kept = [Later(one, held=300) for one in made]
    assert [one.times for one in made] == [1, 1, 1, 0, 0]
    assert sum(one.held for one in kept) <= 1000
    assert [one.value() for one in kept] == [0, 1, 2, 3, 4]
    assert [one.times for one in made] == [1] * 5


def test_values_that_nobody_has_any_more_are_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "MOST_HELD", 1000)
    monkeypatch.setattr(later, "_waiting", type(later._waiting)())
    monkeypatch.setattr(later, "_held", 0)
    made = [Made(i) for i in range(20)]
    for one in made:
        Later(one, held=300)
        gc.collect()
    assert not any(one.times for one in made)


def test_what_a_value_was_made_from_is_let_go_of() -> None:
    source = Made([1])
    found = Later(source, held=10)
    found.value()
    assert found.held == 0
    assert source not in gc.get_referents(*gc.get_referents(found))
