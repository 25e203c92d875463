"""Models by name on the command line: loaded, and the images or texts of --data prepared as their libraries say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from layerlaw.data import DEFAULT, load, names
from layerlaw.data.prepared import Prepared, folder_pictures, hub_data, labeled_lines, labeled_pictures
from layerlaw.data.saved_features import load_features
from layerlaw.errors import DataError, InputError, needed
from layerlaw.files import as_path
from layerlaw.integrations.by_name import NamedModel
from layerlaw.probing.given_features import Given, record_of
from layerlaw.probing.sources import OwnImages, channels_of
from layerlaw.record import Record

HUB, FEATURES = "hf:", "features:"
UNASKED = (None, False, "running", "flatten", "auto")  # what options of a network are where nobody gave them


class PreparedSplits(NamedTuple):
    """Training and test data that a model's own preprocessing turns into inputs, and what a reader should know of them."""

    train: Any
    test: Any
    class_names: tuple[str, ...] | None
    name: str


def prepared_splits(named: NamedModel, source: str | None, *, test: bool, per_class: int | None) -> PreparedSplits:
    """The data that --data names, prepared for a model; `per_class`: so many training samples of each class."""
    if named.reads == "texts" and source is None:
        raise InputError(
            f"--data: {named.name} reads texts: name a .jsonl file of text and label, or hf:folder-or-name."
        )
    train = _split(named, source or DEFAULT, "train")
    assert train is not None
    held_out = _split(named, source or DEFAULT, "test") if test else None
    if per_class is not None:
        if not isinstance(train, Prepared):
            raise InputError("--per-class: expected images or texts to choose among, got columns of tensors.")
        train = train.balanced(per_class)
    labels = train.class_names
    return PreparedSplits(train, held_out, None if labels is None else tuple(labels), getattr(train, "name", ""))


def _split(named: NamedModel, source: str, split: Any) -> Any:
    """One split; `None` where there is no such one of test data."""
    channels = channels_of(named.model)
    if source.startswith(HUB):
        rows = hub_split(source.removeprefix(HUB), split)
        if rows is None:
            return None
        by = named.prepare
        found = hub_data(rows, by, images_by=OwnImages.of(named.model), channels=channels, most=named.most_tokens)
        return found
    if named.reads == "texts":
        path = as_path(source, "texts.jsonl")
        if not path.name.removesuffix(".gz").endswith(".jsonl") or not path.is_file():
            expected = 'a .jsonl file with {"text": "…", "label": 1} in each line, or hf:folder-or-name'
            raise DataError(f"--data: {named.name} reads texts: expected {expected}, got {source!r}.")
        return None if split == "test" else labeled_lines(path, named.prepare, named.most_tokens)
    if source in names():
        return labeled_pictures(load(source, split=split), named.prepare, channels)
    path = as_path(source, "pictures")
    if not path.exists():
        load(source)  # raises: which data sets there are
    try:
        return folder_pictures(path, named.prepare, split=split, channels=channels)
    except DataError:
        if split == "test" and not (path / "test").is_dir():
            return None  # a flat folder of classes has no splits
        raise


def hub_split(place: str, split: str) -> Any:
    """A split of a Hugging Face dataset, from a folder (as `save_to_disk` leaves it) or by a name, "owner/name:config".

    Where there is no test split, that for validation stands in; `None` where there is neither.
    """
    datasets = needed("datasets", "datasets", f"the data 'hf:{place}'")
    path = Path(place).expanduser()
    name, _, config = place.partition(":")
    try:
        found = datasets.load_from_disk(str(path)) if path.is_dir() else datasets.load_dataset(name, config or None)
    except Exception as error:  # of the network, the hub, every file format
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        expected = "expected a folder that Dataset.save_to_disk has left, or a name on the hub"
        raise DataError(f"--data hf:{place}: {expected}, got {got}") from error
    if not isinstance(found, dict):
        return found if split == "train" else None
    wanted = (split,) if split == "train" else ("test", "validation")
    known = [one for one in wanted if one in found]
    if not known and split == "train":
        raise DataError(f"--data hf:{place}: expected a split 'train', got {', '.join(map(str, found))}.")
    return found[known[0]] if known else None


def check_features_alone(asked: dict[str, Any], images: Any) -> None:
    """Options that ask something of a network or of images are answered where features are measured."""
    given = [name for name, value in asked.items() if value != images and value not in UNASKED]
    if given:
        why = "is for networks; features:… are measured as they are saved"
        raise InputError(f"{given[0]}: {why}. Leave it out.")


def measured_features(reference: str, sites: list[str], *, test: bool, **how: Any) -> Record:
    """The record of a folder of features; --sites names layers in the order of depth."""
    folder = as_path(reference.removeprefix(FEATURES), "features:folder")
    found = load_features(folder)
    held_out = (
        None if found.test is None or not test else Given(found.test.features, found.test.labels, found.test.logits)
    )
    given: Any = {"logits": found.logits, "classifier": found.classifier, "test": held_out}
    given |= {"sites": None if sites == ["auto"] else sites}
    how |= {"classes": found.class_names} if how["classes"] is None else {}
    how["name"] = how["name"] or found.name
    record = record_of(found.features, found.labels, **given, **how)
    record.provenance["command"] = {"model": reference, "data": "saved features"}
    return record
