"""Training: networks of known shape, recipes, fleets of networks trained as one, and a plain loop for any module."""

from layerlaw.lab.fleet import Fleet
from layerlaw.lab.look import Look, Reading
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.shape import Shape
from layerlaw.lab.sweep import Run, sweep
from layerlaw.lab.training import train
from layerlaw.lab.zoo import FeedForward

__all__ = ["FeedForward", "Fleet", "Look", "Reading", "Recipe", "Run", "Samples", "Shape", "sweep", "train"]
