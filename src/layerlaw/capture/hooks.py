"""Hooks that hand every site's features to a consumer, count the calls, and are always removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.modules import entering, logits_of, tensors_in
from layerlaw.capture.plan import Plan, Reduce, Site, reduced, samples_first
from layerlaw.capture.trace import hooked
from layerlaw.errors import CaptureError, FeatureError
from layerlaw.stats.precision import full_precision

Consume = Callable[[Site, Tensor], None]
LOGITS = -1  # the turn of the logits among the outputs of the network, which is called once


class Capture:
    """Hooks at the sites, as a context: they are removed at the end, also after an exception.

    `run` sends batches through the network; while the forward runs, `consume(site, features)` gets every site's (n, d)
    features (with `reduce=None` the tensors themselves), detached and in full precision. With `gradients` they stay attached
    to the graph, outside autocast, so that a loss can be built on them, and are in memory of their own, so that an in-place
    layer behind the site cannot change them.
    """

    def __init__(
        self,
        network: nn.Module,
        plan: Plan,
        sites: Sequence[Site],
        *,
        reduce: Reduce | None,
        consume: Consume,
        gradients: bool = False,
    ) -> None:
        self.network, self.plan, self.reduce, self.consume = network, plan, reduce, consume
        self.gradients = gradients
        self.inputs: dict[str, dict[int, Site]] = defaultdict(dict)  # by module and call
        self.outputs: dict[str, dict[int, Site]] = defaultdict(dict)
        for site in sites:
            turn = LOGITS if site.at == "logits" else site.call
            (self.inputs if site.at == "input" else self.outputs)[site.module][turn] = site
        self.expected = Counter({site.module: plan.calls[site.module] for site in sites})
        self.counts: Counter[str] = Counter()
        self.samples = 0
        self.mask: Tensor | None = None
        self.rows: Tensor | None = None
        self._hooks = hooked(network, self.expected, self.enter, self.leave)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def run(self, batch: Batch, *, rows: Tensor | None = None, where: str) -> Any:
        """One forward; returns the model's output. Only the chosen `rows` of the batch are handed over (`None`: all)."""
        if self.gradients and not torch.is_grad_enabled():
            raise CaptureError(f"{where}: expected gradients to be enabled for gradients=True, got no_grad mode.")
        if self.plan.overwrites_input:
            batch = batch.copy()
        self.counts.clear()
        self.samples, self.mask, self.rows = len(batch.labels), batch.mask, rows
        output = self.network(*batch.args, **batch.kwargs)
        if self.counts != self.expected:
            name = next(name for name in self.expected if self.counts[name] != self.expected[name])
            times = f"{self.expected[name]} times in the dry run and {self.counts[name]} times in {where}"
            why = "a varying number of calls makes no fixed layers. Choose other sites"
            raise CaptureError(f"module '{name}' was called {times}: {why}.")
        return output

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before a call: count it, look at its input."""
        site = self.inputs[name].get(self.counts[name])
        self.counts[name] += 1
        if site is not None:
            self.hand_over(site, entering(args, kwargs))

    def leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """After a call: look at its output."""
        site = self.outputs[name].get(self.counts[name] - 1)
        if site is not None:
            self.hand_over(site, next(islice(tensors_in(output), site.pick, None), None))
        if (scores := self.outputs[name].get(LOGITS)) is not None:
            self.hand_over(scores, logits_of(output))

    def hand_over(self, site: Site, tensor: Tensor | None) -> None:
        """Turn what the module got or gave into (n, d) features and pass them on, outside autocast (and without TF32)."""
        if tensor is None:
            raise CaptureError(f"site '{site.name}': expected a floating-point tensor as in the dry run, got none.")
        if self.gradients:
            with torch.autocast(tensor.device.type, enabled=False):
                self.consume(site, self.features(site, tensor))
        else:
            # A model's own inference mode would give tensors that cannot be added to later.
            inference = torch.is_inference_mode_enabled()
            with torch.inference_mode(False) if inference else nullcontext(), full_precision():
                self.consume(site, self.features(site, tensor.detach()))

    def features(self, site: Site, tensor: Tensor) -> Tensor:
        """One row per sample; the tensor as it is where no reduction is wanted."""
        if self.reduce is None:
            return tensor
        ordered = samples_first(tensor, site.axis, site.fold)
        if len(ordered) != self.samples:
            came = f"features for {len(ordered)} (shape {tuple(ordered.shape)})"
            raise FeatureError(f"site '{site.name}': expected {self.samples} samples, got {came}.")
        features = reduced(ordered, self.reduce, channels_last=site.channels_last, mask=self.mask)
        if features.shape[1] != site.features:
            raise FeatureError(
                f"site '{site.name}': expected {site.features} features per sample as in the first batch, got "
                f"{features.shape[1]}. Inputs of varying length cannot be flattened: pad them to one length, or "
                "use reduce='mean', 'first' or 'last'."
            )
        if self.rows is not None:
            return features.index_select(0, self.rows.to(features.device))
        if self.gradients and features.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            return features.clone()
        return features
