"""One of two processes to which a sampler deals other data than to the other one, or which leave samples out:
`unlike_ranks.py RANK PORT FOLDER` (see test_unlike_ranks)."""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks_apart import INPUTS, LABELS, QUIET, network
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, random_split

import layerlaw as ll
from layerlaw.data import UnpaddedSampler
from layerlaw.data.sharding import dealt

WHOLE = TensorDataset(INPUTS, LABELS)


class Keeping(Dataset[Any]):
    """Samples with what a rank has of its own: its number, what it has read, perhaps a file that cannot be pickled."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor, *, file: bool = False) -> None:
        self.inputs, self.labels, self.rank, self.read = inputs, labels, dist.get_rank(), set[int]()
        self.file = open(__file__) if file else None  # noqa: SIM115

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.add(i)
        return self.inputs[i], self.labels[i]


class Noisy(Keeping):
    """The same with other inputs each time."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[i] + 0.1 * torch.randn(6), self.labels[i]


def cases(rank: int) -> dict[str, Any]:
    """Loaders, by what is unlike."""
    mine = torch.Generator().manual_seed(rank)
    split, _ = random_split(WHOLE, [40, 21], mine)
    order = torch.randperm(len(LABELS), generator=mine)
    doubled = INPUTS.repeat_interleave(2, 0), LABELS.repeat_interleave(2)

    def loader(data: Any, sampler: Any = UnpaddedSampler, **how: Any) -> DataLoader[Any]:
        dealing = {key: how.pop(key) for key in ("shuffle",) if key in how}
        return DataLoader(data, batch_size=8, sampler=sampler(data, **dealing), **how)

    return {
        "unlike, a split": loader(split),
        "unlike, a split, padded": loader(split, DistributedSampler, shuffle=False),
        "unlike, a split, shuffled": loader(split, DistributedSampler),
        "unlike, another order": loader(TensorDataset(INPUTS[order], LABELS[order])),
        "unlike, no file can be pickled": loader(Keeping(INPUTS[order], LABELS[order], file=True)),
        "unlike, augmented": loader(Noisy(INPUTS[order], LABELS[order])),
        "unlike, dealt": dealt(Noisy(INPUTS[order], LABELS[order])),
        "unlike, shares": loader(Subset(WHOLE, range(30 * rank, 30 * rank + 30))),
        "lengths": loader(Subset(WHOLE, range(50 if rank else 61))),
        "alike, doubled": loader(Keeping(*doubled)),
        "alike, doubled, a file": loader(Keeping(*doubled, file=True)),
        "alike, augmented": loader(Noisy(INPUTS, LABELS)),
        "alike, by hand": DataLoader(Subset(WHOLE, range(rank, 61, 2)), batch_size=8),
        "drop_last": loader(WHOLE, drop_last=True),
        "by hand, a split": DataLoader(Subset(split, range(rank, 40, 2)), batch_size=8),
    }


def main(rank: int, port: str, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    told: dict[str, Any] = {}

    def attempt(name: str, call: Callable[[], ll.Record]) -> None:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                record = call()
            own = [str(one.message) for one in caught if "layerlaw" in str(one.message)]
            told[name] = {"error": "", "notes": record.notes, "counts": record.counts, "warned": own}
        except ll.LayerlawError as error:
            told[name] = {"error": type(error).__name__, "words": str(error)}

    for name, data in cases(rank).items():
        attempt(name, lambda data=data: ll.probe(network(), data, **QUIET))  # type: ignore[misc]
    split = cases(rank)["unlike, a split"]
    attempt("test data", lambda: ll.probe(network(), dealt((INPUTS, LABELS)), test=split, **QUIET))
    wide = network().double() if rank else network()
    share = INPUTS[rank::2].to(wide[2].weight.dtype), LABELS[rank::2]
    attempt("dtype", lambda: ll.probe(wide, share, **QUIET))
    model, noisy = network(), cases(rank)["alike, augmented"]
    before = torch.get_rng_state()
    attempt("random numbers", lambda: ll.probe(model, noisy, **QUIET))
    told["random numbers"]["kept"] = torch.equal(before, torch.get_rng_state())
    (folder / f"told {rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
