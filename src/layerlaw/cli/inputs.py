"""What commands are given: a model of one's own code, its weights, images, numbers."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import math
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typer import Argument, Option

from layerlaw.cli.named import FEATURES, prepared_splits
from layerlaw.cli.preprocessing import misfit
from layerlaw.cli.weights import load_weights as _load_weights
from layerlaw.cli.weights import read_state as _state
from layerlaw.data import DEFAULT, Labeled, load, names
from layerlaw.data.labeled import Normalize, normalization, scaling_in_words
from layerlaw.errors import CaptureError, DataError, InputError, LabelError, check_choice, demand, shown, whole
from layerlaw.files import as_path, check_readable
from layerlaw.integrations.by_name import NamedModel, is_named, load_named
from layerlaw.packed import read_npz
from layerlaw.probing.sources import Preprocessing, channels_read, preprocessing_of
from layerlaw.stats.precision import native, not_stored

MODEL = (
    "file.py:make or package.module:make. This runs your own code: `make` returns a model, (model, data) or (model, data, "
    "test). Or a model by name: timm:resnet18, torchvision:resnet18, hf:folder-or-name; 'timm:resnet18?weights=random' "
    "draws its weights."
)
SHAPING = "--size, --channels, --flat, --normalize"
Size = Annotated[int | None, Option(help="Resize images to this many pixels a side.")]


@dataclass(frozen=True)
class SiteOptions:
    """A model of one's own code, and where it is measured."""

    model: Annotated[str, Argument(help=MODEL)]
    sites: Annotated[
        list[str], Option("--sites", help="auto, layers, blocks, or module names and globs (repeat the option).")
    ] = field(default_factory=lambda: ["auto"])
    reduce: Annotated[str, Option("--reduce", help="flatten, mean, max, first or last.")] = "flatten"
    scores: Annotated[
        str,
        Option(help="Where the class scores are in the output: auto, an index or a key; none: no decision is read."),
    ] = "auto"
    labels: Annotated[str | None, Option(help="Which item of a batch of your own data are labels: index or key.")] = (
        None
    )

    def how(self, *, logits: bool = False) -> dict[str, Any]:
        """Arguments of `probe` and `sites`: one of the rules, or a list of names and globs; reduction, scores, labels."""
        names = [*self.sites, *(["logits"] if logits else [])]
        scores = None if self.scores == "none" else _index_or_key(self.scores)
        labels = None if self.labels is None else _index_or_key(self.labels)
        where = {"sites": names[0] if len(names) == 1 else names, "reduce": self.reduce}
        return where | {"scores": scores, "labels": labels}


EMBEDDED = f"data: {DEFAULT} (embedded; --data names another)"


@dataclass(frozen=True)
class ChosenImages:
    """What the model is given, the names of the classes, and what a reader should know of it, line by line.

    `train` are the images themselves where they come from --data, `normalize` is how their pixels were scaled.
    """

    data: Any
    test: Any = None
    class_names: tuple[str, ...] | None = None
    facts: tuple[str, ...] = ()
    train: Labeled | None = None
    normalize: Normalize | None = None
    name: str = ""


@dataclass(frozen=True)
class GivenModel:
    """A model that was named on the command line, and the data that its code gives; `named`: what a library says of it."""

    network: nn.Module
    data: Any = None
    test: Any = None
    named: NamedModel | None = None


