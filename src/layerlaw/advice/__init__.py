"""What needs training or solving to answer: which depth, width and shape; how robust; what becomes of rare
classes; after which layer to stop; what a training came to.

When the law emerged and when to stop needs no training: `layerlaw.verdict`.
"""

from layerlaw.advice.candidates import Candidate, Trial
from layerlaw.advice.choice import Choice
from layerlaw.advice.choosing import TrainingData, TrainingPlan, choose_depth, choose_shape, choose_width
from layerlaw.advice.collapse import Forecast
from layerlaw.advice.courses import CourseReport, course_report
from layerlaw.advice.difficulty import Difficulty, compare_difficulty
from layerlaw.advice.exit_network import EarlyExit
from layerlaw.advice.exits import early_exit
from layerlaw.advice.imbalance import forecast
from layerlaw.advice.penalty_search import PenaltySearch, svsl_search
from layerlaw.advice.perturbation import Robustness, robustness
from layerlaw.advice.transfer import Balance, transfer_balance

__all__ = [
    "Balance", "Candidate", "Choice", "CourseReport", "Difficulty", "EarlyExit", "Forecast", "PenaltySearch", "Robustness",
    "TrainingData", "TrainingPlan", "Trial", "choose_depth", "choose_shape", "choose_width", "compare_difficulty",
    "course_report", "early_exit", "forecast", "robustness", "svsl_search", "transfer_balance",
]  # fmt: skip
