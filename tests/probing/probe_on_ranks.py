"""One of several processes that probe together: `torchrun … probe_on_ranks.py FOLDER` (see test_ranks)."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import layerlaw as ll
from layerlaw.data.sharding import dealt as dealt_tensors
from layerlaw.stats import ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from capture_networks import InPlaceResNet, Pair, clouds, seeded

K = 3
IMAGES, LABELS = clouds(120, 3, 8, 8)
BATCH = 15


def batches(
    rank: int, world: int, n: int = 120, labels: torch.Tensor = LABELS
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every world-th batch, from this rank on."""
    return [(IMAGES[i : i + BATCH], labels[i : i + BATCH]) for i in range(BATCH * rank, n, BATCH * world)]


class Doubled(nn.Module):
    """From here on float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def cases() -> dict[str, tuple[nn.Module, dict]]:
    network = seeded(InPlaceResNet)
    for part in torch.split(IMAGES, 40):
        network(part)
    how = {"uncertainty": False, "sites": ["auto", "logits"], "progress": False}
    tiny = {"memory_gib": 40 * K * 300 / 2**30}
    return {
        "float32": (network, {**how, "sites": ["layers", "logits"]}),
        "float64": (seeded(InPlaceResNet).double(), {**how, "sites": ["layers", "logits"]}),
        "streamed in groups": (network, {**how, **tiny, "sites": ["layers", "logits"]}),
        "in slices": (seeded(InPlaceResNet).double(), {**how, "memory_gib": 40 * K * 100 / 2**30}),
        "train mode": (network, {**how, "batchnorm": "batch"}),
        "null": (network, {**how, "null": True}),
        "linear and parts": (network, {**how, "reduce": "mean", "linear": True, "parts": True}),
        "linear, few samples": (network, {**how, "linear": True}),
        "with extras": (network, {"progress": False}),
        "targets": (network, {**how, "sites": "layers"}),
        "several labels": (network, {**how, "null": True}),
    }


TARGETS = {  # by the name of their case: numbers far from 0, and labels of which a sample may have several
    "targets": torch.stack([IMAGES.mean((1, 2, 3)), 50 * LABELS + 1990 + IMAGES[:, 0, 0, 0]], 1),
    "several labels": torch.stack([LABELS == 0, LABELS > 0, IMAGES[:, 0, 0, 0] > 0], 1),
}


def probed(rank: int, world: int) -> dict[str, ll.Record]:
    found = {}
    for name, (network, how) in cases().items():
        dtype = torch.float64 if name in ("float64", "in slices") else torch.float32
        labels = TARGETS.get(name, LABELS)
        data, test = ([(x.to(dtype), y) for x, y in batches(rank, world, n, labels)] for n in (120, 60))
        if name == "with extras":  # of a pair the number of samples is known, and so whether they fit
            data, test = (tuple(torch.cat(part) for part in zip(*split, strict=True)) for split in (data, test))
        found[name] = ll.probe(network, data, test=test, **how)
    return found


def dealt() -> dict[str, ll.Record]:
    """Standard errors and permuted labels of samples of classes 0, 1, 0, 1, …: each of two ranks has one of them alone."""
    order = torch.cat([(k == LABELS).nonzero().flatten()[:30] for k in range(2)]).view(2, 30).T.flatten()
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Linear(40, 2))).double()
    data = TensorDataset(IMAGES[order].double(), LABELS[order])
    numbers = TensorDataset(data.tensors[0], (data.tensors[0].mean((1, 2, 3)) + data.tensors[1]).unsqueeze(1))
    wide = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, K))).double()
    how = {"uncertainty": True, "progress": False}

    def loader(of: TensorDataset) -> DataLoader:
        return DataLoader(of, batch_size=5, sampler=ll.data.UnpaddedSampler(of))

    first, step = place()

    def held() -> tuple[torch.Tensor, torch.Tensor]:
        """The last rank has samples of classes that are not measured alone; they may be NaN."""
        mine = LABELS < 2 if first == 0 else LABELS == 2
        images = IMAGES[mine].double()
        return images if first == 0 else torch.full_like(images, torch.nan), LABELS[mine]

    return {
        "kept": ll.probe(network, loader(data), **how),
        "tensors": ll.probe(network, tuple(t[first::step] for t in data.tensors), batch_size=5, **how),
        "streamed": ll.probe(network, loader(data), memory_gib=60_000 / 2**30, **how),
        "in groups": ll.probe(network, loader(data), memory_gib=260_000 / 2**30, **how),
        "numbers": ll.probe(network, loader(numbers), **how),
        "all on one rank": ll.probe(wide, held(), classes=[0, 1], **how),
    }


def pictured() -> dict[str, ll.Record]:
    """Samples that the first of two ranks has none of, or none of some classes; wide features keep fewer of them."""
    images, labels = torch.cat([IMAGES, 1.1 * IMAGES, 1.2 * IMAGES]).double(), LABELS.repeat(3)  # more than are shown
    order = labels.argsort(stable=True).view(2, 180).T.flatten()  # one of two ranks has classes 0 and 1, one 1 and 2
    data = TensorDataset(images[order], labels[order])
    wide = TensorDataset(data.tensors[0].flatten(1).repeat(1, 100), labels[order])
    narrow = TensorDataset(wide.tensors[0].float(), labels[order])
    numbers = TensorDataset(data.tensors[0], data.tensors[0].mean((1, 2, 3)).unsqueeze(1))
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Linear(40, K))).double()
    widely = seeded(lambda: nn.Sequential(nn.Linear(192 * 100, 8), nn.ReLU(), nn.Linear(8, K))).double()
    parts = [nn.Linear(192 * 100, 3000).float(), Doubled(), nn.Linear(3000, 2000).double(), nn.Linear(2000, K).double()]
    mixed = seeded(lambda: nn.Sequential(*parts))
    how = {"uncertainty": False, "progress": False}
    tiny = {"memory_gib": 40 * K * 170 / 2**30}
    (first, step), whole = place(), data.tensors

    def loader(of: TensorDataset) -> DataLoader:
        return DataLoader(of, batch_size=20, sampler=ll.data.UnpaddedSampler(of))

    halves = list(zip(whole[0].split(90), whole[1].split(90), strict=True))
    wide_halves = list(zip(*(tensor.split(90) for tensor in narrow.tensors), strict=True))
    some = {"sites": ["input", "0", "2", "3"], **how}
    return {
        "dealt": ll.probe(network, loader(data), **how),
        "in groups": ll.probe(network, loader(data), memory_gib=40 * K * 200 / 2**30, **how),
        "in slices": ll.probe(network, loader(data), **tiny, **how),
        "wide": ll.probe(widely, loader(wide), sites=["input", "0", "1"], **how),
        "several wide": ll.probe(mixed, loader(narrow), **some),
        "several wide, none on the first": ll.probe(mixed, wide_halves if first == step - 1 else [], **some),
        "numbers": ll.probe(network, loader(numbers), scores=None, **how),
        "one behind the other": ll.probe(network, halves[first * 2 :][: 4 // step], **how),
        "none on the first": ll.probe(network, halves if first == step - 1 else [], **how),
        "none on the first, in slices": ll.probe(network, halves if first == step - 1 else [], **tiny, **how),
    }


def some_classes() -> dict[str, ll.Record]:
    """Some classes of data with unequally many of each, and between them samples that are not measured."""
    drawn = torch.tensor([0.3, 0.1, 0.25, 0.05, 0.2, 0.1]).multinomial(
        600, True, generator=torch.Generator().manual_seed(4)
    )
    places = torch.randn(6, 12, generator=torch.Generator().manual_seed(5)).double()
    x = places[drawn] + torch.randn(600, 12, generator=torch.Generator().manual_seed(6)).double()
    network = seeded(lambda: nn.Sequential(nn.Linear(12, 200), nn.ReLU(), nn.Linear(200, 6))).double()
    data, how = TensorDataset(x, drawn), {"classes": [0, 3, 4], "progress": False}
    beginning = TensorDataset(x[:331].clone(), drawn[:331])

    def loader(of: TensorDataset) -> DataLoader:
        return DataLoader(of, batch_size=16, sampler=ll.data.UnpaddedSampler(of))

    tensors, test = dealt_tensors(data.tensors), dealt_tensors(beginning.tensors)
    return {
        "tensors": ll.probe(network, tensors, test=test, uncertainty=True, **how),
        "loader": ll.probe(network, loader(data), test=loader(beginning), uncertainty=True, **how),
        "streamed": ll.probe(network, loader(data), memory_gib=40_000 / 2**30, uncertainty=False, **how),
        "in slices": ll.probe(network, loader(data), memory_gib=16_000 / 2**30, uncertainty=False, **how),
    }


class Activated(nn.SyncBatchNorm):
    """With a function behind it, as timm makes them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def synchronized() -> dict[str, ll.Record]:
    """SyncBatchNorm on ranks that have unequally many batches; in one process BatchNorm."""
    group, (rank, world) = dist.group.WORLD if dist.is_initialized() else None, place()
    network = seeded(
        lambda: nn.Sequential(
            nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.BatchNorm1d(20), nn.ReLU()),
            nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.ReLU()),
            nn.Linear(20, K),
        )
    ).double()
    if world > 1:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network, group)
        last = Activated(20, process_group=group).double()
        last.load_state_dict(network[1][1].state_dict())
        network[1][1], network[1][2] = last, nn.Identity()
    whole, how = [(x.double(), y) for x, y in batches(0, 1)], {"uncertainty": False, "progress": False}
    share = whole if world == 1 else whole[:6] if rank == 0 else whole[6:]
    asked = {"batch": {"batchnorm": "batch"}, "null": {"null": True}}
    found = {name: ll.probe(network, share, **more, **how) for name, more in asked.items()}
    if world > 1:
        try:
            network.train()(share[0][0])
        except ValueError:  # on CPUs, where it synchronizes again
            return found
    return found if world == 1 else {}


