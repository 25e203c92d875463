"""Sites: the places in a network where the data are looked at."""

from __future__ import annotations

import difflib
import fnmatch
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.layers import block_names, weight_layers
from layerlaw.capture.reduce import Reduce, check_reduce, reduced, samples_first
from layerlaw.capture.trace import Call, Seen, Trace, clean_name, first_tensor, sample_axis, trace
from layerlaw.errors import CaptureError

SiteChoice = str | Sequence[str] | type[nn.Module] | tuple[type[nn.Module], ...] | Callable[[str, nn.Module], bool]
MIN_BLOCK_ROWS = 4


@dataclass(frozen=True)
class Site:
    """One place: the input or output of one call of one module, and how it becomes one row per sample."""

    name: str
    module: str
    at: Literal["input", "output"]
    call: int
    type: str
    axis: int
    fold: int
    channels_last: bool
    shape: tuple[int, ...]
    features: int
    in_fit: bool = True


@dataclass(frozen=True)
class Plan:
    """Which sites are measured, by which rule and why, what was left out, and which layer is the classifier."""

    sites: tuple[Site, ...]
    rule: str
    why: str
    dropped: tuple[str, ...]
    classifier: str | None
    classifier_why: str
    classes: int | None
    calls: dict[str, int] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """The dry-run table as plain data; `memory` is what a probe keeps per site (bytes), K·d numbers of 32 bytes."""
        return [
            {
                "name": site.name,
                "type": site.type,
                "at": site.at,
                "shape": list(site.shape),
                "features": site.features,
                "memory": statistic_bytes(self.classes or 10, site.features),
                "in_fit": site.in_fit,
            }
            for site in self.sites
        ]

    def __str__(self) -> str:
        lines = [f"{len(self.sites)} sites ({self.why})"]
        width = max(len(site.name) for site in self.sites)
        for i, row in enumerate(self.rows()):
            shape = "×".join(map(str, row["shape"]))
            lines.append(
                f"{i:3d}  {row['name']:{width}}  {row['type']:12}  {row['at']:6}  {shape:>14}  "
                f"{row['features']:8d} features  {row['memory'] / 2**20:8.2f} MiB"
            )
        lines += [f"left out: {text}" for text in self.dropped]
        lines.append(f"classifier: {self.classifier or 'none: ' + self.classifier_why}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def statistic_bytes(classes: int, features: int) -> int:
    """Memory of the statistics of one site: sums, means and basis in float64, means and basis again in float32."""
    return 40 * classes * features


def logits_of(output: Any) -> Tensor | None:
    """The class scores in a model's output: itself, its `logits`, or its first floating-point tensor; (n, K) or (n,)."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = logits if isinstance(logits, Tensor) else first_tensor(output)
    return found if found is not None and found.dim() in (1, 2) else None


def find_sites(
    network: nn.Module, batch: Batch, *, choice: SiteChoice, reduce: Reduce = "flatten", logits: bool = False
) -> Plan:
    """Dry-run the network on two (and three) samples and decide where to look.

    The network must already be in its probing state.
    """
    check_reduce(reduce)
    if len(batch.labels) < 2:
        raise CaptureError(f"expected at least 2 samples in the first batch for the dry run, got {len(batch.labels)}.")
    two = trace(network, batch.first(2))
    three = trace(network, batch.first(3)) if len(batch.labels) >= 3 else None
    finder = _Finder(network, two, three, reduce, batch.first(2).mask)
    if isinstance(choice, str) and choice in ("auto", "layers", "blocks"):
        rule, why, sites = finder.by_rule(choice)
    else:
        rule, why, sites = "chosen", "chosen by the user", finder.by_choice(choice)
    if logits:
        scores = logits_of(two.output)
        if scores is None:
            raise CaptureError("logits=True: the model's output holds no class scores of shape (n, K).")
        shape = tuple(scores.shape[1:]) or (1,)
        sites.append(Site("logits", "", "output", 0, "logits", 0, 1, True, shape, shape[0], in_fit=False))
    if not sites:
        raise CaptureError(
            f"no site found with sites={choice!r}. Left out: {'; '.join(finder.dropped) or 'nothing'}. "
            "The model's modules: " + ", ".join(name for name in finder.modules if name)[:500]
        )
    scores = logits_of(two.output)
    classes = (
        None
        if scores is None or len(scores) != 2
        else 2
        if scores.dim() == 1 or scores.shape[1] == 1
        else scores.shape[1]
    )
    used = {site.module for site in sites if site.module}
    return Plan(
        sites=tuple(_unique(sites)),
        rule=rule,
        why=why,
        dropped=tuple(finder.dropped),
        classifier=finder.classifier.name if finder.classifier else None,
        classifier_why=finder.classifier_why,
        classes=classes,
        calls={name: finder.counts[name] for name in used},
    )


class _Finder:
    """The rules, over one dry run."""

    def __init__(
        self, network: nn.Module, two: Trace, three: Trace | None, reduce: Reduce, mask: Tensor | None
    ) -> None:
        self.modules = {clean_name(name): module for name, module in network.named_modules()}
        self.order = {name: i for i, name in enumerate(self.modules)}
        self.two, self.reduce, self.mask = two, reduce, mask
        self.counts: dict[str, int] = {}
        for call in two.calls:
            self.counts[call.name] = self.counts.get(call.name, 0) + 1
        self.third = {(c.name, c.number): c for c in three.calls} if three else {}
        if three and [(c.name, c.number) for c in three.calls] != [(c.name, c.number) for c in two.calls]:
            raise CaptureError("the model calls other modules for 3 samples than for 2: its layers cannot be followed.")
        self.has_three = three is not None
        self.layers = weight_layers(network)
        self.layer_calls = [call for call in two.calls if call.name in self.layers]
        self.dropped = [f"{name} (never called)" for name in self.layers if name not in self.counts]
        self.classifier, self.classifier_why = self._find_classifier()

    def by_rule(self, rule: str) -> tuple[str, str, list[Site]]:
        if rule == "layers":
            return "layers", "the input of every weight layer", self.at_layers()
        names = block_names(self.modules[""], set(self.counts))
        blocks = self.at_blocks(names) if names else []
        if rule == "blocks":
            if not names:
                raise CaptureError(
                    "sites='blocks': no repeated module class with two or more weight layers was found. "
                    "Use sites='layers', or name the modules."
                )
            return "blocks", self._block_reason(names), blocks
        if len(blocks) >= MIN_BLOCK_ROWS:
            return "blocks", f"auto: {self._block_reason(names)}", blocks
        few = f"blocks would give only {len(blocks)} rows" if names else "no repeated block was found"
        return "layers", f"auto: the input of every weight layer, since {few}", self.at_layers()

    def by_choice(self, choice: SiteChoice) -> list[Site]:
        """Outputs of the modules the user named: exact names, globs, module types, or a predicate."""
        wanted: list[str] = []
        if isinstance(choice, type) or (isinstance(choice, tuple) and all(isinstance(c, type) for c in choice)):
            wanted = [name for name, module in self.modules.items() if isinstance(module, choice)]
        elif callable(choice):
            wanted = [name for name, module in self.modules.items() if name and choice(name, module)]
        else:
            return self._by_patterns([choice] if isinstance(choice, str) else choice)
        return self.at_outputs([name for name in wanted if self._fires(name)])

    def _by_patterns(self, patterns: Sequence[Any]) -> list[Site]:
        wanted: dict[str, None] = {}
        front: list[Site] = []
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise CaptureError(f"sites: expected names, globs, module types or a predicate, got {pattern!r}.")
            if pattern == "input" and "input" not in self.modules:
                front = self._raw_input()
                continue
            if pattern in self.modules:
                if pattern not in self.counts:
                    raise CaptureError(f"site '{pattern}' never fires: the model's forward does not call this module.")
                wanted[pattern] = None
                continue
            matches = [name for name in self.modules if name and fnmatch.fnmatchcase(name, pattern)]
            if not matches:
                near = difflib.get_close_matches(pattern, [name for name in self.modules if name], n=5, cutoff=0.4)
                hint = f"Nearest names: {', '.join(near)}." if near else "layerlaw sites lists the names."
                raise CaptureError(f"site '{pattern}' matches no module of the model. {hint}")
            wanted.update(dict.fromkeys(name for name in matches if self._fires(name)))
        return front + self.at_outputs(list(wanted), strict=True)

    def at_layers(self) -> list[Site]:
        """One row per distinct tensor that a weight layer receives, named by the first such layer in definition order."""
        groups: dict[tuple[Any, ...], list[Call]] = {}
        for call in sorted(self.layer_calls, key=lambda c: c.entered):
            if call.input is None:
                self.dropped.append(f"{call.name} (receives no floating-point tensor)")
            else:
                groups.setdefault(call.input.key, []).append(call)
        first = [min(calls, key=lambda c: (self.order[c.name], c.number)) for calls in groups.values()]
        return self._kept(first, "input")

    def at_blocks(self, names: Iterable[str]) -> list[Site]:
        """The raw input, the output of every block, and what the classifier receives."""
        chosen = set(names)
        calls = sorted((c for c in self.two.calls if c.name in chosen), key=lambda c: c.left)
        sites = self._raw_input()
        if not sites and calls:  # token ids: the first thing to look at is what enters the first block
            opening = self._site(min(calls, key=lambda c: c.entered), "input")
            sites = [] if isinstance(opening, str) else [replace(opening, name="embedded input")]
        sites += self._kept(calls, "output")
        last, end = (calls[-1].output if calls else None), self.classifier
        if end is not None and end.input is not None and not (last is not None and last.same_content(end.input)):
            sites += self._kept([end], "input")
        return sites

    def at_outputs(self, names: Sequence[str], *, strict: bool = False) -> list[Site]:
        chosen = set(names)
        calls = sorted((c for c in self.two.calls if c.name in chosen), key=lambda c: c.left)
        return self._kept(calls, "output", strict=strict)

    def _raw_input(self) -> list[Site]:
        made = self._site(self.two.root, "input")
        if isinstance(made, str):
            return []
        return [replace(made, name="input", type="input")]

    def _kept(self, calls: Iterable[Call], at: Literal["input", "output"], *, strict: bool = False) -> list[Site]:
        sites = []
        for call in calls:
            made = self._site(call, at)
            if isinstance(made, Site):
                sites.append(made)
            elif strict:
                raise CaptureError(f"site '{call.name}' cannot be measured: {made}.")
            else:
                self.dropped.append(f"{_numbered(call)} ({made})")
        return sites

    def _site(self, call: Call, at: Literal["input", "output"]) -> Site | str:
        """The site, or the reason why it cannot be one."""
        two: Seen | None = getattr(call, at)
        if two is None:
            return f"its {at} is no floating-point tensor"
        third = self.third.get((call.name, call.number))
        three: Seen | None = getattr(third, at) if third is not None else None
        found = sample_axis(two, three if self.has_three else None)
        if isinstance(found, str):
            if "both" in found:
                raise CaptureError(f"site '{call.name}': which axis are the samples? {found}.")
            return found
        axis, fold = found
        tensor = samples_first(two.tensor, axis, fold)
        last = _channels_last(call, tensor.dim(), at)
        mask = self.mask if self.mask is not None and self.mask.shape == tensor.shape[:2] else None
        features = reduced(tensor, self.reduce, channels_last=last, mask=mask).shape[1]
        kind = type(call.module).__name__
        return Site(
            _numbered(call), call.name, at, call.number, kind, axis, fold, last, tuple(tensor.shape[1:]), features
        )

    def _fires(self, name: str) -> bool:
        if name not in self.counts and name:
            self.dropped.append(f"{name} (never called)")
        return name in self.counts and bool(name)

    def _find_classifier(self) -> tuple[Call | None, str]:
        scores = logits_of(self.two.output)
        if scores is None:
            return None, "the model's output is no tensor of class scores (n, K)"
        out = Seen.of(scores, self.two.samples)
        assert out is not None
        matching = [c for c in self.layer_calls if c.output is not None and c.output.same_content(out)]
        if not matching:
            return (
                None,
                "no weight layer's output is the model's output (a softmax or pooling may follow the last layer)",
            )
        return max(matching, key=lambda c: c.left), ""

    def _block_reason(self, names: Sequence[str]) -> str:
        kinds = dict.fromkeys(type(self.modules[name]).__name__ for name in names)
        return f"{len(names)} blocks of type {', '.join(kinds)}"


def _channels_last(call: Call, dims: int, at: str) -> bool:
    """Tokens (n, T, d) have their features last, convolution maps (n, C, …) first."""
    convolution = (nn.modules.conv._ConvNd, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if at == "input" and call.name:
        return not isinstance(call.module, convolution)
    holds = any(isinstance(module, convolution) for module in call.module.modules())
    if dims == 3 and not call.name:
        return True  # a raw input of three axes: a sequence, whatever the network does with it
    return not holds and (dims == 3 or any(isinstance(m, nn.Linear) for m in call.module.modules()))


def _numbered(call: Call) -> str:
    return call.name if call.number == 0 else f"{call.name}#{call.number + 1}"


def _unique(sites: list[Site]) -> list[Site]:
    """Names must tell sites apart: an input and an output of the same module get a suffix."""
    seen: set[str] = set()
    unique = []
    for site in sites:
        name = site.name if site.name not in seen else f"{site.name} ({site.at})"
        seen.add(name)
        unique.append(replace(site, name=name))
    return unique
