"""What a dry run shows: modules that are called, weight layers, classifier, trunk and blocks, and what could be a site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from layerlaw.capture.block_rules import Blocks
from layerlaw.capture.hooks import MIXED, Call, Seen, Trace, sample_axis
from layerlaw.capture.modules import (
    block_names,
    features_last,
    kind_without_layer,
    modules_of,
    owns_weights,
    tensors_in,
    weight_layers,
)
from layerlaw.capture.plan import Reduce, Site, reduced, samples_first
from layerlaw.capture.scores import are_probabilities
from layerlaw.capture.trunk import DataFlow, Trunk
from layerlaw.errors import CaptureError
from layerlaw.module_tree import class_of

AFTER_LAST = "no weight layer's output is the model's output (a softmax or pooling may follow the last layer)"


class DryRun:
    """A network traced on two (and three) samples."""

    def __init__(
        self,
        network: nn.Module,
        two: Trace,
        three: Trace | None,
        scores: Tensor | None,
        reduce: Reduce,
        mask: Tensor | None,
        *,
        headless: bool = False,
    ) -> None:
        self.network, self.two, self.reduce, self.mask = network, two, reduce, mask
        self.modules = modules_of(network)
        self.order = {name: i for i, name in enumerate(self.modules)}
        self.counts = Counter(call.name for call in two.calls)
        self.third = None if three is None else {(c.name, c.number): c for c in three.calls}
        if self.third is not None and list(self.third) != [(c.name, c.number) for c in two.calls]:
            raise CaptureError("the model calls other modules for 3 samples than for 2: its layers cannot be followed.")
        products = two.flow.products if isinstance(two.flow, DataFlow) else ()
        self.applied = {product.call.name: product.parameter for product in reversed(products)}
        self.layers = weight_layers(self.modules, set(self.counts), self.applied if products else None)
        self.layer_calls = [call for call in two.calls if call.name in self.layers]
        self.dropped = [f"{name} (never called)" for name in self.layers if name not in self.counts]
        self._scores = None if scores is None else Seen.of(scores, two.samples)
        self.classifier: Call | None = None  # the last call of a weight layer whose output is the model's output
        self.classifier_why = "the model's output is no tensor of class scores (n, K)"
        if scores is not None:
            ends = [call for call in self.layer_calls if self.gives_logits(call.output)]
            self.classifier = max(ends, key=lambda call: call.left, default=None)
            self.classifier_why = "" if ends else AFTER_LAST
            if headless and not ends and not are_probabilities(scores):
                self._scores = None  # features, whatever their shape
        self.trunk = self._find_trunk(scores)
        self.no_trunk = ""
        self.blocks: Blocks | None = None
        self.in_front: dict[str, tuple[str, ...]] = {}  # by row of a block: layers in no block that its step holds
        if isinstance(self.trunk, str):
            self.no_trunk = self.trunk
        else:
            self.blocks = Blocks(self.trunk, two.calls, self.layer_calls, self.modules)
            self.no_trunk = self.blocks.trouble(block_names(self.modules, set(self.counts), self.layers))
        followed = two.flow if isinstance(two.flow, DataFlow) else None
        # Whether numbers, not shapes and calls alone, decided something; what was not followed may have.
        self.by_numbers = followed is None or followed.by_numbers or isinstance(self.trunk, str)
        self.seen: dict[tuple[str, str, int], Seen] = {}
        self._sides: dict[Any, bool] = {}  # where the modules that touch a tensor keep its features
        for call in two.calls:
            side = features_last(call.module)
            for seen in (call.input, call.output):
                if side is not None and seen is not None:
                    self._sides.setdefault(seen.key, side)

    def _find_trunk(self, scores: Tensor | None) -> Trunk | str:
        flow = self.two.flow
        if isinstance(flow, str):
            return flow
        end = None if scores is None else flow.node(scores)  # a user's own function may make scores of its own
        if end is None:
            nodes = [node for tensor in tensors_in(self.two.output) if (node := flow.node(tensor)) is not None]
            end = max(nodes, default=None)
        return flow.trunk(end)

    def no_sites(self, sites: Sequence[Site], rule: str, sides: Mapping[str, str]) -> dict[str, str]:
        """The modules that are called and own a parameter of two or more dimensions but are no site, and why.

        `sides` says of layers whether they are inside, in front of, between or behind the blocks.
        """
        measured, rows = {site.module for site in sites}, {}
        for site in sites:
            if site.at == "input":
                rows[self.seen[place(site)].key] = site.name
        left_out = {text.split(" (")[0] for text in self.dropped}
        reads = {call.name: rows.get(call.input.key) for call in self.layer_calls if call.input is not None}
        found = {}
        for name, module in self.modules.items():
            if name in self.counts and name not in measured and name not in left_out and owns_weights(module):
                found[name or "the model itself"] = self._why_no_site(name, reads.get(name), rule, sides)
        return found

    def _why_no_site(self, name: str, row: str | None, rule: str, sides: Mapping[str, str]) -> str:
        if row is not None:
            return f"reads what '{row}' reads" if rule == "layers" else f"reads the row '{row}'"
        if name in self.layers:
            return f"a layer {sides.get(name, 'inside')} the blocks" if rule == "blocks" else "not chosen"
        if name in self.applied:
            return f"applies its parameter '{self.applied[name] or 'weight'}' between layers of its own"
        return kind_without_layer(self.modules[name])

    @property
    def embedded(self) -> bool:
        """Whether an embedding of token ids has run before the first layer, which then reads no raw input."""
        first, flow = min(self.layer_calls, key=lambda call: call.entered, default=None), self.two.flow
        if first is None or first.input is None or first.input.node is None or not isinstance(flow, DataFlow):
            return False
        return flow.looked_up(first.input.node)

    def feeds_classifier(self, site: Site) -> bool:
        """Whether the site's features are what the classifier reads."""
        end, seen = self.classifier, self.seen.get(place(site))
        if end is None or end.input is None or seen is None:
            return False
        # Copied into another layout, as `flatten` does with channels-last features, it is still the same.
        if seen.same_content(end.input) or seen.node is None or seen.node != end.input.node:
            return seen.same_content(end.input)
        same = seen.same_values(end.input)
        self.by_numbers |= not same or bool((seen.tensor == seen.tensor.flatten()[0]).all())
        return same

    def gives_logits(self, seen: Seen | None) -> bool:
        """Whether a tensor holds the class scores."""
        return seen is not None and self._scores is not None and seen.same_content(self._scores)

    def calls(self, names: Iterable[str]) -> list[Call]:
        """The calls of these modules, in the order in which they end."""
        chosen = set(names)
        return sorted((call for call in self.two.calls if call.name in chosen), key=lambda c: c.left)

    def kept(
        self, calls: Iterable[Call], at: Literal["input", "output"], *, must: bool = False, pick: int = 0
    ) -> list[Site]:
        """A site at each of these calls; where there can be none, why is kept (or raised, if there `must` be one)."""
        sites = []
        for call in calls:
            made = self.site(call, at, pick)
            if isinstance(made, Site):
                sites.append(made)
            elif must:
                raise CaptureError(f"site '{call.name or 'input'}' cannot be measured: {made}.")
            else:
                self.dropped.append(f"{call.title} ({made})")
        return sites

    def site(self, call: Call, at: Literal["input", "output"], pick: int = 0) -> Site | str:
        """The site, or the reason why it cannot be one."""
        seen = call.tensor(at, pick)
        if seen is None:
            return f"its {at} is no floating-point tensor"
        three = None if self.third is None else self.third[call.name, call.number].tensor(at, pick)
        found = sample_axis(seen, three)
        self.by_numbers |= MIXED in found if isinstance(found, str) else found[1] > 1
        if isinstance(found, str):
            if "both" in found:
                raise CaptureError(f"site '{call.name or 'input'}': which axis are the samples? {found}.")
            return found
        axis, fold = found
        tensor = samples_first(seen.tensor, axis, fold)
        last = features_last(call.module)
        last = self._sides.get(seen.key) if last is None else last  # its neighbors
        last = _inside(call) if last is None else last
        last = tensor.dim() == 3 if last is None else last  # three axes are a sequence
        flat = reduced(tensor, self.reduce, channels_last=last, mask=self.mask)
        kind, shape, size = class_of(call.module).__name__, tuple(tensor.shape[1:]), flat.element_size()
        site = Site(
            call.title, call.name, at, call.number, kind, axis, fold, last, shape, flat.shape[1], size, pick=pick
        )
        self.seen[place(site)] = seen
        return site


def place(site: Site) -> tuple[str, str, int]:
    """Which tensor of the dry run a site shows."""
    return site.module, site.at, site.call


def _inside(call: Call) -> bool | None:
    """Where the parts of a module keep the features; one convolution decides."""
    parts = {features_last(inner) for inner in call.module.modules()} if call.name else set()
    return False if False in parts else True if True in parts else None
