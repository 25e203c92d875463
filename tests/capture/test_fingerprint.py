"""The fingerprint of data: what it sees, and what it does not depend on."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from layerlaw.capture import fingerprint as module
from layerlaw.capture.fingerprint import Fingerprint

X = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
TWO_64 = 2**64


def of(*batches: Sequence[Tensor]) -> str:
    found = Fingerprint()
    for batch in batches:
        found.update(*batch)
    return found.text()


def by_hand(*streams: np.ndarray) -> str:
    """From the definition, in Python's whole numbers."""

    def scrambled(x: int) -> int:
        x = (x ^ (x >> 30)) * module.FIRST % TWO_64
        x = (x ^ (x >> 27)) * module.SECOND % TWO_64
        return x ^ (x >> 31)

    told = []
    for values in streams:
        rows = values.reshape(len(values), -1)
        words = rows.view({4: np.int32, 8: np.uint64}[values.dtype.itemsize])
        salt = hashlib.sha256(f"torch.{values.dtype} {rows.shape[1]}".encode()).digest()[:8]
        total = 0
        for i, row in enumerate(words.tolist()):
            number = int.from_bytes(salt, "little") * module.KINDS
            for j, word in enumerate(row):
                word = word ^ (word >> 32) if values.dtype.itemsize == 8 else word
                number += (scrambled((j + 1) * module.STEP % TWO_64) | 1) * word
            total += pow(module.ROW, i, TWO_64) * scrambled(number % TWO_64)
        told.append(f"{len(values)} {total % TWO_64}")
    return "sums64:" + hashlib.sha256("|".join(told).encode()).hexdigest()[:32]


def test_it_is_what_whole_numbers_of_any_size_give() -> None:
    x, y = X[:4, :, :2, :3].contiguous(), Y[:4]
    assert of((y, x)) == by_hand(y.numpy(), x.numpy())
    assert of((y, -x.double())) == by_hand(y.numpy(), -x.double().numpy())


def test_it_does_not_depend_on_the_batches() -> None:
    whole = of((Y, X))
    for size in (1, 2, 5, 7):
        assert of(*zip(Y.split(size), X.split(size), strict=True)) == whole


def test_it_does_not_depend_on_memory_layout_or_on_how_many_numbers_are_widened_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = of((Y, X))
    assert of((Y, X.contiguous(memory_format=torch.channels_last))) == whole
    assert of((Y, torch.cat([X, X], 1)[:, :3])) == whole
    monkeypatch.setattr(module, "AT_ONCE", 7)
    assert of((Y, X)) == whole


def test_samples_longer_than_the_weights_are_seen_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLUMNS", 50)
    module._weights.cache_clear()
    whole, changed = of((Y, X)), X.clone()
    changed[3, 2, 7, 7] += 1e-6
    swapped = X.flatten(1).clone()
    swapped[:, [3, 53]] = swapped[:, [53, 3]]  # of equal places in two pieces
    assert len({whole, of((Y, changed)), of((Y, swapped))}) == 3
    assert of(*zip(Y.split(5), X.split(5), strict=True)) == whole
    module._weights.cache_clear()


def pixel(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    x[5, 1, 2, 3] = torch.nextafter(x[5, 1, 2, 3], torch.tensor(9.0))
    return x, y


CHANGES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "one pixel by one bit": pixel,
    "the sign of a zero": lambda x, y: (torch.where(x.abs() < 0.5, -0.0, 0.0), y),
    "two labels swapped": lambda x, y: (x, y[[1, 0, *range(2, 12)]]),
    "two rows swapped": lambda x, y: (x[[1, 0, *range(2, 12)]], y),
    "the order of everything": lambda x, y: (x.flip(0), y.flip(0)),
    "two pixels swapped": lambda x, y: (x.flip(3), y),
    "the dtype of the inputs": lambda x, y: (x.double(), y),
    "the dtype of the labels": lambda x, y: (x, y.int()),
    "a sample less": lambda x, y: (x[:-1], y[:-1]),
    "a sample twice": lambda x, y: (torch.cat([x, x[-1:]]), torch.cat([y, y[-1:]])),
    "one channel less": lambda x, y: (x[:, :2], y),
    "zeros added at the end": lambda x, y: (torch.nn.functional.pad(x, (0, 1)), y),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_accidental_change_is_seen(change: str) -> None:
    assert of((CHANGES[change](X, Y))[::-1]) != of((Y, X))


def test_zeros_and_ones_that_change_places_are_seen_whatever_holds_them() -> None:
    """Numbers with few bits, all of them high: what a product modulo 2⁶⁴ could lose."""
    generator = torch.Generator().manual_seed(1)
    ones = torch.rand(40, 64, generator=generator) < 0.5
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    ):
        x, y = ones.to(dtype), torch.zeros(40)
        orders = (torch.randperm(64, generator=generator) for _ in range(300))
        assert len({of((y, x)), *(of((y, x[:, order])) for order in orders)}) == 301
        pairs = (torch.randperm(40, generator=generator) for _ in range(300))
        assert len({of((y, x)), *(of((y, x[order])) for order in pairs)}) == 301


