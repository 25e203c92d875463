"""The verdict on a language model: the prediction residual PR along its blocks, held out where that was measured."""

from __future__ import annotations

from layerlaw.errors import InputError
from layerlaw.law import UNCHANGED, LawErrors, LawFit
from layerlaw.law.words import law_claim, law_numbers
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.changes import branch_words
from layerlaw.verdict.lens import lens_advice, lens_findings
from layerlaw.verdict.sentences import Verdict, blocks
from layerlaw.verdict.shape import curve_shape, intervals, on_the_shape, shape_intervals
from layerlaw.verdict.steps import HARDLY, beyond_error, same_everywhere, spread
from layerlaw.verdict.targets import laws_of_targets, other_targets
from layerlaw.wording import signed

FEW, SOME = 20, 50  # tokens per feature: below the first nothing is to be trusted, below the second only the shape
ENOUGH = 100  # tokens per feature, as probe_lm takes them by default
EXACT = 1e-6  # a residual below this, of either sign, is what rounding leaves of a text that is predicted exactly
NOTHING = 0.98  # a model whose residual is nowhere below this predicts nothing
TREND = 0.7  # from this |r| on, half of what ln PR varies is a trend along depth
MASKED_SHARE = 0.15  # of the tokens are masked and predicted in the tasks of encoders
ANOTHER_AIM = (
    "decides about classes"  # of a note that comes before all others: what follows is not what the model is for
)
TASKS = {
    "masked": "Predicted here: tokens hidden behind masks, at their own places (task 'masked'); not the next token.",
    "span": "Predicted here: the tokens of hidden spans, by the decoder (task 'span'); not the next token of a plain text.",
}


def judge_language_model(record: Record) -> Verdict:
    """Does log PR fall on a line, what would other text change, and what does an untrained model do?"""
    column = record.leading
    sites = [site for site in record.sites if site.in_fit]
    if sites and all((value := site.values.get(column)) is not None and abs(value) < EXACT for site in sites):
        return Verdict(_predicted_exactly(record), tuple(record.notes), ())
    try:
        fit = record.law(column)
    except InputError as error:
        return Verdict(f"No law can be fitted: {error}", tuple(record.notes), ())
    errors = record.law_errors(column)
    flat, few = same_everywhere(fit, errors), _too_few(record)
    falls = fit.slope < 0 and not (flat or _might_not_fall(errors) or _predicts_nothing(fit))
    findings = [
        *(note for note in record.notes if ANOTHER_AIM in note),
        *_task(record),
        *_in_sample(record, fit),
        *([] if flat else intervals(errors, shape_intervals(record)) if few else curve_shape(record, fit, errors)),
        *_worse_than_the_mean(column, sites),
        *([] if few else branch_words(record)),
        *_untrained(record, fit, errors, falls=falls),
        *other_targets(record),
        *([] if few else laws_of_targets(record)),
        *lens_findings(record),
        *_tokens(record),
    ]
    headline = _all_the_same(record, fit) if flat else _headline(record, fit, errors)
    return Verdict(headline, tuple(findings), tuple(_advice(record, fit, errors, sites, flat=flat)))


def _might_not_fall(errors: LawErrors | None) -> bool:
    """Whether other text of this kind might give a PR that does not fall."""
    return errors is not None and errors.rho_interval[1] >= 1


def _predicts_nothing(fit: LawFit) -> bool:
    """Whether no block predicts better than the mean; only held out is that possible."""
    return min(fit.values) >= 1


def _predicted_exactly(record: Record) -> str:
    return f"The text is predictable to rounding at every block ({_kind(record)} is 0): there is nothing to measure."


def _all_the_same(record: Record, fit: LawFit) -> str:
    low, high = f"{min(fit.values):.4f}", f"{max(fit.values):.4f}"
    where = "at both blocks" if fit.points == 2 else "at every block"
    within = "" if spread(fit) < UNCHANGED else " within its errors"
    facts = low if low == high else f"{low} to {high}"
    opening = f"{_few_tokens(record)}: here" if _too_few(record) else "No law:"
    return f"{opening} {_kind(record)} is the same {where}{within}, {facts}."


def _kind(record: Record) -> str:
    return "held-out PR" if record.leading == "residual_held_out" else "in-sample PR"


def _headline(record: Record, fit: LawFit, errors: LawErrors | None) -> str:
    what, r = _kind(record), fit.pearson
    if r is None:
        return f"Two blocks make no law ({what} {fit.values[0]:.3f}, then {fit.values[-1]:.3f})."
    numbers = [f"r = {signed(r)} over {fit.points} blocks"]
    try:
        short = record.law(record.leading, drop_last=1).pearson
    except InputError:
        short = None
    if short is not None:
        numbers[0] += f", {signed(short)} without the last"
    numbers.append(f"ρ = {fit.rho:.4f} per block")
    numbers += law_numbers(fit)
    claim = _claim(fit, errors, what)
    if _too_few(record):
        way = "falls" if fit.slope < 0 and fit.shares is not None else "does not fall"
        claim = f"{_few_tokens(record)}: here {what} {way} with depth"
    elif _predicts_nothing(fit):
        claim = f"no law: {what} is 1 or more at every block, so nothing of unseen text is predicted"
    elif fit.rho < 1 and _might_not_fall(errors):
        claim = f"no clear trend: {what} might as well not fall on other text, since the interval of ρ includes 1"
    return f"{claim[0].upper()}{claim[1:]} ({', '.join(numbers)})."


