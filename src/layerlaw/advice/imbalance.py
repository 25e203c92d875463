"""Will rare classes lose their classifiers? A forecast from class counts and norms, by the Layer-Peeled Model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from layerlaw.advice.class_groups import ClassGroup, class_groups, exact_sizes, solved_sizes
from layerlaw.advice.imbalance_sheet import imbalance_sheet
from layerlaw.advice.imbalance_words import caveats, findings, headline
from layerlaw.advice.norms import Norms, of_features, of_record, of_rows, shares_right
from layerlaw.advice.outlook import Outlook, outlook
from layerlaw.errors import InputError, LabelError
from layerlaw.files import json_safe, write_json
from layerlaw.measures.collapse import mean_cosine, mean_norm, mean_square, rare_classes
from layerlaw.peeled import critical_budget
from layerlaw.peeled.counts import Counts, checked_budgets, checked_flag
from layerlaw.progress import Progress
from layerlaw.record import Record
from layerlaw.sheet import Sheet

FORMAT, VERSION = "layerlaw forecast", 3  # 3: copies per size, R and R0 for two sizes only, accuracy
NO_RATIO = "of more than two class sizes one ratio says nothing; see critical_c"
COINCIDE = 0.99  # mean cosine from which on rows are one
WELL_BELOW = 0.5  # of the accuracy of the most frequent classes


@dataclass(frozen=True)
class Rows:
    """The rows of a trained classifier in one group: mean norm, mean cosine as they are and around the mean of all rows.

    In the model the rows sum to 0, so the centered cosine is the one to hold against it; `None` for a single row.
    """

    norm: float
    cosine: float | None
    centered: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with names that say what they are."""
        return {"mean_row_norm": self.norm, "mean_cosine": self.cosine, "mean_cosine_centered": self.centered}


@dataclass(frozen=True)
class Forecast:
    """What becomes of rare classes, and what is there already.

    `by_norms` takes the norms as the model defines them; `by_use` the least norm that gives the centered class means their
    logits, which leaves out what goes into spread and a common offset of the features (known with class means and
    classifier only; docs/minority_collapse.md). `measured` are the rows of the trained classifier, group by group.
    """

    groups: tuple[ClassGroup, ...]
    sizes: int
    """Distinct class sizes."""
    E_W: float
    E_H: float
    bias: bool
    critical: float
    """The least c = √(E_W E_H) above which every class is separated; of binned sizes an upper bound."""
    bounded: bool
    """Whether `critical` is only a bound."""
    by_norms: Outlook
    by_use: Outlook | None
    measured: tuple[Rows, ...] | None
    rare: Rows | None
    """Of all rare classes together."""
    frequent: Rows | None
    accuracy: tuple[float, ...] | None
    """Measured share of right training samples, mean over the classes of each group."""
    already_lost: int
    """Classes whose measured accuracy is below half of that of the most frequent ones."""
    unused: bool
    """Whether a norm in use was measured and put aside, because norms were given."""

    @property
    def K(self) -> int:
        """Number of classes."""
        return sum(g.number for g in self.groups)

    @property
    def ratio(self) -> float | None:
        """R of two sizes, 1 of one, `None` of more: one ratio says nothing about them."""
        return None if self.sizes > 2 else self.groups[0].high / self.groups[-1].low

    @property
    def coincide(self) -> int:
        """Classes whose measured rows are one in their group: mean cosine 0.99 and more."""
        rows = zip(self.groups, self.measured or (), strict=False)
        return sum(g.number for g, r in rows if r.cosine is not None and r.cosine >= COINCIDE)

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
        """Collapse or not, in one sentence."""
        return headline(self)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the model does not know."""
        return caveats(self)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The headline, what was found, what speaks against it."""
        return (self.headline, *findings(self), *self.caveats)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "ratio": self.ratio,
            "ratio_note": NO_RATIO if self.ratio is None else None,
            "E_W": self.E_W,
            "E_H": self.E_H,
            "bias": self.bias,
            "critical_c": self.critical,
            "critical_is_a_bound": self.bounded,
            "sizes": self.sizes,
            "accuracy": self.accuracy,
            "already_lost": self.already_lost,
            "by_norms": self.by_norms.to_dict(self.E_W),
            "by_use": None if self.by_use is None else self.by_use.to_dict(self.E_W),
            "groups": [g.to_dict() for g in self.groups],
            "measured": None if self.measured is None else [rows.to_dict() for rows in self.measured],
            "rare": None if self.rare is None else self.rare.to_dict(),
            "frequent": None if self.frequent is None else self.frequent.to_dict(),
            "sentences": self.sentences,
        }
        return {key: json_safe(value) for key, value in plain.items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """The figure as plain data: predicted cosine against R with this place marked, and how far each class is."""
        return imbalance_sheet(self)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in self.sentences[1:])])