def test_labels_and_inputs_are_told_apart_and_shared_tensors_count_once_a_batch() -> None:
    a, b = torch.arange(6), torch.arange(6, 12)
    assert of((a, b)) != of((b, a))
    assert of((a, b)) != of((a, b, b))
    mask = torch.ones(4, 4)
    assert of((a, b, mask)) != of((a, b, mask.tril()))
    assert of((a, b, torch.tensor(3.0))) != of((a, b, torch.tensor(4.0)))
    assert of((a[:0], X[:0])) == of((a[:0], X[:0]))


def reduced(monkeypatch: pytest.MonkeyPatch, ranks: Sequence[Fingerprint]) -> Fingerprint:
    """What all ranks together have."""
    said: list[Any] = []
    monkeypatch.setattr(module, "world_size", lambda: len(ranks))
    for one in ranks:
        monkeypatch.setattr(module, "gathered", lambda mine: [said.append(mine) or mine])
        copy.deepcopy(one).all_reduce()
    monkeypatch.setattr(module, "gathered", lambda _: list(said))
    ranks[0].all_reduce()
    return ranks[0]


def shared(*parts: Any, places: Sequence[tuple[int, int] | None] = ()) -> list[Fingerprint]:
    """Those of ranks that have these rows."""
    found = [Fingerprint() for _ in parts]
    for i, (one, rows) in enumerate(zip(found, parts, strict=True)):
        for batch in torch.arange(len(Y))[rows].split(2):
            one.update(Y[batch], X[batch], places=places[i] if places else None)
    return found


