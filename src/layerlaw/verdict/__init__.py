"""Records in, sentences out: what holds, which layers are idle, what to do. No training, no drawing.

    sentences       what a verdict is made of
    steps           who does the work between two sites, who is idle, runs of steps that do little
    classifier      the verdict on a classifier
    language_model  the verdict on a language model, and on the same model untrained
    shape           the shape of a language model's curve
    targets         what else a language model was to predict
    stopping        when the law emerged in a training, and when to stop

The kind of the record decides who judges it.
"""

from __future__ import annotations

from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, Record
from layerlaw.verdict.classifier import judge_classifier
from layerlaw.verdict.language_model import judge_language_model
from layerlaw.verdict.sentences import Verdict
from layerlaw.verdict.steps import IDLE_SHARE, idle_layers, workers, working_sites
from layerlaw.verdict.stopping import Emergence, UntilLaw, emergence

__all__ = [
    "IDLE_SHARE",
    "Emergence",
    "UntilLaw",
    "Verdict",
    "emergence",
    "idle_layers",
    "judge",
    "workers",
    "working_sites",
]


JUDGES = {CLASSIFIER: judge_classifier, LANGUAGE_MODEL: judge_language_model}


def judge(record: Record) -> Verdict:
    """Read a record and say what it shows, without overselling."""
    return JUDGES[record.kind](record)
