"""Sites: the places in a network where the data are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Call, Seen, Trace, sample_axis, trace
from layerlaw.capture.modules import block_names, features_last, logits_of, matching, modules_of, weight_layers
from layerlaw.capture.parts import find_parts
from layerlaw.capture.plan import Part, Plan, Reduce, Site, reduced, samples_first
from layerlaw.errors import CaptureError, check_choice

Pattern = str | type[nn.Module] | Callable[[str, nn.Module], bool]
SiteChoice = Pattern | Sequence[Pattern]
RULES = ("auto", "layers", "blocks")
MIN_BLOCK_ROWS = 4
AFTER_LAST = "no weight layer's output is the model's output (a softmax or pooling may follow the last layer)"


def find_sites(
    network: nn.Module, batch: Batch, *, choice: SiteChoice, reduce: Reduce = "flatten", parts: bool = False
) -> Plan:
    """Dry-run the network, which is in its probing state, on two (and three) samples, and decide where to measure.

    With `parts` also what every layer is made of.
    """
    check_choice("reduce", reduce, get_args(Reduce), CaptureError)
    n = len(batch.labels)
    if n < 2:
        raise CaptureError(f"expected at least 2 samples in the first batch (dry run), got {n}: use larger batches.")
    two, three = trace(network, batch.first(2)), trace(network, batch.first(3)) if n >= 3 else None
    scores = logits_of(two.output)
    square = any(value.shape[:2] == (n, n) for value in batch.tensors())
    if scores is not None and len(scores) != 2 and square:
        both = f"The inputs have {n} entries on axes 0 and 1, as many as there are samples"
        gives = f"with 2 of them along axis 0 the model gives {len(scores)} rows of scores"
        raise CaptureError(f"which axis are the samples? {both}, and {gives}. Use another batch size.")
    finder = _Finder(network, two, three, reduce, batch.first(2).mask)
    choice, logits = _without_logits(choice, finder.modules)
    rule, why, sites = finder.find(choice)
    if logits:
        if scores is None:
            raise CaptureError("site 'logits': the model's output holds no class scores of shape (n, K).")
        shape, size = tuple(scores.shape[1:]) or (1,), scores.element_size()
        sites.append(Site("logits", "", "logits", 0, "logits", 0, 1, True, shape, shape[0], size, in_fit=False))
    if not sites:
        left_out, modules = "; ".join(finder.dropped) or "nothing", ", ".join(filter(None, finder.modules))[:500]
        raise CaptureError(f"no site found with sites={choice!r}. Left out: {left_out}. The model's modules: {modules}")
    end = finder.classifier
    classes, threshold = None, 0.0
    if scores is not None and len(scores) == 2:
        single = scores.dim() == 1 or scores.shape[1] == 1
        classes = 2 if single else scores.shape[1]
        # A single score that no weight layer gives and that lies in 0 … 1 is a probability.
        if single and end is None and bool(((scores >= 0) & (scores <= 1)).all()):
            threshold = 0.5
    seen: set[str] = set()
    for i, site in enumerate(sites):  # names must tell sites apart
        if site.name in seen:
            sites[i] = replace(site, name=f"{site.name} ({site.at})")
        seen.add(sites[i].name)
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
        overwrites_input=two.overwrites_input,
        calls={name: finder.counts[name] for name in {site.module for site in places}},
    )


class _Finder:
    def __init__(
        self, network: nn.Module, two: Trace, three: Trace | None, reduce: Reduce, mask: Tensor | None
    ) -> None:
        self.network, self.two, self.reduce, self.mask = network, two, reduce, mask
        self.modules = modules_of(network)
        self.order = {name: i for i, name in enumerate(self.modules)}
        self.counts = Counter(call.name for call in two.calls)
        self.third = None if three is None else {(c.name, c.number): c for c in three.calls}
        if self.third is not None and list(self.third) != [(c.name, c.number) for c in two.calls]:
            raise CaptureError("the model calls other modules for 3 samples than for 2: its layers cannot be followed.")
        layers = weight_layers(self.modules)
        self.layer_calls = [call for call in two.calls if call.name in layers]
        self.dropped = [f"{name} (never called)" for name in layers if name not in self.counts]
        scores = logits_of(two.output)
        self._scores = None if scores is None else Seen.of(scores, two.samples)
        self.classifier: Call | None = None  # the last call of a weight layer whose output is the model's output
        self.classifier_why = "the model's output is no tensor of class scores (n, K)"
        if scores is not None:
            ends = [call for call in self.layer_calls if self._gives_logits(call.output)]
            self.classifier = max(ends, key=lambda call: call.left, default=None)
            self.classifier_why = "" if ends else AFTER_LAST
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
        names = block_names(self.network, set(self.counts))
        if choice == "blocks" and not names:
            none = "no repeated module class with two or more weight layers was found"
            raise CaptureError(f"sites='blocks': {none}. Use sites='layers', or name the modules.")
        blocks = self.at_blocks(names) if names else []
        kinds = dict.fromkeys(type(self.modules[name]).__name__ for name in names)
        what = f"{len(names)} blocks of type {', '.join(kinds)}"
        if choice == "blocks":
            return "blocks", what, blocks
        if len(blocks) >= MIN_BLOCK_ROWS:
            return "blocks", f"auto: {what}", blocks
        few = f"blocks would give only {len(blocks)} rows" if names else "no repeated block was found"
        return "layers", f"auto: the input of every weight layer, since {few}", self.at_layers()

    def at_layers(self) -> list[Site]:
        """One row per distinct tensor that a weight layer receives, named by the first such layer in definition order."""
        groups: dict[Any, list[Call]] = {}
        for call in sorted(self.layer_calls, key=lambda c: c.entered):
            groups.setdefault(call.input.key if call.input else call.title, []).append(call)
        first = [min(calls, key=lambda c: (self.order[c.name], c.number)) for calls in groups.values()]
        return self._kept(first, "input")

    def at_blocks(self, names: Iterable[str]) -> list[Site]:
        """The raw input, the output of every block, and what the classifier receives."""
        calls = self._calls(names)
        opening = self._site(self.two.root, "input")
        if isinstance(opening, Site):
            sites = [replace(opening, name="input", type="input")]
        else:  # token ids: the first thing to look at is what enters the first block
            opening = self._site(min(calls, key=lambda c: c.entered), "input")
            sites = [replace(opening, name="embedded input")] if isinstance(opening, Site) else []
        sites += self._kept((call for call in calls if not self._gives_logits(call.output)), "output")
        if self.classifier is not None and not (sites and self.feeds_classifier(sites[-1])):
            sites += self._kept([self.classifier], "input")
        return sites

    def by_choice(self, choice: SiteChoice) -> list[Site]:
        """Outputs of the modules the user chose by names, globs, types or a predicate; "input" is the raw input."""
        front: list[Site] = []
        written: list[str] = []  # names the user wrote: they raise where others are left out
        found: list[str] = []
        for item in choice if isinstance(choice, (list, tuple)) else [choice]:
            if isinstance(item, str) and item in self.modules:
                written.append(item)
            elif item == "input":
                front = [replace(*self._kept([self.two.root], "input", must=True), name="input", type="input")]
            else:
                found += self._matching(item)
        for name in written:
            if name not in self.counts:
                raise CaptureError(f"site '{name}' never fires: the model's forward does not call this module.")
        self._kept(self._calls(written), "output", must=True)
        found = [name for name in dict.fromkeys(found) if name and name not in written]
        self.dropped += [f"{name} (never called)" for name in found if name not in self.counts]
        self.dropped = list(dict.fromkeys(self.dropped))
        sites = self._kept(self._calls([*written, *found]), "output")
        return front + [replace(site, in_fit=not self._gives_logits(self._seen[_place(site)])) for site in sites]

    def feeds_classifier(self, site: Site) -> bool:
        """Whether the site's features are what the classifier reads."""
        end, seen = self.classifier, self._seen.get(_place(site))
        return end is not None and end.input is not None and seen is not None and seen.same_content(end.input)

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

    def _matching(self, item: Any) -> list[str]:
        if isinstance(item, type):
            return [name for name, module in self.modules.items() if isinstance(module, item)]
        if isinstance(item, str):
            return matching(self.modules, item, what="site")
        if callable(item) and not isinstance(item, nn.Module):
            return [name for name, module in self.modules.items() if name and item(name, module)]
        raise CaptureError(f"sites: expected names, globs, module types or a predicate, got {item!r}.")

    def _calls(self, names: Iterable[str]) -> list[Call]:
        chosen = set(names)
        return sorted((call for call in self.two.calls if call.name in chosen), key=lambda c: c.left)

    def _kept(self, calls: Iterable[Call], at: Literal["input", "output"], *, must: bool = False) -> list[Site]:
        sites = []
        for call in calls:
            made = self._site(call, at)
            if isinstance(made, Site):
                sites.append(made)
            elif must:
                raise CaptureError(f"site '{call.name or 'input'}' cannot be measured: {made}.")
            else:
                self.dropped.append(f"{call.title} ({made})")
        return sites

    def _site(self, call: Call, at: Literal["input", "output"]) -> Site | str:
        """The site, or the reason why it cannot be one."""
        seen: Seen | None = getattr(call, at)
        if seen is None:
            return f"its {at} is no floating-point tensor"
        three = None if self.third is None else getattr(self.third[call.name, call.number], at)
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
        site = Site(call.title, call.name, at, call.number, kind, axis, fold, last, shape, flat.shape[1], size)
        self._seen[_place(site)] = seen
        return site


def _without_logits(choice: SiteChoice, modules: Container[str]) -> tuple[SiteChoice, bool]:
    """A list with "logits" among it also measures them; beside names a module that is called so goes first."""
    if not isinstance(choice, (list, tuple)) or "logits" not in choice:
        return choice, False
    others = [item for item in choice if item != "logits"]
    if len(others) == 1 and isinstance(others[0], str) and others[0] in RULES:
        return others[0], True
    return (choice, False) if "logits" in modules else (others, True)


def _place(site: Site) -> tuple[str, str, int]:
    return site.module, site.at, site.call
