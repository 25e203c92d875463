"""`layerlaw probe | sites | report | demo`: measure a model layer by layer, show where, write its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from typer import Argument, Option

from layerlaw.cli.app import JsonFlag, check_folder, command, conclude, console
from layerlaw.cli.inputs import ImageOptions, SiteOptions, explained_inputs, load_model, whole_numbers
from layerlaw.data import DEFAULT, load
from layerlaw.errors import DataError, InputError
from layerlaw.files import check_place, json_safe, made_folder
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.pages import plot, print_record
from layerlaw.pages import report as write_page
from layerlaw.probing import probe as run_probe
from layerlaw.probing import sites as find_sites
from layerlaw.record import LANGUAGE_MODEL, REGRESSION, Record
from layerlaw.verdict import judge
from layerlaw.wording import p_value, sentence

SHAPE = "shape: expected positive whole numbers such as 3,32,32"


@dataclass(frozen=True)
class ResultOptions:
    """Where a measured record goes."""

    out: Annotated[Path | None, Option(help="Write the record here (JSON).")] = None
    page: Annotated[Path | None, Option(help="Write the report here (HTML).")] = None
    name: Annotated[str | None, Option(help="Name of the record.")] = None
    as_json: JsonFlag = False

    def check(self) -> None:
        """Before minutes of measuring, not after."""
        if self.out is not None and self.page is not None and self.out.resolve() == self.page.resolve():
            raise DataError(f"{self.out}: expected one file for the record (--out) and another for the page (--page).")
        for path in filter(None, (self.out, self.page)):
            check_place(path)

    def show(self, record: Record, *facts: str, **more: Any) -> None:
        """Write record and page where they were requested, print the record below the facts; `more` is for scripts."""
        written = {"record": str(record.save(self.out))} if self.out is not None else {}
        written |= {"page": str(write_page(record, self.page))} if self.page is not None else {}
        screen = console(self.as_json)
        for fact in facts:
            screen.print(fact, markup=False, highlight=False)
        print_record(record, screen)
        conclude(screen, self.as_json, summary(record) | more, written)


@command
def probe(
    where: SiteOptions,
    images: ImageOptions,
    *,
    weights: Annotated[Path | None, Option(help="A .safetensors or .pt file of weights (never unpickled).")] = None,
    batchnorm: Annotated[
        str, Option(help="BatchNorm: running statistics, or those of each batch, or of the whole data.")
    ] = "running",
    weighting: Annotated[str, Option(help="samples (as in the paper) or classes.")] = "samples",
    classes: Annotated[str | None, Option(help="Class numbers to measure, e.g. 0,3,7.")] = None,
    logits: Annotated[bool, Option("--logits", help="Also measure the logits.")] = False,
    null: Annotated[bool, Option("--null", help="Also measure an untrained copy of the network.")] = False,
    test: Annotated[bool, Option(help="Also measure the test split.")] = True,
    per_class: Annotated[int | None, Option(help="Use this many training images of each class.")] = None,
    batch_size: Annotated[int | None, Option(help="Samples per forward.")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1, …")] = None,
    memory_gib: Annotated[float, Option(help="Memory for statistics and kept features.")] = 2.0,
    result: ResultOptions,
) -> None:
    """Measure MODEL layer by layer: does every layer take its share of separating the classes?

    MODEL names your own Python code, and that code is run.
    """
    result.check()
    network, given, given_test = load_model(where.model, weights)
    train, held_out, class_names = images.chosen(given, given_test, test=test, per_class=per_class)
    how: Any = {"batchnorm": batchnorm, "weighting": weighting, "null": null, **where.how(logits=logits)}
    how |= {"batch_size": batch_size, "device": device, "memory_gib": memory_gib}
    with explained_inputs():
        record = run_probe(network, train, test=held_out, classes=_chosen(classes, class_names), **how)
    record.name = result.name or record.name
    source = images.data or ("from the model file" if given is not None else DEFAULT)
    said = {"model": where.model, "weights": str(weights) if weights else None, "data": source, "per_class": per_class}
    record.provenance["command"] = said | {"size": images.size, "flat": images.flat, "normalize": images.normalize}
    default = f"data: {DEFAULT} (embedded; --data names another)"
    result.show(record, *[default] * (images.data is None and given is None))


@command
def sites(
    where: SiteOptions,
    images: ImageOptions,
    shape: Annotated[str | None, Option(help="Shape of one random input instead of data, e.g. 3,32,32.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show where a probe would measure MODEL, as a dry run: names, types, shapes, features, memory.

    MODEL names your own Python code, and that code is run.
    """
    network, given, _ = load_model(where.model)
    example: Any = images.chosen(given)[0] if shape is None else torch.randn(3, *whole_numbers(shape, SHAPE, 1))
    with explained_inputs():
        plan = find_sites(network, example, **where.how())
    screen = console(as_json)
    screen.print(str(plan), markup=False, highlight=False, soft_wrap=True)
    found = {"sites": plan.rows(), "why": plan.why, "left_out": list(plan.dropped), "classifier": plan.classifier}
    conclude(screen, as_json, found)


