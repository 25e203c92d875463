"""What needs training or solving to answer: which depth, width and shape; how robust; what becomes of rare classes.

choosing       choose_depth, choose_width, choose_shape: one sweep, compared by final D
training_data  data in any form, and its validation part
candidates     a candidate at its learning rates, and the one-standard-error rule
choice         the result, what speaks against it, its figure
transfer       when lower and upper layers work equally
perturbation   Proposition 1 against noise on the weights
imbalance      forecast: which classes keep a classifier of their own
collapse       that forecast in sentences
outlook        class counts as few groups, and what the Layer-Peeled Model says of them at one norm budget

When the law emerged and when to stop needs no training: `layerlaw.verdict`.
"""

from layerlaw.advice.candidates import Candidate, Trial
from layerlaw.advice.choice import Choice
from layerlaw.advice.choosing import TrainingPlan, choose_depth, choose_shape, choose_width
from layerlaw.advice.collapse import Forecast
from layerlaw.advice.imbalance import forecast
from layerlaw.advice.perturbation import Robustness, robustness
from layerlaw.advice.training_data import TrainingData
from layerlaw.advice.transfer import Balance, transfer_balance

__all__ = [
    "Balance",
    "Candidate",
    "Choice",
    "Forecast",
    "Robustness",
    "TrainingData",
    "TrainingPlan",
    "Trial",
    "choose_depth",
    "choose_shape",
    "choose_width",
    "forecast",
    "robustness",
    "transfer_balance",
]
