"""Hooks that hand every site's features to a consumer, count the calls, and are always removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.reduce import Reduce, reduced, samples_first
from layerlaw.capture.sites import Plan, Site, logits_of
from layerlaw.capture.trace import clean_name, first_tensor
from layerlaw.errors import CaptureError, FeatureError
from layerlaw.stats.precision import full_precision

Consume = Callable[[Site, Tensor], None]


@dataclass
class Capture:
    """Runs batches through the network; every site's (n, d) features go to the consumer while the forward runs."""

    network: nn.Module
    plan: Plan
    reduce: Reduce
    consume: Consume
    sites: Sequence[Site]
    counts: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    mask: Tensor | None = None

    def run(self, batch: Batch, *, number: int) -> Any:
        """One forward; returns the model's output. A call count that differs from the dry run raises."""
        self.counts.clear()
        self.samples, self.mask = len(batch.labels), batch.mask
        output = self.network(*batch.args, **batch.kwargs)
        for name, expected in self.plan.calls.items():
            if name in self.watched and self.counts[name] != expected:
                raise CaptureError(
                    f"module '{name}' was called {expected} times in the dry run and {self.counts[name]} times in batch "
                    f"{number}: a varying number of calls makes no fixed layers. Choose other sites."
                )
        return output

    @property
    def watched(self) -> set[str]:
        """Modules that carry a hook."""
        return {site.module for site in self.sites if site.module}

    def hand_over(self, site: Site, value: Any) -> None:
        """Turn what the module got or gave into (n, d) features and pass them on; outside autocast, without TF32."""
        tensor = logits_of(value) if site.type == "logits" else first_tensor(value)
        if tensor is None:
            raise CaptureError(f"site '{site.name}': expected a floating-point tensor as in the dry run, got none.")
        with full_precision():
            tensor = samples_first(tensor.detach(), site.axis, site.fold)
            if len(tensor) != self.samples:
                raise FeatureError(
                    f"site '{site.name}': expected {self.samples} samples, got features for {len(tensor)} "
                    f"(shape {tuple(tensor.shape)})."
                )
            features = reduced(tensor, self.reduce, channels_last=site.channels_last, mask=self.mask)
            if features.shape[1] != site.features:
                raise FeatureError(
                    f"site '{site.name}': expected {site.features} features per sample as in the first batch, got "
                    f"{features.shape[1]}. Inputs of varying length cannot be flattened: pad them to one length, or "
                    "use reduce='mean', 'first' or 'last'."
                )
            self.consume(site, features)


@contextmanager
def capturing(
    network: nn.Module, plan: Plan, sites: Sequence[Site], *, reduce: Reduce, consume: Consume
) -> Iterator[Capture]:
    """Place hooks at the sites; they are removed at the end, also after an exception."""
    capture = Capture(network, plan, reduce, consume, sites)
    modules = {clean_name(name): module for name, module in network.named_modules()}
    places: dict[tuple[str, str], dict[int, Site]] = defaultdict(dict)
    for site in sites:
        places[site.module, site.at][site.call] = site
    with ExitStack() as hooks:
        for name in {name for name, _ in places}:
            inputs, outputs = places.get((name, "input"), {}), places.get((name, "output"), {})

            def enter(m: nn.Module, args: Any, kwargs: Any, name: str = name, at: dict[int, Site] = inputs) -> None:
                site = at.get(capture.counts[name])
                capture.counts[name] += 1
                if site is not None:
                    capture.hand_over(site, (args, kwargs))

            def leave(m: nn.Module, args: Any, output: Any, name: str = name, at: dict[int, Site] = outputs) -> None:
                site = at.get(capture.counts[name] - 1)
                if site is not None:
                    capture.hand_over(site, output)

            hooks.callback(modules[name].register_forward_pre_hook(enter, with_kwargs=True).remove)
            if outputs:
                hooks.callback(modules[name].register_forward_hook(leave).remove)
        yield capture
