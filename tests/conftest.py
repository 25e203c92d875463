"""What all tests share: one thread (two on small tensors are slower than one) unless OMP_NUM_THREADS says otherwise."""

import os

import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
