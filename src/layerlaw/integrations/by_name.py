"""Models by name, with the preprocessing that belongs to them: `timm:resnet18`, `torchvision:resnet18`, `hf:folder-or-name`.

    from layerlaw.integrations.by_name import load_named, probe_named

    found = load_named("timm:resnet18?weights=random&classes=10")  # found.model, found.prepare, found.weights in words
    record = probe_named("hf:microsoft/resnet-18", dataset)

After a question mark: `weights=random` for weights that are drawn (`seed=1` draws others), or the name of published ones
where a library has several; `classes=10` for another number of classes. Without it weights are the published ones, from
the library's cache on this machine or, where there is a network, downloaded by the library; nothing else stands in for them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import torch
from torch import nn

from layerlaw.data.prepared import Kind
from layerlaw.errors import DataError, InputError, LayerlawError, needed
from layerlaw.lm.twins import seeded
from layerlaw.probing import probe
from layerlaw.record import Record
from layerlaw.wording import joined

OPTIONS = ("weights", "classes", "seed")
RANDOM = "random"
NEAREST = 3  # names that an error offers


@dataclass(frozen=True)
class Wish:
    """What stands behind a source's colon: a name, which weights (`None`: the published ones), how many classes."""

    source: str
    name: str
    weights: str | None = None
    classes: int | None = None
    seed: int = 0

    @classmethod
    def of(cls, reference: str) -> Wish:
        """Read it.

        >>> Wish.of("timm:resnet18?weights=random&classes=10")
        Wish(source='timm', name='resnet18', weights='random', classes=10, seed=0)
        """
        source, _, rest = reference.partition(":")
        name, asked, query = rest.partition("?")
        if source not in SOURCES or not name:
            raise InputError(f"model: expected {_forms()}, got {reference!r}.")
        pairs = parse_qsl(query, keep_blank_values=True)
        if asked and (not pairs or any(key not in OPTIONS for key, _ in pairs) or len(dict(pairs)) < len(pairs)):
            such_as = f"{source}:{name}?weights=random&classes=10"
            raise InputError(f"model: expected {joined(OPTIONS, 'or')} after '?', as in {such_as}, got {query!r}.")
        given = dict(pairs)
        numbers: dict[str, Any] = {}
        for key, least in (("classes", 2), ("seed", 0)):
            if key in given:
                if not given[key].isdecimal() or not least <= int(given[key]) < 2**31:
                    raise InputError(f"model: expected {key} as a whole number from {least}, got {given[key]!r}.")
                numbers[key] = int(given[key])
        return cls(source, name, given.get("weights") or None, **numbers)

    @property
    def drawn(self) -> bool:
        """Whether its weights are drawn."""
        return self.weights == RANDOM

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"


@dataclass(frozen=True)
class NamedModel:
    """A model, what turns one image (or a text) into its inputs, and in words which weights it has.

    `reads` are "images" or "texts"; `class_names` what its outputs are called, where that is known; `most_tokens` how many
    of a text it takes.
    """

    model: nn.Module
    name: str
    weights: str
    prepare: Any
    reads: Kind = "images"
    class_names: tuple[str, ...] | None = None
    most_tokens: int | None = None

    @property
    def inputs(self) -> str:
        """How its inputs are prepared, in words."""
        return f"{self.reads} prepared as {self.name.partition(':')[0]} says for this model"

    def note(self, record: Record, *, prepared: bool = True) -> Record:
        """Say in a record which model and weights it is of, and how its inputs were `prepared` where they were."""
        record.name = self.name
        record.provenance |= {"model_name": self.name, "weights": self.weights}
        if prepared:
            record.settings["inputs"] = self.inputs
        return record


def is_named(reference: object) -> bool:
    """Whether this names a model of a library."""
    return isinstance(reference, str) and reference.partition(":")[0] in SOURCES and ":" in reference


def load_named(reference: str, *, drawn: bool = False) -> NamedModel:
    """A model by name, in eval mode; see this file's beginning for what may stand in the name.

    `drawn`: with random weights, whatever the name says.
    """
    wish = Wish.of(reference)
    wish = replace(wish, weights=RANDOM) if drawn else wish
    found = SOURCES[wish.source](wish)
    found.model.eval()
    return found


def probe_named(reference: str, data: Any, *, test: Any = None, **how: Any) -> Record:
    """`ll.probe` of a model by name, with its own preprocessing of the images or texts of a data set.

    `data` and `test` are Hugging Face datasets or `layerlaw.data.load(…)`; loaders and tensors are taken as prepared.
    """
    found = load_named(reference)
    prepare = _for(found, data)
    return found.note(probe(found.model, data, test=test, prepare=prepare, **how), prepared=prepare is not None)


def _for(found: NamedModel, data: Any) -> Any:
    """Its preprocessing, where the data are such as are to be prepared."""
    own = type(data).__module__.partition(".")[0]
    formed = (getattr(data, "format", None) or {}).get("type") if own == "datasets" else None
    raw = own == "datasets" and formed in (None, "python")
    return found.prepare if raw or type(data).__name__ == "Labeled" else None


def _forms() -> str:
    return joined([f"'{source}:name'" for source in SOURCES], "or")


