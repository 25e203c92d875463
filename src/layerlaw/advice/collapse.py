"""A forecast of minority collapse: what is predicted, what is measured, what the model does not know, in sentences."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from layerlaw.advice.outlook import ClassGroup, Outlook, cosine_panel, margins_panel
from layerlaw.files import json_safe, write_json
from layerlaw.notebook import Shown, View
from layerlaw.sheet import Sheet
from layerlaw.wording import counted, minus, number, ratio_words

FORMAT, VERSION = "layerlaw forecast", 3  # 3: copies per size, R and R0 for two sizes only, accuracy
NO_RATIO = "of more than two class sizes one ratio says nothing; see critical_c"
EARLIER = "they collapsed earlier (docs/minority_collapse.md)"
CAVEATS = (
    f"One layer is no safe bound for deep networks: {EARLIER}.",
    "Weight decay is no norm budget: norms change with counts and training. This is no test of significance.",
    "Repeated samples restore angles, not variety: held-out accuracy came back in part only.",
)
COINCIDE = 0.99  # mean cosine from which on rows are one
CLOSER = 0.1  # cosine by which measured rows must exceed the prediction to be worth a sentence
MOST_COPIES = 50  # beyond, nobody copies samples


@dataclass(frozen=True)
class ClassifierRows:
    """The rows of a trained classifier in one group: mean norm, mean cosine as they are and around the mean of all rows.

    In the model the rows sum to 0, so the centered cosine is the one to hold against it; `None` for a single row.
    """

    mean_row_norm: float
    mean_cosine: float | None
    mean_cosine_centered: float | None


@dataclass(frozen=True)
class Forecast(Shown):
    """What becomes of rare classes, and what is there already.

    `by_norms` takes the norms as the model defines them; `by_use` the least norm that gives the centered class means their
    logits, which leaves out what goes into spread and a common offset of the features (known with class means and
    classifier only; docs/minority_collapse.md). `measured` are the rows of the trained classifier, group by group.
    """

    groups: tuple[ClassGroup, ...]
    sizes: int  # distinct class sizes
    E_W: float
    E_H: float
    bias: bool
    critical: float  # the least c = √(E_W E_H) above which every class is separated; of binned sizes an upper bound
    bounded: bool  # whether `critical` is only a bound
    by_norms: Outlook
    by_use: Outlook | None
    measured: tuple[ClassifierRows, ...] | None
    rare: ClassifierRows | None  # of all rare classes together
    frequent: ClassifierRows | None
    accuracy: tuple[float, ...] | None  # measured share of right samples, mean over the classes of each group
    already_lost: int  # classes whose measured accuracy is below half of that of the most frequent ones
    unused: bool  # whether a norm in use was measured and put aside, because norms were given

    @property
    def K(self) -> int:
        """Number of classes."""
        return sum(g.number for g in self.groups)

    @property
    def ratio(self) -> float | None:
        """R of two sizes, 1 of one, `None` of more: one ratio says nothing about them."""
        return None if self.sizes > 2 else self.groups[0].high / self.groups[-1].low

    @property
    def outlooks(self) -> tuple[Outlook, ...]:
        """By the norms, then by their use where it is known."""
        return (self.by_norms,) if self.by_use is None else (self.by_norms, self.by_use)

    @property
    def closest(self) -> Outlook:
        """The less favorable one, with the smaller budget."""
        return min(self.outlooks, key=lambda o: o.c)

    @property
    def headline(self) -> str:
        """What is lost already, whatever the model says; what will be, and how far it is."""
        already = []
        if self.already_lost and self.accuracy is not None:
            rest = f"{self.accuracy[0]:.2f} of the most frequent"
            already.append(f"accuracy of {_classes(self.already_lost)} on these data below half of the {rest}")
        rows = zip(self.groups, self.measured or (), strict=False)
        if coincide := sum(g.number for g, r in rows if r.mean_cosine is not None and r.mean_cosine >= COINCIDE):
            already.append(f"rows of {_classes(coincide)} coincide")
        if not already:
            return f"{_forecast(self)}{'' if self.closest.collapses or self.sizes == 1 else _how_safe(self)}"
        further = " The network is further than the model says: trust what was measured."
        missed = "" if self.closest.collapses else further
        return f"Already lost in this network: {' and '.join(already)}. Forecast: {_forecast(self)}{missed}"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the model does not know."""
        return tuple(compress(CAVEATS, (self.sizes > 1 and self.closest.collapses, True, self.closest.collapses)))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The headline, what was found, what speaks against it."""
        return (self.headline, *_findings(self), *self.caveats)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = asdict(self) | {name: getattr(self, name) for name in ("ratio", "sentences", "caveats")}
        del plain["unused"]
        plain |= {
            "format": FORMAT,
            "version": VERSION,
            "ratio_note": NO_RATIO if self.ratio is None else None,
            "critical_c": plain.pop("critical"),
            "critical_is_a_bound": plain.pop("bounded"),
            "by_norms": self.by_norms.to_dict(self.E_W),
            "by_use": self.by_use and self.by_use.to_dict(self.E_W),
            "groups": [asdict(group) | {"words": group.words} for group in self.groups],
        }
        return {key: json_safe(value) for key, value in plain.items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """The figure as plain data: how far each class is, and of two sizes the predicted cosine against R."""
        panels = [margins_panel(self.groups, self.outlooks)]
        few, many = (sum(g.number for g in self.groups if g.rare is rare) for rare in (True, False))
        if self.ratio is not None and few > 1:
            measured = None if self.rare is None else self.rare.mean_cosine
            panels.insert(0, cosine_panel(many, few, self.outlooks, self.ratio, bias=self.bias, measured=measured))
        title = "Forecast of minority collapse" if self.sizes <= 2 else "Forecast of classes that are lost"
        return Sheet(title, panels, columns=1, caption=self.headline)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib: `found.plot().savefig("forecast.png")`."""
        return self.sheet().plot()

    def _view(self) -> View:
        return View(self.headline, lines=self.sentences[1:])

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in self.sentences[1:])])