@pytest.mark.parametrize("cuts", [(4, 8), (0, 5), (12, 12)])
def test_merged_over_ranks_is_one_after_the_other(cuts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = cuts
    found = reduced(monkeypatch, shared(slice(first), slice(first, last), slice(last, None)))
    assert found.text() == of((Y, X))


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_ranks_at_known_places_add_up_to_one_process(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [slice(r, None, n) for r in range(n)]
    found = reduced(monkeypatch, shared(*shares, places=[(r, n) for r in range(n)]))
    assert found.text() == of((Y, X))
    unknown = reduced(monkeypatch, shared(*shares))
    assert (unknown.text() == of((Y, X))) == (n >= len(Y))
    padded = [*shares[:-1], slice(n - 1, None, 1)]  # not what the places say
    assert reduced(monkeypatch, shared(*padded, places=[(r, n) for r in range(n)])).text() != of((Y, X)) or n > len(Y)


def test_it_goes_on_behind_what_another_process_saved() -> None:
    first, rest = Fingerprint(), Fingerprint()
    first.update(Y[:5], X[:5])
    rest.follow(first.saved())
    rest.update(Y[5:], X[5:])
    assert rest.text() == of((Y, X))
    assert rest.samples_text() == in_any_order((Y, X))


@pytest.mark.parametrize(("overlap", "most"), [(0, 2**20), (500, 2**20), (500, 256), (0, 256)])
def test_samples_on_two_ranks_are_counted_of_very_many_about(
    overlap: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COMPARED", most)
    monkeypatch.setattr(module, "world_size", lambda: 2)
    x, ranks = torch.randn(4000, 3, generator=torch.Generator().manual_seed(2)), [Fingerprint(), Fingerprint()]
    for one, rows in zip(ranks, (x[:2000], x[2000 - overlap : 4000]), strict=True):
        for part in rows.split(300):
            one.update(torch.zeros(len(part), dtype=torch.int64), part)
    numbers: list[Any] = []

    def gathered(mine: Any) -> list[Any]:
        if isinstance(mine[0], dict):  # what ranks exchange of all samples
            return [(one.saved(), None, [], one._thinned, None) for one in ranks]
        numbers.append(mine)
        return numbers[:2]

    monkeypatch.setattr(module, "gathered", gathered)
    found, beside = [one.on_several_ranks(beside=f"rank {r}") for r, one in enumerate((*ranks, ranks[0]))][-1]
    assert beside == ["rank 0", "rank 1"]
    assert (ranks[0]._thinned > 0) == (most == 256)
    assert found == overlap if most > 256 else 0.6 * overlap <= found <= 1.4 * overlap


def in_any_order(*batches: Sequence[Tensor]) -> str:
    found = Fingerprint()
    for batch in batches:
        found.update(*batch)
    return found.samples_text()


def test_one_without_an_order_sees_samples_and_not_their_order() -> None:
    whole, order = in_any_order((Y, X)), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    assert whole.startswith("set64:")
    assert in_any_order((Y[order], X[order])) == whole
    assert in_any_order(*zip(Y[order].split(5), X[order].split(5), strict=True)) == whole
    other = X.clone()
    other[3, 0, 0, 0] += 1e-6
    assert len({whole, in_any_order((Y, other)), in_any_order((Y[order], X)), in_any_order((Y[:11], X[:11]))}) == 4
    mask = torch.ones(4, 4)  # of what has no row per sample nothing is told apart but whole batches
    assert in_any_order((Y, X, mask)) != in_any_order((Y, X, mask.tril()))


def test_ranks_have_the_samples_of_one_process_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reduced(monkeypatch, shared(slice(0, None, 2), slice(1, None, 2)))
    assert found.samples_text() == in_any_order((Y, X))
    assert found.text() != of((Y, X))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float64):
        x = (50 * X.abs()).to(dtype)
        assert of((Y.cuda(), x.cuda())) == of((Y, x))


@pytest.fixture
def added_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were added up, call by call, from nothing known."""
    found: list[int] = []

    def seen(values: Tensor, kind: str, really: Callable[[Tensor, str], Tensor] = module._row_sums) -> Tensor:
        found.append(len(values))
        return really(values, kind)

    monkeypatch.setattr(module, "_row_sums", seen)
    monkeypatch.setattr(module, "_known_rows", module.KnownRows())
    monkeypatch.setattr(module, "_settled", [])
    return found


def test_data_in_memory_that_stay_the_same_are_added_up_twice_and_then_compared(added_up: list[int]) -> None:
    x, y = X.clone(), Y.clone()
    expected = by_hand(y.numpy(), x.numpy())
    assert [of((y[:7], x[:7]), (y[7:], x[7:])) for _ in range(5)] == [expected] * 5
    assert added_up == [7, 7, 5, 5] * 2
    assert of((y, x)) == expected  # other batches


@pytest.mark.parametrize("way", ["in place", "numpy", "data", "one bit"])
def test_data_in_memory_that_change_are_seen_whoever_changes_them(way: str, added_up: list[int]) -> None:
    x, y = X.clone(), Y.clone()
    before = {of((y, x)) for _ in range(3)}
    if way == "in place":
        x[3, 2] += 1
    elif way == "numpy":
        x.numpy()[3, 2] += 1
    elif way == "data":
        x.data[3, 2] += 1
    else:
        x.view(torch.int32)[3, 2, 1, 1] ^= 1
    after = of((y, x))
    assert len(before) == 1
    assert after not in before
    assert after == by_hand(y.numpy(), x.numpy())
    y[0] += 1
    assert of((y, x)) == by_hand(y.numpy(), x.numpy())


def test_not_a_number_is_as_not_a_number_and_zero_has_two_signs(added_up: list[int]) -> None:
    x = torch.tensor([[0.0, torch.nan], [1.0, 2.0]])
    assert len({of((x,)) for _ in range(4)}) == 1
    assert len(added_up) == 2
    x[0, 0] = -0.0
    assert of((x,)) == by_hand(x.numpy())


def test_other_streams_of_the_same_tensors_are_another_fingerprint(added_up: list[int]) -> None:
    a, b = torch.arange(4), torch.arange(4) + 7
    for _ in range(3):
        assert of((a, b)) == by_hand(a.numpy(), b.numpy())
        assert of((a,), (b,)) == by_hand(torch.cat([a, b]).numpy())
        assert of((b, a)) == by_hand(b.numpy(), a.numpy())


def test_of_a_stream_no_copies_are_kept_and_of_data_no_more_than_allowed(
    added_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = X.clone()
    for _ in range(4):  # a loader that puts its batches into the same place
        x += 1
        assert of((x,)) == by_hand(x.numpy())
    assert [copy is None for copy, _ in module._known_rows._kept.values()] == [True]
    monkeypatch.setattr(module, "MOST_KEPT", 2 * x.nbytes)
    several = [X + i for i in range(5)]
    for _ in range(3):
        assert of(*((one,) for one in several)) == by_hand(torch.cat(several).numpy())
        assert module._known_rows._bytes <= 2 * x.nbytes
    monkeypatch.setattr(module, "KEPT_BYTES", x.nbytes - 1)
    added_up.clear()
    assert len({of((x,)) for _ in range(4)}) == 1
    assert len(added_up) == 4
