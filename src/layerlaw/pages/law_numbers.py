"""The numbers that say whether the law holds, each beside what is asked of it: as tiles, as columns, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from layerlaw.law import CHANCE, FEWEST_POINTS, LawFit, laws_across
from layerlaw.law.fit import BENT, EVEN, FACTOR
from layerlaw.law.words import law_numbers_written, steps_words
from layerlaw.measures.columns import describe
from layerlaw.pages.record_view import RecordView
from layerlaw.record import LANGUAGE_MODEL
from layerlaw.verdict.shape import ends_written
from layerlaw.wording import ABSENT, counted, sentence

ASKED = {"evenness": f"≥ {EVEN:g}", "trend": f"1/{BENT:g} … {BENT:g}", "chance": f"< {CHANCE:g}"}
RULE = f"asked for: evenness {ASKED['evenness']}, trend {ASKED['trend']}, p {ASKED['chance']}"
ANSWERS = {True: "yes", False: "no", None: ABSENT}
SAME_SETTINGS = (
    "sites",
    "reduce",
    "batchnorm",
    "weighting",
    "batch_size",
    "task",
    "normalize",
    "length",
    "step",
    "chat",
)


class Tile(NamedTuple):
    """A number with its name, and in other words below, line by line. A "–" says why there is none."""

    name: str
    value: str
    below: str


class ComparedColumn(NamedTuple):
    """A column of the table that compares records: its head, how a record fills it, and what stands small below.

    `yields`: the higher, the sooner it gives way in a narrow terminal; `None`: on the page only.
    """

    head: str
    cell: Callable[[RecordView], str]
    below: Callable[[RecordView], str] = lambda view: ""
    title: Callable[[RecordView], str] = lambda view: ""
    yields: int | None = 0


def rule_formula(symbol: str, layers: str, more: str) -> tuple[str, str, str]:
    """How the three numbers are defined and what is asked of them, for the definitions at the end of a page."""
    return (
        "When it holds",
        f"evenness = 1 / (({layers}) Σ p<sub>l</sub><sup>2</sup>)".replace("(m)", "m"),
        "1 when all steps are equal; rises count against it. Trend: last over first step of the parabola fitted to "
        f"ln {symbol}<sub>l</sub>; ∞ where it does not fall at its first step. "
        "Chance: Greenwood’s p, how often a random split of the same drop is at least as even. "
        f"{RULE[0].upper()}{RULE[1:]}.{more}",
    )


def of_fit(written: Callable[[LawFit], str]) -> Callable[[RecordView], str]:
    """A cell about the fit; a dash where there is none."""
    return lambda view: ABSENT if view.fit is None else written(view.fit)


LAW_COLUMNS = (
    ComparedColumn("evenness", of_fit(lambda fit: law_numbers_written(fit)[0]), yields=3),
    ComparedColumn("trend", of_fit(lambda fit: law_numbers_written(fit)[1]), yields=3),
    ComparedColumn("p", of_fit(lambda fit: law_numbers_written(fit)[2]), yields=3),
    ComparedColumn("holds", lambda view: ANSWERS[view.holds]),
)


def law_tiles(view: RecordView, fit: LawFit) -> list[Tile]:
    """Whether the law holds, then the numbers that it stands on; where nothing falls there is nothing to share."""
    holds = Tile("law holds", ANSWERS[view.holds], _why(view, fit))
    if fit.evenness is None or fit.greenwood_p is None or fit.points < FEWEST_POINTS - 1:
        return [holds]
    evenness, trend, p = law_numbers_written(fit)
    even_ends, trend_ends = (
        ends and "95%\u00a0interval {}\u00a0…\u00a0{}".format(*ends_written(ends)) for ends in view.shape
    )
    of = f"of the even step; all within a factor of {FACTOR:g}: {ANSWERS[fit.equal_steps]}"
    best = f", best of {fit.chosen_from}" if fit.chosen_from > 1 else ""
    return [
        holds,
        Tile("evenness", evenness, _lines(_asked("evenness"), even_ends, _effective(view, fit))),
        Tile("trend", trend, _lines(_asked("trend"), trend_ends, _trend_words(fit))),
        Tile("Greenwood p", p, _lines(_asked("chance"), f"chance of a split as even{best}")),
        Tile("single steps", steps_words(fit, "…"), of),
    ]  # fmt: skip


def _asked(name: str) -> str:
    return "asked for: " + ASKED[name].replace(" ", "\u00a0")


def _lines(*parts: str | None) -> str:
    return "\n".join(part for part in parts if part)


def _trend_words(fit: LawFit) -> str:
    """What the trend is, and where it is no plain ratio, why."""
    of = "of a curve fitted to all steps"
    if fit.trend is None:
        return f"{of}: it falls at neither end"
    ends = {math.inf: ", which does not fall at its first step", 0.0: ", which does not fall at its last step"}
    return f"last over first step {of}{ends.get(fit.trend, '')}"


def _effective(view: RecordView, fit: LawFit) -> str:
    """Evenness as a count of layers; where the value rises the shares are no parts of a whole, and nothing is counted."""
    layer = view.record.step_name
    if fit.rising:
        return f"{ABSENT} effective {layer}s: {_symbol(view)} rises at {len(fit.rising)} of {fit.layers}"
    return f"{fit.effective_layers:.1f} effective {layer}s of {fit.layers}"


def _why(view: RecordView, fit: LawFit) -> str:
    """In a few words what the answer stands on."""
    symbol = _symbol(view)
    if fit.points < FEWEST_POINTS:
        return f"fewer than {FEWEST_POINTS} points"
    if view.holds is None:
        return "this text cannot say"
    if fit.evenness is None or fit.rho >= 1:
        return f"{symbol} does not fall with depth"
    if view.holds:
        return "evenness, trend and chance are as asked for"
    if fit.little:
        return f"{symbol} falls by less than a tenth"
    missed = {
        "evenness": fit.evenness < EVEN,
        "trend": fit.trend is None or not 1 / BENT <= fit.trend <= BENT,
        "chance": fit.greenwood_p is None or fit.greenwood_p >= CHANCE,
    }
    return f"not as asked for: {', '.join(name for name, miss in missed.items() if miss) or f'the level of {symbol}'}"


def _symbol(view: RecordView) -> str:
    return describe(view.column).symbol


def together(views: Sequence[RecordView]) -> str:
    """What holds of several records at once; nothing where one of them has no law.

    Means and intervals are about networks that differ in seed and images alone: of other records only a count is given, and
    so of language models, of which nothing says that they were trained alike.
    """
    fits = [view.fit for view in views if view.fit is not None]
    if len(fits) < len(views) or len(views) < 2:
        return ""
    told = [view.holds is not None and view.holds == fit.holds for view, fit in zip(views, fits, strict=True)]
    if not all(told) or views[0].record.kind == LANGUAGE_MODEL or not _of_one_kind(views):
        unsaid = sum(view.holds is None for view in views)
        if unsaid == len(views):
            return f"Whether the law holds cannot be said of any of {counted(len(views), 'record')}."
        rest = f"; of {unsaid} it cannot be said" if unsaid else ""
        return f"The law holds in {sum(view.holds is True for view in views)} of {counted(len(views), 'record')}{rest}."
    taken = "Means and 95% intervals are right if the networks differ in nothing but seed and training images."
    return f"{sentence(laws_across(fits).sentence)} {taken}"


def _of_one_kind(views: Sequence[RecordView]) -> bool:
    """Whether nothing in the records says that they differ in more than seed and images, or are the same network twice."""
    known = [digest for view in views if (digest := view.record.provenance.get("parameters_sha256"))]
    return len({_kind(view) for view in views}) == 1 and len(set(known)) == len(known)


def _kind(view: RecordView) -> str:
    record = view.record
    recipe = record.provenance.get("recipe")
    known = {key: value for key, value in recipe.items() if key != "seed"} if isinstance(recipe, dict) else None
    sites = [(site.name, site.features) for site in view.sites if site.in_fit]
    settings = [record.settings.get(key) for key in SAME_SETTINGS]
    return repr((sites, settings, record.provenance.get("model"), known, [len(record.counts), sum(record.counts)]))