def _classes(many: int) -> str:
    return counted(many, "class", "classes")


def _how_safe(found: Forecast) -> str:
    nearer = " Measured rows are nearer to it than that: trust them." if _nearer(found) else ""
    return f" Deep networks are not safe by that: {EARLIER}.{nearer}"


def _forecast(found: Forecast) -> str:
    worse = found.closest
    if found.sizes == 1:
        return f"No collapse: all {found.K:,} classes have the same size, so each keeps a direction of its own."
    bins = f"{found.sizes:,} sizes taken as {len(worse.sizes)}, each bin at its largest"
    place = _place(found, worse, bins)
    if worse is found.by_use:
        place = f"by the norm in use {'' if found.ratio is None else f'(c = {number(worse.c)}) '}{place}"
    if not worse.collapses:
        none = "No collapse predicted" if found.sizes == 2 else "No class is predicted to be lost"
        return f"{none}: {place}."
    confused = any(size.phase == "confused" for size in worse.sizes)
    if worse.binned:
        begin = f"Some classes {'may' if found.bounded else 'are predicted to'} be lost ({bins})"
    elif found.by_norms.collapses:
        begin = "Some classes are predicted to be lost" if confused else "Minority collapse predicted"
    else:
        begin = "Loss of classes" if confused else "Minority collapse"
        begin += " within reach, though not if all of the norm counted"
    return f"{begin}: {_lost(found, worse)}; {place}. {_remedy(found, worse)}"


def _findings(found: Forecast) -> Iterator[str]:
    if found.sizes > 1:
        budgets = f"E_W = {number(found.E_W)} and E_H = {number(found.E_H)} give"
        said = [f"{budgets} c = √(E_W E_H) = {number(found.by_norms.c)}"]
        if found.by_use is not None:
            said.append(f"the class means use c = {number(found.by_use.c)} of it (no spread, no common offset)")
        for i, log_R0 in enumerate(at.log_collapse for at in found.outlooks):
            if log_R0 is not None and math.isfinite(log_R0):  # a single rare class and more than two sizes have none
                said[i] += f", R0 = {ratio_words(log_R0)}"
        yield f"{'; '.join(said)}."
    if any(g.rare for g in found.groups):
        yield from _angle(found)
    if any(at.binned for at in found.outlooks):
        yield (
            "More sizes than can be solved in seconds were put into bins, each taken as its largest size, the smallest size "
            "as it is: whether any class is lost errs on the pessimistic side, how many and the factors are about right."
        )
    if found.sizes > len(found.groups):
        yield "Groups hold several sizes: phase and margin are of the worst in each, cosine and norm are means."
    if found.measured is not None and found.accuracy is None and found.sizes > 1:
        yield "Whether rare classes are still right was not looked at: pass classifier= and features= for that."
    if found.unused:
        yield "Norms were given, so the norm in use, which belongs to the measured ones, is left out."


def apart(log_a: float, log_b: float) -> tuple[str, str]:
    """Two ratios from their logarithms, with as many digits as it takes to see which is larger.

    >>> apart(math.log(100), math.log(12.2)), apart(math.log(12.1925), math.log(12.192447))
    (('100', '12.2'), ('12.193', '12.192'))
    """
    a, b = ratio_words(log_a), ratio_words(log_b)
    for digits in range(4, 13):
        if a != b or max(log_a, log_b) > math.log(1e15):
            break
        a, b = number(math.exp(log_a), digits), number(math.exp(log_b), digits)
    return a, b


