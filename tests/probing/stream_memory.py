"""Peak memory of a streamed probe: `python stream_memory.py BATCHES` prints MiB (see test_probing_memory)."""

import resource
import sys

import torch
from torch import nn

import layerlaw as ll


class Stream:
    """Batches made on the fly, the same each time."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self):
        for i in range(self.batches):
            generator = torch.Generator().manual_seed(i)
            y = torch.randint(4, (500,), generator=generator)
            yield torch.randn(500, 200, generator=generator) + y[:, None], y


def main(batches: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4))
    memory = 16 * 2**20 / 2**30  # features of ten batches would fit, statistics of all views do
    record = ll.probe(network, Stream(batches), memory_gib=memory, uncertainty=True, progress=False)
    assert not record.settings["one_forward"]
    assert sum(record.counts) == 500 * batches
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main(int(sys.argv[1]))
