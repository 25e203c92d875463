"""What a network goes on with of its tokens: the first one, the last one, or something over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from layerlaw.capture.dry_run import DryRun
from layerlaw.capture.hooks import Call, Seen
from layerlaw.capture.plan import Reduce, Site, TokenUse, reduced, samples_first
from layerlaw.errors import CaptureError


def token_use(run: DryRun, sites: Sequence[Site]) -> TokenUse | None:
    """What the network goes on with of its last tokens; `None` where it uses all of them or has none.

    The dry run's own numbers tell: what is read behind the last tokens is compared with each reduction of them.
    """
    end, moments = run.classifier, list[tuple[int, Call, Literal["input", "output"], Seen]]()
    for call in run.two.calls:
        moments += [(call.entered, call, "input", call.input)] if call.input is not None else []
        moments += [(call.left, call, "output", call.output)] if call.output is not None else []
    moments = [moment for moment in moments if end is None or moment[0] < end.entered]
    latest = sorted(moments, key=lambda moment: -moment[0])
    found = ((seen.key, got) for _, call, at, seen in latest if (got := _tokens_at(run, call, at)) is not None)
    if (last := next(found, None)) is None:
        return None
    run.by_numbers = True
    key, tokens = last
    when = min(time for time, _, _, seen in moments if seen.key == key)  # encoders hand on what a norm gave
    rows = tuple(site.name for site in sites if _moment(run, site) > when and _narrower(site, tokens))
    if not rows and end is None:
        return None
    read = [call.input for call in run.two.calls if call.entered > when] + [run.two.root.output]
    alike = (_reductions(tokens, seen, run.mask) for seen in read if seen is not None)
    layer = min((call for call in run.layer_calls if call.entered > when), key=lambda c: c.entered, default=None)
    by_classifier = layer is not None and layer is end
    if (how := next((ways for ways in alike if len(ways) == 1), None)) is not None:
        return TokenUse(how[0], by_classifier, rows)
    as_wide = layer is not None and layer.input is not None and layer.input.shape == tokens[:, 0].shape
    return TokenUse("", by_classifier, rows) if as_wide else None


def _moment(run: DryRun, site: Site) -> int:
    """When the tensor of a site passed."""
    call = next((c for c in run.two.calls if (c.name, c.number) == (site.module, site.call)), run.two.root)
    return call.entered if site.at == "input" else call.left


def _narrower(site: Site, tokens: Tensor) -> bool:
    return site.at != "logits" and len(site.shape) == 1 and site.features < tokens[0].numel()


def _tokens_at(run: DryRun, call: Call, at: Literal["input", "output"]) -> Tensor | None:
    """The tokens (n, T, d) that a call got or gave, where they are several and still as they were."""
    seen = call.tensor(at)
    if seen is None or seen.tensor.dim() != 3 or not seen.unchanged:
        return None
    kept = dict(run.seen)
    try:
        site = run.site(call, at)
    except CaptureError:  # it cannot be said which axis are the samples, or the mask is that of other tokens
        return None
    finally:
        run.seen = kept
    if isinstance(site, str) or not site.tokens or site.shape[0] < 2:
        return None
    return samples_first(seen.tensor, site.axis, site.fold)


def _reductions(tokens: Tensor, read: Seen, mask: Tensor | None) -> list[Reduce]:
    """By which reductions of the tokens (n, T, d) this tensor is what it is."""
    if read.shape != tokens[:, 0].shape or not read.unchanged or not read.tensor.numel():
        return []
    if tokens.is_meta or read.tensor.is_meta:  # offloaded: there are no numbers to compare
        return []
    given, found = read.tensor.to(tokens.device).float(), list[Reduce]()
    near = (1e-5 if read.tensor.element_size() >= 4 else 2e-2) * float(given.abs().max())
    ways: tuple[Reduce, ...] = ("first", "last", "mean", "max")
    for how in ways:
        try:
            made = reduced(tokens, how, channels_last=True, mask=mask)
        except CaptureError:  # other tokens than those of the mask
            return []
        found += [how] if float((made.float() - given).abs().max()) <= near else []
    return found
