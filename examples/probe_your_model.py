"""Any classifier, any data: one call, one page."""

import torch
from torch import nn

import layerlaw as ll

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(),
    *(part for _ in range(5) for part in (nn.LazyLinear(64), nn.BatchNorm1d(64), nn.ReLU())),
    nn.LazyLinear(10),
)
images = ll.data.load("fashion_mnist_sample").balanced(50)
model(images.tensors()[0][:2])  # the lazy layers take their shape

record = ll.probe(model, images, null=True)
print(record.to_pandas()[["site", "separation", "nc1", "ncc_accuracy"]])
print(record.law("separation"))
ll.report(record, "page.html")
ll.plot(record).savefig("law.png")
