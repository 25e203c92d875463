"""One of two processes that have other buffers, the same data, unequal batches, parts of one model, or that never come:
`ranks_apart.py RANK PORT FOLDER` (see test_ranks_apart)."""

import copy
import datetime
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

import layerlaw as ll
from layerlaw.data import UnpaddedSampler
from layerlaw.data.sharding import dealt
from layerlaw.probing.paths import sample_paths

K, N = 3, 61
LABELS = torch.arange(N) % K
INPUTS = torch.randn(N, 6, generator=torch.Generator().manual_seed(0)) + 2 * nn.functional.one_hot(LABELS, 6)
DATASET = TensorDataset(INPUTS, LABELS)
QUIET: dict[str, Any] = {"progress": False, "uncertainty": False}
STREAMED = {**QUIET, "memory_gib": 2.5e-6}
Data = list[tuple[torch.Tensor, torch.Tensor]]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        nn.Linear(8, K),
    )


def trained(rank: int) -> nn.Sequential:
    """The same weights, but for each rank running statistics of its own, as DDP leaves them."""
    found = network().train()
    for _ in range(3):
        found(INPUTS[rank::2] + rank)
    return found


def shares(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    return INPUTS[rank::world], LABELS[rank::world]


def batches(*cuts: tuple[int, int]) -> Data:
    return [(INPUTS[a:b], LABELS[a:b]) for a, b in cuts]


def uneven(name: str, rank: int) -> tuple[Data, dict[str, Any]]:
    """Data of which the first rank has more batches than the second, or the second none; and how they are measured."""
    first, second = batches((0, 20), (20, 40), (40, 50)), batches((50, 61))
    if name == "none":
        first, second = first + second, []
    if name == "skipped":  # of which a batch has no measured class
        first = [(INPUTS[LABELS < 2][:20], LABELS[LABELS < 2][:20]), (INPUTS[LABELS == 2], LABELS[LABELS == 2])]
        second = [(INPUTS[LABELS == 2][:5] + 1, LABELS[LABELS == 2][:5])]
        second += [(INPUTS[LABELS < 2][20:][i : i + 7], LABELS[LABELS < 2][20:][i : i + 7]) for i in (0, 7, 14)]
    how = {
        "kept": QUIET,
        "streamed": STREAMED,
        "kept by one": {**QUIET, "memory_gib": 4.8e-6},
        "none": {**STREAMED, "parts": True},
        "skipped": {**QUIET, "classes": [0, 1]},
    }[name]
    return (second if rank else first), how


def clouds(n: int, features: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples far from 0, of classes that all have some at the beginning and at the end."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat(
        [torch.arange(classes), torch.randint(classes, (n,), generator=generator), torch.arange(classes)]
    )
    places = 5 + 2 * torch.randn(classes, features, generator=generator)
    return torch.randn(len(labels), features, generator=generator) + places[labels], labels


def layers(inputs: int, width: int, classes: int) -> nn.Sequential:
    hidden = [part for i in range(4) for part in (nn.Linear(width if i else inputs, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def float32_kept(seed: int) -> dict[str, tuple[nn.Module, Data]]:
    """Networks and batches of some sizes: classes one after the other, two of them, or many with few samples each.

    "uneven" has a feature so much larger than the others that sums are taken a second time.
    """
    torch.manual_seed(seed)
    maps = nn.Sequential(nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 6))
    wide = nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 20))
    made: dict[str, tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], int]] = {
        "layers": (layers(24, 48, 4), clouds(1600, 24, 4, seed), 37),
        "ten classes": (layers(100, 100, 10), clouds(3000, 100, 10, seed), 500),
        "sorted": (layers(24, 48, 4), clouds(1600, 24, 4, seed), 40),
        "two classes": (layers(24, 20, 2), clouds(700, 24, 2, seed), 50),
        "few of each": (layers(64, 64, 30), clouds(420, 64, 30, seed), 48),
        "three features": (layers(3, 3, 3), clouds(200, 3, 3, seed), 10),
        "uneven": (layers(24, 48, 4), clouds(1600, 24, 4, seed), 64),
        "convolutions": (maps, clouds(400, 192, 6, seed), 25),
        "wide": (wide, clouds(280, 784, 20, seed), 40),  # 160 samples on each rank: their products are of another kind
    }
    found = {}
    for name, (model, (x, y), n) in made.items():
        x = x * torch.tensor([1e5] + [1.0] * 23) if name == "uneven" else x
        order = y.argsort(stable=True) if name == "sorted" else torch.arange(len(y))
        found[name] = model.eval(), list(zip(x[order].split(n), y[order].split(n), strict=True))
    return found


