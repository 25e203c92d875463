"""What else was predicted at each token than the next token's id: the columns, their names, and one line about them."""

from __future__ import annotations

import re

from layerlaw.errors import InputError
from layerlaw.law import LawFit
from layerlaw.record import Record
from layerlaw.wording import signed

NAMES = {
    "embedding": "output embedding",
    "onehot": "one-hot",
    "rank": "frequency rank",
    "previous": "previous token",
    "current": "the token itself",
    "next2": "token after next",
}
SHUFFLED = "shuffled ids"
FEW_SAMPLES = 20  # per class: below it a class mean is mostly noise
ENDINGS = re.compile(r"_(adjusted|log_se|held_out|untrained)$")  # of a column about a target, not its residual


def targets(record: Record) -> list[str]:
    """Names of the targets beside the id, in the order of the columns.

    >>> from layerlaw.record import SiteRow
    >>> names = ("residual", "residual_held_out", "residual_onehot", "residual_onehot_held_out", "residual_shuffled_1")
    >>> targets(Record("m", [SiteRow("h", "", (1,), 1, values=dict.fromkeys(names, 0.5))], []))
    ['onehot', 'shuffled_1']
    """
    chosen = [c for c in record.columns if c.startswith("residual_") and not ENDINGS.search(c)]
    return [column.removeprefix("residual_") for column in chosen]


def column_of(record: Record, target: str) -> str:
    """Its column, held out where the leading one is."""
    held_out = f"residual_{target}_held_out"
    return held_out if record.leading == "residual_held_out" and held_out in record.columns else f"residual_{target}"


def law_of(record: Record, target: str) -> LawFit | None:
    """The law of its residual; `None` where none can be fitted."""
    try:
        return record.law(column_of(record, target))
    except InputError:
        return None


def pearson_of(record: Record, target: str) -> float | None:
    """Correlation of its log residual with depth."""
    law = law_of(record, target)
    return None if law is None else law.pearson


def target_name(target: str) -> str:
    """In words."""
    return NAMES.get(target, target.replace("_", " "))


def other_targets(record: Record) -> list[str]:
    """r of every other target in one sentence, the shuffled vocabularies as a range; in another that of the separation."""
    known = {target: r for target in targets(record) if (r := pearson_of(record, target)) is not None}
    shuffled = sorted(r for target, r in known.items() if is_shuffled(target))
    parts = [f"{target_name(target)} {signed(r)}" for target, r in known.items() if not is_shuffled(target)]
    if len(shuffled) > 1:
        parts.append(f"{SHUFFLED} {signed(shuffled[0])} … {signed(shuffled[-1])} ({len(shuffled)} vocabularies)")
    parts += [f"{SHUFFLED} {signed(r)}" for r in shuffled[:1] if len(shuffled) == 1]
    return [*([f"r with other targets: {', '.join(parts)}."] if parts else []), *_separation(record)]


def laws_of_targets(record: Record) -> list[str]:
    """Which of the other targets obey the law: r alone does not say so."""
    judged = {t: law.holds for t in targets(record) if (law := law_of(record, t)) and law.holds is not None}
    held = [target_name(target) for target, holds in judged.items() if holds and not is_shuffled(target)]
    shuffled = [holds for target, holds in judged.items() if is_shuffled(target)]
    held += [f"{sum(shuffled)} of {len(shuffled)} shuffled vocabularies"] * any(shuffled)
    of = f"Of {len(judged)} other targets" if len(judged) > 1 else "Of the one other target"
    return [f"{of} the law holds for {', '.join(held) or 'none'}."] if judged else []


def _separation(record: Record) -> list[str]:
    """r of the separation D, how many tokens were classes, and whether there were enough samples of them."""
    try:
        r = record.law("separation").pearson
    except InputError:
        return []
    if r is None:
        return []
    classes, tokens = record.settings.get("classes"), record.settings.get("tokens")
    if not isinstance(classes, int) or classes < 1:  # older records do not say
        return [f"Separation D of the most frequent tokens as classes: r = {signed(r)}."]
    sentence = f"Separation D of the {classes} most frequent tokens as classes: r = {signed(r)}"
    if isinstance(tokens, int) and tokens / classes < FEW_SAMPLES:
        sentence += f"; with at most {tokens / classes:.0f} samples per class on average D is mostly noise"
    return [sentence + "."]


def is_shuffled(target: str) -> bool:
    """Whether it is one of the shuffled vocabularies, which are reported together."""
    return target.startswith("shuffled")
