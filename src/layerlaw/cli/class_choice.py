"""Which classes a command measures, and which output of the model is which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from layerlaw.cli.inputs import ChosenImages, GivenModel, ImageOptions, SiteOptions, load_given, whole_numbers
from layerlaw.cli.preprocessing import class_map as find_class_map
from layerlaw.cli.preprocessing import relabeled
from layerlaw.errors import InputError
from layerlaw.probing.classes import NOT_ASKED
from layerlaw.record import Record
from layerlaw.wording import joined

CLASSES = "Class numbers to measure, e.g. 0,3,7."
CLASS_MAP = "Which output of the model is which class of --data: cat=3,dog=5 or a JSON file; default: id2label."
ClassMap = Annotated[str | None, Option(help=CLASS_MAP)]


@dataclass(frozen=True)
class ChosenClasses:
    """Which classes are measured (`asked`, as `probe` takes them), and which output of the model is which of them.

    `numbers`: by the number of a class of the data that of the model's output; empty where they are the same.
    """

    asked: Any
    numbers: dict[int, int]
    mapped_by: str

    @classmethod
    def of(cls, classes: str | None, class_map: str | None, chosen: ChosenImages, made: GivenModel) -> ChosenClasses:
        """As --classes or --class-map say, or as the model does."""
        if class_map is not None and classes is not None:
            raise InputError("--classes, --class-map: expected one of them; a map names the classes that are measured.")
        known_as = None if made.named is None else made.named.class_names
        numbers, mapped_by = find_class_map(class_map, chosen.class_names, made.network, known_as)
        numbers = numbers if classes is None else {}
        return cls(classes_asked(classes, chosen.class_names, numbers), numbers, mapped_by)

    def given_as(self, pair: Any) -> Any:
        """Data with the model's numbers of their classes."""
        return relabeled(pair, self.numbers) if self.numbers and pair is not None else pair

    def all_outputs(self, chosen: ChosenImages) -> Sequence[str] | None:
        """Names of all outputs of the model, in their order, where they are known; a map has to name every output."""
        outputs = sorted(self.numbers.values())
        if not outputs:
            return chosen.class_names
        if outputs != list(range(len(outputs))):
            came = joined([str(output) for output in outputs])
            raise InputError(f"--class-map: expected a class for every output of the model, from 0 on, got {came}.")
        return [self.asked[output] for output in outputs]

    def about(self, chosen: ChosenImages, *, unknown: bool) -> list[str]:
        """Which output is which class; where that seems to be `unknown`, how to tell it."""
        names = chosen.class_names or ()
        if self.numbers:
            pairs = ", ".join(f"{names[i]} = {number}" for i, number in list(self.numbers.items())[:12])
            left_out = [name for i, name in enumerate(names) if i not in self.numbers]
            return [f"classes: {pairs} ({self.mapped_by})" + f"; left out: {', '.join(left_out)}" * bool(left_out)]
        if chosen.train is not None and unknown:
            return ["classes: --class-map cat=3,dog=5 (or a JSON file) says which output of the model is which class"]
        return []


def outputs_unknown(record: Record) -> bool:
    """Whether no decision was read because nothing says which output is which class."""
    return record.accuracy is None and record.settings["scores"] != NOT_ASKED


def misnumbered(notes: Sequence[str]) -> bool:
    """Whether one of the notes supposes that labels are numbered otherwise than the model's outputs."""
    return any("numbered" in note for note in notes)


def load_chosen(
    where: SiteOptions, images: ImageOptions, weights: Path | None, classes: str | None, class_map: str | None
) -> tuple[Any, ChosenImages, ChosenClasses]:
    """The model that was named, with its data and test data, and which of its outputs is which class of them."""
    made = load_given(where.model, weights)
    chosen = images.chosen(made.data, made.test, network=made.network, test=True, named=made.named)
    return made.network, chosen, ChosenClasses.of(classes, class_map, chosen, made)


def classes_asked(classes: str | None, names: tuple[str, ...] | None, numbers: dict[int, int]) -> Any:
    """Class numbers with their names, where they have some; where a map is known, those of the model's outputs."""
    if numbers and names is not None:
        return {number: names[i] for i, number in numbers.items()}
    if classes is None:
        return names
    chosen = whole_numbers(classes, "classes: expected numbers separated by commas such as 0,3,7")
    return chosen if names is None else {i: names[i] if 0 <= i < len(names) else str(i) for i in chosen}
