"""A training with Lightning, with and without a LawMonitor; `torchrun … lightning_parts.py FOLDER` does it on ranks."""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from training_parts import Blobs, everything, network, seed_everything

from layerlaw.integrations.lightning import LawMonitor

lightning: Any = pytest.importorskip("lightning", reason="lightning is not installed")
EPOCHS, BATCH = 8, 16  # 5 batches in an epoch of one process: 40 steps
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    """The network of `training_parts`; its losses are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.losses = network(), list[float]()

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader(samples: int = 80, **how: Any) -> DataLoader[Any]:
    """Batches of samples that draw random numbers when they are read."""
    return DataLoader(Blobs(samples), batch_size=BATCH, shuffle=True, **how)


def trained(*callbacks: Any, val: bool = False, **how: Any) -> tuple[dict[str, Any], Any]:
    """What a training leaves behind, and the trainer."""
    module, samples = Classifier(), how.pop("samples", 80)
    seed_everything(11)
    usual: dict[str, Any] = {
        "max_epochs": EPOCHS, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1,
    }  # fmt: skip
    trainer = lightning.Trainer(**usual | how, callbacks=list(callbacks))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # that there are few workers, and the like
        warnings.filterwarnings("ignore", message=".*lr_scheduler.*|.*leaf.*|.*srun.*|.*sync_dist.*|.*num_workers.*")
        given = (loader(samples), DataLoader(Blobs(40), batch_size=BATCH)) if val else (loader(samples),)
        trainer.fit(module, *given)
    return everything(module.net, trainer.optimizers[0], module.losses), trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    how: dict[str, Any] = {"devices": 2, "strategy": "ddp", "samples": 151}  # 10 steps of 2 × 16 in two epochs
    alone, trainer = trained(**how)
    watch = LawMonitor(every_n_epochs=2, folder=folder / "records")
    watched, trainer = trained(watch, **how)
    rank = trainer.global_rank
    torch.save({"alone": alone, "watched": watched}, folder / f"rank {rank}.pt")
    for record in watch.records:
        record.save(folder / f"rank {rank}, {record.name}.json")
    (folder / f"metrics {rank}.txt").write_text(str(sorted(trainer.callback_metrics)))
