"""The verdict on a language model: the prediction residual PR along its blocks, held out where that was measured."""

from __future__ import annotations

from layerlaw.errors import InputError
from layerlaw.law import LawErrors, LawFit
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.plateau import Run, beyond_error, final_rise, plateau
from layerlaw.verdict.sentences import Verdict, listed, signed
from layerlaw.verdict.steps import workers
from layerlaw.verdict.targets import other_targets

FEW, SOME = 20, 50  # tokens per feature: below the first nothing is to be trusted, from the second on r is stable
NOT_RANDOM = 2.0  # a lag-1 correlation of noise is within about 2/√points of 0
MASKED_SHARE = 0.15  # of the tokens are masked and predicted in the tasks of encoders
HARDLY = 0.005  # a change of ln PR over all blocks below this is nothing to speak of
TASKS = {
    "masked": "Predicted here: tokens hidden behind masks, at their own places (task 'masked'); not the next token.",
    "span": "Predicted here: the tokens of hidden spans, by the decoder (task 'span'); not the next token of a plain text.",
}


def judge_language_model(record: Record) -> Verdict:
    """Does log PR fall on a line, what would other text change, and what does an untrained model do?"""
    column = record.leading
    sites = [site for site in record.sites if site.in_fit]
    try:
        fit = record.law(column)
    except InputError as error:
        return Verdict(f"No law can be fitted: {error}", tuple(record.notes), ())
    errors = record.law_errors(column)
    findings = [
        *_task(record),
        *_in_sample(record, fit),
        *_intervals(errors),
        *_curve(fit, errors),
        *_rises(fit, errors, sites),
        *_plateau(plateau(fit), sites),
        *_worse_than_the_mean(column, sites),
        *_null(record, fit, errors),
        *other_targets(record),
        *_tokens(record),
    ]
    return Verdict(_headline(record, fit, errors), tuple(findings), tuple(_advice(record, fit, sites)))


def _might_not_fall(errors: LawErrors | None) -> bool:
    """Whether other text of this kind might give a PR that does not fall."""
    return errors is not None and errors.rho_interval[1] >= 1


def _headline(record: Record, fit: LawFit, errors: LawErrors | None) -> str:
    what = "held-out PR" if record.leading == "residual_held_out" else "in-sample PR"
    r = fit.pearson
    if r is None:
        facts = f"{fit.values[0]:.3f}, then {fit.values[-1]:.3f}"
        return f"No law can be told: {what} is the same everywhere, or there are only two blocks ({facts})."
    numbers = [f"r = {signed(r)} over {fit.points} blocks"]
    try:
        short = record.law(record.leading, drop_last=1).pearson
    except InputError:
        short = None
    if short is not None:
        numbers[0] += f", {signed(short)} without the last"
    numbers.append(f"ρ = {fit.rho:.4f} per block")
    if fit.effective_layers is not None and fit.greenwood_p is not None:
        numbers.append(f"{fit.effective_layers:.1f} effective layers of {fit.layers}")
        numbers.append(f"Greenwood p {_p(fit.greenwood_p)}")
    claim = _claim(fit, what, r)
    if fit.rho < 1 and _might_not_fall(errors):
        claim = f"no clear trend: {what} might as well not fall on other text"
    return f"{claim[0].upper()}{claim[1:]} ({', '.join(numbers)})."


def _claim(fit: LawFit, what: str, r: float) -> str:
    """What the points allow to say, from nothing to the law."""
    rising, m = len(fit.rising), fit.layers
    if fit.rho >= 1:
        return f"No law: {what} does not fall with depth"
    if fit.shares is None or fit.greenwood_p is None:
        return f"No law: {what} ends no lower than it begins"
    even = fit.greenwood_p < 0.05
    if fit.points <= 4:
        return f"Too few blocks to call it a law: {what} falls over {fit.points} of them"
    if rising and r <= -0.99 and even:
        return f"Nearly a law: {what} falls on a line as a whole, but rises at {rising} of {m} steps"
    if rising:
        return f"{what} falls with depth as a whole, but not by equal steps: it rises at {rising} of {m}"
    if r <= -0.99 and even:
        return f"The law holds on this text: every block takes about the same share of log {what}"
    if even:
        return f"The law holds roughly: blocks share the drop of {what} more evenly than chance, with curvature"
    return f"{what} falls with depth, but no more evenly than a random split of the same drop: no evidence for the law"


