"""What all tests share: one thread (two on small tensors are slower than one) unless OMP_NUM_THREADS says otherwise."""

import os
from collections.abc import Iterator

import pytest
import torch

from layerlaw.module_tree import PLAIN
from pretended_gpu import Gpu, OnGpu, missing, pretended_gpu

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """Two GPUs that are pretended, on which the code of a test runs without a problem (`gpu.problems`)."""
    if reason := missing():
        pytest.skip(reason)
    PLAIN.add(OnGpu)
    try:
        with pretended_gpu() as found:
            yield found
        assert not found.problems, found.told()
    finally:
        PLAIN.remove(OnGpu)


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> None:
    """A CUDA device, pretended where there is none."""
    if not torch.cuda.is_available():
        request.getfixturevalue("gpu")