@command
def report(
    records: Annotated[list[Path], Argument(help="Record files (JSON); several are compared on one page.")],
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("layerlaw.html"),
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write one self-contained HTML page about one record, or comparing several."""
    loaded = [Record.load(path) for path in records]
    page = write_page(loaded if len(loaded) > 1 else loaded[0], out, title=title)  # before a reader may turn away
    screen = console(as_json)
    for record in loaded:
        if len(loaded) == 1:
            print_record(record, screen)
        else:
            screen.print(f"{record.name}: {judge(record).headline}", markup=False, highlight=False)
    conclude(screen, as_json, {"records": [record.name for record in loaded]}, {"page": str(page)})


def summary(record: Record) -> dict[str, Any]:
    """What a script wants to know of a record."""
    verdict = judge(record)
    told = ["accuracy", "test_accuracy"] if record.kind != LANGUAGE_MODEL else []
    told += ["r_squared", "test_r_squared"] if record.kind == REGRESSION else []
    found = {name: getattr(record, name) for name in ("name", *told, "settings", "provenance", "notes")}
    found |= {
        "law": law_of(record),
        "verdict": [verdict.headline, *verdict.findings, *verdict.advice],
        "rows": [{"site": s.name, "type": s.type, "features": s.features, **s.values} for s in record.sites],
    }
    return dict(json_safe(found))


def law_of(record: Record, column: str | None = None, drop_last: int = 0) -> dict[str, Any] | None:
    """The law of a column as plain data; `None` where there are too few sites, or a value has no logarithm."""
    try:
        return record.law(column, drop_last=drop_last).to_dict()
    except InputError:
        return None


def _chosen(classes: str | None, names: tuple[str, ...] | None) -> Any:
    """Class numbers with their names, where they have some."""
    if classes is None:
        return names
    chosen = whole_numbers(classes, "classes: expected numbers separated by commas such as 0,3,7")
    return chosen if names is None else {i: names[i] if 0 <= i < len(names) else str(i) for i in chosen}


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
        record = run_probe(trained.network(epoch), data, test=test, classes=images.class_names, **how)
        record.name = f"epoch {epoch}{note}"
        record.provenance["recipe"] = {**recipe.to_dict(), "network": f"FeedForward, {recipe.network}", "epoch": epoch}
        record.save(out / f"{record.name.replace(' ', '-').replace(',', '')}.json")
        return record

    records = [measured(epoch) for epoch in stages[:-1]]
    running, final = measured(epochs, "running", ", running statistics"), measured(epochs)
    records += [running, final]  # the page unfolds the last one
    page = write_page(records, out / "page.html", title="The law of equi-separation, from first epoch to last")
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