def unknown(wish: Wish, names: list[str], where: str) -> InputError:
    """That a library knows no such model, with the nearest of its names."""
    near = difflib.get_close_matches(wish.name, names, n=NEAREST, cutoff=0.6)
    near = near or [name for name in names if wish.name.lower() in name.lower()][:NEAREST]
    hint = f" Did you mean {joined([f'{wish.source}:{name}' for name in near], 'or')}?" if near else ""
    return InputError(f"model: {where} knows no '{wish.name}' (of {len(names):,} models).{hint}")


def not_there(wish: Wish, error: Exception, cures: str = "") -> DataError:
    """That published weights are neither on this machine nor can be fetched."""
    what = (
        f"expected its published weights in the cache of {wish.source} on this machine, or a network to fetch them by"
    )
    why = " ".join(str(error).split())[:200]
    hub = wish.source == "timm" and os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    offline = "HF_HUB_OFFLINE is set, so nothing is downloaded. " if hub else ""
    cure = f"{wish}?weights=random draws weights; --weights FILE reads them from a file"
    return DataError(f"{wish}: {what}, got {type(error).__name__}: {why}. {offline}{cures or cure}.")


def library(name: str, wish: Wish) -> Any:
    """A library, or what to install; also where it is installed and does not run beside this torch."""
    try:
        return needed(name, "hub", f"the model '{wish}'")
    except LayerlawError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        cure = f"Is this {name} made for torch {torch.__version__}?"
        raise InputError(f"{wish}: the package {name} cannot be imported ({why}). {cure}") from error


def _timm(wish: Wish) -> NamedModel:
    timm = library("timm", wish)
    data = library("timm.data", wish)
    if not timm.is_model(wish.name):
        raise unknown(wish, [*timm.list_models(), *timm.list_pretrained()], "timm")
    if wish.weights is not None and not wish.drawn:
        raise InputError(
            f"{wish}: expected ?weights=random, got {wish.weights!r}. timm names others in the model: {_tags(timm, wish)}."
        )
    options: Any = {} if wish.classes is None else {"num_classes": wish.classes}
    make = partial(timm.create_model, wish.name, **options)
    try:
        model = seeded(wish.seed, lambda: make(pretrained=not wish.drawn))
    except RuntimeError as error:
        if "retrained tag" in str(error):
            raise InputError(f"{wish}: timm knows no such weights. It has {_tags(timm, wish)}.") from None
        raise _weights_error(wish, error) from error
    except Exception as error:  # of the network, the hub, a file format
        raise _weights_error(wish, error) from error
    prepare = data.create_transform(**data.resolve_data_config({}, model=model), is_training=False)
    kept = model.pretrained_cfg if isinstance(model.pretrained_cfg, dict) else vars(model.pretrained_cfg)
    tag = kept.get("tag")
    published = ".".join(filter(None, (kept.get("architecture") or wish.name.partition(".")[0], tag)))
    other = wish.classes is not None and wish.classes != kept.get("num_classes")  # timm then draws the classifier
    words = f"published by timm as {published}" + f", the classifier random (seed {wish.seed})" * other
    return NamedModel(model, str(wish), _in_words(wish, words), prepare)


def _tags(timm: Any, wish: Wish) -> str:
    known = timm.list_pretrained(f"{wish.name.partition('.')[0]}.*")
    return joined([f"timm:{name}" for name in known[:5]], "and") if known else "none for this model"


def _torchvision(wish: Wish) -> NamedModel:
    models = library("torchvision", wish).models
    known = [name for name in models.list_models() if _classifies(models, name)]
    if wish.name not in known:
        raise unknown(wish, known, "torchvision.models (classification)")
    published = models.get_model_weights(wish.name)
    names = [one.name for one in published]
    if wish.weights not in (None, RANDOM, *names):
        raise InputError(f"{wish}: expected weights of {joined([RANDOM, *names], 'or')}, got {wish.weights!r}.")
    if not wish.drawn and wish.classes is not None:
        raise InputError(
            f"{wish}: published weights are of the classes they were trained on; ?classes=… goes with &weights=random."
        )
    chosen = published.DEFAULT if wish.weights in (None, RANDOM) else published[wish.weights]
    options: Any = {} if wish.classes is None else {"num_classes": wish.classes}
    try:
        model = seeded(
            wish.seed, lambda: models.get_model(wish.name, weights=None if wish.drawn else chosen, **options)
        )
    except Exception as error:  # of the network or a damaged file
        raise _weights_error(wish, error) from error
    own = None if wish.drawn else tuple(chosen.meta["categories"])
    words = _in_words(wish, f"published by torchvision as {chosen}")
    return NamedModel(model, str(wish), words, chosen.transforms(), class_names=own)


def _classifies(models: Any, name: str) -> bool:
    """Whether a model of torchvision is one for classes of images, not for boxes, pixels or videos."""
    return models.get_model_builder(name).__module__.count(".") == 2 and "quantization" not in name


def _hugging_face(wish: Wish) -> NamedModel:
    from layerlaw.integrations.hugging_face import load_classifier

    return load_classifier(wish)


def _weights_error(wish: Wish, error: Exception) -> Exception:
    """What failed while a model was made: the weights, unless they were to be drawn."""
    if wish.drawn:
        return InputError(
            f"{wish}: building the model failed with {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        )
    return not_there(wish, error)


def _in_words(wish: Wish, published: str) -> str:
    return f"random (seed {wish.seed})" if wish.drawn else published


SOURCES: dict[str, Callable[[Wish], NamedModel]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf": _hugging_face,
}
