"""`layerlaw demo`: the main job on the embedded data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from layerlaw.cli.app import JsonFlag, app, console, emit
from layerlaw.cli.probe import summary
from layerlaw.data import load
from layerlaw.errors import DataError
from layerlaw.lab import FeedForward, Recipe, train
from layerlaw.pages import plot, print_record, report
from layerlaw.probing import probe
from layerlaw.record import Record

STAGES = (0.0, 1 / 60, 1 / 12, 1 / 3)  # shares of the training after which the network is looked at


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for records and page.")] = Path("layerlaw-demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 600,
    quick: Annotated[bool, typer.Option("--quick", help="60 epochs instead of 600.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of initialisation and data order.")] = 666,
    as_json: JsonFlag = False,
) -> None:
    """Train the paper's 8-layer network on 1000 embedded images and watch the law appear.

    Fashion-MNIST, 100 images per class at 10×10 pixels, Adam, 600 epochs; probed before, during and after training on
    training and test data. Leaves records and one page.
    """
    screen = console(as_json)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: expected a folder, got a file.")
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # two threads on one small network are slower than one
    torch.manual_seed(seed)
    epochs = 60 if quick else epochs
    images, held_out = load(split="train").balanced(100).resized(10), load(split="test").resized(10)
    data, test = images.tensors(flat=True), held_out.tensors(flat=True)
    network = FeedForward(depth=8, inputs=100, width=100, classes=10)
    records: list[Record] = []

    def look(epoch: int, mode: str = "train", note: str = "") -> None:
        how = {"class_names": images.class_names, "name": f"epoch {epoch}{note}", "progress": False}
        record = probe(network, data, test=test, mode=mode, null=mode == "eval", **how)  # type: ignore[arg-type]
        record.provenance["recipe"] = {**asdict(recipe), "network": "FeedForward, depth 8, width 100", "epoch": epoch}
        record.save(out / f"{record.name.replace(' ', '-').replace(',', '')}.json")
        records.append(record)

    recipe = Recipe(optimiser="adam", learning_rate=1e-3, epochs=epochs, seed=seed)
    stages = sorted({round(share * epochs) for share in STAGES} | {epochs})
    train(network, *data, recipe, at_epochs=stages, visit=look)
    final = records.pop()
    look(epochs, "eval", ", running statistics")
    running = records[-1]
    records.append(final)  # the page unfolds the last one
    page = report(records, out / "page.html", title="The law of equi-separation, from first epoch to last")
    plot(final).savefig(out / "law.png", dpi=160)
    print_record(final, screen)
    law, other = final.law(), running.law()
    for line in (
        f"With the paper's protocol (batch statistics in BatchNorm): ρ = {law.rho:.3f}, r = {law.pearson:.4f}.",
        f"With running statistics (eval mode): ρ = {other.rho:.3f}, r = {other.pearson:.4f}, p = {other.greenwood_p:.2g}.",
        f"Records: {out}/*.json    Figure: {out}/law.png    Page: {page}",
    ):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        emit(
            summary(final)
            | {"page": str(page), "record": str(out / f"epoch-{epochs}.json"), "eval": summary(running)["law"]}
        )
