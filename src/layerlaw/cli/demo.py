"""`layerlaw demo`: the paper's 8-layer network trained on embedded images, with its movie, records and page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from layerlaw.cli.app import JsonFlag, check_folder, command, conclude, console, save_figure
from layerlaw.cli.classifier import summary
from layerlaw.data import load
from layerlaw.files import made_folder
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.law import LawFit
from layerlaw.law.words import law_numbers
from layerlaw.pages import movie as write_movie
from layerlaw.pages import plot, print_record
from layerlaw.pages import report as write_page
from layerlaw.probing import probe as run_probe
from layerlaw.record import Record
from layerlaw.wording import correlation

STAGES = (0.0, 1 / 60, 1 / 12, 1 / 3)  # shares of the training after which it is measured with all that there is
MOST_FRAMES, EPOCHS_PER_FRAME = 25, 5  # of the movie: as many, or one of so many epochs


def frame_epochs(epochs: int) -> list[int]:
    """The epochs that a movie shows, close together where training changes most: at its beginning.

    >>> frame_epochs(60), len(frame_epochs(600))
    ([0, 1, 2, 3, 4, 6, 8, 11, 15, 22, 30, 43, 60], 25)
    """
    count = max(2, min(MOST_FRAMES, epochs // EPOCHS_PER_FRAME))
    for more in range(4 * count):  # the first ones fall together
        found = {0, epochs} | {round(epochs ** (k / (count + more))) for k in range(count + more) if epochs > 1}
        if len(found) >= count:
            break
    return sorted(found)


@command
def demo(
    out: Annotated[Path, Option(help="Folder for records and pages.")] = Path("layerlaw-demo"),
    epochs: Annotated[int, Option(help="Epochs of training.")] = 600,
    quick: Annotated[bool, Option("--quick", help="60 epochs instead of 600.")] = False,
    seed: Annotated[int, Option(help="Seed of initialization and data order.")] = 666,
    as_json: JsonFlag = False,
) -> None:
    """Train the paper's 8-layer network on 1000 embedded images and watch the law appear.

    Fashion-MNIST, 100 images per class at 10×10 pixels, Adam, 600 epochs; probed before, during and after training on
    training and test data. Leaves a movie of the training, records and one page.
    """
    screen = console(as_json)
    check_folder(out)
    made_folder(out)
    epochs = 60 if quick else epochs
    images, held_out = load(split="train").balanced(100).resized(10), load(split="test").resized(10)
    data, test = images.tensors(flat=True), held_out.tensors(flat=True)
    recipe = Recipe(Shape.even(8), optimizer="adam", learning_rate=1e-3, epochs=epochs, seed=seed)
    stages = sorted({round(share * epochs) for share in STAGES} | {epochs})
    frames = sorted({*frame_epochs(epochs), *stages})
    samples = Samples.of(data, test, class_names=images.class_names)
    trained = sweep([recipe], samples, schedule=Schedule(epochs=tuple(frames), batchnorm=(), keep=True))[0]

    def measured(epoch: int, batchnorm: str = "batch", note: str = "", **how: Any) -> Record:
        how |= {"batchnorm": batchnorm, "null": batchnorm == "running", "progress": False}
        record = run_probe(trained.network(epoch), data, classes=images.class_names, **how)
        record.name = f"epoch {epoch}{note}"
        if batchnorm == "batch":  # one series of records, which page and movie show along the epochs
            record.settings |= {"step": epoch, "step_unit": "epoch"}
        record.provenance["recipe"] = {**recipe.to_dict(), "network": f"FeedForward, {recipe.network}", "epoch": epoch}
        if epoch in stages:
            record.save(out / f"{record.name.replace(' ', '-').replace(',', '')}.json")
        return record

    # Epochs between the stages are there for the movie alone: no test data, no errors, no files.
    shown = {
        epoch: measured(epoch, **({"test": test} if epoch in stages else {"uncertainty": False})) for epoch in frames
    }
    film = write_movie(list(shown.values()), out / "movie.html", title="The law of equi-separation, epoch by epoch")
    running = measured(epochs, "running", ", running statistics", test=test)
    records, final = [shown[epoch] for epoch in stages], shown[epochs]
    records.insert(-1, running)  # the page unfolds the last one
    final.notes.append("movie.html, beside this page, plays the training epoch by epoch.")
    page = write_page(records, out / "page.html", title="The law of equi-separation, from first epoch to last")
    save_figure(plot(final), out / "law.png")
    print_record(final, screen)
    paper, other = (_in_short(stage.law()) for stage in (final, running))
    for line in (
        f"Movie of the training, to open in a browser: {film}",
        f"With the paper's protocol (batch statistics in BatchNorm): {paper}.",
        f"With running statistics (eval mode): {other}.",
        f"Records: {out}/*.json    Figure: {out}/law.png    Page: {page}",
    ):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    more = {"movie": str(film), "page": str(page), "record": str(out / f"epoch-{epochs}.json")}
    conclude(screen, as_json, summary(final) | more | {"eval": summary(running)["law"]})


def _in_short(fit: LawFit) -> str:
    """The numbers of a law, without a verdict."""
    return ", ".join([f"ρ = {fit.rho:.3f}", f"r = {correlation(fit.pearson)}", *law_numbers(fit)])
