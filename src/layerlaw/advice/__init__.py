"""What needs training to answer: which depth, width and shape; when to stop; how robust; what becomes of rare classes.

choosing    choose_depth, choose_width, choose_shape: one sweep, compared by final D
choice      the one-standard-error rule and the result
trial       a candidate at its learning rates
plan        what is about to be trained, and roughly how long
caveats     what speaks against a recommendation
choice_sheet  its figure as plain data
material    data in any form, and its validation part
emergence   when the law appeared, and a rule to stop by
transfer    when lower and upper layers work equally
history     D at several epochs, from whatever holds it
robustness  Proposition 1 against noise on the weights
perturbing  that noise
imbalance   forecast: which classes keep a classifier of their own
imbalance_words  that forecast in sentences
imbalance_sheet  and as a figure
outlook     what the Layer-Peeled Model says at one norm budget
norms       norms of a trained network in the model's terms
class_groups  class counts as few groups of like sizes
"""

from layerlaw.advice.choice import Choice
from layerlaw.advice.choosing import choose_depth, choose_shape, choose_width
from layerlaw.advice.emergence import Emergence, UntilLaw, emergence, law_holds
from layerlaw.advice.imbalance import Forecast, forecast
from layerlaw.advice.robustness import Robustness, robustness
from layerlaw.advice.transfer import Balance, transfer_balance
from layerlaw.advice.trial import Candidate, Trial

__all__ = [
    "Balance",
    "Candidate",
    "Choice",
    "Emergence",
    "Forecast",
    "Robustness",
    "Trial",
    "UntilLaw",
    "choose_depth",
    "choose_shape",
    "choose_width",
    "emergence",
    "forecast",
    "law_holds",
    "robustness",
    "transfer_balance",
]
