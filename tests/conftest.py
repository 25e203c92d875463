"""What all tests share: the oracle on the path, and one thread (two threads on small tensors are slower than one)
unless OMP_NUM_THREADS says otherwise."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
