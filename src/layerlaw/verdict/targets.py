"""What else was predicted at each token than the next token's id: the columns, their names, and one line about them."""

from __future__ import annotations

import re

from layerlaw.errors import InputError
from layerlaw.record import Record
from layerlaw.verdict.sentences import signed

NAMES = {
    "embedding": "output embedding",
    "onehot": "one-hot",
    "rank": "frequency rank",
    "previous": "previous token",
    "current": "the token itself",
    "next2": "token after next",
}
SHUFFLED = "shuffled ids"
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


def pearson_of(record: Record, target: str) -> float | None:
    """Correlation of its log residual with depth."""
    try:
        return record.law(column_of(record, target)).pearson
    except InputError:
        return None


def target_name(target: str) -> str:
    """In words."""
    return NAMES.get(target, target.replace("_", " "))


def other_targets(record: Record) -> list[str]:
    """One sentence: r of every other target, the shuffled vocabularies as a range, and of the separation D."""
    known = {target: r for target in targets(record) if (r := pearson_of(record, target)) is not None}
    shuffled = sorted(r for target, r in known.items() if is_shuffled(target))
    parts = [f"{target_name(target)} {signed(r)}" for target, r in known.items() if not is_shuffled(target)]
    if len(shuffled) > 1:
        parts.append(f"{SHUFFLED} {signed(shuffled[0])} … {signed(shuffled[-1])} ({len(shuffled)} vocabularies)")
    parts += [f"{SHUFFLED} {signed(r)}" for r in shuffled[:1] if len(shuffled) == 1]
    out = [f"r with other targets: {', '.join(parts)}."] if parts else []
    try:
        r = record.law("separation").pearson
    except InputError:
        r = None
    return out if r is None else [*out, f"Separation D of the most frequent tokens as classes: r = {signed(r)}."]


def is_shuffled(target: str) -> bool:
    """Whether it is one of the shuffled vocabularies, which are told together."""
    return target.startswith("shuffled")
