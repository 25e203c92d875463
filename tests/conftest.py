"""What all tests share: the oracle on the path, and one thread (two threads on small tensors are slower than one)."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(1)