KEPT = [(name, seed, uncertainty) for name in float32_kept(0) for seed in range(3) for uncertainty in (False, True)]
EXACT = {"float64": (torch.float64, QUIET), "float32, streamed": (torch.float32, STREAMED)}
UNEVEN = ("kept", "streamed", "kept by one", "none", "skipped")


def sharded() -> nn.Module:
    """A network whose weights are spread over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found, mesh = network(), init_device_mesh("cpu", (2,))
    for part in found:
        fully_shard(part, mesh=mesh)
    fully_shard(found, mesh=mesh)
    return found


def tensor_parallel(*, local: bool = True, last: bool = False) -> tuple[nn.Module, Any]:
    """A network whose layers are cut into halves, and the group of ranks with the same half: each one alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    found = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, K))
    found.load_state_dict(plain().state_dict())
    cut = {"0": ColwiseParallel(use_local_output=local), "2": RowwiseParallel()}
    cut |= {"4": ColwiseParallel(use_local_output=local)} if last else {}
    parallelize_module(found, mesh["tensor"], cut)
    return found, mesh["data"].get_group()


def plain() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, K))


def dead() -> nn.Module:
    """In float64; the second layer is the same for all samples, the third up to the rounding of each batch."""
    torch.manual_seed(1)
    found = nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 310), nn.Linear(310, K)
    )
    nn.init.zeros_(found[2].weight)
    return found.double()


PARALLEL_SITES = ["2", "3"]  # where every rank has whole features


class Augmented(Dataset[Any]):
    """Every sample another one each time it is read."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels, self.noise = inputs, labels, lambda x: x + 0.1 * torch.randn(6)
        self.generator = torch.Generator().manual_seed(dist.get_rank())  # as some keep one

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.noise(self.inputs[i]), self.labels[i]


def augmented(rank: int) -> dict[str, Any]:
    """Data with random noise, by whether every rank has its own samples."""
    torch.manual_seed(rank)
    mixed = torch.randperm(60, generator=torch.Generator().manual_seed(5))
    inputs, of = INPUTS[:60], LABELS[:60]
    at_random, in_turn, by_class = (Augmented(inputs, labels) for labels in (of[mixed], of, of.sort().values))
    whole: dict[str, Any] = {
        "in order": DataLoader(at_random, batch_size=20),
        "a list": [(inputs + torch.randn(60, 6), of[mixed])],
        "sorted": DataLoader(by_class, batch_size=20),
        "shuffled": DataLoader(in_turn, batch_size=20, shuffle=True),
    }
    own: dict[str, Any] = {}
    for name, data in (("mixed", at_random), ("in turn", in_turn), ("sorted", by_class)):
        own[f"every second, {name}"] = DataLoader(Subset(data, range(rank, 60, 2)), batch_size=20)
        half = torch.arange(30) + 30 * rank
        own[f"one half, {name}"] = DataLoader(Augmented(inputs[half], data.labels[half]), batch_size=20)
        own[f"shuffled, {name}"] = DataLoader(Augmented(inputs[half], data.labels[half]), 20, shuffle=True)
    return {"whole": whole, "own": own}


class Failing:
    """Data whose second batch fails."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield INPUTS[:10], LABELS[:10]
        raise ValueError("a picture that is none")


