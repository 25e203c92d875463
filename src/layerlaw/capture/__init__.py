"""From model to matrices: what a layer is, hooks that are always removed, reductions to (n, d), batches of any kind.

batches     data of any kind as batches
modules     names of modules, what counts as a weight layer or a block, the classifier
trace       the dry run
site_rules  which modules are sites
plan        what a dry run decides, and how a site becomes one row of features per sample
hooks       features handed over while the forward runs
network     the network's state while it is probed
"""

from layerlaw.capture.batches import Batch, Batches, Checksum
from layerlaw.capture.hooks import Capture
from layerlaw.capture.modules import classifier_weight, logits_of, modules_of
from layerlaw.capture.network import BatchNormMode, Randomness, network_of, placed, probing_state, untrained
from layerlaw.capture.plan import Plan, Reduce, Site, statistic_bytes
from layerlaw.capture.site_rules import SiteChoice, find_sites

__all__ = [
    "Batch",
    "BatchNormMode",
    "Batches",
    "Capture",
    "Checksum",
    "Plan",
    "Randomness",
    "Reduce",
    "Site",
    "SiteChoice",
    "classifier_weight",
    "find_sites",
    "logits_of",
    "modules_of",
    "network_of",
    "placed",
    "probing_state",
    "statistic_bytes",
    "untrained",
]
