"""Global switches of torch: off while we measure, and afterwards as they were."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from layerlaw.stats import precision
from layerlaw.stats.precision import at_least_float32, full_precision, on_host, row_chunks, take_rows

BACKENDS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
new_switches = pytest.mark.skipif(not hasattr(BACKENDS[1], "fp32_precision"), reason="a torch without fp32_precision")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    with contextlib.suppress(RuntimeError):
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("wish", ["highest", "high", "medium"])
def test_the_matmul_precision_of_the_user_is_restored(wish: str) -> None:
    torch.set_float32_matmul_precision(wish)
    with full_precision():
        pass
    assert torch.get_float32_matmul_precision() == wish


def test_the_tf32_switch_of_the_user_is_restored() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    with full_precision():
        pass
    assert torch.backends.cuda.matmul.allow_tf32 is True


@new_switches
@pytest.mark.parametrize("wish", ["tf32", "ieee"])
def test_the_newer_precision_switch_of_the_user_is_respected(wish: str) -> None:
    """torch ≥ 2.9: reading the old switch after setting the new one is an error there."""
    torch.backends.cuda.matmul.fp32_precision = wish
    with full_precision():
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == wish


@new_switches
@pytest.mark.parametrize("wish", ["high", "medium"])
def test_products_on_the_cpu_are_not_shortened_either(wish: str) -> None:
    torch.set_float32_matmul_precision(wish)
    with full_precision():
        assert torch.backends.mkldnn.matmul.fp32_precision in ("ieee", "none")


def test_switches_are_restored_after_an_error() -> None:
    torch.set_float32_matmul_precision("high")
    with contextlib.suppress(ZeroDivisionError), full_precision():
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.is_grad_enabled()


def test_gradients_and_autocast_are_off_inside() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), full_precision():
        assert not torch.is_grad_enabled()
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_short_numbers_become_float32() -> None:
    wanted = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32}
    for dtype, expected in (*wanted.items(), (torch.float64, torch.float64)):
        assert at_least_float32(torch.ones(1, dtype=dtype)).dtype == expected


@pytest.mark.parametrize(("rows", "row_bytes"), [(1, 1), (1000, 4), (7, 2**30), (100, 2**20), (5, 0)])
def test_chunks_cover_every_row_once(rows: int, row_bytes: int) -> None:
    seen = [i for part in row_chunks(rows, row_bytes, torch.device("cpu")) for i in range(rows)[part]]
    assert seen == list(range(rows))


def test_rows_are_taken_along_leading_dimensions() -> None:
    table = torch.arange(24.0).reshape(2, 3, 4)
    index = torch.tensor([[0, 2], [1, 1]])
    assert torch.equal(take_rows(table, index), torch.stack([table[0][index[0]], table[1][index[1]]]))


def test_rows_are_taken_into_memory_that_is_there() -> None:
    table, index, room = torch.arange(24.0).reshape(2, 3, 4), torch.tensor([0, 2]), torch.empty(2, 2, 4)
    assert take_rows(table, index, out=room) is room
    assert torch.equal(room, take_rows(table, index))


def test_small_numbers_come_from_a_device_by_one_transfer_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        torch.tensor([[3, -4]]),
        torch.tensor(0.1),
        torch.tensor([True, False]),
        torch.zeros(2, 0),
        torch.rand(3, 2).mT,
    ]
    monkeypatch.setattr(precision, "HERE", set())
    found = on_host(given)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(given, found, strict=True))
    monkeypatch.undo()
    assert all(a is b for a, b in zip(given, on_host(given), strict=True))
