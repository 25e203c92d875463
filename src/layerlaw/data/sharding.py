"""Data dealt to the ranks of a job: every sample to one of them, none twice."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from layerlaw.errors import DataError
from layerlaw.stats.ranks import Ranks, place


class UnpaddedSampler(Sampler[int]):
    """Deals a data set to the ranks of a job, every sample to one of them: rank r of n gets the samples r, r + n, r + 2n, …

    A `DistributedSampler` repeats some samples, or leaves some out, so that all ranks have equally many: good for training,
    wrong for measuring. Here some ranks have one sample less. In a single process it gives all of them.

    dataset     what is dealt; its length is all that matters
    ranks       the process group that it is dealt to; default: all ranks of the job

    >>> list(UnpaddedSampler(range(5)))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, dataset: Sized, *, ranks: Ranks = None) -> None:
        if not hasattr(dataset, "__len__"):
            raise DataError(f"dataset: expected one of known length, got {type(dataset).__name__}.")
        at, size = place(ranks)
        self._mine = range(at, len(dataset), size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)
