"""Records in, sentences out: what holds, which layers are idle, what to do.

    sentences       what a verdict is made of
    steps           who does the work between two sites, and who is idle
    classifier      the verdict on a classifier
    language_model  the verdict on a language model
    plateau         blocks that do little, all or a run of them, and rises at the end
    untrained       what the same language model does before training
    targets         what else a language model was asked to predict

The kind of the record decides who judges it.
"""

from __future__ import annotations

from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, Record
from layerlaw.verdict.classifier import judge_classifier
from layerlaw.verdict.language_model import judge_language_model
from layerlaw.verdict.sentences import Verdict
from layerlaw.verdict.steps import IDLE_SHARE, idle_layers, workers, working_sites

__all__ = ["IDLE_SHARE", "Verdict", "idle_layers", "judge", "workers", "working_sites"]


JUDGES = {CLASSIFIER: judge_classifier, LANGUAGE_MODEL: judge_language_model}


def judge(record: Record) -> Verdict:
    """Read a record and say what it shows, without overselling."""
    return JUDGES[record.kind](record)