def _task(record: Record) -> list[str]:
    task = record.settings.get("task", "next")
    return [TASKS[task]] if isinstance(task, str) and task in TASKS else []


def _in_sample(record: Record, fit: LawFit) -> list[str]:
    ends = f"from {fit.values[0]:.3f} to {fit.values[-1]:.3f}"
    if record.leading == "residual":
        return [
            f"PR goes {ends}, in-sample: no groups of documents were kept, so nothing is held out and nothing has errors."
        ]
    try:
        inside, short = record.law("residual"), record.law("residual", drop_last=1).pearson
    except InputError:
        return [f"Held out, PR goes {ends}."]
    without = "" if short is None else f", {signed(short)} without the last block"
    correlation = "" if inside.pearson is None else f" (r = {signed(inside.pearson)}{without})"
    return [
        f"Held out, PR goes {ends}; in-sample, as the paper takes it, from {inside.values[0]:.3f} to "
        f"{inside.values[-1]:.3f}{correlation}."
    ]


def _intervals(errors: LawErrors | None) -> list[str]:
    if errors is None:
        return []
    low, high = errors.rho_interval
    parts = [f"ρ between {low:.4f} and {high:.4f}"]
    if errors.pearson_interval is not None and len(errors.residuals) > 4:  # of fewer points r says nothing anyway
        low, high = errors.pearson_interval
        parts.append(f"r between {signed(low)} and {signed(high)}")
    return [
        f"With other text of this kind and length (jackknife over {errors.groups} groups, 95 %): {', '.join(parts)}."
    ]


def _curve(fit: LawFit, errors: LawErrors | None) -> list[str]:
    lag = fit.autocorrelation
    if lag is None or abs(lag) < NOT_RANDOM / fit.points**0.5:
        return []
    sentence = f"The residuals of the line are not random: lag-1 correlation {signed(lag, 2)}"
    if lag < 0:
        return [sentence + ", they go up and down by turns."]
    if errors is None:
        return [sentence + ", as of a curve beside the line."]
    off = sum(abs(e) > errors.t * se for e, se in zip(fit.residuals, errors.residuals, strict=True))
    where = f"{off} of {fit.points} blocks are off it by more than their 95 % interval"
    # Neighbours see the same tokens, so noise too is alike in them: the errors of the residuals decide.
    if off > fit.points / 10:
        return [f"{sentence}. It is a curve, not noise: {where}."]
    return [f"{sentence}; but neighbouring blocks see the same tokens, and {where}: it may be noise."]


def _rises(fit: LawFit, errors: LawErrors | None, sites: list[SiteRow]) -> list[str]:
    steps = fit.rising
    if not steps:
        return []
    names = workers(sites)
    clear = beyond_error(fit, errors, steps)
    shown = sorted(steps, key=lambda i: fit.values[i] / fit.values[i + 1])[:4]  # the largest rises
    told = ", ".join(f"'{names[i]}' (by {fit.values[i + 1] / fit.values[i] - 1:.1%})" for i in sorted(shown))
    sentence = f"PR rises at {told}" + (f" and, less, at {len(steps) - 4} more" if len(steps) > 4 else "")
    if clear is None:
        return [sentence + "."]
    if not clear:
        return [sentence + ("; none" if len(steps) > 1 else "; not") + " by more than two standard errors."]
    return [sentence + f"; {len(clear)} of {len(steps)} by more than two standard errors."]


