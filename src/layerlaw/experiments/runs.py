"""Trained networks side by side, one per seed: their numbers by name, the learning rate with the best law, rows, pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import geometric_mean
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import probing_state
from layerlaw.capture.site_rules import find_sites
from layerlaw.experiments.numbers import UNCLAIMED, Claim, law_along, mean_of, minus, of_laws, over, power, row
from layerlaw.lab import Run, Samples, Schedule
from layerlaw.lab.processes import threads_for
from layerlaw.lab.schedule import CHUNK, BatchNormMode, SplitName
from layerlaw.lab.trainer import arithmetic
from layerlaw.law import LawFit
from layerlaw.outcome import Row, Table
from layerlaw.probing import probe
from layerlaw.record import Record
from layerlaw.threads import one_thread

LAW = (
    *("holds", "pearson", "rho", "evenness", "trend", "below-chance", "equal-steps"),
    *("holds-shuffled", "holds-balanced", "holds-eval", "holds-full", "pearson-eval", "rho-eval", "evenness-eval"),
)

MODES: tuple[BatchNormMode, ...] = ("batch", "running")
MODE_NAMES: dict[BatchNormMode, str] = {  # in rows and tables
    "batch": "train", "shuffled": "shuffled", "balanced": "balanced", "running": "eval", "whole": "full"
}  # fmt: skip
PROTOCOLS = Schedule(batchnorm=tuple(MODE_NAMES), test=True, permuted=True)
"""All BatchNorm protocols, on the same trained networks."""
PROTOCOL_TITLE = "Which claim survives in which protocol"
ANEW = "rate chosen in each protocol"  # at the end of a claim
OURS = "Ours: "  # at the beginning of a claim that is not the paper's
PROTOCOL_WORDS: dict[BatchNormMode, str] = {
    "batch": "chunks of 100 as drawn",
    "shuffled": "shuffled chunks",
    "balanced": "balanced chunks",
    "running": "running statistics",
    "whole": "statistics of all samples",
}
ENDS: dict[BatchNormMode, str] = {  # of the names of numbers
    mode: "" if mode == "batch" else f"-{words}" for mode, words in MODE_NAMES.items()
}
FLAT, NO_RUN = "D does not fall with depth", "no learning rate gave a trained network"
COMPONENTS = 100  # to which the authors reduced wide features
COLUMNS = 8192  # of features that are in float64 at a time
BENT = "the parabola that is fitted to ln D does not fall at its first step"
TRAINED = 0.1  # training loss (eval mode) of a network that may be chosen for its law
_NAME = re.compile(r"(?:(test|train)-)?(.+?)(?:-(eval|full|balanced|shuffled))?")
Value = Callable[[Run], float | None]
Key = TypeVar("Key", bound=Hashable)


class Where(TypedDict, total=False):
    """Which measurement of a run: after which epoch (the last), in which BatchNorm mode ("batch"), of which samples."""

    epoch: int | None
    batchnorm: BatchNormMode
    split: SplitName


class Runs(tuple[Run, ...]):
    """Some runs in their order: all of a grid, or those chosen, one per seed."""

    def at(self, **recipe: Any) -> Runs:
        """Those whose recipe has these values."""
        return Runs(run for run in self if all(getattr(run.recipe, name) == v for name, v in recipe.items()))

    def by(self, key: Callable[[Run], Key]) -> dict[Key, Runs]:
        """Runs by what they have in common, in the order in which it first occurs."""
        cells: dict[Key, list[Run]] = {}
        for run in self:
            cells.setdefault(key(run), []).append(run)
        return {name: Runs(cell) for name, cell in cells.items()}

    @property
    def sound(self) -> Runs:
        """Those that did not diverge."""
        return Runs(run for run in self if run.diverged is None)

    @property
    def seeds(self) -> dict[int, Runs]:
        """The runs of every seed."""
        return self.by(lambda run: run.recipe.seed)

    @property
    def trained(self) -> Runs:
        """Those whose training loss is at most 0.1 at the end, in eval mode."""
        return Runs(run for run in self if (loss := number(run, "train-loss")) is not None and loss <= TRAINED)

    def best(
        self,
        law: Callable[[Run], LawFit | None] | None = None,
        *,
        trained: bool = True,
        batchnorm: BatchNormMode = "batch",
    ) -> Runs:
        """Per seed the run with the most negative r at its last epoch: how the paper chose the learning rate it shows.

        Only among trained networks (where there are none: the one with the lowest loss), lest an untrained one be taken for
        its straight line; `trained=False` is the authors' rule, as far as it is known. A seed whose runs all failed is left
        out. `batchnorm`: the protocol in which it is chosen; `law`: of another part of the run than all its layers.
        """
        fit_of = law or partial(law_of, batchnorm=batchnorm)
        chosen = []
        for runs in self.seeds.values():
            if trained:
                lowest = sorted(runs.sound, key=lambda run: number(run, "train-loss") or math.inf)[:1]
                runs = runs.trained or Runs(lowest)
            fitted = [(fit.pearson, i) for i, run in enumerate(runs) if (fit := fit_of(run)) and fit.pearson]
            chosen += [runs[min(fitted)[1]]] if fitted else []
        return Runs(chosen)

    def mostly_hold(self, batchnorm: BatchNormMode = "batch", choices: int = 1) -> bool:
        """Whether the law holds in more than half of them."""
        return 2 * sum(holds(run, choices, batchnorm=batchnorm) for run in self) > len(self)

    def holds_anew(self, batchnorm: BatchNormMode) -> bool | None:
        """Whether the law mostly holds where the learning rate is chosen in this very protocol; chance is given the choice.

        `None` where so few layers and so many rates leave a test that true laws mostly fail.
        """
        choices = len({run.recipe.learning_rate for run in self})
        if power(len(self[0].measurement(batchnorm=batchnorm).separation) - 1, choices) < 0.5:
            return None
        return self.best(batchnorm=batchnorm).mostly_hold(batchnorm, choices)

    def laws(self, **where: Unpack[Where]) -> list[LawFit]:
        """The laws of those that have one."""
        return [law for run in self if (law := law_of(run, **where))]

    def values(self, what: str | Value, choices: int = 1, *, epoch: int | None = None) -> list[float | None]:
        """A number of every run, by its name (see `number`) or by a function."""
        if callable(what):
            return [what(run) for run in self]
        return [number(run, what, choices, epoch=epoch) for run in self]

    def mean(self, what: str | Value, *, epoch: int | None = None) -> float | None:
        """Of the numbers that are known."""
        return mean_of(self.values(what, epoch=epoch))

    def over(self, others: Runs, value: str | Value, own: Value | None = None) -> list[float | None]:
        """A number of each run over that of the other network of the same seed; `own` where ours is another one."""
        return self._paired(others, value, own or value, over)

    def over_at_same_rates(self, others: Runs, what: str) -> list[float | None]:
        """The same with the learning rate held fixed: geometric mean per seed over the rates at which both are trained."""
        ratios: dict[int, list[float]] = {seed: [] for seed in self.seeds}
        known = {(run.recipe.seed, run.recipe.learning_rate): number(run, what) for run in others.trained}
        for run in self.trained:
            ratio = over(number(run, what), known.get((run.recipe.seed, run.recipe.learning_rate)))
            ratios[run.recipe.seed] += [ratio] if ratio else []
        return [geometric_mean(some) if some else None for some in ratios.values()]

    def minus(self, others: Runs, value: str | Value) -> list[float | None]:
        """A number of each run minus that of the other network of the same seed."""
        return self._paired(others, value, value, minus)

    def _paired(
        self, others: Runs, value: str | Value, own: str | Value, both: Callable[..., float | None]
    ) -> list[float | None]:
        known = dict(zip((run.recipe.seed for run in others), others.values(value), strict=True))
        pairs = zip((run.recipe.seed for run in self), self.values(own), strict=True)
        return [both(ours, known[seed]) for seed, ours in pairs if seed in known]

    def row(self, name: str, what: str | Value, claim: Claim = UNCLAIMED, *, reason: str | None = None) -> Row:
        """A number over the seeds; the reason for a missing one is what went wrong with the runs."""
        return row(name, self.values(what), claim, reason=self.trouble() if reason is None else reason)

    def rows(
        self,
        name: str,
        names: Sequence[str],
        claims: Mapping[str, Claim] | None = None,
        *,
        choices: int = 1,
        epoch: int | None = None,
        reason: str = "",
        among: Runs | None = None,
    ) -> list[Row]:
        """Rows `name/…` of the named numbers (see `number`) over the seeds, with a reason where there is none.

        `among` is the whole grid: how many networks of other recipes pass a tolerance is its chance.
        """
        own = {replace(run.recipe, seed=0) for run in self}
        others = Runs(run for run in among or () if replace(run.recipe, seed=0) not in own)
        found = []
        for what in names:
            flat = BENT if what.startswith("trend") else FLAT
            why = reason or self.trouble(**_parsed(what, epoch)[1]) or (flat if self else NO_RUN)
            claim = (claims or {}).get(what, UNCLAIMED)
            beside = others.values(what, epoch=epoch) if claim.kind == "number" else ()
            values = self.values(what, choices, epoch=epoch)
            found.append(row(f"{name}/{what}", values, claim, among=beside, reason=why))
        return found

    def trouble(self, **where: Unpack[Where]) -> str:
        """Why runs have no law, in words: diverged, or a layer at which D is not defined; empty when all have one."""
        found = []
        for run in self:
            who = f"lr {run.recipe.learning_rate:g}, seed {run.recipe.seed}"
            if run.diverged is not None:
                found.append(f"{who}: diverged in epoch {run.diverged}")
                continue
            values = run.measurement(**where).separation
            holes = [layer for layer, value in enumerate(values) if value is None or value <= 0]
            if holes:
                many = f"layer {holes[0]} (of {len(holes)} such)"
                found.append(f"{who}: D is not defined at {many}: the class means coincide")
        return "; ".join(found)


def number(run: Run, name: str, choices: int = 1, *, epoch: int | None = None) -> float | None:
    """A number of a run by its name in the ledger; `None` where the run diverged or has no such number.

    Numbers of the law (holds and equal-steps as 1 or 0, pearson, rho, half-life, evenness, trend, greenwood-p, below-chance:
    p < .05 as 1 or 0), D after the last hidden layer (final-D, last-D; final-D-permuted with permuted labels,
    final-D-over-permuted over that floor), accuracy and loss (in eval mode). "test-" in front: on test samples. Behind:
    "-shuffled", "-balanced", "-eval" or "-full" for chunks in random order, class-balanced chunks, running statistics, or
    those of all samples. `choices` is how many learning rates the run is the best of: chance is given the same choice.
    """
    if run.diverged is not None:
        return None
    core, where = _parsed(name, epoch)
    if core == "final-D-over-permuted":
        return over(number(run, name.replace("-over-permuted", "")), number(run, name.replace("-over", "")))
    if core in ("accuracy", "loss"):
        measured = run.measurement(epoch=epoch, batchnorm="running", split=where["split"])
        return measured.loss if core == "loss" else measured.accuracy
    if core in ("final-D", "last-D", "final-D-permuted"):
        return run.measurement(**where).separation[-1]
    law = law_along(run.measurement(**where).separation, choices)
    return of_laws([law], core)[0]


def _parsed(name: str, epoch: int | None) -> tuple[str, Where]:
    """The number and where it is measured."""
    found = _NAME.fullmatch(name)
    assert found is not None
    side, core, mode = found.groups()
    batchnorm = {words: mode for mode, words in MODE_NAMES.items()}[mode or "train"]
    split: SplitName = "permuted" if core == "final-D-permuted" else "test" if side == "test" else "train"
    return core, {"epoch": epoch, "batchnorm": batchnorm, "split": split}


def law_of(run: Run, **where: Unpack[Where]) -> LawFit | None:
    """The law of a finished run; `None` where it diverged, or D is not defined at every layer."""
    return None if run.diverged is not None else run.law(**where)


def holds(run: Run, choices: int = 1, **where: Unpack[Where]) -> bool:
    """Whether the law holds in this run, the best of `choices`; not where there is none."""
    if run.diverged is not None:
        return False
    law = law_along(run.measurement(**where).separation, choices)
    return law is not None and law.holds is True


def protocol_table(claims: Mapping[str, Callable[[BatchNormMode], bool | None]]) -> Table:
    """Which claim survives in which BatchNorm protocol; the ledger collects these tables."""
    words = {True: "yes", False: "no", None: "–"}
    lines = [(name, *(words[claim(mode)] for mode in MODE_NAMES)) for name, claim in claims.items()]
    return Table(PROTOCOL_TITLE, ("claim", *PROTOCOL_WORDS.values()), lines)


def protocol_words(claims: Mapping[str, Callable[[BatchNormMode], bool | None]]) -> str:
    """How many of these claims survive in each BatchNorm protocol, as a sentence's end: "of 6: 5 with chunks of 100, …"."""
    counts = {words: sum(claim(mode) is True for claim in claims.values()) for mode, words in PROTOCOL_WORDS.items()}
    return f"of {len(claims)}: " + ", ".join(f"{count} with {words}" for words, count in counts.items())


