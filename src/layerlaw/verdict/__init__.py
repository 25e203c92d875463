"""Records in, sentences out: what holds, which layers are idle, what to do. No training, no drawing."""

from __future__ import annotations

from layerlaw.law import LawErrors, LawFit
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, REGRESSION, Record
from layerlaw.verdict.classifier import judge_classifier, judge_regression
from layerlaw.verdict.language_model import holds_on_text, judge_language_model
from layerlaw.verdict.levels import ModuleFinding, ModuleLevel, find_modules
from layerlaw.verdict.sentences import Verdict
from layerlaw.verdict.steps import IDLE_SHARE, samples_needed, workers, working_sites
from layerlaw.verdict.stopping import Emergence, UntilLaw, emergence

__all__ = [
    "IDLE_SHARE", "Emergence", "ModuleFinding", "ModuleLevel", "UntilLaw", "Verdict", "emergence", "find_modules",
    "judge", "law_holds", "workers", "working_sites",
]  # fmt: skip


def judge(record: Record) -> Verdict:
    """Read a record and say what it shows, without overselling; its kind decides who judges it."""
    judges = {CLASSIFIER: judge_classifier, LANGUAGE_MODEL: judge_language_model, REGRESSION: judge_regression}
    return judges[record.kind](record)


def law_holds(record: Record, fit: LawFit, errors: LawErrors | None = None) -> bool | None:
    """Whether the law holds of this record, as its verdict has it: `LawFit.holds`, or `None` where its data cannot say."""
    if record.kind == LANGUAGE_MODEL:
        return holds_on_text(record, fit, errors)
    return fit.holds if samples_needed(record) is None else None
