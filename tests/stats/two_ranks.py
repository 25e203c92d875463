"""One of several processes that measure together: `python two_ranks.py RANK WORLD FOLDER` (see test_stats_ranks)."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from statistics_parts import group_sums, scatter_of

from layerlaw.errors import PassError
from layerlaw.stats import ClassSums, Frame, LeftOut, all_reduce, find_centers, one_hot, project, ranks
from layerlaw.stats.ranks import from_first, rank, together, world_size

K, GROUPS = 4, 5


def measured(x, y, groups, decision, weighting: str) -> dict[str, torch.Tensor]:
    """Every statistic of both passes; under one process `all_reduce` does nothing."""
    sums = ClassSums.of(x, y, K)
    grouped = group_sums(x, y, groups, K, GROUPS)
    all_reduce([*sums.tensors, *grouped.tensors])
    centers = find_centers(sums, weighting)
    scatter = scatter_of(x, y, centers, decision)
    left_out = LeftOut.start(grouped, centers)
    coordinates, _ = project(x, y, Frame(centers.rounded_means, left_out.basis.to(centers.rounded_means)))
    left_out.fuzziness += LeftOut.added(coordinates, one_hot(groups, GROUPS, torch.bool), one_hot(y, K, torch.float64))
    all_reduce([scatter.sums, left_out.fuzziness], [centers.digest, left_out.centers.digest])
    return {
        "counts": sums.counts,
        "sums": sums.sums,
        "residuals": scatter.residuals,
        "fuzziness": scatter.fuzziness,
        "fuzziness_equal": scatter.fuzziness_equal,
        "lengths": scatter.lengths,
        "near_counts": scatter.near.counts,
        "hits": scatter.near.hits,
        "mismatches": scatter.near.mismatches,
        "left_out": left_out.separation(),
    }


def exchanged(n: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The sum of n numbers over the ranks, those of the first, and the collective calls that the sum took."""
    calls, call = [], ranks._call
    mine = torch.arange(n, dtype=torch.float64) + rank()
    first = from_first(mine)
    ranks._call = lambda *given: (calls.append(1), call(*given))
    try:
        all_reduce([mine])
    finally:
        ranks._call = call
    return mine, first, len(calls)


def main(my_rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=my_rank, world_size=world)
    assert (rank(), world_size()) == (my_rank, world)
    data = torch.load(folder / "data.pt")
    found = {}
    for name, (x, y, groups, decision) in data.items():
        mine = torch.arange(len(y)) % 3 < 2 if my_rank == 0 else torch.arange(len(y)) % 3 == 2  # uneven shares
        for weighting in ("samples", "classes"):
            found[f"{name} {weighting}"] = measured(x[mine], y[mine], groups[mine], decision[mine], weighting)
    centers = find_centers(ClassSums.of(x[mine], y[mine], K))  # not reduced: every rank has its own
    try:
        all_reduce([torch.ones(3, dtype=torch.float64)], [centers.digest])
        found["different centers"] = "no error"
    except PassError as error:
        found["different centers"] = str(error)
    for n in (5, 1000, 200_000):
        found[f"without one {n}"] = exchanged(n)
        with together():
            found[f"in a job {n}"] = exchanged(n)
    torch.save(found, folder / f"found{my_rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
