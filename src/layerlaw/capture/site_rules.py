"""Sites: the places in a network where the data are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.block_rules import TensorPlace, works_behind
from layerlaw.capture.choice import RULES, chosen_by, told_apart, without_ends
from layerlaw.capture.dry_run import DryRun, place
from layerlaw.capture.hooks import Call, Seen, trace, trace_flow
from layerlaw.capture.modules import (
    block_names,
    logits_of,
    tensors_in,
)
from layerlaw.capture.parts import along_trunk, find_parts
from layerlaw.capture.plan import Part, Plan, Reduce, Site, reduced, samples_first
from layerlaw.capture.scores import ScoreChoice, find_scores, main_output, told_by
from layerlaw.capture.tokens import token_use
from layerlaw.capture.trunk import DataFlow
from layerlaw.errors import CaptureError, check_choice
from layerlaw.module_tree import class_of

Pattern = str | type[nn.Module] | Callable[[str, nn.Module], bool]
SiteChoice = Pattern | Sequence[Pattern]
MIN_BLOCK_POINTS = 4  # fewer say nothing of a law
NO_BLOCKS = "no repeated module class with two or more weight layers and no branch that rejoins the trunk was found"


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
        raise CaptureError(
            f"expected at least 2 samples in the first batch (dry run), got {n}: pass more, or larger batches."
        )
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
        steady=isinstance(two.flow, DataFlow) and two.flow.steady,
        calls={name: finder.counts[name] for name in {site.module for site in places}},
        no_sites=finder.no_sites(sites, rule, finder.sides()),
        no_trunk=finder.no_trunk,
        blocks=tuple(finder.block_modules()),
        tokens=token_use(finder, sites),
        in_front=finder.in_front if rule == "blocks" else {},
        embedded=finder.embedded,
        by_numbers=finder.by_numbers or parts,  # parts are known by what they do to numbers
    )


class _Finder(DryRun):
    """The rules, applied to what a dry run has shown."""

    def find(self, choice: SiteChoice) -> tuple[str, str, list[Site]]:
        """The rule that was used, why, and the sites in depth order."""
        if not isinstance(choice, str) or choice not in RULES:
            sites = self.by_choice(choice)
            ends = "".join(
                f"; '{site.name}' gives the logits, no point of the law" for site in sites if not site.in_fit
            )
            return "chosen", f"chosen by the user{ends}", sites
        if choice == "layers":
            return "layers", "the input of every weight layer", self.at_layers()
        blocks, what = self.at_blocks()
        if choice == "blocks" and not blocks:
            raise CaptureError(f"sites='blocks': {NO_BLOCKS}. Use sites='layers', or name the modules.")
        if choice == "blocks":
            return "blocks", what, blocks
        points = sum(site.in_fit for site in blocks)
        if points >= MIN_BLOCK_POINTS:
            return "blocks", f"auto: {what}", blocks
        few = f"blocks would give only {points} points" if blocks else "no repeated block was found"
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
        sites = self.kept(first, "input")
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
        if not runs:
            if not self.no_trunk:
                return [], ""
            calls = self.calls(block_names(self.modules, set(self.counts), self.layers))
            if not calls:
                return [], ""
            titles, ends = [call.title for call in calls], [TensorPlace(call, "output") for call in calls]
            kinds, entered = [class_of(call.module).__name__ for call in calls], min(call.entered for call in calls)
            why = f", by repeated classes, since {self.no_trunk}"
        else:
            titles = [run.title for run in runs]
        opening = self.site(self.two.root, "input")
        if isinstance(opening, Site):
            sites = [replace(opening, name="input", type="input")]
        else:  # token ids: the first thing to look at is what enters the first block
            first = next(call for call in self.two.calls if call.entered == entered)
            opening = self.site(first, "input")
            sites = [replace(opening, name="embedded input")] if isinstance(opening, Site) else []
        for title, kind, end in zip(titles, kinds, ends, strict=True):
            sites += self._end_of_block(title, kind, end)
        for i, run in enumerate(runs if self.blocks is not None else ()):
            enters = (
                i == 0 and bool(sites) and sites[0].name == "embedded input"
            )  # what a first layer gives is that row
            if not enters and (layers := tuple(self.blocks.in_front(run))):  # type: ignore[union-attr]
                self.in_front[run.title] = layers
        if self.classifier is not None and not (sites and self.feeds_classifier(sites[-1])):
            sites += self._read_by_classifier(sites[-1] if sites else None)
        return sites, f"{len(titles)} blocks of type {', '.join(dict.fromkeys(kinds))}{why}"

    def _read_by_classifier(self, last: Site | None) -> list[Site]:
        """What the classifier receives: a row of its own."""
        found = [] if self.classifier is None else self.kept([self.classifier], "input")
        others = [layer for layer in self.layer_calls if layer is not self.classifier]
        return self._with_work(found, last, others, "what the classifier reads")

    def _with_work(self, found: list[Site], last: Site | None, layers: Sequence[Call], what: str) -> list[Site]:
        """The row behind the last one: a point of the law where a layer has worked in between.

        With pooling, dropout, norms and activations alone in between the last block would count twice. Its end is the point:
        measured as other ends are, while pooled features differ by the pooling; and averaged over space both are the same.
        """
        if last is None or last.at == "logits":
            return found
        call = next(c for c in (self.two.root, *self.two.calls) if (c.name, c.number) == (last.module, last.call))
        if works_behind(TensorPlace(call, last.at, last.pick), layers, self.trunk):
            return found
        why = f"no weight layer lies between '{last.name}' and {what}"
        return [replace(site, in_fit=False, aside=why) if site.in_fit else site for site in found]

    def at_output(self, sites: Sequence[Site], *, must: bool = False) -> list[Site]:
        """What the model gives, where that is no scores and no row already: of a backbone, what it is for."""
        tensor, root = main_output(self.two.output, self.two.samples), self.two.root
        pick = next((i for i, given in enumerate(tensors_in(self.two.output)) if given is tensor), None)
        seen = None if pick is None else root.outputs[pick]
        from_layer = seen is not None and any(seen.same_content(o) for call in self.layer_calls for o in call.outputs)
        if not must and (seen is None or from_layer or self._scores is not None):
            return []
        self.by_numbers = True
        try:
            found = self.kept([root], "output", must=must, pick=pick or 0)
        except CaptureError as error:
            if must:
                raise
            self.dropped.append(f"output ({error})")
            return []
        before = next((site for site in reversed(sites) if not site.branch), None)
        pairs = [(site, self.seen[place(site)]) for site in (before, *found) if site is not None]
        if len(pairs) == 2 and same_features(*pairs, reduce=self.reduce, mask=self.mask):
            return []
        found = [replace(site, name="output", type="output", in_fit=not self.gives_logits(seen)) for site in found]
        return self._with_work(found, before, self.layer_calls, "the output")

    def block_modules(self) -> list[str]:
        """The names of the modules that are blocks, or hold their layers."""
        if self.blocks is not None and not self.no_trunk:
            return list(dict.fromkeys(run.name for run in self.blocks.runs))
        return block_names(self.modules, set(self.counts), self.layers)

    def sides(self) -> dict[str, str]:
        """Of each weight layer whether it is inside, in front of, between or behind the blocks."""
        known = self.blocks if self.blocks is not None and not self.no_trunk else None
        return {} if known is None else {call.name: known.side(call) for call in self.layer_calls}

    def _end_of_block(self, title: str, kind: str, end: TensorPlace | None) -> list[Site]:
        if end is None:
            self.dropped.append(f"{title} (its end is the input or output of no module)")
            return []
        seen = end.call.input if end.at == "input" else end.call.outputs[end.pick]
        behind = end.at == "input" or end.call.title != title
        if self.gives_logits(seen) or (end.call is self.classifier and end.at == "input"):
            return []
        found = self.kept([end.call], end.at, pick=end.pick)
        return [replace(site, name=title, type=kind, behind=behind) for site in found]

    def by_choice(self, choice: SiteChoice) -> list[Site]:
        """Outputs of the modules the user chose by names, globs, types or a predicate; "input" is the raw input."""
        front, end = list[Site](), list[Site]()
        written: list[str] = []  # names the user wrote: they raise where others are left out
        found: list[str] = []
        for item in choice if isinstance(choice, (list, tuple)) else [choice]:
            if isinstance(item, str) and item and item in self.modules:
                written.append(item)
            elif isinstance(item, str) and item == "output":
                end = self.at_output([], must=True)
            elif isinstance(item, str) and item == "input":
                front = [replace(*self.kept([self.two.root], "input", must=True), name="input", type="input")]
            else:
                found += chosen_by(self.modules, item)
        for name in written:
            if name not in self.counts:
                raise CaptureError(f"site '{name}' never fires: the model's forward does not call this module.")
        self.kept(self.calls(written), "output", must=True)
        found = [name for name in dict.fromkeys(found) if name and name not in written]
        self.dropped += [f"{name} (never called)" for name in found if name not in self.counts]
        self.dropped = list(dict.fromkeys(self.dropped))
        sites = self.kept(self.calls([*written, *found]), "output")
        marked = [
            replace(site, branch=not self.no_trunk and self._shows(site)[0] is None) for site in front + sites + end
        ]
        return [replace(site, in_fit=not self.gives_logits(self.seen[place(site)])) for site in marked]

    def _shows(self, site: Site) -> tuple[int | None, bool]:
        """The point of the trunk that a site shows, and whether it is that point itself."""
        if isinstance(self.trunk, str):
            return None, False
        node = self.seen[place(site)].node
        weighted = {seen.node for call in self.layer_calls for seen in call.outputs if seen.node is not None}
        return self.trunk.behind(node, weighted), self.trunk.position(node) is not None

    def parts(self, batch: Batch) -> tuple[list[Part], list[str]]:
        """What every layer is made of, and what of it cannot be measured."""
        calls = {(call.name, call.number): call for call in self.two.calls}
        made_of, lost = find_parts(
            self.network, batch, self.layer_calls, self.classifier, lambda name, n, at: self.site(calls[name, n], at)
        )
        if not made_of:
            why = "; ".join(lost) or "the model has no weight layer before its classifier"
            raise CaptureError(f"parts: expected a layer whose parts can be measured, found none: {why}.")
        if isinstance(trunk := self.trunk, str) or self.no_trunk:
            return made_of, lost
        return along_trunk(made_of, lambda site: trunk.position(self.seen[place(site)].node)), lost


def same_features(*pairs: tuple[Site, Seen], reduce: Reduce, mask: Tensor | None) -> bool:
    """Whether two sites give the same rows of features, which nothing has overwritten since they passed."""
    rows = []
    for site, seen in pairs:
        ordered = samples_first(seen.tensor.detach(), site.axis, site.fold)
        rows.append(reduced(ordered, reduce, channels_last=site.channels_last, mask=mask))
    a, b = rows
    same = a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-4, atol=1e-6))
    return same and all(seen.unchanged for _, seen in pairs)