@dataclass(frozen=True)
class ImageOptions:
    """A data set or a folder, and how its images are handed to the model."""

    data: Annotated[
        str | None,
        Option(
            help=f"{', '.join(names())}, a folder of class folders of images, or a .npz or .pt file of x and y (and "
            "x_test, y_test), also with targets instead of class numbers; for a model by name also a Hugging Face dataset "
            "(hf:folder-or-name), and for texts a .jsonl file of text and label."
        ),
    ] = None
    size: Size = None
    channels: Annotated[
        int | None,
        Option(help="1 (gray) or 3 (color). Default: gray images as the model's first layer takes them, colors as 3."),
    ] = None
    flat: Annotated[bool, Option("--flat", help="Hand each image over as one vector.")] = False
    normalize: Annotated[
        str,
        Option(
            help="Pixels: half ((x−0.5)/0.5), dataset (its mean and deviation), imagenet, none, or mean,std (0.5,0.25; or "
            "one of each per channel). auto: what the model says of itself, else half."
        ),
    ] = "auto"

    def chosen(
        self,
        given: Any,
        given_test: Any = None,
        *,
        network: nn.Module | None = None,
        test: bool = False,
        per_class: int | None = None,
        named: NamedModel | None = None,
    ) -> ChosenImages:
        """What `make` returned, unless --data names something else; for a model by name, prepared as its library says."""
        if per_class is not None:
            demand(per_class=(per_class, whole(1)))
        if (
            named is not None and replace(self, data=None) == ImageOptions()
        ):  # its own preprocessing, unless options say
            splits = prepared_splits(named, self.data, test=test, per_class=per_class)
            facts = [f"weights: {named.weights}", f"inputs: {named.inputs} (--size, --normalize name others)"]
            facts += [EMBEDDED] * (self.data is None)
            return ChosenImages(
                splits.train, splits.test, splits.class_names, tuple(facts), name=splits.name * (splits.test is None)
            )
        if named is not None and (named.reads == "texts" or (self.data or "").startswith("hf:")):
            raise InputError(f"{SHAPING} shape images; here the data are prepared as the model says. Leave them out.")
        if self.data is None and given is not None:
            if self != ImageOptions() or per_class is not None:
                shape = f"{SHAPING} and --per-class shape the images of --data"
                cure = "Shape them there, or name a data set with --data"
                raise InputError(f"{shape}; here the data come from your own code. {cure}.")
            return ChosenImages(given, given_test if test else None)
        if self.channels is not None:
            check_choice("--channels", self.channels, (1, 3))
        source, own = self.data or DEFAULT, preprocessing_of(network)
        if Path(source).suffix in (".npz", ".pt"):
            if replace(self, data=None) != ImageOptions() or per_class is not None:
                shape = f"{SHAPING} and --per-class shape images"
                raise InputError(f"{shape}; here the data come from {source}, as they are. Shape them there.")
            found, held = arrays(Path(source))
            return ChosenImages(found, held if test else None)
        size = self.size if self.size is not None or source in names() else own.size
        train, told = self._in_channels(load(source, split="train", size=size, channels=self.channels), network)
        channels, h, w = train.images.shape[1:]
        how, why = self._scaling(own, channels)
        facts = [EMBEDDED] if self.data is None else []
        facts += told
        if own.size is not None and (h, w) != own.size:
            expects = "×".join(map(str, own.size))
            facts.append(f"size: {h}×{w}; {own.source} of the model names {expects} (--size changes it)")
        facts.append(f"pixels: {scaling_in_words(how, train.name)} ({why})")
        if per_class is not None:
            train = train.balanced(per_class)
        held_out = None
        if test:
            try:
                held_out = load(source, split="test", size=size, channels=channels).tensors(how, flat=self.flat)
            except DataError:
                if source in names():
                    raise  # a flat folder of classes has no test split
        split = source in names() or (Path(source) / "train").is_dir()  # a flat folder of classes has no splits
        name = "" if held_out is not None else train.name + " (train)" * split
        pair = train.tensors(how, flat=self.flat)
        return ChosenImages(pair, held_out, train.class_names, tuple(facts), train, how, name)

    def _in_channels(self, images: Labeled, network: nn.Module | None) -> tuple[Labeled, list[str]]:
        """Gray images in as many channels as the model reads, unless --channels says how many; and what to tell of it."""
        c, h, w = images.images.shape[1:]
        reads = channels_read(network, h * w) if self.channels is None and images.gray else None
        if reads is None or reads[0] == c:
            return images, []
        told = f"channels: {reads[0]}, as {reads[1]} takes; the images are gray (--channels names another)"
        return images.with_channels(reads[0]), [told]

    def _scaling(self, own: Preprocessing, channels: int) -> tuple[Normalize, str]:
        """How pixels are scaled, and who said so."""
        if self.normalize != "auto":
            return normalization(self.normalize), f"--normalize {self.normalize}"
        if own.normalize is None:
            return "half", "--normalize half, the default"
        if isinstance(own.normalize, tuple) and len(own.normalize[0]) not in (1, channels):  # type: ignore[arg-type]
            return "half", f"--normalize half, the default; {own.source} of the model is for other channels"
        return own.normalize, f"{own.source} of the model; --normalize names another"


