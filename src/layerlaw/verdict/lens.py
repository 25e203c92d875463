"""What lenses say of a language model: how many predictions its last blocks change, and whether it could end earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerlaw.record import Record, SiteRow
from layerlaw.wording import counted, number, percent, signed

LAST_SHARE = 8  # of how many blocks one counts as "the last" ones
TOLERABLE = 0.01  # of the loss: so much may an earlier end cost
T = 1.96  # standard errors of a 95 % interval
LEAST_PIECES = 8  # of fewer pieces of text an error is a guess
LENSES = {"lens": "logit lens", "linear_lens": "linear lens"}


@dataclass(frozen=True)
class LensExit:
    """A block (counted from 1) at which the model could end, so many before the last, and what it costs in nats ± error."""

    lens: str
    block: int
    before_last: int
    excess: float
    error: float
    share: float  # of the loss at the last block


def read_sites(record: Record, lens: str = "lens") -> list[SiteRow]:
    """The blocks, where the lens has read all of them; else none."""
    sites = [site for site in record.sites if site.in_fit]
    known = len(sites) > 1 and all(site.values.get(f"{lens}_loss") is not None for site in sites)
    return sites if known else []


def exit_of(record: Record, lens: str, tolerance: float = TOLERABLE) -> LensExit | None:
    """The first block from which on the loss exceeds the last one's by less than a share of it, errors included.

    The last block itself where no earlier one will do; `None` where the text has too few pieces to know.
    """
    sites = read_sites(record, lens)
    if not sites or int(_about(record).get("pieces") or 0) < LEAST_PIECES:
        return None
    last, found = _value(sites[-1], f"{lens}_loss"), len(sites) - 1
    while found > 0 and _most(sites[found - 1], lens, last) <= tolerance * last:
        found -= 1
    here = sites[found]
    excess = _value(here, f"{lens}_loss") - last
    error = T * _value(here, f"{lens}_excess_se")
    return LensExit(lens, found + 1, len(sites) - 1 - found, excess, error, excess / last if last else 0.0)


def _most(site: SiteRow, lens: str, last: float) -> float:
    """What ending there may cost, with its error."""
    return _value(site, f"{lens}_loss") - last + T * _value(site, f"{lens}_excess_se")


def lens_findings(record: Record) -> list[str]:
    """How many predictions the last blocks change, and from where on most of them are made, if the model knows anything."""
    sites = read_sites(record)
    if not sites:
        return []
    last = min(len(sites) - 1, max(1, round(len(sites) / LAST_SHARE)))
    before, tokens = sites[-1 - last], int(_about(record).get("tokens") or 0)
    changed = percent(1 - _value(before, "lens_agreement"), 0)
    blocks = f"The last {last} blocks change" if last > 1 else "The last block changes"
    at = f"at block {len(sites) - last} the loss is {_ends(sites, before, 'lens')}"
    out = [f"{blocks} {changed} of the predictions (logit lens, {counted(tokens, 'token')}{lens_place(record)}): {at}."]
    if linear := read_sites(record, "linear_lens"):
        before = linear[-1 - last]
        changed = percent(1 - _value(before, "linear_lens_agreement"), 0)
        out.append(
            f"After a linear map of block {len(sites) - last} to the last one, {changed} of the predictions are others, "
            f"and the loss is {_ends(linear, before, 'linear_lens')}."
        )
    if _knows_nothing(record, sites):
        loss, alone = (number(value) for value in (_value(sites[-1], "lens_loss"), _about(record)["frequency_loss"]))
        told = f"At the last block the loss, {loss} nats, is no lower than how often each token comes gives ({alone})"
        return [*out, f"{told}: when a prediction is made says little here."]
    half = next(i for i, site in enumerate(sites, 1) if _value(site, "lens_settled") >= 0.5)
    good = percent(_value(sites[half - 1], "lens_settled"), 0)
    where = f"From block {half} of {len(sites)} on" if half < len(sites) else "Only at the last block"
    out.append(f"{where} {good if half < len(sites) else 'most'} of the predictions are made for good.")
    return out


def lens_place(record: Record) -> str:
    """Where the tokens are that the lens read, if that is not all over the text: a map is fitted to the other groups."""
    return " of the first group of documents alone" * (_about(record).get("kind") == "linear")


def _ends(sites: Sequence[SiteRow], before: SiteRow, lens: str) -> str:
    there, last = (number(_value(site, f"{lens}_loss")) for site in (before, sites[-1]))
    return f"{there} nats, {last} at the last"


def lens_advice(record: Record) -> list[str]:
    """Whether the model could end earlier, by the loss that was measured."""
    sites = read_sites(record)
    if not sites or _knows_nothing(record, sites):
        return []
    found = [one for lens in LENSES if (one := exit_of(record, lens)) is not None]
    if not found:
        pieces = int(_about(record).get("pieces") or 0)
        few = f"{counted(pieces, 'piece')} of text: too few to say whether the model could end earlier"
        return [f"The lens has read {few}. Use more (at least {LEAST_PIECES}), or shorter ones."]
    best = min(found, key=lambda one: one.block)
    if best.before_last:
        left = f"the last {best.before_last} blocks" if best.before_last > 1 else "the last block"
        mapped = ", with the linear map before its head," * (best.lens == "linear_lens")
        cost = f"{signed(best.excess, 3)} ± {best.error:.3f} nats ({percent(best.share)})"
        return [f"Early exit: without {left}{mapped} the model's loss on this text changes by {cost}."]
    best = min(found, key=lambda one: _value(sites[-2], f"{one.lens}_loss"))
    last = _value(sites[-1], f"{best.lens}_loss")
    excess = _value(sites[-2], f"{best.lens}_loss") - last
    costs = f"{number(excess, 2)} nats more ({percent(excess / last)})"
    more = " A linear map may read earlier blocks better: lens='linear'." if len(found) == 1 else ""
    return [f"No early exit: one block earlier the loss is already {costs}, by the {LENSES[best.lens]}.{more}"]


def _knows_nothing(record: Record, sites: Sequence[SiteRow]) -> bool:
    """Whether the whole model is no better than how often each token comes: then no end of it is of use."""
    alone = _about(record).get("frequency_loss")
    return isinstance(alone, (int, float)) and _value(sites[-1], "lens_loss") >= alone


def _about(record: Record) -> dict[str, Any]:
    about = record.settings.get("lens")
    return about if isinstance(about, dict) else {}


def _value(site: SiteRow, column: str) -> float:
    return site.values.get(column) or 0.0
