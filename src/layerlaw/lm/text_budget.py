"""How much text a measurement needs, and how much memory it may take."""

from __future__ import annotations

from torch import Tensor

from layerlaw.errors import InputError
from layerlaw.lm.stream import TextPlan
from layerlaw.lm.tasks import MASKED_SHARE, TaskName

GROUPS = 8  # of documents: enough for a standard error
ENOUGH = 100  # tokens per feature: from about here on the correlation is stable


def tokens_wanted(width: int, task: TaskName) -> int:
    """How many tokens are read by default: a hundred per feature, of which masked tasks use about 15 %."""
    return round(ENOUGH * width / (1 if task == "next" else MASKED_SHARE))


def affordable(groups: int | None, plan: TextPlan, memory_gib: float, beside: int = 0) -> tuple[int, str]:
    """How many groups the memory allows, and a note where that is fewer than the usual eight.

    `beside`: bytes that a linear lens takes, which needs two groups.
    """
    if not memory_gib > 0:
        raise InputError(f"memory_gib: expected a positive number of GiB, got {memory_gib}.")
    if groups is not None:
        return groups, ""
    d = plan.blocks.width
    one = 8 * len(plan.sites) * d * ((d + 1) / 2 + sum(target.columns for target in plan.targets) + 1)
    chosen = max(1, int(min((memory_gib * 2**30 - beside) // one, GROUPS)))
    if beside and chosen < 2:
        takes = f"{beside / 2**30:.2g} GiB beside {2 * one / 2**30:.2g} GiB for two groups of documents"
        cure = "Raise it, lower batch_size or lens_tokens, or use lens='logit'"
        raise InputError(f"memory_gib: the linear lens takes {takes}, got {memory_gib:g}. {cure}.")
    if chosen == GROUPS:
        return GROUPS, ""
    what = "no held-out values and no standard errors" if chosen == 1 else f"{chosen} groups instead of {GROUPS}"
    return chosen, f"The statistics of one group take {one / 2**30:.2g} GiB: {what} (memory_gib={memory_gib:g})."


def site_bytes(plan: TextPlan, groups: int) -> int:
    """What is held of one site while a text is read: second moments of every group, and those of the frequent tokens."""
    d = plan.blocks.width
    columns = sum(target.columns for target in plan.targets) + 1
    half = d * (d + 1) // 2
    frequent = 0 if plan.frequent is None else half + d * (1 + len(plan.frequent.ids))
    return 8 * (groups * (half + d * columns) + frequent)


def check_enough(counts: Tensor, width: int, task: str, *, tokens: int | None, length: int) -> None:
    """A regression on d features with n ≤ d+1 rows explains everything and says nothing; `counts`: rows of every group."""
    n = int(counts.sum())
    least = int((counts.sum() - counts).min()) if len(counts) > 1 else n
    if n == 0 and task == "next":
        expected = "expected pieces in which a token has all the neighbors that are needed"
        raise InputError(f"length: {expected}, got none in pieces of {length}. Use longer ones.")
    if n <= width + 1:
        share = " (about 15 % of the tokens are masked)" if task != "next" else ""
        cure = "Pass a longer text" if tokens is None else f"Use more than tokens={tokens}"
        cure += "; 20 per feature are the least for numbers to trust, 100 are good"
        raise InputError(f"text: expected more predicted tokens than features, got {n} for {width}{share}. {cure}.")
    if least <= width + 1:
        cure = "Pass a longer text, or groups=1 (no held-out values)"
        raise InputError(f"groups: leaving one group out leaves {least} tokens for {width} features. {cure}.")
