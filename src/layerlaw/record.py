"""What a run leaves behind: a table with one row per site, and everything needed to repeat it, in one JSON file."""

from __future__ import annotations

import difflib
import itertools
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from layerlaw.errors import DataError, Demand, InputError, demand, needed
from layerlaw.files import Saved, from_plain
from layerlaw.later import looked_at
from layerlaw.law import LawErrors, LawFit, fit_law, law_errors
from layerlaw.law.words import step_called
from layerlaw.measures.columns import REGISTRY, describe
from layerlaw.notebook import Shown, View
from layerlaw.plain import log_ratio
from layerlaw.record_rules import check_record
from layerlaw.wording import clean, counted, joined

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERSION = 2  # 2: settings["batchnorm"] instead of "mode", American spelling of settings, words apart from classes
OLD_SETTINGS = {"mode": "batchnorm", "normalise": "normalize"}
OLD_VALUES = {"train": "batch", "eval": "running", "standardised": "standardized"}
SHOWN = 10  # columns that an error names
INPUT = "in"  # the number of a language model's embedded input, which is no block


@looked_at(plane=lambda points: [*map(tuple, points)], values=None, by_class=None)  # tuples: no garbage collector looks
@dataclass
class SiteRow:
    """One place in the network: what it is, and what was measured there.

    `values` holds the columns of the table (`None` where a number does not exist), `by_class` one number per class,
    `plane` the first two principal components of at most 200 samples, as [(x, y), …] in the order of the record's
    `plane_labels`, `left_out` a column's values with one group of documents missing. `at` says whether the features are
    the input or the output of the named module. Sites with `in_fit=False` (the logits, the embedded input of a language
    model, rows of a side `branch`) are shown but are no point of the law; `aside` says why where a reader may wonder.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    features: int
    in_fit: bool = True
    at: str = ""
    values: dict[str, float | None] = field(default_factory=dict)
    by_class: dict[str, list[float | None]] = field(default_factory=dict)
    plane: list[tuple[float, ...]] = field(default_factory=list, repr=False)
    left_out: dict[str, list[float | None]] = field(default_factory=dict, repr=False)
    branch: bool = False  # not every path from the input to the output passes it
    aside: str = ""


@dataclass
class PartRow:
    """What one part of a layer does: its `kind` ("map", "normalization", "nonlinearity", "branches" or "other"), its module
    (none: functions between modules), and D before and after it (`values`, with D_lin where that was requested).

    Parts on the trunk follow each other, and "branches" is all that happens between a fork of it and where it rejoins: a
    residual block, a gate. Parts inside those are of a side `branch`, and no share of what the trunk does.

    >>> part = PartRow("fc1", "nonlinearity", "relu1", "ReLU", {"separation": 4.0}, {"separation": 2.0})
    >>> round(part.change(), 3)
    -0.693
    """

    layer: str
    kind: str
    module: str
    type: str
    before: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, float | None] = field(default_factory=dict)
    branch: bool = False

    def change(self, column: str | None = None) -> float | None:
        """By how much ln D (or D_reg) changes; negative: better separated. `None` where a value is missing or 0."""
        column = column or next(iter(self.values), "separation")
        before, after = self.before.get(column), self.values.get(column)
        return log_ratio(after, before) if before and after and before > 0 and after > 0 else None


@dataclass(frozen=True)
class Kind:
    """What a record is of: which column its law is on, what its sites are called, how its numbers are counted and written.

    Other packages have a table with an entry per kind: `verdict` who judges it, `pages` how it is shown.
    """

    name: str
    leading: tuple[str, ...]  # columns that the verdict may be on: the first that was measured, else the last
    site: str  # what a point of the law is called
    first: int  # the number of the first of them
    sample: str  # what is counted
    digits: int  # significant digits of ρ
    margin: float  # decades above and below a drawn curve, at least: residuals differ in their third digit
    table: tuple[str, ...]  # columns that come first in a short table
    of_classes: bool  # whether its samples are labeled


CLASSIFIER = Kind(
    "classifier", ("separation",), "layer", 0, "sample", digits=3, margin=0.08, table=("separation",), of_classes=True
)
# Tokens of a text depend on each other and its features are many: the residual in-sample flatters.
LANGUAGE_MODEL = Kind(
    "language model", ("residual_held_out", "residual"), "block", 1, "token", digits=4, margin=0.004,
    table=("residual_held_out", "residual", "residual_held_out_untrained"), of_classes=False,
)  # fmt: skip
# Numbers to be predicted, or several labels at once.
REGRESSION = Kind(
    "regression", ("target_separation",), "layer", 0, "sample", digits=3, margin=0.08,
    table=("target_separation", "residual_held_out"), of_classes=False,
)  # fmt: skip
KINDS = {kind.name: kind for kind in (CLASSIFIER, LANGUAGE_MODEL, REGRESSION)}


@looked_at(collapse_view=None, provenance=None)
@dataclass(repr=False)
class Record(Saved, Shown):
    """The result of a probe: sites in depth order, classes, settings and provenance.

    `words` are the tokens that a language model's planes show, in the order of `plane_labels`, or ranges of a target; a
    classifier's show classes. Of a regression `classes` are the names of the targets, and `r_squared` is that of the
    network's own output, averaged over them; of several labels at once `accuracy` is the share of right ones.
    `parts` are what the layers are made of (`probe(…, parts=True)`); they are no sites and no points of the law.
    `collapse_view` shows three classes in three dimensions where the classifier reads them (`measures.collapse`).

    >>> record = Record(name="toy", classes=["a", "b"], sites=[
    ...     SiteRow("fc1", "Linear", (4,), 4, values={"separation": 4.0}),
    ...     SiteRow("fc2", "Linear", (4,), 4, values={"separation": 2.0}),
    ...     SiteRow("fc3", "Linear", (4,), 4, values={"separation": 1.0})])
    >>> round(record.law("separation").rho, 6)
    0.5
    """

    _what, _version, _again = "record", VERSION, "repeat the probe"

    name: str
    sites: list[SiteRow]
    classes: list[str]
    kind: Kind = CLASSIFIER
    counts: list[int] = field(default_factory=list)
    test_counts: list[int] = field(default_factory=list)
    accuracy: float | None = None
    test_accuracy: float | None = None
    r_squared: float | None = None
    test_r_squared: float | None = None
    plane_labels: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    collapse_view: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    parts: list[PartRow] = field(default_factory=list)
    version: int = VERSION

    def __post_init__(self) -> None:
        kind: Kind | str = self.kind
        if isinstance(kind, str):  # by its name, as in a file
            if kind not in KINDS:
                expected = joined(list(KINDS), "or")
                raise DataError(f"record '{self.name}': expected a record of a {expected}, got one of kind {kind!r}.")
            self.kind = KINDS[kind]

    @property
    def columns(self) -> list[str]:
        """Names of the measured columns, in the order they first appear."""
        return list(dict.fromkeys(name for site in self.sites for name in site.values))

    def column(self, name: str) -> list[float | None]:
        """One column, one entry per site."""
        if name not in self.columns:
            symbols = [column for column in self.columns if name and describe(column).symbol == name]
            near = symbols or difflib.get_close_matches(str(name), self.columns, n=3, cutoff=0.5)
            hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
            more = f", … ({len(self.columns)} in record.columns)" if len(self.columns) > SHOWN else ""
            known = f"{hint}There are {', '.join(self.columns[:SHOWN])}{more}."
            raise InputError(f"record '{self.name}': expected one of the columns, got {name!r}. {known}")
        return [site.values.get(name) for site in self.sites]

    @property
    def leading(self) -> str:
        """The column the verdict is on: D, D_reg, or the residual of a language model, held out where that was measured."""
        measured = (c for c in self.kind.leading if any(site.values.get(c) is not None for site in self.sites))
        return next(measured, self.kind.leading[-1])

    @property
    def data_name(self) -> str:
        """What its data are called: as the user said; the training data where there are test data too; else just data."""
        return str(self.settings.get("data_name") or ("training data" if self.test_counts else "data"))

    @property
    def several_labels(self) -> bool:
        """Whether the targets of a regression are labels, 0 or 1 each."""
        return self.kind == REGRESSION and self.settings.get("targets") == "labels"

    @property
    def plane_names(self) -> list[str]:
        """What the labels of the planes stand for: words, or classes."""
        return self.words or self.classes

    @property
    def numbers(self) -> list[str]:
        """How each site is counted: all of a classifier from 0; blocks 1 … L as in the papers, "in" what enters them."""
        if not self.kind.first:
            return [str(i) for i in range(len(self.sites))]
        blocks = itertools.count(self.kind.first)
        return [str(next(blocks)) if site.in_fit else "·" if i else INPUT for i, site in enumerate(self.sites)]

    def law(
        self,
        column: str | None = None,
        *,
        first: str | int | None = None,
        last: str | int | None = None,
        drop_last: int = 0,
        branches: bool = False,
    ) -> LawFit:
        """The law along the sites of the fit, for one column that falls to 0 at collapse.

        Without a column, of the leading one: the separation, or a language model's prediction residual. `first` and `last`
        are names of sites or their numbers (`record.numbers`): only what lies between them counts, both included;
        `drop_last` leaves out so many points at the end. `branches`: rows of side branches are points too.
        """
        demand(column=(column, Demand("the name of a column", lambda value: isinstance(value, str | None))))
        column, where = column or self.leading, f"record '{self.name}'"
        self.column(column)
        if not describe(column).law:
            raise InputError(f"{where}: expected a column that is 0 at collapse, got {column!r}, which is not.")
        values: list[float] = []
        points = self.points(first=first, last=last, drop_last=drop_last, branches=branches)
        for site in points:
            if (value := site.values.get(column)) is None:
                raise InputError(f"{where}: expected {column} at every site of the fit, none at '{site.name}'.")
            values.append(value)
        if len(values) < 2:
            raise InputError(f"{where}: expected at least 2 points of the law, got {len(values)}.{self._why_few()}")
        known = self.kind != LANGUAGE_MODEL  # blocks see the same tokens: errors of steps are not those of their ends
        errors = tuple(site.values.get(f"{column}_log_se") for site in points) if known else ()
        return replace(fit_law(values, quantity=describe(column).quantity), step=self._step(points), log_errors=errors)

    def law_errors(
        self,
        column: str | None = None,
        *,
        first: str | int | None = None,
        last: str | int | None = None,
        drop_last: int = 0,
        branches: bool = False,
    ) -> LawErrors | None:
        """Standard errors and 95 % intervals of `law`, over groups of documents; `None` where no groups were kept."""
        column = column or self.leading
        chosen: Any = {"first": first, "last": last, "drop_last": drop_last, "branches": branches}
        return law_errors(self.law(column, **chosen), [site.left_out.get(column, []) for site in self.points(**chosen)])

    def points(
        self,
        *,
        first: str | int | None = None,
        last: str | int | None = None,
        drop_last: int = 0,
        branches: bool = False,
    ) -> list[SiteRow]:
        """The sites that are points of the law, chosen as in `law`."""
        if isinstance(drop_last, bool) or not isinstance(drop_last, int) or drop_last < 0:
            raise InputError(f"record '{self.name}': expected a whole number drop_last ≥ 0, got {drop_last!r}.")
        start = 0 if first is None else self.position(first)
        stop = len(self.sites) if last is None else self.position(last) + 1
        sites = [s for s in self.sites[start:stop] if s.in_fit or (branches and s.branch and not s.aside)]
        return sites[: max(0, len(sites) - drop_last)]

    @property
    def by_blocks(self) -> bool:
        """Whether its points are the ends of blocks, so that a step is a block's."""
        return self.kind == LANGUAGE_MODEL or self.settings.get("sites") == "blocks"

    @property
    def step_name(self) -> str:
        """What a step of its law is called in a sentence; "step" where one that is no block's (a pooler's) is among them."""
        return self._step(self.points())

    def _step(self, points: list[SiteRow]) -> str:
        return "block" if self.kind == LANGUAGE_MODEL else step_called(self.by_blocks, points, self.sites)

    def position(self, site: str | int) -> int:
        """Where a site stands in `sites`, from its name or its number."""
        known = self.numbers if isinstance(site, int) else [row.name for row in self.sites]
        if isinstance(site, bool) or str(site) not in known:
            begin = [name for name in known if name.startswith(f"{site}.")]  # inside the module that was named
            near = begin[:3] or difflib.get_close_matches(str(site), known, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near and isinstance(site, str) else ""
            ends = f"from '{self.sites[0].name}' to '{self.sites[-1].name}', " if self.sites else ""
            counts = [number for number in self.numbers if number.isdecimal()]
            span = f"{ends}or its number, {counts[0]} to {counts[-1]}" if counts else "of which there are none"
            raise InputError(f"record '{self.name}': expected the name of a site, {span}, got {site!r}.{hint}")
        return known.index(str(site))

    def beside(self, site: SiteRow) -> bool:
        """Whether a row is no point already because it lies on a side branch, where the user did not choose it."""
        return site.branch and self.settings.get("sites") != "chosen"

    def _why_few(self) -> str:
        aside = [site for site in self.sites if site.aside and not self.beside(site)]
        reasons = [f"'{site.name}' is none: {site.aside}" for site in aside[:3]]
        return f" {'; '.join(reasons)}." if reasons else ""

    def effective_depth(self, epsilon: float = 0.01) -> int | None:
        """Index of the first site whose nearest-class-center error on the training data is ≤ ε (Galanti et al.)."""
        if not isinstance(epsilon, (int, float)) or not 0 <= epsilon <= 1:
            raise InputError(f"epsilon: expected a share of the samples from 0 to 1, got {epsilon!r}.")
        for index, site in enumerate(self.sites):
            accuracy = None if site.branch else site.values.get("ncc_accuracy")
            if accuracy is not None and accuracy >= 1 - epsilon - 1e-12:  # 1 − 0.99 is more than 0.01 in floats
                return index
        return None

    def to_pandas(self) -> pandas.DataFrame:
        """One row per site in depth order; columns `site`, `type`, `at`, `features`, `in_fit`, `branch`, then the measures.

        Floats, but for an integer `rank` and a boolean `full_rank` (of pandas' own kinds where a site has none).
        """
        pd = needed("pandas", "tables", "Record.to_pandas()")
        frame: pandas.DataFrame = pd.DataFrame({"site": [site.name for site in self.sites]})
        for name in ("type", "at", "features", "in_fit", "branch"):
            frame[name] = [getattr(site, name) for site in self.sites]
        return frame.assign(**{c: self._series(pd, c) for c in self.columns})

    def _series(self, pd: Any, name: str) -> Any:
        kind, values = describe(name).kind, self.column(name)
        if kind is float or not any(value is not None for value in values):
            return pd.Series(values, dtype="float64")
        plain = [None if value is None else kind(value) for value in values]
        nullable = {int: "Int64", bool: "boolean"}[kind]
        return pd.Series(plain, dtype=nullable if None in plain else kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"format": "layerlaw record", **asdict(self), "kind": self.kind.name}

    @classmethod
    def _check(cls, data: dict[str, Any]) -> None:
        check_record(data)

    @classmethod
    def _made(cls, data: dict[str, Any], version: int) -> Record:
        sites = [from_plain(SiteRow, site, shape=tuple(site["shape"])) for site in data["sites"]]
        changed: dict[str, Any] = {"version": VERSION, "parts": [from_plain(PartRow, p) for p in data.get("parts", [])]}
        if version < VERSION:
            new = {OLD_SETTINGS.get(key, key): value for key, value in data.get("settings", {}).items()}
            changed["settings"] = {
                k: OLD_VALUES.get(v, v) if k in OLD_SETTINGS.values() and isinstance(v, str) else v
                for k, v in new.items()
            }
        if data.get("kind") == LANGUAGE_MODEL.name and "words" not in data:  # they were kept where classes are
            changed |= {"words": data["classes"], "classes": []}
        return from_plain(cls, data, sites=sites, **changed)

    def __str__(self) -> str:
        """A plain table."""
        rows = self._rows()
        first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
        written = "".join([f"{{:{first}}}", *(f"  {{:>{width}}}" for width in others)])
        return "\n".join([repr(self), *(written.format(*row) for row in rows)])

    def __repr__(self) -> str:
        parts, many = [counted(len(self.sites), "site")], len(self.classes)
        what = ("class", "classes") if self.kind.of_classes else ("label",) if self.several_labels else ("target",)
        parts += [counted(many, *what)] if self.kind != LANGUAGE_MODEL else []
        parts += [counted(sum(self.counts), self.kind.sample)] if self.counts else []
        return f"<Record '{clean(self.name)}': {', '.join(parts)}>"

    def plot(self, column: str | None = None, *, ax: Axes | None = None) -> Figure:
        """One column against depth, as `ll.plot` draws it."""
        from layerlaw.pages import plot

        return plot(self, column, ax=ax)

    def _rows(self) -> list[list[str]]:
        """A short table with its heads: which rows are points of the law, and the columns that hold a number."""
        tests = [f"test_{name}" for name, column in REGISTRY.items() if column.test_yields is not None]
        known = dict.fromkeys([*self.kind.table, *(name for name, c in REGISTRY.items() if c.head), *tests])
        shown = [c for c in known if any(site.values.get(c) is not None for site in self.sites)]
        cells = [[site.values.get(c) for c in shown] for site in self.sites]
        numbers = [["–" if value is None else f"{value:.4g}" for value in row] for row in cells]
        roles = ["point" if s.in_fit else "branch" if s.branch else "–" for s in self.sites]
        about = [[clean(s.name), str(s.features), role] for s, role in zip(self.sites, roles, strict=True)]
        body = [[*who, *row] for who, row in zip(about, numbers, strict=True)]
        return [["site", "features", "law", *shown], *body]

    def _view(self) -> View:
        """What a notebook shows of it."""
        law = []
        with suppress(InputError):  # too few points
            law = [str(self.law())]
        return View(repr(self)[1:-1], self._rows(), law)