def _plateau(run: Run | None, sites: list[SiteRow]) -> list[str]:
    if run is None:
        return []
    names = workers(sites)
    together = f"take {run.share:.0%} of the drop" if run.share > 0.005 else "take nothing of the drop"
    return [
        f"A plateau: the {run.length} blocks from '{names[run.first]}' to '{names[run.last]}' {together}, "
        f"where an even share is {run.even:.0%}."
    ]


def _worse_than_the_mean(column: str, sites: list[SiteRow]) -> list[str]:
    bad = [site.name for site in sites if (value := site.values.get(column)) is not None and value >= 1]
    if not bad or column != "residual_held_out":
        return []
    where = "every block" if len(bad) == len(sites) else listed(bad)
    return [f"At {where} held-out PR is 1 or more: the fit predicts unseen text no better than its mean."]


def _null(record: Record, fit: LawFit, errors: LawErrors | None) -> list[str]:
    column = f"{record.leading}_untrained"
    if column not in record.columns:
        return []
    try:
        null = record.law(column)
    except InputError:
        return []
    first, last = null.values[0], null.values[-1]
    if null.pearson is None or abs(null.slope) * null.layers < HARDLY:
        correlation = "" if null.pearson is None else f", r = {signed(null.pearson)}"
        return [f"The same model untrained: PR hardly moves ({first:.3f} to {last:.3f}{correlation})."]
    way = "rises" if null.slope > 0 else "falls"
    trend = f"{way} with depth (r = {signed(null.pearson)}, {first:.3f} to {last:.3f})"
    sentence = f"The same model untrained: PR {trend}"
    if fit.slope >= 0 or _might_not_fall(errors):
        return [sentence + "."]
    if null.slope >= 0:
        return [sentence + "; the fall was learned."]
    if null.slope <= fit.slope:
        return [sentence + ", at least as steeply as after training: this fall shows nothing learned."]
    if null.slope < 0:
        share = null.slope / fit.slope
        return [sentence + f", {share:.0%} of the slope after training: so much needs no training."]
    return [sentence + "."]


def _tokens(record: Record) -> list[str]:
    each = record.settings.get("tokens_per_feature")
    if not isinstance(each, (int, float)) or each >= SOME:
        return []
    if each >= FEW:
        return [f"{each:.0f} tokens per feature: the shape can be seen; from about {SOME} on r is stable."]
    if any("tokens per feature" in note for note in record.notes):
        return []  # the notes say it already
    return [
        f"Only {each:.1f} tokens per feature: below {FEW} the residual in-sample is far too low and no r is to be trusted."
    ]


def _advice(record: Record, fit: LawFit, sites: list[SiteRow]) -> list[str]:
    out, names = [], workers(sites)
    each = record.settings.get("tokens_per_feature")
    if isinstance(each, (int, float)) and each < SOME:
        masked = record.settings.get("task", "next") != "next"
        text = round(SOME * sites[0].features / (MASKED_SHARE if masked else 1), -2)
        out.append(f"Use more tokens: about {text:,.0f} of them give {SOME} predicted ones per feature.")
    run = plateau(fit)
    if run is not None and run.first <= fit.layers / 4 and fit.points > 4:
        out.append(
            f"The early blocks up to '{names[run.last]}' bring the target hardly nearer to a linear reader. That does not "
            "make them idle: what they prepare may be read later. Before leaving one out, measure the loss without it."
        )
    rise = final_rise(fit)
    if rise is not None and fit.points > 4:
        out.append(
            f"PR is lowest at '{sites[rise.first].name}' and higher at the end, as is often seen in last blocks. The output "
            "layer compares features with every token's embedding, and an id is a poor stand-in for that: look at "
            + ("the target 'embedding', and at the loss, " if record.settings.get("head", True) else "the loss ")
            + "before reading it as an early exit."
        )
    if not any(column.endswith("_untrained") for column in record.columns):
        out.append("No untrained model was measured: null=True (or --null) shows what the architecture does by itself.")
    return out


def _p(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"= {p:.2g}"