def with_accelerate(rank: int) -> dict[str, Any]:
    """Which samples a loader of accelerate gives in its next epochs, without and with probes in between."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def loader() -> Any:
        prepared = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5)
        )
        given = DataLoader(TensorDataset(INPUTS, LABELS, torch.arange(N)), batch_size=10, shuffle=True)
        return prepared.prepare(given), prepared

    def epoch(loader: Any) -> list[int]:
        return [int(i) for batch in loader for i in batch[2]]

    found: dict[str, Any] = {}
    untouched, _ = loader()
    found["without"] = [epoch(untouched) for _ in range(3)]
    probed, accelerator = loader()
    found["with"] = [epoch(probed)]
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            record = ll.probe(plain(), probed, labels=1, **STREAMED)
        found["with"].append(epoch(probed))
    short = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=7, drop_last=True)
    found["drop_last"] = ll.probe(plain(), accelerator.prepare(short), **STREAMED).notes
    found["open loaders"] = len([one for one in accelerator.gradient_state.dataloader_references if one is not None])
    found["warned"] = [str(one.message) for one in caught if "layerlaw" in str(one.message)]
    return found | {"order": record.settings["order"], "notes": record.notes, "counts": record.counts}


def main(rank: int, port: str, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    told: dict[str, Any] = {}

    def attempt(name: str, *given: Any, call: Callable[..., ll.Record] = ll.probe, **how: Any) -> None:
        began = time.monotonic()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                record = call(*given, **QUIET | how)
            told[name] = {"error": "", "notes": record.notes, "counts": record.counts}
            own = [one for one in caught if "layerlaw" in str(one.message)]
            told[name] |= {"warned": [str(one.message) for one in own], "at": [one.filename for one in own]}
            record.save(folder / f"{name} {rank}.json")
        except ll.LayerlawError as error:
            told[name] = {"error": type(error).__name__, "words": str(error), "seconds": time.monotonic() - began}

    def paths(*given: Any, uncertainty: bool, **how: Any) -> Any:
        return sample_paths(*given, **how)

    def loaded(sampler: Callable[..., Any], **how: Any) -> DataLoader:
        return DataLoader(DATASET, batch_size=8, sampler=sampler(DATASET, **how))

    model = trained(rank)
    own = copy.deepcopy(model.state_dict())
    attempt("buffers", model, shares(rank, 2))
    told["buffers"]["restored"] = all(torch.equal(own[key], value) for key, value in model.state_dict().items())
    attempt("buffers of batches", model, shares(rank, 2), batchnorm="batch", batch_size=20)
    model = network()
    nn.init.constant_(model[1][0].bias, rank)
    attempt("weights", model, shares(rank, 2))
    model = network()
    for i in range(2**12):
        model[2].register_parameter(f"small_{i}", nn.Parameter(torch.zeros(1)))
    model[2].register_parameter("large", nn.Parameter(torch.arange(2.0**18)))
    model[2].large.data[-1] += rank
    attempt("weights, at the end", model, shares(rank, 2))

    attempt("padded", network(), loaded(DistributedSampler, shuffle=False))
    attempt("padded, of other orders", network(), loaded(DistributedSampler, shuffle=True, seed=rank))
    attempt("left out", network(), loaded(DistributedSampler, shuffle=True, drop_last=True))
    attempt("unpadded", network(), loaded(UnpaddedSampler), test=loaded(UnpaddedSampler))

    attempt("the same", network(), (INPUTS, LABELS))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(rank))
    attempt(
        "the same, mixed", network(), [(INPUTS[order[i : i + 10]], LABELS[order[i : i + 10]]) for i in range(0, N, 10)]
    )
    cut = slice(0, 40) if rank == 0 else slice(30, N)
    attempt("overlapping", network(), (INPUTS[cut], LABELS[cut]))
    attempt("overlapping test data", network(), shares(rank, 2), test=(INPUTS[cut], LABELS[cut]))
    few = torch.randint(0, 20, (N,), generator=torch.Generator().manual_seed(3))
    attempt("equal samples", network(), (INPUTS[few][rank::2], LABELS[few][rank::2]))
    twice = TensorDataset(INPUTS.repeat_interleave(2, 0), LABELS.repeat_interleave(2))
    attempt("every sample twice", network(), DataLoader(twice, batch_size=8, sampler=UnpaddedSampler(twice)))
    attempt("dealt", network(), dealt((INPUTS, LABELS)))
    arrays = tuple(part.numpy() for part in (INPUTS, LABELS))
    attempt("dealt arrays", network(), dealt(arrays), test=dealt(arrays))
    for kind, all_data in augmented(rank).items():
        for name, data in all_data.items():
            model = network()
            torch.manual_seed(rank)
            attempt(f"augmented, {kind}, {name}", model, data)
    told["augmented"] = [name for name in told if name.startswith("augmented")]
    attempt("the same test data", network(), shares(rank, 2), test=(INPUTS, LABELS))

    loader = DataLoader(DATASET)
    told["dealt"] = {
        "pair": torch.equal(dealt((INPUTS, LABELS))[0], INPUTS[rank::2]),
        "pair of arrays": all(
            isinstance(one, torch.Tensor) and torch.equal(one, all_of[rank::2])
            for one, all_of in zip(dealt((INPUTS.numpy(), LABELS.numpy())), (INPUTS, LABELS), strict=True)
        ),
        "list of arrays": len(dealt([INPUTS.numpy(), LABELS])[0]) == len(INPUTS[rank::2]),
        "words": len(dealt((INPUTS, np.array(["a"] * N)))[0]) == N,
        "own pair": len(dealt(shares(rank, 2))[0]) == len(INPUTS[rank::2]),
        "data set": len(dealt(DATASET)) == len(INPUTS[rank::2]),
        "own data set": len(dealt(TensorDataset(*(part[30 * rank : 30 * rank + 30] for part in (INPUTS, LABELS)))))
        == 30,
        "loader": dealt(loader) is loader,
    }

    parted = [(x.double(), y) for x, y in batches(*((i, i + 10) for i in range(0, N, 10)))][rank::2]
    for name, how in (("kept", {}), ("in slices", {"memory_gib": 2.5e-5})):
        attempt(f"dead, {name}", dead(), parted, sites=["2", "4"], test=parted, **how)

    titles: list[str] = []

    def counted(items: Any, label: str, total: int | None) -> Iterator[Any]:
        titles.append(label)
        yield from items

    model = dead()
    nn.init.normal_(model[2].weight)  # all directions have digits: no forwards that only the features can tell
    attempt("many forwards", model, parted, sites=["0", "4"], test=parted, memory_gib=5e-6, progress=counted)
    told["many forwards"]["forwards"] = len(titles)

    both, first = dist.new_group([0, 1]), dist.new_group([0])
    attempt("a group of all", network(), shares(rank, 2), ranks=both)
    if rank == 0:
        attempt("a group of one", network(), (INPUTS, LABELS), ranks=first)
    else:
        attempt("not a member", network(), (INPUTS, LABELS), ranks=first)
    for name, (dtype, how) in EXACT.items():
        every = [(x.to(dtype), y) for x, y in batches(*((i, i + 10) for i in range(0, N, 10)))]
        if rank == 0:
            attempt(f"one, {name}", network().to(dtype), every, ranks=first, **how)
        attempt(f"two, {name}", network().to(dtype), every[rank::2], **how)
    for name, seed, uncertainty in KEPT:
        model, every = float32_kept(seed)[name]
        half = len(every) // 2
        # Groups of standard errors are dealt by places: those of lists are rank behind rank.
        share = every[half * rank : None if rank else half] if uncertainty else every[rank::2]
        if rank == 0:
            attempt(f"one, {name}, {seed}, {uncertainty}", model, every, ranks=first, uncertainty=uncertainty)
        attempt(f"two, {name}, {seed}, {uncertainty}", model, share, uncertainty=uncertainty)
    attempt("no group", network(), (INPUTS, LABELS), ranks=[0, 1])
    halves, alone = tensor_parallel()
    attempt("tensor parallel", halves, (INPUTS, LABELS), ranks=alone, sites=PARALLEL_SITES)
    attempt("tensor parallel, every site", halves, (INPUTS, LABELS), ranks=alone)
    for site in ("0", "1"):
        attempt(f"tensor parallel, part at {site}", halves, (INPUTS, LABELS), ranks=alone, sites=[site, "4"])
    cut = tensor_parallel(last=True)[0]
    attempt("tensor parallel, part of the scores", cut, (INPUTS, LABELS), ranks=alone, sites=["2", "3"])
    attempt(
        "tensor parallel, gathered",
        tensor_parallel(local=False, last=True)[0],
        (INPUTS, LABELS),
        ranks=alone,
        sites=["0", "1", "4"],
    )
    attempt("tensor parallel, no group", halves, (INPUTS, LABELS), sites=PARALLEL_SITES)
    equal = INPUTS[rank:60:2], LABELS[rank:60:2]
    attempt("tensor parallel, dealt to all", halves, equal, sites=PARALLEL_SITES)
    attempt("tensor parallel, in slices of other samples", halves, equal, memory_gib=1e-6, ranks=alone)

    parts = sharded()
    for name in UNEVEN:
        data, how = uneven(name, rank)
        attempt(f"uneven, {name}", parts, data, **how)
    attempt("null", parts, shares(rank, 2), null=True)
    attempt("uneven, failing", parts, Failing() if rank else batches((0, 20), (20, 40), (40, 60)), **STREAMED)
    attempt("uneven, again", parts, *uneven("kept", rank)[:1])

    os.environ["LAYERLAW_RANK_TIMEOUT"] = "2"
    if rank == 0:
        attempt("alone", network(), shares(rank, 2))
        attempt("alone again", network(), shares(rank, 2))
        attempt("alone, paths", plain(), shares(rank, 2), call=paths)
    dist.barrier()
    attempt("after that", network(), shares(rank, 2))
    os.environ["LAYERLAW_RANK_TIMEOUT"] = "soon"
    attempt("nonsense", network(), shares(rank, 2))
    del os.environ["LAYERLAW_RANK_TIMEOUT"]
    try:
        told["accelerate"] = with_accelerate(rank)
    except ImportError:
        told["accelerate"] = None
    buffered = network()
    buffered.register_buffer("aside", torch.ones(3, device="meta" if rank else "cpu"))
    attempt("a buffer that is put away", buffered, shares(rank, 2))
    layers = {name: INPUTS[rank::2].double() ** power for name, power in (("a", 1), ("b", 3))}
    given: dict[str, tuple[Any, ...]] = {
        "alike": (True, True),
        "options": (None, "jackknife"),
        "layers": (False, False),
    }
    for name, kinds in given.items():
        chosen = {"sites": ["ab"[rank]]} if name == "layers" else {}
        attempt(f"given, {name}", layers, LABELS[rank::2], call=ll.record_of, uncertainty=kinds[rank], **chosen)
    attempt("given, again", layers, LABELS[rank::2], call=ll.record_of)
    (folder / f"told {rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # a sharded model keeps a group of its own alive, whose threads may abort Python while it shuts down


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