def record_of(
    run: Run,
    data: Samples | tuple[Tensor, Tensor],
    *,
    test: Any = None,
    batchnorm: BatchNormMode = "batch",
    jackknife: bool = False,
    sites: str = "auto",
    device: str = "cpu",
) -> Record:
    """A trained network measured once more: on other images, in another order, or with D corrected for their number."""
    pair = (data.inputs, data.labels) if isinstance(data, Samples) else data
    errors: Any = "jackknife" if jackknife else False
    how: dict[str, Any] = {"batchnorm": batchnorm, "batch_size": CHUNK, "uncertainty": errors}
    with one_thread():
        return probe(run.network(), pair, test=test, sites=sites, device=device, progress=False, **how)


class AtSite(NamedTuple):
    """What a network gives at one site: features (n, channels, …), the labels and its own decisions (n,)."""

    name: str
    features: Tensor
    labels: Tensor
    decisions: Tensor


def site_features(run: Run, data: Samples, device: str = "cpu") -> Iterator[AtSite]:
    """Every site but the input, one at a time as they are large, in the authors' BatchNorm mode; none if it diverged.

    What is done with them is done on one thread where the network is small, as it was trained.
    """
    if run.diverged is None:
        with threads_for(run.recipe, data, device):
            yield from _site_features(run, data, device)