def forecast(
    counts: Counts | None = None,
    *,
    E_W: float | None = None,
    E_H: float | None = None,
    classifier: Any = None,
    features: Any = None,
    record: Record | None = None,
    accuracy: Sequence[float] | None = None,
    bias: bool = False,
    progress: bool | Progress = True,
) -> Forecast:
    """Which classes keep a classifier of their own, by the exact optimum of the Layer-Peeled Model.

    counts      samples per class (or {samples: number of such classes}); a record knows them
    E_W         mean of ‖w_k‖² over the classifier's rows, or `classifier`: a linear layer or its rows (K, d)
    E_H         mean over classes of the mean of ‖h‖² in front of the classifier, or `features`: a pair (h (n, d), labels)
    record      of a probe: counts and norms as measured there
    accuracy    share of right training samples per class, as measured; a linear layer with features tells it
    bias        the model with a free bias (the paper's has none): several rare classes of one size then collapse a little
                later, a single rare class is lost earlier

    Norms given as numbers go before measured ones. Up to 40 distinct sizes are solved as they are, in some seconds, which
    `progress` shows; more are put into bins that err on the pessimistic side, and the headline says so. The figure:
    `from layerlaw.pages import draw_sheet; draw_sheet(found.sheet()).savefig("forecast.png")`.

    >>> found = forecast({5000: 5, 50: 5}, E_W=1, E_H=5)
    >>> found.by_norms.phases, found.by_norms.cosine, round(found.by_norms.repeats, 3)
    (('separated', 'collapsed'), 1.0, 8.202)
    """
    checked_flag(bias, "bias")
    if record is not None and not isinstance(record, Record):
        raise InputError(f"record: expected what `probe` returns, got {type(record).__name__}.")
    if record is not None and counts is None:
        counts = record.counts
    if counts is None:
        raise InputError("counts: expected samples per class, or a record that knows them, got neither.")
    if isinstance(counts, Mapping) and not (classifier is None and features is None and accuracy is None):
        raise InputError(
            "counts: expected one number per class beside classifier, features or accuracy, got a mapping, which does not "
            "say which class is which."
        )
    groups, every, solved = class_groups(counts), exact_sizes(counts), solved_sizes(counts)
    K = every.groups.K
    rows = None if classifier is None else of_rows(classifier, K)
    if record is not None and len(record.counts) != K:
        raise LabelError(f"counts: expected {len(record.counts)}, one per class of the record, got {K}.")
    known = _norms(record, rows, features, K)
    used = None if E_W is not None or E_H is not None else known.used
    unused = used is None and known.used is not None
    E_W, E_H = (known.E_W if E_W is None else E_W), (known.E_H if E_H is None else E_H)
    # With a bias there is a closed form for any sizes
    critical = critical_budget((every if bias else solved).groups, bias=bias, progress=progress)  # type: ignore[arg-type]
    if E_W is None or E_H is None:
        missing = "E_W and E_H" if E_W is E_H else "E_W" if E_W is None else "E_H"
        lose = "may lose" if solved.binned and not bias else "lose"
        below = f" These counts {lose} classes where √(E_W E_H) is below {critical:.3g}." if critical else ""
        raise InputError(
            f"{missing}: expected norms, given as numbers or measured on a model, its features or a record, got none.{below}"
        )
    c = checked_budgets(E_W, E_H)

    def at(c: float) -> Outlook:
        closed = bias and c > critical * (1 + 1e-9)
        return outlook(groups, every if closed else solved, c, bias=bias, progress=progress)

    right = shares_right(accuracy, classifier, features, K)
    few, many = ([k for g in groups if g.rare is rare for k in g.classes or ()] for rare in (True, False))
    if rows is None:
        rare, frequent = _recorded(record, few)
    else:
        rare, frequent = (_rows(rows, few) if few else None), _rows(rows, many)
    return Forecast(
        groups=groups,
        sizes=every.of,
        E_W=float(E_W),
        E_H=float(E_H),
        bias=bias,
        critical=critical,
        bounded=solved.binned and not bias,
        by_norms=at(c),
        by_use=None if used is None or used <= 0 else at(used),
        measured=None if rows is None else tuple(_rows(rows, list(g.classes or ())) for g in groups),
        rare=rare,
        frequent=frequent,
        accuracy=None if right is None else tuple(_mean(right, g) for g in groups),
        already_lost=0 if right is None else _already_lost(right, groups),
        unused=unused,
    )


def _mean(right: Sequence[float], group: ClassGroup) -> float:
    return sum(right[k] for k in group.classes or ()) / group.number


def _already_lost(right: Sequence[float], groups: tuple[ClassGroup, ...]) -> int:
    """Classes whose accuracy is well below that of the most frequent group; of equal sizes none is the rare one."""
    least = WELL_BELOW * _mean(right, groups[0])
    return sum(right[k] < least for g in groups[1:] for k in g.classes or ())


def _norms(record: Record | None, rows: Tensor | None, features: Any, K: int) -> Norms:
    """What is known of the norms: of features and rows at hand first, then of a record."""
    own = (
        of_features(features, rows, K)
        if features is not None
        else Norms(E_W=None if rows is None else float(mean_square(rows)))
    )
    then = Norms() if record is None else of_record(record)
    pairs = ((own.E_W, then.E_W), (own.E_H, then.E_H), (own.used, then.used))
    return Norms(*(second if first is None else first for first, second in pairs))


def _rows(rows: Tensor, ids: list[int]) -> Rows:
    own, centered = rows[ids], (rows - rows.mean(0))[ids]
    return Rows(float(mean_norm(own)), _number(mean_cosine(own)), _number(mean_cosine(centered)))


def _recorded(record: Record | None, rare: list[int]) -> tuple[Rows | None, Rows | None]:
    """Rare and frequent rows as a record knows them, if it means the same classes by these words."""
    if record is None or not rare or rare_classes(record.counts) != sorted(rare):
        return None, None
    site = next((s for s in record.sites if s.values.get("classifier_norm_minority") is not None), None)
    if site is None:
        return None, None
    norms, cosines = ([site.values.get(f"classifier_{what}_{name}") for name in ("minority", "majority")]
                      for what in ("norm", "cosine"))  # fmt: skip
    few, many = (None if n is None else Rows(n, c, None) for n, c in zip(norms, cosines, strict=True))
    return few, many


def _number(value: Tensor) -> float | None:
    plain = float(value)
    return plain if math.isfinite(plain) else None
