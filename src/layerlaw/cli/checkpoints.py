"""`layerlaw checkpoints`: every checkpoint of a training run measured in one way, their records, and the movie of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from torch.utils.data import Dataset
from typer import Argument, Option

from layerlaw.cli.app import JsonFlag, check_folder, command, conclude, console, in_options
from layerlaw.cli.class_choice import CLASSES, ChosenClasses, ClassMap, outputs_unknown
from layerlaw.cli.classifier import summary
from layerlaw.cli.inputs import MODEL, ImageOptions, SiteOptions, explained_inputs, load_given
from layerlaw.cli.weights import load_weights
from layerlaw.data import DEFAULT
from layerlaw.errors import DataError, InputError, LayerlawError
from layerlaw.files import as_path, check_place, json_safe, made_folder
from layerlaw.pages import movie, print_comparison
from layerlaw.probing import probe as run_probe
from layerlaw.provenance import code_version
from layerlaw.record import Record
from layerlaw.wording import counted, joined, percent

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
UNITS = {
    "epoch": re.compile(r"(?<![a-z])(?:epochs?|ep)[=_\-. ]*(\d+)", re.I),
    "step": re.compile(r"(?<![a-z])(?:steps?|iter|it)[=_\-. ]*(\d+)", re.I),
}
NUMBER = re.compile(r"\d+")
NO_BETTER = 0.1  # of the way from chance to always right: up to there accuracy is about chance
SHOWN = 12  # checkpoints that are compared in the terminal


@dataclass(frozen=True)
class CheckpointModel(SiteOptions):
    """The model that the checkpoints are of, and where it is measured."""

    model: Annotated[str, Option("--model", help=MODEL)]


class CheckpointFile(NamedTuple):
    """A file of weights, and when in training it was written."""

    step: int
    unit: str
    path: Path


@command
def checkpoints(
    files: Annotated[
        list[Path], Argument(help="Files of weights (.safetensors, .pt, .pth, .ckpt, .bin), or folders of them.")
    ],
    where: CheckpointModel,
    images: ImageOptions,
    *,
    batchnorm: Annotated[
        str, Option(help="BatchNorm: running statistics, or those of each batch, or of the whole data.")
    ] = "running",
    uncertainty: Annotated[
        bool | None, Option(help="Standard errors and D under permuted labels. Default: where they fit the memory.")
    ] = None,
    classes: Annotated[str | None, Option(help=CLASSES)] = None,
    class_map: ClassMap = None,
    test: Annotated[bool, Option(help="Also measure the test split.")] = True,
    per_class: Annotated[int | None, Option(help="Use this many training images of each class.")] = None,
    batch_size: Annotated[int | None, Option(help="Samples per forward.")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1, …")] = None,
    out: Annotated[Path, Option(help="Folder for the records; a second call measures only what is new.")] = Path(
        "layerlaw-checkpoints"
    ),
    page: Annotated[Path | None, Option(help="The movie (HTML).", show_default="movie.html in --out")] = None,
    title: Annotated[str | None, Option(help="Title of the movie.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure every checkpoint of a training run, and write one page that plays them, layer by layer and step by step.

    The step is read from each name (step1000.safetensors, epoch=3.ckpt, checkpoint-500/model.safetensors). MODEL names your
    own Python code, and that code is run; or a model of a library (timm:resnet18, hf:folder-or-name), whose own
    preprocessing is used.
    """
    found, left_out = checkpoints_in(files)
    check_folder(out)
    page = page if page is not None else made_folder(out) / "movie.html"
    check_place(page)
    made = load_given(where.model, drawn=True)
    if made.named is not None:
        made = replace(made, named=replace(made.named, weights="of the checkpoints"))
    network, given = made.network, made.data
    chosen = images.chosen(given, made.test, network=network, test=test, per_class=per_class, named=made.named)
    asked_classes = ChosenClasses.of(classes, class_map, chosen, made)
    data, held_out = map(asked_classes.given_as, (chosen.data, chosen.test))
    how: Any = {**where.how(), "batchnorm": batchnorm, "batch_size": batch_size, "device": device}
    how |= {"classes": asked_classes.asked, "uncertainty": uncertainty}
    said = {**vars(where), **vars(images), "test": test, "per_class": per_class, "batchnorm": batchnorm}
    said |= {"batch_size": batch_size, "uncertainty": uncertainty, "classes": classes, "class_map": class_map}
    asked = digest([said, _code(where.model), code_version()])
    screen, warnings = console(as_json), list[str]()
    if images.data is None and given is None:
        cure = "Name yours with --data, or let your `make` return (model, data)"
        warnings.append(f"No data were named: all checkpoints are measured on the embedded {DEFAULT}. {cure}.")
        screen.print(warnings[0], style="bold yellow", markup=False, highlight=False, soft_wrap=True)
    for fact in [*chosen.facts, *(f"left out: {path} (no {found[0].unit} in its name)" for path in left_out)]:
        screen.print(fact, markup=False, highlight=False, soft_wrap=True)
    records: list[Record] = []
    failed: dict[str, str] = {}
    kept = 0
    for checkpoint in found:
        file = made_folder(out) / f"{checkpoint.unit}-{checkpoint.step:09d}.json"
        mark = {"file": checkpoint.path.name, "sha256": file_digest(checkpoint.path), "asked": asked}
        if (known := measured_before(file, mark)) is not None:
            records.append(known)
            kept += 1
            continue
        try:
            load_weights(network, checkpoint.path)
            with explained_inputs(network, chosen, images.flat):
                record = run_probe(network, data, test=held_out, data_name=chosen.name, **how)
        except LayerlawError as error:
            if not records:  # most likely all of them are like this one
                raise
            failed[str(checkpoint.path)] = in_options(str(error))
            screen.print(f"left out: {failed[str(checkpoint.path)]}", style="red", soft_wrap=True)
            continue
        if made.named is not None:
            named = replace(made.named, weights=f"of the file {checkpoint.path.name}")
            named.note(record, prepared=isinstance(chosen.data, Dataset))
        if not records:
            for fact in asked_classes.about(chosen, unknown=outputs_unknown(record)):
                screen.print(fact, markup=False, highlight=False, soft_wrap=True)
        record.name = f"{checkpoint.unit} {checkpoint.step:,}"
        record.settings |= {"step": checkpoint.step, "step_unit": checkpoint.unit}
        record.provenance |= {"checkpoint": mark, "command": json_safe(said)}
        record.save(file)
        records.append(record)
    movie(records, page, title=title)
    warnings += at_chance(records)
    print_comparison(records if len(records) <= SHOWN else some_of(records), screen)
    again = f", {kept} of them before" if kept else ""
    screen.print(f"{counted(len(records), 'checkpoint')} measured{again}; records: {out}/*.json", soft_wrap=True)
    for warning in at_chance(records):  # last, where it is read
        screen.print(warning, style="bold yellow", markup=False, highlight=False, soft_wrap=True)
    told = {"records": [summary(record) for record in records], "failed": failed, "kept": kept, "out": str(out)}
    conclude(screen, as_json, json_safe(told | {"warnings": warnings}), {"page": str(page)})
    if failed:
        raise typer.Exit(1)


