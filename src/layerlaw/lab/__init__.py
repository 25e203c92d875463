"""Training: small networks of known shape, and one plain loop."""

from layerlaw.lab.training import Recipe, train
from layerlaw.lab.zoo import FeedForward

__all__ = ["FeedForward", "Recipe", "train"]
