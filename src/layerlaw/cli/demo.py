"""`layerlaw demo`: the main job on the embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from layerlaw.cli.app import JsonFlag, check_folder, command, conclude, console
from layerlaw.cli.classifier import summary
from layerlaw.data import load
from layerlaw.files import made_folder
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.pages import plot, print_record, report
from layerlaw.probing import probe
from layerlaw.record import Record
from layerlaw.wording import p_value, sentence

STAGES = (0.0, 1 / 60, 1 / 12, 1 / 3)  # shares of the training after which the network is measured


@command
def demo(
    out: Annotated[Path, Option(help="Folder for records and page.")] = Path("layerlaw-demo"),
    epochs: Annotated[int, Option(help="Epochs of training.")] = 600,
    quick: Annotated[bool, Option("--quick", help="60 epochs instead of 600.")] = False,
    seed: Annotated[int, Option(help="Seed of initialization and data order.")] = 666,
    as_json: JsonFlag = False,
) -> None:
    """Train the paper's 8-layer network on 1000 embedded images and watch the law appear.

    Fashion-MNIST, 100 images per class at 10×10 pixels, Adam, 600 epochs; probed before, during and after training on
    training and test data. Leaves records and one page.
    """
    screen = console(as_json)
    check_folder(out)
    made_folder(out)
    epochs = 60 if quick else epochs
    images, held_out = load(split="train").balanced(100).resized(10), load(split="test").resized(10)
    data, test = images.tensors(flat=True), held_out.tensors(flat=True)
    recipe = Recipe(Shape.even(8), optimizer="adam", learning_rate=1e-3, epochs=epochs, seed=seed)
    stages = sorted({round(share * epochs) for share in STAGES} | {epochs})
    samples = Samples.of(data, test, class_names=images.class_names)
    trained = sweep([recipe], samples, schedule=Schedule(epochs=tuple(stages), keep=True))[0]

    def measured(epoch: int, batchnorm: str = "batch", note: str = "") -> Record:
        how: Any = {"batchnorm": batchnorm, "null": batchnorm == "running", "progress": False}
        record = probe(trained.network(epoch), data, test=test, classes=images.class_names, **how)
        record.name = f"epoch {epoch}{note}"
        record.provenance["recipe"] = {**recipe.to_dict(), "network": f"FeedForward, {recipe.network}", "epoch": epoch}
        record.save(out / f"{record.name.replace(' ', '-').replace(',', '')}.json")
        return record

    records = [measured(epoch) for epoch in stages[:-1]]
    running, final = measured(epochs, "running", ", running statistics"), measured(epochs)
    records += [running, final]  # the page unfolds the last one
    page = report(records, out / "page.html", title="The law of equi-separation, from first epoch to last")
    plot(final).savefig(out / "law.png", dpi=160)
    print_record(final, screen)
    paper, other = (f"ρ = {law.rho:.3f}, r = {law.pearson:.4f}" for law in (final.law(), running.law()))
    p = p_value(running.law().greenwood_p, relation=True)
    for line in (
        sentence(f"With the paper's protocol (batch statistics in BatchNorm): {paper}."),
        sentence(f"With running statistics (eval mode): {other}") + f", p {p}.",
        f"Records: {out}/*.json    Figure: {out}/law.png    Page: {page}",
    ):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    more = {"page": str(page), "record": str(out / f"epoch-{epochs}.json"), "eval": summary(running)["law"]}
    conclude(screen, as_json, summary(final) | more)
