"""What commands are given: a model of one's own code, its weights, images, numbers."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import math
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typer import Argument, Option

from layerlaw.data import DEFAULT, Labeled, load, names
from layerlaw.data.labeled import Normalize, normalization, scaling_in_words
from layerlaw.errors import CaptureError, DataError, InputError, needed

MODEL = (
    "file.py:make or package.module:make. This runs your own code: `make` returns a model, (model, data) or (model, data, "
    "test)."
)
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
class ImageOptions:
    """A data set or a folder, and how its images are handed to the model."""

    data: Annotated[str | None, Option(help=f"{', '.join(names())}, or a folder of class folders of images.")] = None
    size: Size = None
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
    ) -> ChosenImages:
        """What `make` returned, unless --data names something else."""
        if self.data is None and given is not None:
            if self != ImageOptions() or per_class is not None:
                shape = "--size, --flat, --normalize and --per-class shape the images of --data"
                cure = "Shape them there, or name a data set with --data"
                raise InputError(f"{shape}; here the data come from your own code. {cure}.")
            return ChosenImages(given, given_test if test else None)
        source, own = self.data or DEFAULT, preprocessing_of(network)
        size = self.size if self.size is not None or source in names() else own.size
        train = load(source, split="train", size=size)
        channels, h, w = train.images.shape[1:]
        how, why = self._scaling(own, channels)
        facts = [f"data: {DEFAULT} (embedded; --data names another)"] if self.data is None else []
        if own.size is not None and (h, w) != own.size:
            expects = "×".join(map(str, own.size))
            facts.append(f"size: {h}×{w}; {own.source} of the model names {expects} (--size changes it)")
        facts.append(f"pixels: {scaling_in_words(how, train.name)} ({why})")
        if per_class is not None:
            train = train.balanced(per_class)
        held_out = None
        if test:
            try:
                held_out = load(source, split="test", size=size).tensors(how, flat=self.flat)
            except DataError:
                if source in names():
                    raise  # a flat folder of classes has no test split
        pair, name = train.tensors(how, flat=self.flat), "" if held_out is not None else f"{train.name} (train)"
        return ChosenImages(pair, held_out, train.class_names, tuple(facts), train, how, name)

    def _scaling(self, own: Preprocessing, channels: int) -> tuple[Normalize, str]:
        """How pixels are scaled, and who said so."""
        if self.normalize != "auto":
            return normalization(self.normalize), f"--normalize {self.normalize}"
        if own.normalize is None:
            return "half", "--normalize half, the default"
        if isinstance(own.normalize, tuple) and len(own.normalize[0]) not in (1, channels):  # type: ignore[arg-type]
            return "half", f"--normalize half, the default; {own.source} of the model is for other channels"
        return own.normalize, f"{own.source} of the model; --normalize names another"


@dataclass(frozen=True)
class Preprocessing:
    """What a model says of how its images are to be prepared, and where it says so."""

    normalize: Normalize | None = None
    size: tuple[int, int] | None = None
    source: str = ""


MOMENT_NAMES = (("mean", "std"), ("pixel_mean", "pixel_std"), ("image_mean", "image_std"), ("norm_mean", "norm_std"))


def preprocessing_of(network: nn.Module | None) -> Preprocessing:
    """Mean, deviation and size as timm keeps them with the model, or transformers beside its weights; a model that holds a
    mean and a deviation itself, in a module that does nothing else, needs no other."""
    if network is None:
        return Preprocessing()
    for name, module in network.named_modules():
        pair = next((p for p in MOMENT_NAMES if all(_few_numbers(getattr(module, part, None)) for part in p)), None)
        if pair is not None and not any(True for _ in module.parameters(recurse=False)):
            return Preprocessing("none", source=f"'{'.'.join(filter(None, (name, pair[0])))}'")
    kept = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)  # of timm
    folder = getattr(getattr(network, "config", None), "_name_or_path", None)
    beside = Path(folder) / "preprocessor_config.json" if isinstance(folder, str) and folder else None
    if kept is not None:
        read = kept if isinstance(kept, dict) else vars(kept)
        found = {"mean": read.get("mean"), "std": read.get("std"), "size": (read.get("input_size") or ())[-2:]}
        return _stated(found, "pretrained_cfg")
    if beside is not None and beside.is_file():
        try:
            read = json.loads(beside.read_text(encoding="utf-8"))
            size = read.get("crop_size") or read.get("size") or {}
        except (OSError, ValueError, AttributeError):
            return Preprocessing()
        sides = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
        return _stated({"mean": read.get("image_mean"), "std": read.get("image_std"), "size": sides}, beside.name)
    return Preprocessing()


def _stated(found: dict[str, Any], source: str) -> Preprocessing:
    mean, std, size = found["mean"], found["std"], tuple(found["size"])
    sides = size if len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size) else None
    if not (_few_numbers(mean) and _few_numbers(std)):
        return Preprocessing(None, sides, source)
    return Preprocessing((tuple(map(float, mean)), tuple(map(float, std))), sides, source)


def _few_numbers(value: Any) -> bool:
    """One number per channel."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.numel() in (1, 3)
    return isinstance(value, (tuple, list)) and len(value) in (1, 3) and all(isinstance(v, (int, float)) for v in value)


