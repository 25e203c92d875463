"""Rows that are shown but are no points of the law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from torch import Tensor, nn

from layerlaw.capture.batches import Batches
from layerlaw.capture.modules import modules_of
from layerlaw.capture.plan import Site
from layerlaw.module_tree import parameters_in, walk
from layerlaw.probing.classes import Classes
from layerlaw.probing.memory import too_few
from layerlaw.probing.run import Prober, run_batch
from layerlaw.probing.state import Split
from layerlaw.record import SiteRow
from layerlaw.stats.ranks import world_size
from layerlaw.verdict.sentences import listed

SAME = 1e-5  # of the largest class mean: two ways to the same features differ by rounding

TAKEN = {
    "flatten": "all tokens",
    "first": "the first token",
    "last": "the last token",
    "mean": "the mean over tokens",
    "max": "the maximum over tokens",
}


def set_aside(run: Prober, train: Split, rows: list[SiteRow]) -> None:
    """Set aside what is of another kind or of lower rank than the other rows, or the row before once more."""
    span, token = run.classes.span(train), run.options.reduce
    for site, row in zip(run.plan.sites, rows, strict=True):
        if row.in_fit and (doubt := run.classes.doubt(train, site)):
            row.in_fit, row.aside = False, doubt.why
    if token in ("first", "last") and any(site.tokens and site.in_fit for site in run.plan.sites):
        starts = True
        for site, row in zip(run.plan.sites, rows, strict=True):
            why = ""
            if len(site.shape) > 1 and not site.tokens:  # an image in front of its patches
                why = f"all its {row.features:,} numbers, beside the {token} token of other rows"
            elif site.tokens and starts and _rank(train, site, row) == 0:  # a class token that has seen no patch
                why = f"the {token} token, which is still the same in all samples"
            starts = starts and bool(why or not row.in_fit)
            row.in_fit, row.aside = (False, why) if row.in_fit and why else (row.in_fit, row.aside)
    _set_aside_one_token(run, rows)
    ranks = [_rank(train, site, row) for site, row in zip(run.plan.sites, rows, strict=True)]
    full = [rank == span for rank, row in zip(ranks, rows, strict=True) if row.in_fit]
    most = sum(full) > len(full) / 2  # where most are short of it, they compare with each other
    before: Site | None = None
    modules = cache(lambda: modules_of(run.network))  # looked at by few
    for site, row, rank in zip(run.plan.sites, rows, ranks, strict=True):
        if not (row.in_fit or row.branch):
            continue
        if most and rank is not None and 0 < rank < span:  # of rank 0 is a dead layer, which ends every law
            row.in_fit, row.aside = False, run.classes.short_of(row.features, int(rank), span)
        elif row.in_fit and before is not None and _again(run, train, before, site, modules):
            row.in_fit, row.aside = False, f"the same features as '{before.name}'"
        elif row.in_fit:
            before = site


def _rank(train: Split, site: Site, row: SiteRow) -> float | None:
    """Dimensions of its class means; the numbers of a row may not be computed yet, and need not be for this one."""
    return train.around[site].rank if site in train.around else row.values.get("rank")


def with_nan(run: Prober, data: Batches) -> list[Site]:
    """The sites at which some feature is NaN or infinite, by one pass over the data."""
    bad: dict[Site, None] = {}

    def consume(site: Site, features: Tensor) -> None:
        if not bool(features.isfinite().all()):
            bad[site] = None

    with run.capturing(run.plan.sites, consume) as capture:
        for step in run.steps(data, "looking for NaN", None):
            run_batch(capture, step)
    return list(bad)


def doubt_notes(run: Prober, train: Split) -> list[str]:
    """A note on the sites whose D would look right and may be wrong, with what to do for the first of them."""
    found = {site.name: doubt for site in run.plan.sites if (doubt := run.classes.doubt(train, site))}
    if not found:
        return []
    first = next(iter(found))
    others = f" So it is at {listed(list(found)[1:])}." if len(found) > 1 else ""
    return [f"No D at '{first}': {found[first]}{others}"]


def _set_aside_one_token(run: Prober, rows: list[SiteRow]) -> None:
    """Set aside what is made of one token, or of a mean over them, beside rows that are measured in another way.

    Tokens stay as many from block to block, so that the step to one of them is a change of what is measured, not the work of
    a layer: with `reduce` as the network itself reduces them, the row is a point. A convolutional network is another matter:
    strides and pools make its maps smaller all along, each row is what is left of them, and the mean over space in front of
    its classifier is the last of these steps, as it is drawn in papers.
    """
    used, reduce = run.plan.tokens, run.options.reduce
    if used is None or used.reduce in ("", reduce) or run.plan.rule == "chosen":
        return
    tokens = [site for site in run.plan.sites if site.tokens and site.in_fit]
    behind = [row for row in rows if row.name in used.rows and row.in_fit]
    if len(tokens) > len(behind):  # where most points lie behind, these compare with each other
        for row in behind:
            row.in_fit, row.aside = False, f"made of {TAKEN[used.reduce]}, beside {TAKEN[reduce]} of other rows"


def token_notes(run: Prober) -> list[str]:
    """A note where tokens were reduced otherwise than the network itself goes on with them."""
    used, reduce = run.plan.tokens, run.options.reduce
    if used is None or used.reduce == reduce or not any(site.tokens for site in run.plan.sites):
        return []
    measured = "Tokens were flattened" if reduce == "flatten" else f"{TAKEN[reduce].capitalize()} was measured"
    goes_on = "the classifier reads" if used.by_classifier else "the network goes on with"
    if used.reduce:
        alone = " alone" * (used.reduce in ("first", "last"))
        cure = f"reduce='{used.reduce}' measures what it uses"
        return [f"{measured}, while {goes_on} {TAKEN[used.reduce]}{alone}: {cure}."]
    cure = "reduce='first', 'last' or 'mean' may be nearer to what it uses"
    return [f"{measured}, while {goes_on} as many numbers as one token has: {cure}."] * (reduce == "flatten")


def _again(run: Prober, train: Split, before: Site, site: Site, modules: Callable[[], Mapping[str, nn.Module]]) -> bool:
    """Whether a site shows the features of the one before, with no weights in between that could have changed them."""
    if site.seen_at == "input":
        works = before.seen_at == "input"
    else:
        owner = modules().get(site.module)
        works = site.behind or owner is None or bool(parameters_in(walk(owner)))
    if works:
        return False
    return _alike(*(run.classes.fitted(train, one) for one in (before, site)))


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= SAME * float(a.abs().max())


def without_repetition(sites: Sequence[Site], reads: str | None, means: Callable[[Site], Tensor]) -> list[Site]:
    """The sites without what the classifier reads, where that is the last block once more (averaged over space)."""
    *others, last = sites
    again = bool(others) and last.name == reads and not last.in_fit and _alike(means(others[-1]), means(last))
    return others if again else list(sites)


def linear_notes(run: Prober, train: Split) -> list[str]:
    """Where there is no D_lin and why, also where only the passes told how many samples there are."""
    n, reasons = sum(train.counts), {why: list(names) for why, names in train.no_linear_why.items()}
    if few := [s.name for s in run.plan.sites if s.name in train.linear and n < s.features + run.classes.K]:
        reasons.setdefault(too_few(n), []).extend(few)
    return [f"No least D of a linear map at {listed(names)}: {why}." for why, names in reasons.items()]


def split_notes(*splits: Split | None) -> list[str]:
    """Which sites were measured in slices, by how many forwards; and where numbers depend on how many ranks there are."""
    ranks, found = world_size(), [split for split in splits if split is not None]
    notes = [split.slices_why for split in found if split.slices_why]
    if ranks > 1 and any(split.own_batches for split in found):
        why = f"BatchNorm used the statistics of the batches of each of {ranks} ranks"
        notes.append(f"{why}: numbers are those of one process only if it has the same batches.")
    if any(split.dealt_alone for split in found):
        cure = "To deal them together, pass tensors, or a memory_gib that holds the features"
        why = (
            f"each of the {ranks} ranks dealt its own samples, features not being kept and labels not known beforehand"
        )
        differ = (
            "standard errors, and D under permuted labels, differ with the number of ranks as they do with the seed"
        )
        notes.append(f"Groups of standard errors: {why}; {differ}. {cure}.")
    return notes


def rank_notes(run: Prober, split: Split) -> list[str]:
    """At which sites class means span fewer dimensions than they could, where they are one place; classes of one sample."""
    classes = run.classes
    assert isinstance(classes, Classes)
    short = [
        site.name
        for site, around in split.around.items()
        if around.rank < classes.K - 1 and classes.doubt(split, site) is None
    ]
    notes = [f"The class means span fewer than K−1 dimensions at: {', '.join(short)}."] if short else []
    if dead := [site.name for site, around in split.around.items() if around.rank == 0]:
        why = "the class means differ by no more than rounding, so that all of them count as equally near"
        notes.append(f"No nearest class center at: {', '.join(dead)}: {why}.")
    alone = [str(number) for number, count in zip(classes.ids, split.counts, strict=True) if count == 1]
    wanted = run.options.uncertainty in (True, "jackknife", None) and not split.no_extras_why
    if alone and wanted and not split.has("left_out"):
        which = f"class{'es' * (len(alone) > 1)} {', '.join(alone[:10])}{', …' * (len(alone) > 10)}"
        notes.append(f"No standard errors: they leave samples out, and there is one sample of {which}.")
    return notes