def checkpoints_in(files: Sequence[Path]) -> tuple[list[CheckpointFile], list[Path]]:
    """The checkpoints in the order of their steps, and files without a step in their names."""
    paths = list(dict.fromkeys(path for given in files for path in _inside(given)))
    units = {path: steps_in(path) for path in paths}
    # Names may tell both, and some may tell nothing: what most of them tell counts, of two the step.
    unit = max(("step", "epoch", ""), key=lambda unit: sum(unit in told for told in units.values()))
    found = [CheckpointFile(told[unit], unit or "step", path) for path, told in units.items() if unit in told]
    if not found:
        names = joined([f"'{path.name}'" for path in paths[:3]])
        such_as = "such as step1000.safetensors or epoch=3.ckpt"
        raise InputError(f"checkpoints: expected the training step in each name, {such_as}, got {names}.")
    by_step: dict[int, CheckpointFile] = {}
    for one in found:
        if (other := by_step.setdefault(one.step, one)) is not one:
            both = f"{other.path} and {one.path}"
            raise InputError(f"checkpoints: expected one of each {one.unit}, got two of {one.unit} {one.step}: {both}.")
    return [by_step[step] for step in sorted(by_step)], [path for path in paths if unit not in units[path]]


def _inside(path: Path) -> list[Path]:
    """A file itself; of a folder the weights in it, or in the folders of it, as trainers write them."""
    path = as_path(path, "step1000.pt")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: expected a checkpoint or a folder of checkpoints, found none.")
    for depth in ("*", "*/*"):
        found = sorted(one for one in path.glob(depth) if one.suffix in SUFFIXES and one.is_file())
        found = [one for one in found if depth == "*" or one.stem in ("model", "pytorch_model")]
        if found:
            return found
    raise DataError(
        f"{path}: expected checkpoints in this folder ({', '.join(f'*{s}' for s in SUFFIXES)}), found none."
    )


