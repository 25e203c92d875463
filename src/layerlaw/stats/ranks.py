"""Statistics over the ranks of a torchrun job: one flat all-reduce per pass."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from layerlaw.errors import PassError


def world_size() -> int:
    """How many processes measure together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce(tensors: Sequence[Tensor], digests: Sequence[Tensor] = ()) -> None:
    """Add the tensors up over all ranks, in place, in one collective call.

    The digests must be equal on all ranks (they tell that everybody measured around the same centers).
    """
    if world_size() == 1:
        return
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    marks = torch.cat([t.reshape(-1).to(device) for t in digests]) if digests else torch.zeros(0, device=device)
    everybody = torch.zeros(world_size(), len(marks), dtype=torch.float64, device=device)
    everybody[rank()] = marks  # each rank fills its own row, so that all see all and decide alike
    flat = torch.cat([*(t.reshape(-1).to(device) for t in tensors), everybody.reshape(-1)])
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].reshape(t.shape))
        at += t.numel()
    everybody = flat[at:].reshape(everybody.shape)
    if not torch.allclose(everybody, everybody[:1].expand_as(everybody), rtol=1e-9, atol=1e-12):
        raise PassError("the ranks measured around different class means: all must probe the same model and sites.")


def rank() -> int:
    """The number of this process."""
    return dist.get_rank() if world_size() > 1 else 0