def sharded() -> ll.Record:
    """A network whose weights are spread over the ranks."""
    from torch.distributed.fsdp import fully_shard

    network = seeded(lambda: nn.Sequential(nn.Flatten(), Pair(192), Pair(192), Pair(192), nn.Linear(192, K)))
    if dist.is_initialized():
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for part in network[1:]:
            fully_shard(part, mesh=mesh)
        fully_shard(network, mesh=mesh)
    return ll.probe(network, batches(*place()), uncertainty=False, progress=False)


def place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@contextmanager
def counted_calls() -> Iterator[list[None]]:
    """The collective calls in here, one entry each."""
    calls, call = [], ranks._call
    ranks._call = lambda *given: (calls.append(None), call(*given))
    try:
        yield calls
    finally:
        ranks._call = call


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = place()
    for name, record in probed(rank, world).items():
        record.save(folder / f"{name} {rank}.json")
    dataset = TensorDataset(IMAGES, LABELS)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset, shuffle=False))
    model = nn.parallel.DistributedDataParallel(cases()["float32"][0])
    how = {"uncertainty": False, "progress": False, "sites": "layers"}
    ll.probe(model, loader, **how).save(folder / f"distributed sampler {rank}.json")
    with counted_calls() as calls:
        ll.probe(cases()["float32"][0], batches(rank, world), **how)
    (folder / f"calls {rank}.txt").write_text(str(len(calls)))
    sharded().save(folder / f"sharded {rank}.json")
    for name, record in dealt().items():
        record.save(folder / f"dealt, {name} {rank}.json")
    for name, record in pictured().items():
        record.save(folder / f"pictured, {name} {rank}.json")
    for name, record in synchronized().items():
        record.save(folder / f"synchronized, {name} {rank}.json")
    for name, record in some_classes().items():
        record.save(folder / f"some classes, {name} {rank}.json")
    try:  # a class that one rank lacks is no error, a class that all lack is one
        x, y = IMAGES[rank != LABELS], LABELS[rank != LABELS]
        (folder / f"lacking {rank}.txt").write_text(str(ll.probe(model, (x, y), progress=False).counts))
        ll.probe(model, (IMAGES[rank::world], LABELS[rank::world].clamp_max(1)), progress=False)
    except ll.LayerlawError as error:
        (folder / f"empty {rank}.txt").write_text(str(error))
    dist.destroy_process_group()
    # A sharded model keeps a group of its own alive, whose threads may reach for Python while it shuts down and abort it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
