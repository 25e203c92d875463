"""Lightning: a callback measures the law, logs it, and checkpoints are chosen by it. Needs lightning."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning
except ImportError:
    sys.exit(print("skipped: pip install 'layerlaw[lightning]'"))
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from layerlaw.data import load
from layerlaw.integrations.lightning import LawMonitor


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [module for _ in range(5) for module in (nn.Linear(100, 100), nn.BatchNorm1d(100), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(100, 10))

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(*load().balanced(60).resized(10).tensors(flat=True))
watch = LawMonitor(every_n_epochs=5, folder="records")  # every logger gets layerlaw/<measure>/<site> and layerlaw/rho
best = ModelCheckpoint("checkpoints", monitor="layerlaw/rho")
trainer = lightning.Trainer(max_epochs=20, callbacks=[watch, best], logger=CSVLogger("logs"), accelerator="cpu")
trainer.fit(Classifier(), DataLoader(data, batch_size=64, shuffle=True))
for record in watch.records:
    print(record.name, record.law())
