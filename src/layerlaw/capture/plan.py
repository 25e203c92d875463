"""What a dry run decides: the sites, what a probe must know of the network, and how a site becomes rows of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from layerlaw.capture.scores import NO_SCORES, Scores
from layerlaw.errors import CaptureError
from layerlaw.notebook import Shown, View
from layerlaw.sheet import Panel, Series, Sheet
from layerlaw.stats.precision import at_least_float32
from layerlaw.wording import counted, shortened

LONGEST_TYPE = 24  # characters of a module's class in the table
PartKind = Literal["map", "normalization", "nonlinearity", "branches", "other", "attention", "mlp"]
Reduce = Literal["flatten", "mean", "max", "first", "last"]


@dataclass(frozen=True)
class Site:
    """One place: the input or output of one call of one module, and how it becomes one row per sample.

    `axis` and `fold` say where the samples are, `channels_last` where the features are; `shape` is that of one sample,
    `features` its width after the reduction, `itemsize` the bytes of one number, `pick` which of several tensors that a
    module returns. `branch`: not every path from the input to the output passes it. `behind`: it is named after a block that
    ends where the module is called, or gives what the block's output has become part of. `aside` says why a place that is
    shown is no point of the law.
    """

    name: str
    module: str
    at: Literal["input", "output", "logits"]
    call: int
    type: str
    axis: int
    fold: int
    channels_last: bool
    shape: tuple[int, ...]
    features: int
    itemsize: int = 4
    in_fit: bool = True
    pick: int = 0
    branch: bool = False
    behind: bool = False
    aside: str = ""

    def __hash__(self) -> int:
        return hash(self.name)  # of all fields it would take longer than what is looked up

    @property
    def tokens(self) -> bool:
        """Whether a sample is a row of tokens, each with its features."""
        return self.channels_last and len(self.shape) == 2

    @property
    def seen_at(self) -> str:
        """What it is of the module it is named after: "input", "output", "logits", or "behind" it on the trunk."""
        return "behind" if self.behind else self.at


@dataclass(frozen=True)
class Part:
    """What a layer is made of: a step between two sites, and the `module` that does it (none: functions between modules).

    `branch`: it lies on a side branch, such as a gate or the inside of a residual block; the trunk passes it by.
    """

    layer: str
    kind: PartKind
    module: str
    type: str
    before: Site
    after: Site
    branch: bool = False


@dataclass(frozen=True)
class TokenUse:
    """What a network goes on with of its last tokens: as `reduce` names it, or "" where it is none of these.

    `by_classifier`: the classifier is the first layer that reads it; `rows` are the sites behind it.
    """

    reduce: Reduce | Literal[""]
    by_classifier: bool
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan(Shown):
    """Which sites are measured, by which rule and why, what was left out, and which layer is the classifier.

    `reads` names the site whose features the classifier reads; `classes` is the number of logits (2 for a single one,
    which means class 1 above the `threshold`), `scores` how they are read from the model's output; `calls` says how often
    each module with a site is called. `no_sites` are the modules that are called and own a parameter of two or more
    dimensions but are no site, and why; `no_trunk` says why side branches could not be told from the trunk ("": they were).
    `blocks` are the modules of its blocks, whatever the rule; `in_front` names, by the row of a block, layers in no block
    (a stem) between the row before and it; `tokens` says what it goes on with of tokens, unless with all of them; `parts`
    are what the layers are made of, where that was asked. `steady`: the forward does the same with all numbers and can be
    recorded (on a GPU). `embedded`: the first layer reads embedded token ids, no raw input. `by_numbers`: other numbers in
    the batch, or in the weights, could have led to another plan.
    """

    sites: tuple[Site, ...]
    rule: str
    why: str
    dropped: tuple[str, ...] = ()
    classifier: str | None = None
    classifier_why: str = ""
    reads: str | None = None
    classes: int | None = None
    threshold: float = 0.0
    scores: Scores = NO_SCORES
    overwrites_input: bool = False
    steady: bool = False
    calls: dict[str, int] = field(default_factory=dict)
    no_sites: dict[str, str] = field(default_factory=dict)
    no_trunk: str = ""
    blocks: tuple[str, ...] = ()
    in_front: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokens: TokenUse | None = None
    parts: tuple[Part, ...] = ()
    embedded: bool = False
    by_numbers: bool = field(default=False, compare=False, repr=False)

    @property
    def along_depth(self) -> tuple[Site, ...]:
        """The sites without those of side branches, other than such as the user has named."""
        return tuple(site for site in self.sites if site.in_fit or not site.branch)

    def read_out(self) -> tuple[Site, ...]:
        """The sites along depth whose features can decide instead of the network: also what the classifier reads."""
        found = tuple(site for site in self.along_depth if site.in_fit or site.name == self.reads)
        if not found:
            given = ", ".join(f"'{site.name}'" for site in self.sites)
            raise CaptureError(f"sites: expected one before the class scores, got {given}: these are the logits.")
        return found

    def of_parts(self) -> Plan:
        """The same network, measured before and after every part instead."""
        sites = dict.fromkeys(site for part in self.parts for site in (part.before, part.after))
        return replace(self, sites=tuple(sites))

    def rows(self) -> list[dict[str, Any]]:
        """The dry-run table as plain data; `memory` is what a probe keeps per site (bytes)."""
        columns = ("name", "type", "at", "shape", "features", "memory", "in_fit", "branch")
        more = (
            {"shape": list(s.shape), "memory": statistic_bytes(self.classes or 10, s.features), "at": s.seen_at}
            for s in self.sites
        )
        rows = (vars(site) | extra for site, extra in zip(self.sites, more, strict=True))
        return [{name: row[name] for name in columns} for row in rows]

    def __str__(self) -> str:
        width = max(len(site.name) for site in self.sites)
        types = [shortened(site.type, LONGEST_TYPE) for site in self.sites]
        kind = max(map(len, types))
        lines = [
            f"{i:3d}  {row['name']:{width}}  {types[i]:{kind}}  {row['at']:6}  {'×'.join(map(str, row['shape'])):>14}  "
            f"{row['features']:8d} features  {row['memory'] / 2**20:8.2f} MiB{'  side branch' * row['branch']}"
            for i, row in enumerate(self.rows())
        ]
        return "\n".join([f"{counted(len(self.sites), 'site')} ({self.why})", *lines, *self._remarks()])

    def _remarks(self) -> list[str]:
        """What is no site and why, and which layer is the classifier."""
        left_out = [f"left out: {text}" for text in self.dropped]
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.no_sites.items():
            by_reason.setdefault(reason, []).append(name)
        left_out += [f"no site: {_some(names)} ({reason})" for reason, names in by_reason.items()]
        left_out += [f"side branches are not told apart: {self.no_trunk}"] * bool(self.no_trunk)
        end = f"classifier: {self.classifier or 'none: ' + self.classifier_why}"
        return [*left_out, end]

    def sheet(self) -> Sheet:
        """The features of each site along depth, as a figure in plain data; hollow places are rows of side branches."""
        about: Any = {"xlabel": "site", "ylabel": "features", "log_y": True}
        widths = [site.features for site in self.sites]
        return Sheet("Sites", [Panel("features per sample", [Series(range(len(widths)), widths)], **about)], columns=1)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib."""
        return self.sheet().plot()

    def _view(self) -> View:
        """What a notebook shows of it."""
        heads = ["site", "type", "at", "shape", "features", "memory", ""]
        rows = [
            [row["name"], shortened(row["type"], LONGEST_TYPE), row["at"], "×".join(map(str, row["shape"])),
             f"{row['features']:,}", f"{row['memory'] / 2**20:.2f} MiB", "side branch" * row["branch"]]
            for row in self.rows()
        ]  # fmt: skip
        return View(f"{counted(len(self.sites), 'site')} ({self.why})", [heads, *rows], self._remarks())


