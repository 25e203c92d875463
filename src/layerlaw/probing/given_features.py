"""record_of(features, labels) → Record: what a probe measures, of features that another program has computed."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from layerlaw.capture.batches import Batches
from layerlaw.capture.network import Randomness, probing_state
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.scores import NO_SCORES, Scores, told_by
from layerlaw.data.saved_features import load_features
from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.measures.at_hand import as_tensor, check_kind
from layerlaw.probing import recorded
from layerlaw.probing.classes import ClassChoice
from layerlaw.probing.run import Options, Prober
from layerlaw.probing.shards import check_alike, check_same_plan
from layerlaw.probing.targets import Targets, classes_or_targets
from layerlaw.progress import Progress, choose
from layerlaw.record import Record
from layerlaw.stats.centers import Weighting
from layerlaw.stats.ranks import measured_together
from layerlaw.threads import on_cpu

BATCH = 1024  # rows at a time, where features do not fit the memory budget
NOT_GIVEN = "no logits were given"


class Given(NamedTuple):
    """Features by layer, labels, and the network's own scores where they are known."""

    features: Mapping[str, Any]
    labels: Any
    logits: Any = None


class _Stored(nn.Module):
    """A network whose features are known: it shows each layer's to the hooks, and gives the scores."""

    def __init__(self, layers: int, classifier: Tensor | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(layers))
        self.classifier = nn.Linear(1, 1, bias=False)
        if classifier is not None:
            self.classifier.weight = nn.Parameter(classifier, requires_grad=False)

    def forward(self, *given: Tensor) -> Tensor | None:
        for layer, features in zip(self.layers, given, strict=False):
            layer(features)
        return given[-1] if len(given) > len(self.layers) else None


@on_cpu
@measured_together
def record_of(
    features: Mapping[str, Any] | str | os.PathLike[str],
    labels: Any = None,
    *,
    test: Any = None,
    logits: Any = None,
    classifier: Any = None,
    sites: Sequence[str] | None = None,
    classes: ClassChoice = None,
    data_name: str = "",
    name: str | None = None,
    weighting: Weighting = "samples",
    uncertainty: bool | Literal["jackknife", "permuted"] | None = None,
    linear: bool = False,
    memory_gib: float = 2.0,
    seed: int = 0,
    progress: bool | Progress = True,
) -> Record:
    """Measure features that you have, of JAX, Keras, NumPy or files, with everything that a probe of a network gives.

    features    {"layer1": array (n, …), …} in the order of depth, of NumPy, torch, JAX or any other arrays; or a folder of
                .npy or safetensors files with their labels (`layerlaw.data.saved_features` says what may be in it)
    labels      class numbers (n,), or targets of a regression
    test        (features, labels) of test data, or (features, labels, logits); of a folder its folder `test`
    logits      the network's own scores (n, K): gives accuracy, mismatch and NC4
    classifier  the weight (K, d) of its last layer, which reads the last features: gives NC2 and NC3; needs logits
    sites       names or globs of the layers to be measured, in the order of depth; default: all, in the order given
    name        of the record

    Every layer is flattened to one row per sample: take means over space or tokens before. Other arguments are those of
    `probe`.

    >>> import torch
    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 0.0], [12.0, 0.0]])
    >>> record = record_of({"layer1": x, "layer2": x**3}, [0, 0, 1, 1], uncertainty=False, progress=False)
    >>> round(record.column("separation")[0], 12)
    0.04
    """
    started = time.perf_counter()
    options = Options("flatten", "running", weighting, uncertainty, memory_gib, seed, choose(progress), linear)
    if not isinstance(features, Mapping):
        found = load_features(_folder(features), labels=labels is None)
        features, labels = found.features, _or(labels, found.labels)
        logits, classifier = _or(logits, found.logits), _or(classifier, found.classifier)
        if found.test is not None and test is None:
            test = Given(found.test.features, found.test.labels, found.test.logits)
        classes, name = _or(classes, found.class_names), name or found.name
    train = _GivenRows.of(Given(features, labels, logits), "features", _chosen(features, sites))
    held_out = None if test is None else _GivenRows.of(_given(test), "test", list(train.layers), train)
    asked = {
        "weighting": weighting,
        "uncertainty": uncertainty,
        "memory_gib": memory_gib,
        "seed": seed,
        "linear": linear,
    }
    check_alike({**asked, "classes": classes, "test": "given" if held_out else "not given"})
    plan = train.plan(classifier)
    network = _Stored(len(train.layers), None if classifier is None else as_tensor(classifier, "classifier").double())
    how: Any = {"batch_size": BATCH, "batchnorm": "running", "seed": seed, "network": network}
    data = Batches(train.pair, where="data", **how)
    with Randomness() as randomness, probing_state(network, "running"):
        decided = train.logits is not None
        kind = classes_or_targets(classes, plan, data.labels, train.labels, None, decisions=decided)
        if linear and isinstance(kind, Targets):
            raise InputError("linear: D_lin is the least D of classes; the labels are targets. Leave linear=True out.")
        if not decided:
            kind = replace(kind, undecided=NOT_GIVEN)
        check_same_plan(plan, kind)
        prober = Prober(network, plan, kind, options, randomness, None)
        after = None if held_out is None else Batches(held_out.pair, where="test", **how)
        measured, tested = prober.measure_both(data, after)
        record = recorded(prober, data, measured, tested, None)
    record.name = name or "features"
    for unknown in ("batchnorm", "order", "reduce"):  # of a network, which is not here
        record.settings.pop(unknown)
    record.settings["data_name"] = data_name
    record.provenance |= {"model": "features at hand", "seconds": round(time.perf_counter() - started, 3)}
    for unknown in ("parameters", "parameters_sha256"):
        record.provenance.pop(unknown)
    return record