def class_map(text: str | None, names: tuple[str, ...] | None, network: nn.Module) -> tuple[dict[int, int], str]:
    """By the number of a folder's class the number of the model's output, and who said so; empty where nobody does.

    `text` is "cat=3,dog=5" or a JSON file of such pairs; without it, the `id2label` of the model where it knows all names.
    """
    if text is None:
        labels = getattr(getattr(network, "config", None), "id2label", None)
        if not isinstance(labels, dict) or names is None:
            return {}, ""
        known = {
            word: int(k) for k, label in labels.items() for word in (_plain(label), *map(_plain, str(label).split(",")))
        }
        found = {i: known[_plain(name)] for i, name in enumerate(names) if _plain(name) in known}
        return (found, "id2label of the model") if len(found) == len(names) else ({}, "")
    if names is None:
        raise InputError(
            "--class-map: expected with --data, whose folders it names; here the data come from your own code."
        )
    if Path(text).suffix == ".json" or Path(text).is_file():
        try:
            pairs: Any = json.loads(Path(text).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f'{text}: expected a JSON file such as {{"cat": 3}} ({type(error).__name__}).') from None
    else:
        pairs = dict(part.partition("=")[::2] for part in re.split(r"[,;]+", text) if part.strip())
    such_as = "--class-map: expected names of classes with numbers of the model's outputs such as cat=3,dog=5"
    if not isinstance(pairs, dict) or not pairs:
        raise InputError(f"{such_as}, got {text!r}.")
    if all(str(key).isdecimal() and not str(value).isdecimal() for key, value in pairs.items()):
        pairs = {value: key for key, value in pairs.items()}  # {"3": "cat"}
    chosen = {}
    for name, value in pairs.items():
        number = str(value).strip()
        if not number.isdecimal():
            raise InputError(f"{such_as}, got {name}={value}.")
        if str(name).strip() not in names:
            raise InputError(f"--class-map: expected names among {', '.join(names[:20])}, got {str(name).strip()!r}.")
        chosen[names.index(str(name).strip())] = int(number)
    if len(chosen) < 2 or len(set(chosen.values())) < len(chosen):
        raise InputError(f"{such_as}, at least two and each with a number of its own, got {text!r}.")
    return chosen, "--class-map"


def _plain(name: Any) -> str:
    return re.sub(r"[\s_-]+", " ", str(name)).strip().lower()


def relabeled(pair: tuple[Tensor, Tensor], numbers: dict[int, int]) -> tuple[Tensor, Tensor]:
    """The samples of the classes that are named, with the model's numbers for them."""
    x, y = pair
    table = torch.full((int(y.max()) + 1,), -1)
    for old, new in numbers.items():
        if old < len(table):
            table[old] = new
    found = table[y]
    return x[found >= 0], found[found >= 0]


