"""A movie of training: measure a network while it learns, and write one page that plays it.

Any loop will do: a record that knows its step (`settings["step"]`) is a frame.
"""

import torch
from torch import nn

import layerlaw as ll
from layerlaw.data import load
from layerlaw.pages import movie

images = load().balanced(50).resized(10)
x, y = images.tensors(flat=True)
torch.manual_seed(0)
layers = [part for _ in range(5) for part in (nn.Linear(100, 100), nn.BatchNorm1d(100), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(100, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

records = []
for epoch in range(21):
    if epoch in (0, 1, 2, 3, 5, 8, 12, 20):
        record = ll.probe(model, (x, y), batchnorm="batch", classes=images.class_names, progress=False)
        record.settings |= {"step": epoch, "step_unit": "epoch"}
        records.append(record)
    for batch in torch.randperm(len(y)).split(100):
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

page = movie(records, "movie.html", title="Six layers learn Fashion-MNIST")
print(f"{len(records)} epochs in {page.stat().st_size / 1e6:.1f} MB: open {page} and press the space bar")
