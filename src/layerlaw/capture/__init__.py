"""From model to matrices: what a layer is, hooks that are always removed, reductions to (n, d), batches of any kind."""

from layerlaw.capture.batches import Batch, Batches
from layerlaw.capture.hooks import capturing
from layerlaw.capture.network import Mode, network_of, probing_state, untrained
from layerlaw.capture.reduce import Reduce, reduced
from layerlaw.capture.sites import Plan, Site, find_sites, logits_of

__all__ = [
    "Batch",
    "Batches",
    "Mode",
    "Plan",
    "Reduce",
    "Site",
    "capturing",
    "find_sites",
    "logits_of",
    "network_of",
    "probing_state",
    "reduced",
    "untrained",
]
