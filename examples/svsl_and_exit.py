"""Train with SVSL in a loop of your own, ask where the network could stop, and which images were decided last."""

import torch

import layerlaw as ll
from layerlaw.data import load
from layerlaw.lab import Shape
from layerlaw.probing.paths import sample_paths

images, held_out = load().balanced(50).resized(10), load(split="test").resized(10)
(x, y), test = images.tensors(flat=True), held_out.tensors(flat=True)
torch.manual_seed(0)
model = Shape.even(12).build()  # any nn.Module

loss = ll.SVSL(model, alpha=1e-3, reduction="authors")  # before the loop
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(30):
    for rows in torch.randperm(len(y)).split(100):
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()  # cross-entropy, and the pull to the class means at every site
        optimizer.step()

fast = ll.early_exit(model, (x, y), test=test, tolerance=0.02, times=(256,))
print(fast.report)
fast.save("exit.safetensors")

paths = sample_paths(model, (x, y), test=test, classes=images.class_names, progress=False)
print(paths)
paths.plot().savefig("decided_last.png")
