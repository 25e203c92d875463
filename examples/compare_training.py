"""Before, during and after training, on one page."""

import torch

import layerlaw as ll
from layerlaw.lab import FeedForward, Recipe, train

torch.manual_seed(0)
images, test = ll.data.load().balanced(50).resized(10), ll.data.load(split="test").balanced(20).resized(10)
x, y = images.tensors(flat=True)
network = FeedForward(depth=6, inputs=100)
records = []


def measure(epoch):
    record = ll.probe(network, (x, y), test=test.tensors(flat=True), batchnorm="batch")
    record.name = f"epoch {epoch}"
    record.save(f"epoch-{epoch}.json")
    records.append(record)


train(network, x, y, Recipe(epochs=30), at_epochs=(0, 10, 30), visit=measure)
for record in records:
    print(record.name, record.law())
ll.report(records, "training.html")
ll.plot(records).savefig("law.png")  # or law.pdf
