"""What needs training or solving to answer: which depth, width and shape; how robust; what becomes of rare classes.

When the law emerged and when to stop needs no training: `layerlaw.verdict`.
"""

from layerlaw.advice.candidates import Candidate, Trial
from layerlaw.advice.choice import Choice
from layerlaw.advice.choosing import TrainingData, TrainingPlan, choose_depth, choose_shape, choose_width
from layerlaw.advice.collapse import Forecast
from layerlaw.advice.imbalance import forecast
from layerlaw.advice.perturbation import Robustness, robustness
from layerlaw.advice.transfer import Balance, transfer_balance

__all__ = [
    "Balance", "Candidate", "Choice", "Forecast", "Robustness", "TrainingData", "TrainingPlan", "Trial",
    "choose_depth", "choose_shape", "choose_width", "forecast", "robustness", "transfer_balance",
]  # fmt: skip
