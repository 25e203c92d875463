"""Training: networks of known shape, recipes, fleets of networks trained as one, a plain loop for any module, and
small language models."""

from layerlaw.lab.fleet import Fleet
from layerlaw.lab.gpt import GPT
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.recurrent import Recurrent
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule
from layerlaw.lab.shape import Shape
from layerlaw.lab.sweep import Run, sweep
from layerlaw.lab.text_checkpoint import load_text_model, save_text_model
from layerlaw.lab.text_recipe import TextRecipe
from layerlaw.lab.text_training import text_loss, train_text
from layerlaw.lab.training import train
from layerlaw.lab.zoo import FeedForward

__all__ = [
    "GPT",
    "FeedForward",
    "Fleet",
    "Measurement",
    "Recipe",
    "Recurrent",
    "Run",
    "Samples",
    "Schedule",
    "Shape",
    "TextRecipe",
    "load_text_model",
    "save_text_model",
    "sweep",
    "text_loss",
    "train",
    "train_text",
]