def _site_features(run: Run, data: Samples, device: str) -> Iterator[AtSite]:
    network, there = run.network().to(device), data.to(device)
    names = [site for site in run.measurements[0].sites if site != "input"]
    modules = list(dict.fromkeys(name.partition("#")[0] for name in names))  # of several calls, too
    with probing_state(network, "running"):
        plan = find_sites(network, Batch((there.inputs[:3],), {}, there.labels[:3]), choice=modules)
    chunks = list(zip(torch.split(there.inputs, CHUNK), torch.split(there.labels, CHUNK), strict=True))
    for site in (site for site in plan.sites if site.name in names):
        parts: list[Tensor] = []
        with (
            arithmetic("float32", torch.device(device)),
            probing_state(network, "batch"),
            Capture(network, plan, [site], reduce=None, consume=partial(_take, parts)) as capture,
        ):
            decided = [capture.run(Batch((x,), {}, y), where="measuring").argmax(1) for x, y in chunks]
        yield AtSite(site.name, torch.cat(parts), there.labels, torch.cat(decided))


def _take(parts: list[Tensor], site: Any, features: Tensor) -> None:
    parts.append(features.clone())


def principal(features: Tensor, components: int = COMPONENTS) -> Tensor:
    """Scores (n, components) of the leading principal components in float64; features that are no wider are left alone.

    By the n×n products of the samples: their leading directions, all that is kept, lose no digits that count.
    """
    if features.shape[1] <= components:
        return features
    centered = features - features.double().mean(0).to(features.dtype)
    gram = torch.zeros(len(features), len(features), dtype=torch.float64, device=features.device)
    for start in range(0, features.shape[1], COLUMNS):
        part = centered[:, start : start + COLUMNS].double()
        gram += part @ part.T  # (n, n)
    strengths, directions = torch.linalg.eigh(gram)
    kept = min(components, len(features))
    scores: Tensor = directions[:, -kept:] * strengths[-kept:].clamp(min=0).sqrt()
    return scores


def half_life_on(run: Run, data: Samples) -> float | None:
    """The half-life on these training images; `None` where D does not fall."""
    return record_of(run, data).law().half_life


def corrected_half_life(run: Run, data: Samples) -> float | None:
    """The half-life of D corrected for the number of images; `None` where the bias is too large at some layer."""
    sites = record_of(run, data, jackknife=True).sites
    law = law_along([site.values.get("separation_corrected") for site in sites if site.in_fit])
    return law.half_life if law else None
