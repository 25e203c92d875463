"""Images or texts with labels, each turned into the inputs of a model when it is needed: by a transform, an image processor
or a tokenizer. Those of Hugging Face are known by what they can do, so that none of their packages is imported here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from layerlaw.data.folder import open_picture, picture_files
from layerlaw.data.labeled import Labeled
from layerlaw.data.texts import json_rows
from layerlaw.errors import DataError, LabelError, needed

Kind = Literal["images", "texts"]
NO_LIMIT = 10**6  # tokens: tokenizers that know no limit give a larger number
IMAGE, TEXT = "Image", "string"  # what datasets calls the features of such columns
LABEL_KEYS = ("labels", "label", "targets", "target")
TEXT_KEYS = ("text", "sentence", "content", "document", "review")


class Prepared(Dataset[Any]):
    """Samples that are read one by one, with their labels; `prepare` turns one into a tensor or a dictionary of tensors.

    A data set of torch, so that loaders take it: an item is (inputs, label), or a dictionary of inputs with 'labels'.
    """

    def __init__(
        self,
        read: Callable[[int], Any],
        labels: Tensor,
        prepare: Callable[[Any], Any],
        *,
        kind: Kind,
        class_names: Sequence[str] | None = None,
        name: str = "",
    ) -> None:
        self.read, self.prepare, self.labels, self.kind, self.name = read, prepare, labels, kind, name
        self.class_names = None if class_names is None else tuple(class_names)
        self.chosen = torch.arange(len(labels))

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Any:
        place = int(self.chosen[index])
        found, label = self.prepare(self.read(place)), self.labels[place]
        if isinstance(found, Mapping):
            return {**found, "labels": label}
        return (torch.from_numpy(found) if isinstance(found, np.ndarray) else found), label

    def at(self, rows: Tensor) -> Prepared:
        """Some of the samples."""
        part = copy.copy(self)
        part.chosen = self.chosen[rows]
        return part

    def balanced(self, per_class: int) -> Prepared:
        """The first so many samples of every class."""
        here = self.labels[self.chosen]
        counts = torch.bincount(here, minlength=len(self.class_names or ()))
        if per_class < 1 or int(counts.min()) < per_class:
            most = f"from 1 to {int(counts.min())} of each class, as many as the rarest has"
            raise DataError(f"{self.name or 'data'}: expected {most}, got {per_class}.")
        rows = [(here == k).nonzero().flatten()[:per_class] for k in range(len(counts))]
        return self.at(torch.cat(rows).sort().values)

    def relabeled(self, numbers: Mapping[int, int]) -> Prepared:
        """The samples of the classes that are named, with other numbers for them."""
        table = torch.full((int(self.labels.max()) + 1,), -1)
        for old, new in numbers.items():
            if old < len(table):
                table[old] = new
        part = self.at((table[self.labels[self.chosen]] >= 0).nonzero().flatten())
        part.labels, part.class_names = table[self.labels], None
        return part


class HubRows(Dataset[Any]):
    """The rows of a Hugging Face dataset whose columns are tensors already, under their names, and 'labels'."""

    def __init__(self, data: Any, label: str, class_names: Sequence[str] | None) -> None:
        self.data, self.label = data, label
        self.class_names = None if class_names is None else tuple(class_names)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.data[index]
        if self.label not in row:
            cure = f"with_format('torch', columns=[…, {self.label!r}]) leaves it in"
            raise DataError(
                f"expected the labels in the column '{self.label}', got the columns {_listed(row)}; {cure}."
            )
        kept = {k: v for k, v in row.items() if isinstance(v, (Tensor, np.ndarray)) and k != self.label}
        if not kept:
            raise DataError(f"expected columns of tensors beside the labels, got {_listed(row)}.")
        return {**kept, "labels": torch.as_tensor(row[self.label])}


def is_hub_data(data: Any) -> bool:
    """Whether this is a Dataset of the package datasets; a dictionary of splits, or a stream, is answered."""
    if type(data).__module__.partition(".")[0] != "datasets":
        return False
    if isinstance(data, Mapping):
        splits = list(data)
        raise DataError(
            f"expected one split of a Hugging Face dataset, got all of them ({_listed(splits)}): pass data[{splits[0]!r}]."
            if splits
            else "expected a Hugging Face dataset, got one without splits."
        )
    if isinstance(data, Dataset):  # a stream of tensors, which torch can load
        return False
    if not hasattr(data, "__len__"):
        cure = "Dataset.from_list(list(data.take(10_000))) makes one of its first rows, or pass a DataLoader of it"
        raise DataError(
            f"expected a Hugging Face dataset of known length, got a stream ({type(data).__name__}): {cure}."
        )
    return hasattr(data, "column_names") and hasattr(data, "with_format")


def hub_data(
    data: Any,
    prepare: Any,
    *,
    images_by: Any,
    label: str | int | None = None,
    channels: int | None = None,
    most: int | None = None,
) -> Dataset[Any]:
    """A Hugging Face dataset: columns that are tensors as they are, else images or texts, turned into inputs by `prepare`.

    Without it, images are turned into inputs by `images_by`; `most`: how many tokens of a text the model takes.
    """
    column = _label_column(data, label)
    feature = data.features[column]
    names = getattr(feature, "names", None)
    shape = getattr(data, "format", None) or {}
    if prepare is None and shape.get("type") not in (None, "python"):  # set by the user: torch, or a transform
        return HubRows(data, column, names)
    kinds = {name: _kind(feature) for name, feature in data.features.items() if name != column}
    images, texts = ([name for name, kind in kinds.items() if kind == wanted] for wanted in (IMAGE, TEXT))
    if prepare is None and not images and "number" in kinds.values():
        return HubRows(data.with_format("torch"), column, names)
    labels = _labels(data.with_format(None)[column], column, names)
    if len(images) == 1:
        turned = of_images(prepare or images_by, channels)
        source = data.with_format(None).select_columns([images[0]])
        how: Any = {"kind": "images", "class_names": names}
        return Prepared(lambda index: source[index][images[0]], labels, turned, **how)
    chosen = texts if len(texts) == 1 else [name for name in TEXT_KEYS if name in texts][:1]
    if not chosen or images:
        cure = "data.select_columns([…]) leaves some, .map(tokenize).with_format('torch') makes tensors of your own"
        raise DataError(f"expected one column of images or of texts beside '{column}', got {_listed(kinds)}; {cure}.")
    if prepare is None:
        cure = "a tokenizer as `prepare` does it here; or data.map(tokenize).with_format('torch') before"
        raise DataError(f"expected texts of '{chosen[0]}' as tokens, got strings: {cure}.")
    words = list(data.with_format(None)[chosen[0]])
    return Prepared(words.__getitem__, labels, of_texts(prepare, words, most), kind="texts", class_names=names)


def _label_column(data: Any, label: str | int | None) -> str:
    known = list(data.column_names)
    if label is not None:
        if label not in known:
            raise DataError(f"labels={label!r}: expected one of the columns {_listed(known)}.")
        return str(label)
    found = [name for name in LABEL_KEYS if name in known][:1]
    found = found or [name for name, feature in data.features.items() if hasattr(feature, "names")]
    if len(found) != 1:
        cure = "labels='…' names the column that holds them"
        raise DataError(f"expected a column of labels, 'label' or 'labels', got {_listed(known)}; {cure}.")
    return str(found[0])


def _kind(feature: Any) -> str:
    """What a column holds: images, texts, numbers, or something else."""
    if type(feature).__name__ == IMAGE:
        return IMAGE
    kind = str(getattr(feature, "dtype", ""))
    if kind in (TEXT, "large_string"):
        return TEXT
    inner = feature
    while (deeper := getattr(inner, "feature", inner[0] if isinstance(inner, list) else None)) is not None:
        inner = deeper
    kind = str(getattr(inner, "dtype", ""))
    return "number" if kind.startswith(("int", "uint", "float", "bool")) else kind or type(feature).__name__


def _labels(values: Any, column: str, names: Sequence[str] | None) -> Tensor:
    """A column of numbers, or of words that are names of classes."""
    listed = list(values)
    if listed and all(isinstance(value, str) for value in listed):
        known = {name: k for k, name in enumerate(names or ())}
        if missing := sorted(set(listed) - known.keys()):
            cure = f"data.class_encode_column({column!r}) numbers them"
            raise LabelError(f"labels of '{column}': expected class numbers, got words such as {missing[0]!r}; {cure}.")
        return torch.tensor([known[value] for value in listed])
    try:
        return torch.as_tensor(np.asarray(listed))
    except (TypeError, ValueError, RuntimeError):
        raise LabelError(f"labels of '{column}': expected numbers, got {str(listed[:3])[:80]}.") from None


def of_images(prepare: Any, channels: int | None = None) -> Callable[[Any], Any]:
    """A transform of one image, or an image processor of transformers, as a function of an image with so many channels.

    `None`: gray ones stay gray.
    """
    if not callable(prepare):
        expected = "a transform of an image, an image processor or a tokenizer"
        raise DataError(f"prepare: expected {expected}, got {type(prepare).__name__}.")
    return partial(_prepared_image, prepare, channels)


def _prepared_image(prepare: Any, channels: int | None, image: Any) -> Any:
    if hasattr(image, "convert"):
        gray = channels == 1 or (channels is None and image.mode in ("1", "L", "LA"))
        image = image.convert("L" if gray else "RGB")
    elif image is None:
        raise DataError("expected an image, got none (None) in a row of the data.")
    if hasattr(prepare, "image_mean") or hasattr(prepare, "image_processor"):  # of transformers, for batches
        return {name: value[0] for name, value in prepare(images=[image], return_tensors="pt").items()}
    return prepare(image)


def of_texts(tokenizer: Any, texts: Sequence[str], most: int | None = None) -> Callable[[str], dict[str, Tensor]]:
    """A tokenizer of transformers as a function of one text: all are padded to the longest, with an attention mask.

    Of one length, since features of tokens are flattened; cut at the most that the tokenizer (or the model, `most`) takes.
    """
    if not (callable(tokenizer) and hasattr(tokenizer, "pad")):
        raise DataError(
            f"prepare: expected a tokenizer, which turns texts into tokens, got {type(tokenizer).__name__}."
        )
    if tokenizer.pad_token is None:
        cure = "tokenizer.pad_token = tokenizer.eos_token chooses one"
        raise DataError(f"prepare: expected a tokenizer with a token for padding, got one without; {cure}.")
    limits = [limit for limit in (getattr(tokenizer, "model_max_length", None), most) if limit and limit < NO_LIMIT]
    cut: Any = {"truncation": True, "max_length": min(limits)} if limits else {"truncation": False}
    longest = max((len(row) for row in tokenizer(list(texts), **cut)["input_ids"]), default=1)
    padded: Any = {"padding": "max_length", "max_length": longest, "truncation": True, "return_tensors": "pt"}

    def prepare(text: str) -> dict[str, Tensor]:
        return {name: value[0] for name, value in tokenizer(text, **padded).items()}

    return prepare


def labeled_pictures(data: Labeled, prepare: Callable[[Any], Any], channels: int | None = None) -> Prepared:
    """Images of a data set, each as a picture that is then prepared."""
    Image = needed("PIL.Image", "data", "preparing images", package="pillow")
    pixels = data.images.permute(0, 2, 3, 1).numpy()  # (n, h, w, c)

    def read(index: int) -> Any:
        return Image.fromarray(pixels[index, :, :, 0] if pixels.shape[3] == 1 else pixels[index])

    turned = of_images(prepare, channels)
    return Prepared(read, data.labels, turned, kind="images", class_names=data.class_names, name=data.name)


def folder_pictures(root: Path, prepare: Callable[[Any], Any], *, split: str, channels: int | None = None) -> Prepared:
    """The pictures of a folder of class folders, each opened in its own size when it is needed."""
    files, names = picture_files(root, split)
    paths, labels = [path for path, _ in files], torch.tensor([k for _, k in files])
    turned = of_images(prepare, channels)
    how: Any = {"kind": "images", "class_names": names, "name": root.resolve().name}
    return Prepared(lambda index: open_picture(paths[index], channels or 3), labels, turned, **how)


def labeled_lines(path: Path, tokenizer: Any, most: int | None = None) -> Prepared:
    """Texts with labels from a .jsonl file, {"text": "…", "label": 1} in each line; labels are numbers, or words."""
    texts, labels = [], []
    for number, row in json_rows(path):
        label = next((row[key] for key in LABEL_KEYS if key in row), None)
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise DataError(
                f"{path}, line {number}: expected a number or a word in the field 'label', got {label!r:.80}."
            )
        texts.append(row["text"])
        labels.append(label)
    if len({isinstance(label, str) for label in labels}) > 1:
        raise LabelError(f"{path}: expected labels that are all numbers or all words, got both.")
    words = sorted(set(labels)) if isinstance(labels[0], str) else None
    numbers = torch.tensor(labels if words is None else [words.index(label) for label in labels])
    how: Any = {"kind": "texts", "class_names": words, "name": path.name}
    return Prepared(texts.__getitem__, numbers, of_texts(tokenizer, texts, most), **how)


def _listed(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:10]) + ", …" * (len(shown) > 10)
