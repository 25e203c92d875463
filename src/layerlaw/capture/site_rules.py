"""Sites: the places in a network where the data are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.block_rules import Blocks, TensorPlace
from layerlaw.capture.choice import RULES, chosen_by, told_apart, without_ends
from layerlaw.capture.hooks import Call, Seen, Trace, same_features, sample_axis, trace, trace_flow
from layerlaw.capture.modules import (
    block_names,
    features_last,
    kind_without_layer,
    logits_of,
    modules_of,
    owns_weights,
    tensors_in,
    weight_layers,
)
from layerlaw.capture.parts import find_parts
from layerlaw.capture.plan import Part, Plan, Reduce, Site, reduced, samples_first
from layerlaw.capture.scores import ScoreChoice, are_probabilities, find_scores, main_output, told_by
from layerlaw.capture.trunk import DataFlow, Trunk
from layerlaw.errors import CaptureError, check_choice

Pattern = str | type[nn.Module] | Callable[[str, nn.Module], bool]
SiteChoice = Pattern | Sequence[Pattern]
MIN_BLOCK_ROWS = 4
AFTER_LAST = "no weight layer's output is the model's output (a softmax or pooling may follow the last layer)"


def find_sites(
    network: nn.Module,
    batch: Batch,
    *,
    choice: SiteChoice,
    reduce: Reduce = "flatten",
    scores_at: ScoreChoice = None,
    classes_told: int | None = None,
    parts: bool = False,
    output_row: bool = False,
) -> Plan:
    """Dry-run the network, which is in its probing state, on two (and three) samples, and decide where to measure.

    `scores_at` says where the class scores are in the model's output, `classes_told` how many the user spoke of; with
    `parts` also what every layer is made of, with `output_row` also the model's output, where that is no scores.
    """
    check_choice("reduce", reduce, get_args(Reduce), CaptureError)
    n = len(batch.labels)
    if n < 2:
        raise CaptureError(f"expected at least 2 samples in the first batch (dry run), got {n}: use larger batches.")
    two, three = trace_flow(network, batch.first(2)), trace(network, batch.first(3)) if n >= 3 else None
    guess = logits_of(two.output)
    square = any(value.shape[:2] == (n, n) for value in batch.tensors())
    if guess is not None and len(guess) != 2 and square:
        both = f"The inputs have {n} entries on axes 0 and 1, as many as there are samples"
        gives = f"with 2 of them along axis 0 the model gives {len(guess)} rows of scores"
        raise CaptureError(f"which axis are the samples? {both}, and {gives}. Use another batch size.")
    read = find_scores(network, batch.first(2), two.output, scores_at, classes=classes_told)
    scores = read.of(two.output)
    headless = output_row and scores_at is None
    finder = _Finder(network, two, three, scores, reduce, batch.first(2).mask, headless=headless)
    choice, named = without_ends(choice, finder.modules)
    rule, why, sites = finder.find(choice)
    if "output" in named or (output_row and rule != "chosen"):
        sites += finder.at_output(sites, must="output" in named)
    if "logits" in named:
        if scores is None:
            raise CaptureError("site 'logits': the model's output holds no class scores of shape (n, K).")
        shape, size = tuple(scores.shape[1:]) or (1,), scores.element_size()
        sites.append(Site("logits", "", "logits", 0, "logits", 0, 1, True, shape, shape[0], size, in_fit=False))
    if not sites:
        left_out, modules = "; ".join(finder.dropped) or "nothing", ", ".join(filter(None, finder.modules))[:500]
        raise CaptureError(f"no site found with sites={choice!r}. Left out: {left_out}. The model's modules: {modules}")
    end = finder.classifier
    classes, threshold = told_by(scores, 2, from_layer=end is not None)
    sites = told_apart(sites)
    made_of, lost = finder.parts(batch) if parts else ([], [])
    places = [*sites, *(site for part in made_of for site in (part.before, part.after))]
    return Plan(
        sites=tuple(sites),
        rule=rule,
        why=why,
        dropped=(*finder.dropped, *lost),
        parts=tuple(made_of),
        classifier=end.name if end else None,
        classifier_why=finder.classifier_why,
        reads=next((site.name for site in reversed(sites) if finder.feeds_classifier(site)), None),
        classes=classes,
        threshold=threshold,
        scores=read,
        overwrites_input=two.overwrites_input,
        calls={name: finder.counts[name] for name in {site.module for site in places}},
        no_sites=finder.no_sites(sites, rule),
        no_trunk=finder.no_trunk,
        blocks=tuple(finder.block_modules()),
    )


class _Finder:
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
            ends = [call for call in self.layer_calls if self._gives_logits(call.output)]
            self.classifier = max(ends, key=lambda call: call.left, default=None)
            self.classifier_why = "" if ends else AFTER_LAST
            if headless and not ends and not are_probabilities(scores):
                self._scores = None  # features, whatever their shape
        self.trunk = self._find_trunk(scores)
        self.no_trunk = ""
        self.blocks: Blocks | None = None
        if isinstance(self.trunk, str):
            self.no_trunk = self.trunk
        else:
            self.blocks = Blocks(self.trunk, two.calls, self.layer_calls, self.modules)
            self.no_trunk = self.blocks.trouble(block_names(self.modules, set(self.counts), self.layers))
        self._seen: dict[tuple[str, str, int], Seen] = {}
        self._sides: dict[Any, bool] = {}  # where the modules that touch a tensor keep its features
        for call in two.calls:
            side = features_last(call.module)
            for seen in (call.input, call.output):
                if side is not None and seen is not None:
                    self._sides.setdefault(seen.key, side)

    def find(self, choice: SiteChoice) -> tuple[str, str, list[Site]]:
        """The rule that was used, why, and the sites in depth order."""
        if not isinstance(choice, str) or choice not in RULES:
            sites = self.by_choice(choice)
            ends = [f"; '{site.name}' gives the logits, no point of the law" for site in sites if not site.in_fit]
            return "chosen", "chosen by the user" + "".join(ends), sites
        if choice == "layers":
            return "layers", "the input of every weight layer", self.at_layers()
        blocks, what = self.at_blocks()
        if choice == "blocks" and not blocks:
            none = (
                "no repeated module class with two or more weight layers and no branch that rejoins the trunk was found"
            )
            raise CaptureError(f"sites='blocks': {none}. Use sites='layers', or name the modules.")
        if choice == "blocks":
            return "blocks", what, blocks
        if len(blocks) >= MIN_BLOCK_ROWS:
            return "blocks", f"auto: {what}", blocks
        few = f"blocks would give only {len(blocks)} rows" if blocks else "no repeated block was found"
        return "layers", f"auto: the input of every weight layer, since {few}", self.at_layers()

    def at_layers(self) -> list[Site]:
        """One row per distinct tensor that a weight layer receives, named by the first such layer in definition order.

        On the trunk are the tensors that every path passes, and what the first layer of a branch reads where nothing but a
        norm or an activation lies between: all others are rows of side branches and no points of the law.
        """
        groups: dict[Any, list[Call]] = {}
        for call in sorted(self.layer_calls, key=lambda c: c.entered):
            groups.setdefault(call.input.key if call.input else call.title, []).append(call)
        first = [min(calls, key=lambda c: (self.order[c.name], c.number)) for calls in groups.values()]
        sites = self._kept(first, "input")
        shown = [self._shows(site) for site in sites]
        taken = {point for point, exact in shown if exact}
        for i, (point, exact) in enumerate(shown):
            on_trunk = exact or (point is not None and point not in taken)
            taken |= {point} if on_trunk else set()
            if not on_trunk and not self.no_trunk:
                sites[i] = replace(sites[i], branch=True, in_fit=False)
        return sites

    def at_blocks(self) -> tuple[list[Site], str]:
        """The raw input, the end of every block, and what the classifier receives; and what the blocks are."""
        runs = self.blocks.runs if self.blocks is not None and not self.no_trunk else []
        ends = [self.blocks.end(run) for run in runs] if self.blocks is not None else []
        kinds, why = [run.kind for run in runs], ""
        entered = min((run.entered for run in runs), default=0)
        if not runs and not self.no_trunk:
            return [], ""
        if not runs:
            calls = self._calls(block_names(self.modules, set(self.counts), self.layers))
            if not calls:
                return [], ""
            titles, ends = [call.title for call in calls], [TensorPlace(call, "output") for call in calls]
            kinds, entered = [type(call.module).__name__ for call in calls], min(call.entered for call in calls)
            why = f", by repeated classes, since {self.no_trunk}"
        else:
            titles = [run.title for run in runs]
        opening = self._site(self.two.root, "input")
        if isinstance(opening, Site):
            sites = [replace(opening, name="input", type="input")]
        else:  # token ids: the first thing to look at is what enters the first block
            first = next(call for call in self.two.calls if call.entered == entered)
            opening = self._site(first, "input")
            sites = [replace(opening, name="embedded input")] if isinstance(opening, Site) else []
        for title, kind, end in zip(titles, kinds, ends, strict=True):
            sites += self._end_of_block(title, kind, end)
        if self.classifier is not None and not (sites and self.feeds_classifier(sites[-1])):
            sites += self._kept([self.classifier], "input")
        return sites, f"{len(titles)} blocks of type {', '.join(dict.fromkeys(kinds))}{why}"

    def at_output(self, sites: Sequence[Site], *, must: bool = False) -> list[Site]:
        """What the model gives, where that is no scores and no row already: of a backbone, what it is for."""
        tensor, root = main_output(self.two.output, self.two.samples), self.two.root
        pick = next((i for i, given in enumerate(tensors_in(self.two.output)) if given is tensor), None)
        seen = None if pick is None else root.outputs[pick]
        from_layer = seen is not None and any(seen.same_content(o) for call in self.layer_calls for o in call.outputs)
        if not must and (seen is None or from_layer or self._scores is not None):
            return []
        try:
            found = self._kept([root], "output", must=must, pick=pick or 0)
        except CaptureError as error:
            if must:
                raise
            self.dropped.append(f"output ({error})")
            return []
        before = next((site for site in reversed(sites) if not site.branch), None)
        pairs = [(site, self._seen[_place(site)]) for site in (before, *found) if site is not None]
        if len(pairs) == 2 and same_features(*pairs, reduce=self.reduce, mask=self.mask):
            return []
        return [replace(site, name="output", type="output", in_fit=not self._gives_logits(seen)) for site in found]

    def block_modules(self) -> list[str]:
        """The names of the modules that are blocks, or hold their layers."""
        if self.blocks is not None and not self.no_trunk:
            return list(dict.fromkeys(run.name for run in self.blocks.runs))
        return block_names(self.modules, set(self.counts), self.layers)

    def _end_of_block(self, title: str, kind: str, end: TensorPlace | None) -> list[Site]:
        if end is None:
            self.dropped.append(f"{title} (its end is the input or output of no module)")
            return []
        seen = end.call.input if end.at == "input" else end.call.outputs[end.pick]
        behind = end.at == "input" or end.call.title != title
        if self._gives_logits(seen) or (end.call is self.classifier and end.at == "input"):
            return []
        found = self._kept([end.call], end.at, pick=end.pick)
        return [replace(site, name=title, type=kind, behind=behind) for site in found]

    def by_choice(self, choice: SiteChoice) -> list[Site]:
        """Outputs of the modules the user chose by names, globs, types or a predicate; "input" is the raw input."""
        front, end = list[Site](), list[Site]()
        written: list[str] = []  # names the user wrote: they raise where others are left out
        found: list[str] = []
        for item in choice if isinstance(choice, (list, tuple)) else [choice]:
            if isinstance(item, str) and item in self.modules:
                written.append(item)
            elif item == "output":
                end = self.at_output([], must=True)
            elif item == "input":
                front = [replace(*self._kept([self.two.root], "input", must=True), name="input", type="input")]
            else:
                found += chosen_by(self.modules, item)
        for name in written:
            if name not in self.counts:
                raise CaptureError(f"site '{name}' never fires: the model's forward does not call this module.")
        self._kept(self._calls(written), "output", must=True)
        found = [name for name in dict.fromkeys(found) if name and name not in written]
        self.dropped += [f"{name} (never called)" for name in found if name not in self.counts]
        self.dropped = list(dict.fromkeys(self.dropped))
        sites = self._kept(self._calls([*written, *found]), "output")
        marked = [
            replace(site, branch=not self.no_trunk and self._shows(site)[0] is None) for site in front + sites + end
        ]
        return [replace(site, in_fit=not self._gives_logits(self._seen[_place(site)])) for site in marked]

    def _find_trunk(self, scores: Tensor | None) -> Trunk | str:
        flow = self.two.flow
        if isinstance(flow, str):
            return flow
        end = None if scores is None else flow.node(scores)  # a user's own function may make scores of its own
        if end is None:
            nodes = [node for tensor in tensors_in(self.two.output) if (node := flow.node(tensor)) is not None]
            end = max(nodes, default=None)
        return flow.trunk(end)

    def _shows(self, site: Site) -> tuple[int | None, bool]:
        """The point of the trunk that a site shows, and whether it is that point itself."""
        if isinstance(self.trunk, str):
            return None, False
        node = self._seen[_place(site)].node
        weighted = {seen.node for call in self.layer_calls for seen in call.outputs if seen.node is not None}
        return self.trunk.behind(node, weighted), self.trunk.position(node) is not None

    def no_sites(self, sites: Sequence[Site], rule: str) -> dict[str, str]:
        """The modules that are called and own a parameter of two or more dimensions but are no site, and why."""
        measured, rows = {site.module for site in sites}, {}
        for site in sites:
            if site.at == "input":
                rows[self._seen[_place(site)].key] = site.name
        left_out = {text.split(" (")[0] for text in self.dropped}
        reads = {call.name: rows.get(call.input.key) for call in self.layer_calls if call.input is not None}
        found = {}
        for name, module in self.modules.items():
            if name in self.counts and name not in measured and name not in left_out and owns_weights(module):
                found[name or "the model itself"] = self._why_no_site(name, reads.get(name), rule)
        return found

    def _why_no_site(self, name: str, row: str | None, rule: str) -> str:
        if row is not None:
            return f"reads what '{row}' reads" if rule == "layers" else f"reads the row '{row}'"
        if name in self.layers:
            return "a layer inside the blocks" if rule == "blocks" else "not chosen"
        if name in self.applied:
            return f"applies its parameter '{self.applied[name] or 'weight'}' between layers of its own"
        return kind_without_layer(self.modules[name])

    def feeds_classifier(self, site: Site) -> bool:
        """Whether the site's features are what the classifier reads."""
        end, seen = self.classifier, self._seen.get(_place(site))
        if end is None or end.input is None or seen is None:
            return False
        # Copied into another layout, as `flatten` does with channels-last features, it is still the same.
        copied = seen.node is not None and seen.node == end.input.node and seen.same_values(end.input)
        return seen.same_content(end.input) or copied

    def parts(self, batch: Batch) -> tuple[list[Part], list[str]]:
        """What every layer is made of, and what of it cannot be measured."""
        calls = {(call.name, call.number): call for call in self.two.calls}
        made_of, lost = find_parts(
            self.network, batch, self.layer_calls, self.classifier, lambda name, n, at: self._site(calls[name, n], at)
        )
        if not made_of:
            why = "; ".join(lost) or "the model has no weight layer before its classifier"
            raise CaptureError(f"parts: expected a layer whose parts can be measured, found none: {why}.")
        return made_of, lost

    def _gives_logits(self, seen: Seen | None) -> bool:
        return seen is not None and self._scores is not None and seen.same_content(self._scores)

    def _calls(self, names: Iterable[str]) -> list[Call]:
        chosen = set(names)
        return sorted((call for call in self.two.calls if call.name in chosen), key=lambda c: c.left)

    def _kept(
        self, calls: Iterable[Call], at: Literal["input", "output"], *, must: bool = False, pick: int = 0
    ) -> list[Site]:
        sites = []
        for call in calls:
            made = self._site(call, at, pick)
            if isinstance(made, Site):
                sites.append(made)
            elif must:
                raise CaptureError(f"site '{call.name or 'input'}' cannot be measured: {made}.")
            else:
                self.dropped.append(f"{call.title} ({made})")
        return sites

    def _site(self, call: Call, at: Literal["input", "output"], pick: int = 0) -> Site | str:
        """The site, or the reason why it cannot be one."""
        seen = call.tensor(at, pick)
        if seen is None:
            return f"its {at} is no floating-point tensor"
        three = None if self.third is None else self.third[call.name, call.number].tensor(at, pick)
        found = sample_axis(seen, three)
        if isinstance(found, str):
            if "both" in found:
                raise CaptureError(f"site '{call.name or 'input'}': which axis are the samples? {found}.")
            return found
        axis, fold = found
        tensor = samples_first(seen.tensor, axis, fold)
        parts = {features_last(inner) for inner in call.module.modules()} if call.name else set()
        inside = False if False in parts else True if True in parts else None  # one convolution decides
        sides = [features_last(call.module), self._sides.get(seen.key), inside]  # itself, neighbors, parts
        last = next((side for side in sides if side is not None), tensor.dim() == 3)  # three axes are a sequence
        flat = reduced(tensor, self.reduce, channels_last=last, mask=self.mask)
        kind, shape, size = type(call.module).__name__, tuple(tensor.shape[1:]), flat.element_size()
        site = Site(
            call.title, call.name, at, call.number, kind, axis, fold, last, shape, flat.shape[1], size, pick=pick
        )
        self._seen[_place(site)] = seen
        return site


def _place(site: Site) -> tuple[str, str, int]:
    return site.module, site.at, site.call