def steps_in(path: Path) -> dict[str, int]:
    """What a name tells of its time in training, by unit; "" where it is just a number. Else that of its folder.

    >>> steps_in(Path("epoch=3-step=2000.ckpt")), steps_in(Path("resnet18_0040.pt"))
    ({'epoch': 3, 'step': 2000}, {'': 40})
    >>> steps_in(Path("checkpoint-500/model.safetensors")), steps_in(Path("run/best.pt"))
    ({'': 500}, {})
    """
    for name in (path.stem, path.parent.name if path.stem in ("model", "pytorch_model") else ""):
        told = {unit: int(found[-1]) for unit, pattern in UNITS.items() if (found := pattern.findall(name))}
        numbers = NUMBER.findall(name)
        if told or numbers:
            return told or {"": int(numbers[-1])}
    return {}


def measured_before(file: Path, mark: dict[str, str]) -> Record | None:
    """The record of a checkpoint, if it was measured before, of the same weights and in the same way."""
    if not file.is_file():
        return None
    try:
        record = Record.load(file)
    except DataError:  # a damaged one is measured again
        return None
    return record if record.provenance.get("checkpoint") == mark else None


def at_chance(records: Sequence[Record]) -> list[str]:
    """A warning where the network is right hardly more often than by chance at every checkpoint: most likely wrong data."""
    known = [(record.accuracy, max(record.counts) / sum(record.counts)) for record in records if any(record.counts)]
    if not known or any(own is None or own > chance + NO_BETTER * (1 - chance) for own, chance in known):
        return []
    shares = [own for own, _ in known if own is not None]
    span = " to ".join(dict.fromkeys(percent(share) for share in (min(shares), max(shares))))
    about = f"Accuracy is about chance at every checkpoint ({span}; the largest class alone is {percent(known[0][1])})"
    return [f"{about}. Are these the data that the network was trained on, with pixels scaled as there? See --data."]


def some_of(records: Sequence[Record]) -> list[Record]:
    """Evenly chosen ones, the first and the last among them."""
    at = {round(i * (len(records) - 1) / (SHOWN - 1)) for i in range(SHOWN)}
    return [records[i] for i in sorted(at)]


def file_digest(path: Path) -> str:
    """sha256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(data: Any) -> str:
    """sha256 of plain data, whatever the order of its names."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def _code(model: str) -> str:
    """The checksum of the file that makes the model, where it is one; its data may come from there too."""
    path = Path(model.rpartition(":")[0])
    return file_digest(path) if path.suffix == ".py" and path.is_file() else ""