def _index_or_key(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def arrays(path: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """(x, y) and (x_test, y_test) of a .npz file or a dictionary of tensors in a .pt file; no pickled code is ever run."""
    expected = f"{path}: expected arrays of numbers under the names x and y (and x_test, y_test)"
    if path.suffix == ".pt":
        found: dict[str, Any] = _state(path)
    else:
        try:
            found = {name: torch.from_numpy(native(array)) for name, array in read_npz(path).items()}
        except (DataError, TypeError, ValueError) as error:  # torch has not every kind of number that numpy has
            raise DataError(f"{expected}; the file cannot be read ({error}).") from None
    if not all(isinstance(found.get(name), Tensor) for name in ("x", "y")):
        raise DataError(f"{expected}, got {', '.join(map(str, found)) or 'none'}.")
    for name in ("x", "y", "x_test", "y_test"):
        if isinstance(found.get(name), Tensor) and (why := not_stored(found[name])):
            raise DataError(f"{expected}, got {why} under '{name}'.")
    tested = isinstance(found.get("x_test"), Tensor) and isinstance(found.get("y_test"), Tensor)
    return (found["x"], found["y"]), (found["x_test"], found["y_test"]) if tested else None


@contextmanager
def explained_inputs(network: nn.Module, images: ChosenImages | None = None, flat: bool = False) -> Iterator[None]:
    """When a model fails on the images, name the options that change them, and which of them its first layer needs.

    When labels do not fit the model and nobody had named the data, say which were taken.
    """
    try:
        yield
    except LabelError as error:
        if images is None or EMBEDDED not in images.facts:
            raise
        said = str(error).partition(" A model without a classifier")[0]  # it has one, and these are not its data
        cure = "Name the model's own data by --data, or let your `make` return (model, data, test)"
        raise LabelError(f"{said} No data were given, so {DEFAULT} (embedded) was taken. {cure}.") from error
    except CaptureError as error:
        if "dry run" not in str(error):
            raise
        train = None if images is None else images.train
        cure = "" if train is None else misfit(network, tuple(train.images.shape[1:]), flat, str(error))
        cure = cure or f"{SHAPING} and --data change what the model is given."
        raise CaptureError(f"{error} {cure}") from error


def load_model(
    reference: str, weights: Path | None = None, *, more: str = "(model, data) or (model, data, test)"
) -> tuple[nn.Module, Any, Any]:
    """(model, data or None, test data or None) from `file.py:make` or `package.module:make`, which may give `more`.

    `weights` is a safetensors or torch file; no pickled code is ever run.
    """
    if is_named(reference):
        return load_given(reference, weights).network, None, None
    if reference.startswith(FEATURES):
        raise InputError(f"model: expected a network, got {reference!r}: `layerlaw probe` measures saved features.")
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute.isidentifier():
        such_as = "'file.py:make', 'package.module:make', 'timm:name', 'torchvision:name' or 'hf:name'"
        raise InputError(f"model: expected {such_as}, got {reference!r}.")
    module = _module(place)
    if not hasattr(module, attribute):
        own = [name for name, value in vars(module).items() if _defined_in(module, name, value)]
        near = difflib.get_close_matches(attribute, own, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        has = f"It defines: {', '.join(own[:20])}" if own else "It defines no function, class or model"
        raise InputError(f"{place} has no '{attribute}'.{hint} {has}.")
    made = getattr(module, attribute)
    if not isinstance(made, nn.Module) and callable(made):
        with explained(reference):
            made = made()
    parts = made if isinstance(made, tuple) else (made,)
    model, data, test = (*parts, None, None)[:3]
    if not isinstance(model, nn.Module):
        got = type(model).__name__
        if isinstance(model, type):
            got = f"the class {model.__name__} itself: return {model.__name__}(…)"
        raise InputError(f"{reference}: expected a callable that returns a model, {more}, got {got}.")
    if weights is not None:
        _load_weights(model, weights)
    return model, data, test


def load_given(reference: str, weights: Path | None = None, *, drawn: bool = False) -> GivenModel:
    """A model of one's own code with its data, or one by name, whose weights are then those of the file `weights`.

    `drawn`: weights of a model by name are not fetched, since others are loaded into it later.
    """
    if not is_named(reference):
        return GivenModel(*load_model(reference, weights))
    named = load_named(reference, drawn=drawn or weights is not None)
    if weights is not None:
        _load_weights(named.model, weights)
        named = replace(named, weights=f"of the file {weights.name}")
    return GivenModel(named.model, named=named)


def _defined_in(module: Any, name: str, value: Any) -> bool:
    """Whether a name is the file's own, not one that it imports."""
    own = getattr(value, "__module__", None) == module.__name__ and callable(value)
    return not name.startswith("_") and (own or isinstance(value, nn.Module))


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise InputError(f"{place}: expected a file 'name.py' or an importable module ({error}).") from None
    path = as_path(place, "model.py")
    if not path.is_file():
        raise InputError(f"{place}: expected a Python file, found none.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # the file's own neighbors can be imported
    sys.modules.setdefault(path.stem, module)
    with explained(place):
        spec.loader.exec_module(module)
    return module


@contextmanager
def explained(what: str) -> Iterator[None]:
    """An error in the user's own code is reported with its own lines, not with ours."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        own = [frame for frame in frames if "importlib" not in frame.filename]
        places = "".join(f"\n  {frame.filename}, line {frame.lineno}: {frame.line}" for frame in own[-4:])
        cure = ""
        if "process group twice" in str(error) and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            cure = " Under torchrun the command does this: leave it out of make, and return the bare model."
        raise InputError(f"{what} failed with {type(error).__name__}: {error}{cure}{places}") from None


MOST_NUMBERS = 10**6  # of one list
LARGEST_COUNTS = 64 * 2**20  # bytes of a file of class counts


def whole_numbers(text: str, such_as: str, least: float = -math.inf) -> list[int]:
    """Whole numbers, ranges and repeated ones; `such_as` begins the error that says what was expected.

    >>> whole_numbers("3-5,8, 100x2", "depths: expected numbers such as 3-12")
    [3, 4, 5, 8, 100, 100]
    """
    found: list[int] = []
    for part in re.split(r"[\s,;]+", text.strip(" \t\r\n,;")):
        read = re.fullmatch(r"(-?\d{1,400})(?:-(\d{1,400})|[x×](\d{1,400}))?", part)
        if read is None or int(read[1]) < least:
            raise InputError(f"{such_as}, got {shown(part)}.")
        first, last, times = int(read[1]), int(read[2] or read[1]), int(read[3] or 1)
        if first > last:
            raise InputError(f"{such_as}, from low to high, got the empty range {shown(part)}.")
        if not 1 <= times <= 10**6:
            raise InputError(f"{such_as}, with 1 to a million after 'x', got {shown(part)}.")
        if (last - first + 1) * times + len(found) > MOST_NUMBERS:
            raise InputError(f"{such_as}, at most {MOST_NUMBERS:,} of them, got {shown(part)}.")
        found += [*range(first, last + 1)] * times
    return found


def class_counts(text: str | None, file: Path | None) -> list[int] | None:
    """'5000x2,50' → [5000, 5000, 50]; a file holds the same, separated by anything that is no number.

    >>> class_counts("5000x2, 50", None)
    [5000, 5000, 50]
    """
    if text is not None and file is not None:
        raise InputError("counts: expected --counts or --counts-file, got both.")
    if file is not None:
        check_readable(file, "a text file of class counts")
        try:
            if (size := file.stat().st_size) > LARGEST_COUNTS:
                most = f"a text file of class counts of at most {LARGEST_COUNTS:,} bytes"
                raise DataError(f"{file}: expected {most}, got {size:,}.")
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: expected a text file of class counts ({type(error).__name__}).") from None
    such_as = "counts: expected whole numbers such as 5000,5000,50 or 5000x2,50"
    return None if text is None else whole_numbers(text, such_as)
