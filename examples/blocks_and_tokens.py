"""A transformer, block by block, on the first token; which sites there are, before measuring."""

import torch
from torch import nn

import layerlaw as ll


class Classifier(nn.Module):
    """Rows of an image as tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=4)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x.squeeze(1))).mean(1))


torch.manual_seed(0)
model = Classifier()
data = ll.data.load().balanced(20)
print(ll.sites(model, data))
record = ll.probe(model, data, sites="blocks", reduce="mean")
for row in record.sites:
    print(row.name, row.shape, row.values["separation"])
ll.plot(record).savefig("blocks.png")
