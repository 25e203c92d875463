"""Training: descriptions of networks and losses, recipes, sweeps over them (many feed-forward networks as one fleet), a
plain loop for any module, and small language models."""

from layerlaw.lab.even_steps import EvenCrossEntropy, EvenSteps
from layerlaw.lab.fleet import Fleet
from layerlaw.lab.jobs import Run
from layerlaw.lab.losses import CrossEntropy, Loss
from layerlaw.lab.networks import Architecture
from layerlaw.lab.networks.convolutional import ConvolutionalNetwork
from layerlaw.lab.networks.dense import DenseNetwork
from layerlaw.lab.networks.feed_forward import FeedForward, Shape
from layerlaw.lab.networks.gpt import GPT
from layerlaw.lab.networks.recurrent import Recurrent
from layerlaw.lab.networks.residual import ResidualNetwork, TiedNetwork
from layerlaw.lab.networks.text_model import load_text_model, save_text_model
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule
from layerlaw.lab.svsl import SVSL
from layerlaw.lab.sweeping import sweep
from layerlaw.lab.text import TextRecipe, text_loss, train_text
from layerlaw.lab.training import train
from layerlaw.lab.variability import VariabilityCrossEntropy

__all__ = [
    "GPT", "SVSL", "Architecture", "ConvolutionalNetwork", "CrossEntropy", "DenseNetwork", "EvenCrossEntropy", "EvenSteps",
    "FeedForward", "Fleet", "Loss", "Measurement", "Recipe", "Recurrent", "ResidualNetwork", "Run", "Samples", "Schedule",
    "Shape", "TextRecipe", "TiedNetwork", "VariabilityCrossEntropy", "load_text_model", "save_text_model", "sweep",
    "text_loss", "train", "train_text",
]  # fmt: skip
