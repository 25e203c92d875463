"""Float32 features that are kept: one process and several ranks give the same record, however the batches are dealt."""

import os
import pickle
import socket
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn

import layerlaw as ll

K, D, BATCH = 4, 24, 40
Data = list[tuple[Tensor, Tensor]]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(D, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, K)]
    return nn.Sequential(*layers).eval()


def batches(*, by_class: bool) -> Data:
    """Of 40 samples each, the last one short; as a loader gives them that goes through one class after the other, or not."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(K, (40 * BATCH + 17,), generator=generator)
    y = y.sort().values if by_class else y
    x = torch.randn(len(y), D, generator=generator) + 3 * torch.randn(K, D, generator=generator)[y] + 5
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def shares(data: Data, world: int) -> list[Data]:
    """Rank 0 has the first seven batches, and those behind are dealt in turn."""
    rest = data[7:]
    return [data[:7] * (rank == 0) + rest[rank::world] for rank in range(world)]


def work(rank: int, world: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=60))
    found = {}
    for by_class in (False, True):
        share = shares(batches(by_class=by_class), world)[rank]
        found[by_class] = ll.probe(network(), share, uncertainty=False, progress=False)
    if rank == 0:
        Path(folder, "found").write_bytes(pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def assert_same(found: ll.Record, expected: ll.Record) -> None:
    assert found.columns == expected.columns
    for column in expected.columns:
        a, b = (np.array(record.column(column), dtype=float) for record in (found, expected))
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13, err_msg=column)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_give_every_number_of_one_process_to_twelve_digits(world: int, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (world, port, str(tmp_path)), nprocs=world)  # type: ignore[no-untyped-call]
    together = pickle.loads((tmp_path / "found").read_bytes())
    for by_class, two in together.items():
        one = ll.probe(network(), batches(by_class=by_class), uncertainty=False, progress=False)
        assert one.settings["one_forward"]
        assert two.settings["one_forward"]
        assert_same(two, one)


def test_kept_and_streamed_features_give_the_same_numbers() -> None:
    kept, streamed = (
        ll.probe(network(), batches(by_class=False), uncertainty=False, progress=False, memory_gib=gib)
        for gib in (1.0, 1e-4)
    )
    assert kept.settings["one_forward"]
    assert not streamed.settings["one_forward"]
    assert_same(streamed, kept)