def _place(found: Forecast, at: Outlook, bins: str) -> str:
    if found.ratio is None or at.log_collapse is None or at.log_lost is None:  # more than two sizes
        if found.critical <= 0:
            return "any budget separates these sizes"
        c, critical = apart(math.log(at.c), math.log(found.critical))
        where = f"c = {c} lies {'below' if at.collapses else 'above'}"
        if not found.bounded:
            return f"{where} the critical budget {critical}, from which on every class is separated"
        taken = "" if at.collapses else f"; {bins}"
        return f"{where} {critical}, an upper bound of the budget that separates all{taken}"
    log_R = math.log(found.ratio)
    if math.isinf(at.log_collapse):
        one = "a single rare class has no other to coincide with"
        if math.isinf(at.log_lost):
            return one if found.bias else f"{one}; with a bias it may be lost all the same (bias=True, --bias)"
        R, end = apart(log_R, at.log_lost)
        how = "its samples go to frequent ones" if found.bias else "its row becomes 0"
        return f"{one}, but {how} from R = {end} on, and here R = {R}"
    R, R0 = apart(log_R, at.log_collapse)
    share = math.exp(min(0.0, log_R - at.log_collapse))
    where = "above" if at.collapses else "right below" if share > 0.9 else "below"
    part = f" ({number(share, 2)} of it)" if where == "below" and share > 1e-4 else ""
    return f"R = {R} lies {where} the threshold R0 = {R0}{part}"


def _lost(found: Forecast, at: Outlook) -> str:
    if at.binned:  # which of them coincide depends on the bins
        return f"about {sum(at.lost):,} of {found.K:,} classes"
    of = {phase: [s for s in at.sizes if s.phase == phase] for phase in ("collapsed", "confused", "vanished")}
    many = {phase: sum(size.classes for size in sizes) for phase, sizes in of.items()}
    parts = []
    if of["collapsed"]:
        parts.append(f"one common row{' per size' * (len(of['collapsed']) > 1)} for {_classes(many['collapsed'])}")
    if of["confused"]:
        ends = [_cosine(v) for v in sorted({round(s.beside, 2) + 0.0 for s in of["confused"] if s.beside is not None})]
        one = "its row and the one that takes its samples"
        whose = one if many["confused"] == 1 else "their rows and those that take them"
        cosine = f"cosine {ends[0]}" if len(ends) == 1 else f"cosines {ends[0]} to {ends[-1]}" if ends else ""
        between = f" ({cosine} between {whose})" if cosine else ""
        parts.append(f"samples of {_classes(many['confused'])} given to others{between}")
    if of["vanished"]:
        parts.append(f"rows of 0 for {_classes(many['vanished'])}")
    return " and ".join(parts)


def _remedy(found: Forecast, at: Outlook) -> str:
    times, level = number(at.repeats, 4), number(found.groups[-1].low * at.repeats, 4)
    weigh = f"Weighting the loss of the rarest samples {times} times"
    if found.sizes > 2:
        weigh = f"Weighting the loss as if no class had fewer than {level} samples (the rarest {times} times)"
    if at.binned:
        return f"{weigh} should be about enough."
    weigh += ", rather a little more, separates all classes"
    if at.copies is None:
        return f"{weigh}; no whole copies do."
    most, least = max(at.copies), min(at.copies)
    if most > MOST_COPIES or least > 1:
        copies = f"{least:,} to {most:,} of all samples" if least > 1 else f"{most:,}"
        return f"{weigh}; as copies it would take {copies}."
    others = "" if found.sizes == 2 else ", others fewer times,"
    return f"Showing the rarest samples {most:,} times{others} separates all classes."


def _angle(found: Forecast) -> Iterator[str]:
    predicted = " or ".join(dict.fromkeys(_cosine(o.cosine) for o in found.outlooks))
    rare, frequent = found.rare, found.frequent
    if rare is None or rare.mean_cosine is None:
        if not predicted.startswith("none"):
            yield f"Predicted mean cosine between rows of rare classes: {predicted}."
        return
    against = ""
    if frequent is not None:
        norms = f"norms {number(rare.mean_row_norm)} and {number(frequent.mean_row_norm)}"
        against = f" (frequent: {_cosine(frequent.mean_cosine)}; {norms})"
    yield f"Rows of rare classes have a mean cosine of {_cosine(rare.mean_cosine)}{against}; predicted {predicted}."
    if _nearer(found):
        yield "They are closer together than the model says: this network is nearer to collapse than its norms say."


def _nearer(found: Forecast) -> bool:
    """Whether the rows of rare classes are closer together than predicted, by more than a little."""
    known = [o.cosine for o in found.outlooks if o.cosine is not None]
    measured = None if found.rare is None else found.rare.mean_cosine
    return bool(known) and measured is not None and measured > max(known) + CLOSER


def _cosine(value: float | None) -> str:
    return "none" if value is None else minus(f"{value:.2f}")
