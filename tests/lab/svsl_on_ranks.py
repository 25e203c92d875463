"""Run by test_svsl as one of two processes: DDP with SVSL against the joined batch in one process."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import layerlaw as ll

sys.path.insert(0, str(Path(__file__).resolve().parent))
from svsl_parts import NAMES, SmallNet, batch, direct, features_of


def main(means: str, folder: str, rank: int) -> None:
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    parts = [batch(seed=seed) for seed in range(2)]
    xs, ys = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    whole = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(9)).double(), torch.arange(40) % 4
    for reduction in ("paper", "authors"):
        for across in (True, False):
            torch.manual_seed(0)
            net = SmallNet().double()
            model = DistributedDataParallel(net)
            loss = ll.SVSL(model, alpha=0.3, sites=list(NAMES), reduction=reduction, means=means, across_ranks=across)
            mine = slice(20 * rank, 20 * rank + 20) if across else slice(None)
            if means == "whole":
                loss.measure_means((whole[0][mine], whole[1][mine]))
            x, y = parts[rank]
            loss(model(x), y).backward()
            fixed = None
            if means == "whole":
                with torch.no_grad():
                    centers = features_of(net, whole[0])
                fixed = [torch.stack([g[whole[1] == c].mean(0) for c in range(4)]) for g in centers]
            how = {} if fixed is None else {"means": fixed}  # the first step of a moving average: the batch's means
            if across:
                expected = direct(features_of(net, xs), ys, 0.3, reduction, **how)
            else:
                expected = sum(direct(features_of(net, x), y, 0.3, reduction, **how) for x, y in parts) / 2
            for found, slope in zip(
                net.parameters(), torch.autograd.grad(expected, list(net.parameters())), strict=True
            ):
                torch.testing.assert_close(found.grad, slope, rtol=1e-12, atol=1e-12)
    late = ll.SVSL(model, alpha=0.3, start="terminal", across_ranks=True)
    begun = [late.end_epoch(one[rank]) for one in ((0.999, 0.99), (0.999, 0.992), (0.1, 0.1))]
    assert begun == [False, True, True], begun  # by the mean over the ranks
    dist.barrier()
    print("equal")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