@dataclass(frozen=True)
class _GivenRows:
    """Features, labels and scores of some samples, as tensors with a row per sample."""

    layers: dict[str, Tensor]
    labels: Tensor
    logits: Tensor | None

    @classmethod
    def of(cls, given: Given, where: str, names: Sequence[str], like: _GivenRows | None = None) -> _GivenRows:
        """Checked: a row for each label everywhere, and the layers and scores of `like` where there is one."""
        if given.labels is None:
            raise LabelError(f"{where}: expected labels, one for each row of features, got none.")
        labels = as_tensor(given.labels, "labels").detach()
        if missing := [name for name in names if name not in given.features]:
            raise FeatureError(f"{where}: expected features of '{missing[0]}', got {_listed(given.features)}.")
        layers = {}
        for name in names:
            x = check_kind(
                as_tensor(given.features[name], where=f"{where} of '{name}'").detach(), f"{where} of '{name}'"
            )
            if not labels.dim() or len(x) != len(labels):
                n = len(labels) if labels.dim() else 1
                raise LabelError(f"{where} of '{name}': expected a row for each of {n} labels, got {len(x)} rows.")
            if like is not None and x.shape[1:] != like.layers[name].shape[1:]:
                expected = f"expected {tuple(like.layers[name].shape[1:])} numbers per sample, as in the training data"
                raise FeatureError(f"{where} of '{name}': {expected}, got {tuple(x.shape[1:])}.")
            layers[name] = x
        scores = None if given.logits is None else as_tensor(given.logits, "logits").detach()
        if scores is not None and (
            scores.dim() not in (1, 2) or len(scores) != len(labels) or not scores.is_floating_point()
        ):
            came = f"{scores.dtype} of shape {tuple(scores.shape)}"
            raise FeatureError(f"{where}: expected logits of shape ({len(labels)}, K), floating-point, got {came}.")
        if like is not None and (scores is None) != (like.logits is None):
            some = "training data" if scores is None else "test data"
            cure = "test=(features, labels, logits) and logits=… give both"
            raise InputError(
                f"logits: expected of training and test data or of neither, got them of the {some} alone. {cure}."
            )
        return cls(layers, labels, scores)

    @property
    def pair(self) -> tuple[tuple[Tensor, ...], Tensor]:
        """What batches are cut from."""
        return (*self.layers.values(), *([] if self.logits is None else [self.logits])), self.labels

    def plan(self, classifier: Any) -> Plan:
        """Every layer as a site, and how the scores are read."""
        sites = [
            Site(
                name,
                f"layers.{i}",
                "output",
                0,
                "features",
                0,
                1,
                False,
                tuple(x.shape[1:]),
                prod(x.shape[1:]),
                x.element_size(),
            )
            for i, (name, x) in enumerate(self.layers.items())
        ]
        if self.logits is None and classifier is not None:
            raise InputError("classifier: expected together with logits, the scores that it gives, got no logits.")
        if classifier is not None:
            rows, last = as_tensor(classifier, "classifier"), sites[-1]
            if rows.dim() != 2 or rows.shape[1] != last.features:
                expected = f"expected a weight (K, {last.features}), which reads the features of '{last.name}'"
                raise FeatureError(f"classifier: {expected}, got shape {tuple(rows.shape)}.")
        count, threshold = told_by(self.logits, len(self.labels), from_layer=True)
        read = NO_SCORES if self.logits is None else Scores((), given=True)
        calls = {site.module: 1 for site in sites}
        named: Any = {"classes": count, "threshold": threshold, "scores": read, "calls": calls}
        if classifier is None:
            return Plan(tuple(sites), "chosen", "features at hand", classifier_why="none was given", **named)
        return Plan(tuple(sites), "chosen", "features at hand", classifier="classifier", reads=sites[-1].name, **named)


def _folder(features: Any) -> str | os.PathLike[str]:
    if isinstance(features, (str, os.PathLike)):
        return features
    came = f"got {type(features).__name__}. A single array is {{'layer1': array}}"
    raise InputError(f"features: expected arrays by the names of their layers, or a folder of them, {came}.")


def _or(given: Any, found: Any) -> Any:
    return found if given is None else given


def _given(test: Any) -> Given:
    """Test data as a user hands them over."""
    if isinstance(test, Given):
        return test
    if not isinstance(test, (tuple, list)) or len(test) not in (2, 3) or not isinstance(test[0], Mapping):
        came = f"{type(test).__name__}" + (f" of {len(test)}" if isinstance(test, (tuple, list)) else "")
        raise InputError(f"test: expected (features, labels) or (features, labels, logits), got {came}.")
    return Given(*test)


def _listed(names: Mapping[str, Any]) -> str:
    shown = ", ".join(map(repr, list(names)[:10]))
    return f"{shown or 'none'}{', …' * (len(names) > 10)}"


def _chosen(features: Mapping[str, Any], sites: Sequence[str] | None) -> list[str]:
    """The names of the layers that are measured, in the order of depth."""
    if not features:
        raise InputError("features: expected at least one layer, got none.")
    if odd := [name for name in features if not isinstance(name, str) or not name]:
        raise InputError(f"features: expected names of layers, got {odd[0]!r}.")
    if sites is None:
        return list(features)
    patterns = [sites] if isinstance(sites, str) else list(sites)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in features if fnmatchcase(name, str(pattern))]
        if not found:
            near = difflib.get_close_matches(str(pattern), list(features), n=3, cutoff=0.4)
            hint = f" Nearest names: {', '.join(near)}." if near else ""
            raise InputError(f"sites: '{pattern}' matches no layer of {_listed(features)}.{hint}")
        chosen |= dict.fromkeys(found)
    return list(chosen)
