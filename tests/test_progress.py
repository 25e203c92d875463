"""What may be given as progress, and what is refused before anything runs."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch import nn

from layerlaw.errors import InputError
from layerlaw.progress import Counter, bar, choose, silent


def told(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
    yield from items


class Recorder:
    """A progress with a state of its own."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int | None]] = []

    def __call__(self, items: Iterable[Any], label: str, total: int | None) -> Iterator[Any]:
        self.seen.append((label, total))
        yield from items


def test_words_become_functions_and_functions_stay() -> None:
    assert choose(True) is bar
    assert choose(False) is silent
    assert choose(bar) is bar
    assert list(choose(told)([1, 2], "pass", 2)) == [1, 2]
    recorder = Recorder()
    assert list(choose(recorder)([1, 2], "pass", 2)) == [1, 2]
    assert recorder.seen == [("pass", 2)]


def test_a_class_that_takes_items_is_a_progress() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    assert list(choose(tqdm)([1, 2], "pass", 2)) == [1, 2]


@pytest.mark.parametrize("other", [nn.Linear(2, 2), nn.Linear, int, list, len, lambda items: items, "x", 3])
def test_what_is_no_progress_is_refused_before_it_is_called(other: Any) -> None:
    with pytest.raises(InputError, match=r"progress: expected True, False or a function \(items, label, total\), got"):
        choose(other)
    with pytest.raises(InputError, match="progress: expected"):
        Counter(other, 3, "training")


@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_a_counter_ends_what_shows_it_also_after_fewer_or_more_steps_than_expected(steps: int) -> None:
    ended = []

    def ending(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        try:
            yield from items
        finally:
            ended.append(total)

    counter = Counter(ending, 3, "times")
    for _ in range(steps):
        counter.step()
    counter.close()
    assert ended == [3]


def test_a_function_that_gives_no_items_is_told() -> None:
    with pytest.raises(InputError, match="that gives the items, got None from it"):
        choose(lambda items, label, total: None)([1], "pass", 1)  # type: ignore[arg-type, return-value]