def _some(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def statistic_bytes(classes: int, features: int) -> int:
    """Memory of the statistics of one site: sums, means and basis in float64, means and basis again in float32."""
    return 40 * classes * features


def samples_first(tensor: Tensor, axis: int, fold: int) -> Tensor:
    """Bring the sample axis to the front; `fold` > 1 rows of axis 0 that belong to one sample become its own axis."""
    if axis == 1:
        tensor = tensor.transpose(0, 1)
    if fold > 1:
        tensor = tensor.reshape(tensor.shape[0] // fold, fold, *tensor.shape[1:])
    return tensor


def reduced(tensor: Tensor, reduce: Reduce, *, channels_last: bool, mask: Tensor | None = None) -> Tensor:
    """(n, …) → (n, d).

    `flatten` keeps everything; `mean` and `max` go over space (or over the real tokens of the mask); `first` and
    `last` choose a token of (n, T, d) and flatten features that have no tokens.

    >>> reduced(torch.arange(12.0).reshape(1, 3, 2, 2), "mean", channels_last=False)
    tensor([[1.5000, 5.5000, 9.5000]])
    """
    tokens = channels_last and tensor.dim() == 3
    if tensor.dim() <= 2 or reduce == "flatten" or (reduce in ("first", "last") and not tokens):
        return tensor.reshape(len(tensor), -1)
    if mask is not None and tokens:
        return _masked(tensor, mask.to(tensor.device), reduce)
    if reduce in ("first", "last"):
        return tensor[:, 0 if reduce == "first" else -1]
    space = tuple(range(1, tensor.dim() - 1)) if channels_last else tuple(range(2, tensor.dim()))
    wide = at_least_float32(tensor)
    return wide.mean(space) if reduce == "mean" else wide.amax(space)


def _masked(tensor: Tensor, mask: Tensor, reduce: Reduce) -> Tensor:
    if mask.shape != tensor.shape[:2]:
        expected = f"expected shape {tuple(tensor.shape[:2])} like the tokens, got {tuple(mask.shape)}"
        cure = "Use reduce='flatten', or sites whose tokens are those of the mask"
        raise CaptureError(f"attention mask: {expected}. {cure}.")
    if not bool(mask.any(1).all()):
        raise CaptureError("attention mask: expected at least one real token in every sample, got padding only.")
    if reduce in ("first", "last"):  # with left padding the first real token is not at 0
        score = mask.int() if reduce == "first" else torch.arange(mask.shape[1], device=mask.device) * mask
        return tensor[torch.arange(len(tensor), device=mask.device), score.argmax(1)]
    wide = at_least_float32(tensor)
    real = mask.unsqueeze(-1)
    if reduce == "max":
        return wide.masked_fill(~real, -torch.inf).amax(1)
    return wide.masked_fill(~real, 0.0).sum(1) / real.sum(1)


def sites_in_words(group: Sequence[Site], sites: Sequence[Site]) -> str:
    """Which of all sites these are: 'sites 1–3 of 6'."""
    at = [sites.index(site) + 1 for site in group]
    if len(at) == 1:
        return f"site {at[0]} of {len(sites)}"
    run = at == list(range(at[0], at[-1] + 1))
    return f"sites {at[0]}–{at[-1]} of {len(sites)}" if run else f"{len(at)} of {len(sites)} sites"
