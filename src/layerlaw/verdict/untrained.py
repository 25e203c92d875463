"""The same language model untrained: does its residual move with depth, and was the fall of the trained one learned?"""

from __future__ import annotations

from layerlaw.errors import InputError
from layerlaw.law import LawErrors, LawFit
from layerlaw.record import Record
from layerlaw.verdict.plateau import HARDLY, spread
from layerlaw.verdict.sentences import signed

NOTHING = 0.98  # a model whose residual is nowhere below this predicts nothing
TREND = 0.7  # from this |r| on, half of what ln PR varies is a trend along depth


def untrained(record: Record, fit: LawFit, errors: LawErrors | None, *, falls: bool) -> list[str]:
    """One sentence on the untrained model; `falls` says whether PR of the trained one does."""
    column = f"{record.leading}_untrained"
    if column not in record.columns:
        return []
    try:
        null = record.law(column)
    except InputError:
        return []
    noise = _noise(fit, errors)
    way = _way(null, noise)
    # A twin that "hardly moves" may still move as much as a trained model that hardly falls.
    apart = falls and (null.slope - fit.slope) * fit.layers > noise
    learned = "; the fall was learned." if apart else "."
    ends = f"{null.values[0]:.3f} to {null.values[-1]:.3f}"
    if min(null.values) >= NOTHING:
        extremes = f"PR between {min(null.values):.3f} and {max(null.values):.3f}"
        return [f"The same model untrained predicts nothing, at any depth ({extremes}){learned}"]
    if way == 0 or null.pearson is None:
        correlation = "" if null.pearson is None else f", r = {signed(null.pearson)}"
        moves = "hardly moves" if spread(null) < HARDLY else "has no clear trend"
        return [f"The same model untrained: PR {moves} ({ends}{correlation}){learned}"]
    trend = f"PR {'rises' if way > 0 else 'falls'} with depth (r = {signed(null.pearson)}, {ends})"
    rest = learned if way > 0 else _beside(null, fit) if falls else "."
    return [f"The same model untrained: {trend}{rest}"]


def _noise(fit: LawFit, errors: LawErrors | None) -> float:
    """A change of ln PR over all blocks that means nothing: the twin has no errors, so those of the trained model serve."""
    return HARDLY if errors is None else max(HARDLY, 2 * errors.log_rho * fit.layers)


def _way(null: LawFit, noise: float) -> int:
    """1: rises with depth, −1: falls, 0: neither can be said."""
    if null.pearson is None or abs(null.pearson) < TREND or abs(null.slope) * null.layers < noise:
        return 0
    return 1 if null.slope > 0 else -1


def _beside(null: LawFit, fit: LawFit) -> str:
    """A fall of the twin beside the fall of the trained model."""
    if null.slope <= fit.slope:
        return ", at least as steeply as after training: this fall shows nothing learned."
    return f", {null.slope / fit.slope:.0%} of the slope after training: so much needs no training."