def _claim(fit: LawFit, errors: LawErrors | None, what: str) -> str:
    rises, clear = "", beyond_error(fit, errors, fit.rising)
    if fit.rising:
        rises = f"it rises at {len(fit.rising)} of {fit.layers} steps"
        if clear is not None and len(clear) < len(fit.rising):  # what is clear and what does not count, findings say
            rises += (
                f", clearly at {len(clear)}" if clear else ", not clearly" if len(fit.rising) == 1 else ", none clearly"
            )
    return law_claim(fit, what, points="blocks", on=" on this text", rises=rises, clear=clear != [])


def holds_on_text(record: Record, fit: LawFit, errors: LawErrors | None) -> bool | None:
    """`LawFit.holds`, as far as this text can say so: `None` with too few tokens, or where other text might not fall."""
    if _too_few(record):
        return None
    if same_everywhere(fit, errors) or _predicts_nothing(fit):
        return False
    return None if fit.holds and _might_not_fall(errors) else fit.holds


def _task(record: Record) -> list[str]:
    task = record.settings.get("task", "next")
    return [TASKS[task]] if isinstance(task, str) and task in TASKS else []


def _in_sample(record: Record, fit: LawFit) -> list[str]:
    ends = f"from {fit.values[0]:.3f} to {fit.values[-1]:.3f}"
    if record.leading == "residual":
        why = "no groups of documents were kept, so nothing is held out and nothing has errors"
        return [f"PR goes {ends}, in-sample: {why}.{_one_piece(record)}"]
    try:
        inside, short = record.law("residual"), record.law("residual", drop_last=1).pearson
    except InputError:
        return [f"Held out, PR goes {ends}."]
    without = "" if short is None else f", {signed(short)} without the last block"
    flat = same_everywhere(inside, record.law_errors("residual"))
    held = {True: "; the law holds", False: "; the law does not hold", None: ""}
    judged = held[holds_on_text(record, inside, record.law_errors("residual"))]
    correlation = "" if inside.pearson is None or flat else f" (r = {signed(inside.pearson)}{without}{judged})"
    return [
        f"Held out, PR goes {ends}; in-sample, as the paper takes it, from {inside.values[0]:.3f} to "
        f"{inside.values[-1]:.3f}{correlation}."
    ]


def _one_piece(record: Record) -> str:
    """Why there are no groups, where the text was one piece, and what makes some."""
    length = record.settings.get("length")
    if record.settings.get("pieces") != 1 or not isinstance(length, int):
        return ""
    return (
        f" The text is one piece of {length:,} tokens: shorter pieces (length={max(2, length // 8)}) can be held out."
    )


def _worse_than_the_mean(column: str, sites: list[SiteRow]) -> list[str]:
    bad = [i for i, site in enumerate(sites, 1) if (value := site.values.get(column)) is not None and value >= 1]
    if not bad or column != "residual_held_out":
        return []
    where = "every block" if len(bad) == len(sites) else blocks(bad)
    return [f"At {where} held-out PR is 1 or more: the fit predicts unseen text no better than its mean."]


def _tokens_per_feature(record: Record) -> float | None:
    each = record.settings.get("tokens_per_feature")
    return each if isinstance(each, (int, float)) else None


def _too_few(record: Record) -> bool:
    each = _tokens_per_feature(record)
    return each is not None and each < FEW


def _few_tokens(record: Record) -> str:
    return f"Too few tokens to judge, {_tokens_per_feature(record):.1f} per feature"


def _tokens(record: Record) -> list[str]:
    each = _tokens_per_feature(record)
    if each is None or each >= SOME:
        return []
    if each >= FEW:
        return [
            f"{each:.0f} tokens per feature: the shape can be seen; for r take about {ENOUGH}, and look at its interval."
        ]
    if any("tokens per feature" in note for note in record.notes):
        return []  # the notes say it already
    return [
        f"Only {each:.1f} tokens per feature: below {FEW} the residual in-sample is far too low and no r is to be trusted."
    ]


def _advice(record: Record, fit: LawFit, errors: LawErrors | None, sites: list[SiteRow], *, flat: bool) -> list[str]:
    to_be_read = (
        not (flat or _too_few(record) or _predicts_nothing(fit) or _might_not_fall(errors)) and fit.holds is not None
    )
    out = [*_more_tokens(record, fit, sites), *(on_the_shape(record, fit) if to_be_read else []), *lens_advice(record)]
    if not any(column.endswith("_untrained") for column in record.columns):
        out.append("No untrained model was measured: null=True (or --null) shows what the architecture does by itself.")
    return out


def _more_tokens(record: Record, fit: LawFit, sites: list[SiteRow]) -> list[str]:
    each = _tokens_per_feature(record)
    if each is not None and each < SOME:
        masked = record.settings.get("task", "next") != "next"
        text = round(ENOUGH * sites[0].features / (MASKED_SHARE if masked else 1), -2)
        return [f"Use more tokens: about {text:,.0f} of them give {ENOUGH} predicted ones per feature."]
    if _predicts_nothing(fit):
        return ["Use more tokens: fitted to these, no block predicts anything of unseen text."]
    return []


def _untrained(record: Record, fit: LawFit, errors: LawErrors | None, *, falls: bool) -> list[str]:
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