def _index_or_key(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


@contextmanager
def explained_inputs() -> Iterator[None]:
    """When a model fails on the images, name the options that change them."""
    try:
        yield
    except CaptureError as error:
        if "dry run" not in str(error):
            raise
        raise CaptureError(f"{error} --flat, --size, --normalize and --data change what the model is given.") from error


def load_model(
    reference: str, weights: Path | None = None, *, more: str = "(model, data) or (model, data, test)"
) -> tuple[nn.Module, Any, Any]:
    """(model, data or None, test data or None) from `file.py:make` or `package.module:make`, which may give `more`.

    `weights` is a safetensors or torch file; no pickled code is ever run.
    """
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute.isidentifier():
        raise InputError(f"model: expected 'file.py:make' or 'package.module:make', got {reference!r}.")
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
        raise InputError(f"{reference}: expected a callable that returns a model, {more}, got {type(model).__name__}.")
    if weights is not None:
        _load_weights(model, weights)
    return model, data, test


def _defined_in(module: Any, name: str, value: Any) -> bool:
    """Whether a name is the file's own, not one that it imports."""
    own = getattr(value, "__module__", None) == module.__name__ and callable(value)
    return not name.startswith("_") and (own or isinstance(value, nn.Module))


def _load_weights(model: nn.Module, path: Path) -> None:
    state = _state(path)
    inner = state.get("state_dict", state.get("model", state))
    if not isinstance(inner, dict) or not all(isinstance(v, Tensor) for v in inner.values()):
        raise DataError(f"{path}: expected a state dict of tensors, got the keys {list(state)[:10]}.")
    if all(key.startswith("module.") for key in inner):
        inner = {key.removeprefix("module."): value for key, value in inner.items()}
    try:
        model.load_state_dict(inner)
    except RuntimeError as error:
        lines = [line.strip()[:300] for line in str(error).splitlines()[1:6]]
        raise DataError(f"{path}: the weights do not fit the model. " + " ".join(lines)) from None


def _state(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: expected a file of weights, found none.")
    if path.suffix == ".safetensors":
        names = ("safetensors", "safetensors.torch")
        safetensors, reader = (needed(name, "weights", "Reading .safetensors") for name in names)
        try:
            return dict(reader.load_file(path))
        except safetensors.SafetensorError as error:
            raise DataError(f"{path}: expected a safetensors file, got another or a damaged one ({error}).") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different one for every way a file can be wrong
        got = f"it is damaged or holds other objects, which are not loaded for safety ({type(error).__name__})"
        raise DataError(f"{path}: expected plain weights (torch.save(model.state_dict(), …)); {got}.") from None
    if not isinstance(state, dict):
        raise DataError(f"{path}: expected a state dict, got {type(state).__name__}.")
    return state


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise InputError(f"{place}: expected a file 'name.py' or an importable module ({error}).") from None
    path = Path(place)
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
        raise InputError(f"{what} failed with {type(error).__name__}: {error}{places}") from None


def whole_numbers(text: str, such_as: str, least: float = -math.inf) -> list[int]:
    """Whole numbers, ranges and repeated ones; `such_as` begins the error that says what was expected.

    >>> whole_numbers("3-5,8, 100x2", "depths: expected numbers such as 3-12")
    [3, 4, 5, 8, 100, 100]
    """
    found: list[int] = []
    for part in re.split(r"[\s,;]+", text.strip(" \t\r\n,;")):
        read = re.fullmatch(r"(-?\d+)(?:-(\d+)|[x×](\d+))?", part)
        if read is None or int(read[1]) < least:
            raise InputError(f"{such_as}, got {part!r}.")
        first, last, times = int(read[1]), int(read[2] or read[1]), int(read[3] or 1)
        if first > last:
            raise InputError(f"{such_as}, from low to high, got the empty range {part!r}.")
        if not 1 <= times <= 10**6:
            raise InputError(f"{such_as}, with 1 to a million after 'x', got {part!r}.")
        found += [*range(first, last + 1)] * times
    return found
