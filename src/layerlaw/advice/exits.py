"""Early exit: after which layer could the network stop, what would that cost in accuracy, and what would it save?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from layerlaw.advice.exit_network import WILD, EarlyExit, Timing, compared
from layerlaw.advice.exit_report import PASS_TEST, CurvePoint, ExitReport, ExitSite, Realized
from layerlaw.advice.readouts import BUDGETS, ExitKind, Held, Readout, limits_within, per_sample_limits, simulated
from layerlaw.capture.batches import Batch, Batches
from layerlaw.capture.hooks import Capture, hooked
from layerlaw.capture.modules import is_weight_layer, modules_of
from layerlaw.capture.network import Randomness, network_of, placed, probing_state
from layerlaw.capture.plan import Plan, Reduce, Site
from layerlaw.capture.site_rules import SiteChoice, find_sites
from layerlaw.errors import InputError, LabelError, check_choice, demand
from layerlaw.errors import whole as at_least
from layerlaw.probing.aside import without_repetition
from layerlaw.probing.classes import Classes
from layerlaw.probing.paths import check_decided, check_decides, deciding
from layerlaw.probing.run import Options, run_batch
from layerlaw.probing.shards import Step
from layerlaw.probing.sources import source_of
from layerlaw.progress import Progress, choose
from layerlaw.provenance import model_provenance, provenance
from layerlaw.stats import ClassSums
from layerlaw.stats.labels import near_chance
from layerlaw.threads import claimed, on_cpu, users_device
from layerlaw.verdict.sentences import hardly_decides
from layerlaw.wording import counted, joined, percent

ExitChoice = Literal["centers", "linear", "best"]
MOST = 4  # exits of single samples, evenly along depth: to look at one costs time


@on_cpu
def early_exit(
    model: nn.Module,
    data: Any,
    *,
    test: Any = None,
    tolerance: float = 0.01,
    by: ExitChoice = "centers",
    within: Literal["accuracy", "agreement"] = "accuracy",
    sites: SiteChoice = "auto",
    reduce: Reduce = "flatten",
    scores: str | int | Callable[[Any], Any] = "auto",
    labels: int | str | None = None,
    batch_size: int | None = None,
    times: Sequence[int] = (1, 256),
    device: str | torch.device | None = None,
    memory_gib: float = 2.0,
    seed: int = 0,
    progress: bool | Progress = True,
) -> EarlyExit:
    """The network up to the first site that decides as well as all of it, within a tolerance; `report` says what it costs.

    data, test  as for `probe`, like all arguments that bear its names. Class means come from `data`; one half of `test`
                chooses sites and thresholds, the other judges them. Without `test` half of `data` stands in for it, which
                flatters a network trained on them
    tolerance   accuracy that may be lost, or with within="agreement" the share of decisions that may differ
    by          what decides there: the nearest of the stored class "centers", a "linear" read-out trained on the same
                samples, or the "best", whichever leaves earlier (at one site, the more accurate on the half that chooses);
                both are always measured
    times       batch sizes at which times are compared with the whole network's, in one run; () for none
    memory_gib  what the features that train linear read-outs may take; fewer samples train them where more would not fit

    Where no site is within the tolerance, or the first that is saves no time (no layer, where none was timed), the result is
    the network itself; the report says why, and what there is to gain otherwise.
    """
    options = Options(reduce, "running", "samples", False, memory_gib, seed, choose(progress))
    demand(times=(times, at_least(1).each))
    if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
        raise InputError(f"tolerance: expected a share from 0 to below 1, got {tolerance!r}.")
    check_choice("by", by, get_args(ExitChoice))
    check_choice("within", within, ("accuracy", "agreement"))
    check_decides(scores)
    network = network_of(model)
    given = [source_of(one, network, labels=labels) for one in (data, test)]
    sources, labels = [one.data for one in given], given[0].labels_at
    how: Any = {"batch_size": batch_size, "batchnorm": "running", "network": network, "labels_at": labels}
    fitted = Batches(sources[0], where="data", **how)
    held_out = fitted if test is None else Batches(sources[1], where="test", **how)
    with (
        claimed(network),
        Randomness(*sources) as randomness,
        placed(network, device) as home,
        probing_state(network, "running"),
    ):
        example = next(iter(fitted)).to(home)
        plan = find_sites(network, example, choice=sites, reduce=reduce, scores_at=scores)
        classes = deciding(Classes.of(None, plan, None, first=example.labels))
        study = _Study(network, plan, classes, reduce, home, randomness, seed, test is None, options.progress)
        study.fit(fitted, options.memory)
        held = study.decide(held_out)
        timed = example, example if test is None else next(iter(held_out)).to(home)
        report, chosen = _judged(study, held, timed, tolerance, within, by, times)
    kind = report.kind
    one = report.static.get(kind)
    saves = one is not None and report.gains(one)  # else the network itself is faster, and right as often
    found = study.exit(kind, chosen["static"][kind] if saves else None)
    found.report = report
    if kind in chosen["per_sample"]:
        found._alternative = (chosen["per_sample"][kind],)
    return found


@dataclass
class _Study:
    network: nn.Module
    plan: Plan
    classes: Classes
    reduce: Reduce
    device: torch.device | None
    randomness: Randomness
    seed: int
    shared: bool
    progress: Progress
    readouts: dict[ExitKind, list[Readout]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fitted: int = 0
    present: Tensor = field(default_factory=lambda: torch.zeros(0))
    sites: list[Site] = field(init=False)

    def __post_init__(self) -> None:
        self.sites = list(self.plan.read_out())

    def exit(self, kind: ExitKind, at: int | None = None, limits: Mapping[int, float] | None = None) -> EarlyExit:
        """At one site for all samples, or at several under thresholds; at none: the network itself."""
        places = list(limits) if limits is not None else [] if at is None else [at]
        sites, readouts = [self.sites[j] for j in places], [self.readouts[kind][j] for j in places]
        thresholds = None if limits is None else list(limits.values())
        how: Any = {"reduce": self.reduce, "thresholds": thresholds, "kind": kind}
        return EarlyExit(self.network, sites, readouts, scores=self.plan.scores, threshold=self.plan.threshold, **how)

    def batches(self, data: Batches, fitting: bool, title: str) -> Iterator[tuple[Step, Tensor]]:
        """Batches with the rows for fitting (or the others) and their labels, and a number in 0 … 1 drawn for each."""
        self.randomness.rewind()
        drawn = torch.Generator().manual_seed(self.seed)
        for i, batch in enumerate(self.progress(data, f"{data.where}, {title}", data.length)):
            where = f"{data.where}, batch {i}"
            labels, _ = self.classes.positions(batch.labels, f"labels of {where}")
            part, spare = torch.rand(2, len(labels), generator=drawn, dtype=torch.float64)
            mine = (part < 0.5) == fitting if self.shared else torch.ones(len(labels), dtype=torch.bool)
            rows = mine.nonzero().squeeze(1)
            if len(rows):
                yield Step(batch.to(self.device), labels[rows.to(labels.device)], rows, where), spare[rows]

    def fit(self, data: Batches, memory: int) -> None:
        """Class means of every site, and read-outs trained on as many samples as the memory holds."""
        sums: dict[str, ClassSums] = {}
        kept: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        most = memory // max(1, sum(4 * site.features for site in self.sites))
        expected = (data.samples or 0) / (2 if self.shared else 1)
        share, used, targets = min(1.0, most / expected) if expected else 1.0, 0, list[Tensor]()
        labels = chosen = torch.zeros(0, dtype=torch.long)
        parts: dict[str, Tensor] = {}

        def consume(site: Site, features: Tensor) -> None:
            part = ClassSums.of(features, labels.to(features.device), self.classes.K)
            parts[site.name] = part.sums
            sums[site.name].add(part) if site.name in sums else sums.update({site.name: part})
            kept[site.name].append(features[chosen.to(features.device)])

        with Capture(self.network, self.plan, self.sites, reduce=self.reduce, consume=consume) as capture:
            for step, spare in self.batches(data, True, "class means"):
                labels = step.labels
                chosen = (spare < share).nonzero().squeeze(1)[: max(0, most - used)]
                used += len(chosen)
                targets.append(labels[chosen.to(labels.device)])
                run_batch(capture, step, parts)
                self.fitted += len(labels)
        if not sums:
            raise LabelError("data: expected samples to take class means from, got none.")
        self.present = next(iter(sums.values())).counts.cpu() > 0
        if int(self.present.sum()) < 2:
            only = self.classes.names[int(self.present.nonzero()[0])]
            raise LabelError(
                f"data: expected samples of two or more classes, got those of class {only} alone. Add others."
            )
        self.sites = without_repetition(self.sites, self.plan.reads, lambda site: sums[site.name].sums)
        self.readouts["centers"] = [Readout.nearest_center(sums[site.name]) for site in self.sites]
        y = torch.cat(targets)
        if len(y) < 5 * self.classes.K:
            self.notes.append(
                f"No linear read-out: {len(y)} samples would train it. Give more data, or a larger memory_gib."
            )
            return
        self.readouts["linear"] = [
            Readout.trained(torch.cat(kept.pop(site.name)), y, self.classes.K, seed=self.seed)
            for site in self.progress(self.sites, "linear read-outs", len(self.sites))
        ]
        if used < self.fitted:
            self.notes.append(f"Linear read-outs are trained on {used} of {self.fitted} samples, which fit the memory.")

    def decide(self, data: Batches) -> Held:
        """What the network and the exits at every site decide on held-out samples."""
        tops: dict[ExitKind, list[list[Tensor]]] = {kind: [[] for _ in self.sites] for kind in self.readouts}
        margins: dict[ExitKind, list[list[Tensor]]] = {kind: [[] for _ in self.sites] for kind in self.readouts}
        labels_seen, decided, halves, finite = [], [], [], dict[str, Tensor]()
        place = {site.name: j for j, site in enumerate(self.sites)}

        def consume(site: Site, features: Tensor) -> None:
            finite[site.name] = features.isfinite().all()
            for kind, readouts in self.readouts.items():
                best, top = readouts[place[site.name]](features).topk(2, 1)
                tops[kind][place[site.name]].append(top[:, 0].cpu())
                margins[kind][place[site.name]].append((best[:, 0] - best[:, 1]).double().cpu())

        with Capture(self.network, self.plan, self.sites, reduce=self.reduce, consume=consume) as capture:
            for step, spare in self.batches(data, False, "decisions"):
                decision = self.classes.decide(run_batch(capture, step, finite), step.rows)
                decided.append(check_decided(decision, step.where).cpu())
                labels_seen.append(step.labels.cpu())
                halves.append(spare < 0.5)
        y, chooses = torch.cat(labels_seen or [torch.zeros(0)]), torch.cat(halves or [torch.zeros(0)]).bool()
        if min(int(chooses.sum()), int((~chooses).sum())) < 2:
            halves_of = "samples for two halves, one that chooses exits and one that judges them"
            raise LabelError(f"{data.where}: expected {halves_of}, got {counted(len(y), 'sample')}. Give more.")
        seen = set(y.tolist())
        if new := [self.classes.names[k] for k in sorted(seen) if not bool(self.present[k])]:
            words = f"class{'es' * (len(new) > 1)} {joined(new[:5] + ['others'] * (len(new) > 5))}"
            if self.shared:
                few = f"enough samples of every class for both halves, got too few of {words}"
                cure = "Add some, or give test data"
                raise LabelError(f"data: expected {few}: the half for class means has none. {cure}.")
            cure = "Add samples of it to data, or leave it out of test"
            raise LabelError(f"test: expected classes that data has too, got {words} without a center. {cure}.")
        if gone := [name for k, name in enumerate(self.classes.names) if bool(self.present[k]) and k not in seen]:
            words = f"class{'es' * (len(gone) > 1)} {joined(gone[:5] + ['others'] * (len(gone) > 5))}"
            self.notes.append(f"Judged without samples of {words}: {data.where} has none.")
        found = {
            kind: tuple(torch.stack([torch.cat(one) for one in many[kind]]) for many in (tops, margins))
            for kind in tops
        }
        return Held(y, torch.cat(decided), found, chooses)  # type: ignore[arg-type]


def _judged(
    study: _Study, held: Held, timed: tuple[Batch, Batch], tolerance: float, within: str, by: ExitChoice,
    times: Sequence[int],
) -> tuple[ExitReport, dict[str, dict[ExitKind, Any]]]:  # fmt: skip
    """Choose on one half, judge on the other, and compare times, on a batch of the data and on one of those that judge."""
    example, judged = timed
    choosing, judging = held.half(True), held.half(False)
    sites, base = study.sites, float(choosing.right.mean())
    # agreement is accuracy where the network's own decisions are the labels
    goal = choosing if within == "accuracy" else replace(choosing, labels=choosing.network)
    static: dict[ExitKind, int] = {}
    for kind, (top, _) in choosing.found.items():
        lost = goal.right.mean() - (top == goal.labels).double().mean(1)
        first = (lost <= tolerance + 1e-12).nonzero().flatten().tolist()
        static |= {kind: first[0]} if first else {}
    layers, whole = layers_before(study, example)
    kind = min(static, key=lambda k: (static[k], -_accuracy(choosing, k, static[k])), default="centers")
    kind = kind if by == "best" else by
    each = study.progress(range(len(sites)), "exits of single samples", len(sites))
    stays = [why_together(study, j, example) for j in each]
    usable = [j for j, why in enumerate(stays) if not why]
    for why in dict.fromkeys(filter(None, stays)):
        names = joined([f"'{site.name}'" for site, reason in zip(sites, stays, strict=True) if reason == why])
        study.notes.append(f"Single samples cannot leave at {names}: {why}.")
    usable = [usable[round(i * (len(usable) - 1) / (MOST - 1))] for i in range(MOST)] if len(usable) > MOST else usable
    sizes = list(dict.fromkeys(min(size, len(example.labels)) for size in times))
    runs: dict[str, nn.Module] = {f"site {j}": study.exit("centers", j) for j in range(len(sites))}
    runs["visits"] = study.exit(
        "centers", limits=dict.fromkeys(usable, math.inf)
    )  # looks at every exit, leaves at none
    shares = {size: compared(study.network, runs, example, size, study.progress) for size in sizes}

    def costs_of(clocked: Mapping[str, Timing], which: str = "share") -> list[float]:
        """Of leaving at each site, and at the end: every exit that is passed on the way costs something too."""
        look = max(0.0, clocked["visits"].share - 1) / max(1, len(usable))
        sums = [getattr(clocked[f"site {j}"], which) + look * sum(k <= j for k in usable) for j in range(len(sites))]
        return [*sums, 1 + look * len(usable)]

    costs = costs_of(shares[min(shares)]) if shares else [n / max(1, whole) for n in (*layers, whole)]
    plans = {kind: per_sample_limits(goal, kind, usable, costs, tolerance) for kind in choosing.found}
    chosen: dict[str, dict[ExitKind, Any]] = {"static": dict(static), "per_sample": {}}
    runs = {}
    for k, limits in plans.items():
        if limits is not None:
            chosen["per_sample"][k] = runs[f"sample {k}"] = study.exit(k, limits=limits)
    for size in sizes if runs else []:
        if size > 1:  # on samples that judge: others may leave elsewhere
            shares[size] |= compared(study.network, runs, judged, size, study.progress, "times of single samples")
    if rough := [str(size) for size, found in shares.items() if any(timing.wild for timing in found.values())]:
        differ = f"rounds that should be equal differ by more than a factor of {WILD:g}"
        study.notes.append(f"Times at batch {joined(rough)} are rough: {differ}. Time it again on an idle machine.")

    def realized(kind: ExitKind, run: str, top: Tensor, site: str | None, done: float, out: Tensor | None) -> Realized:
        drop = judging.right - (top == judging.labels).double()
        faster = {size: 1 / share[run].share for size, share in shares.items()}
        between = {size: (1 / share[run].high, 1 / share[run].low) for size, share in shares.items()}
        left = () if out is None else tuple(torch.bincount(out, minlength=len(sites) + 1).div(len(out)).tolist())
        error = float(drop.std(correction=0)) / math.sqrt(len(drop))
        right = float((top == judging.labels).double().mean())
        same = float((top == judging.network).double().mean())
        return Realized(kind, site, right, float(drop.mean()), error, done, faster, left, between, same)

    fixed, single, curve = dict[ExitKind, Realized](), dict[ExitKind, Realized](), list[CurvePoint]()
    for k, (top, _) in judging.found.items():
        if k in static:  # both kinds of read-outs take the same time: one product with a matrix (K, d)
            j = static[k]
            fixed[k] = realized(k, f"site {j}", top[j], sites[j].name, layers[j], None)
        for budget in BUDGETS:
            decision, out = simulated(judging, k, limits_within(goal, k, usable, budget))
            cost = torch.tensor(costs)[out].mean()
            curve.append(CurvePoint(k, budget, float((decision == judging.labels).double().mean()), float(cost)))
        if (limits := plans[k]) is not None:
            decision, out = simulated(judging, k, limits)
            if 1 in shares:  # few samples, one by one, would say more of themselves than of all
                ends = [torch.tensor(costs_of(shares[1], end))[out].mean().item() for end in ("share", "low", "high")]
                shares[1][f"sample {k}"] = Timing(*ends)
            done = float(torch.tensor([*layers, whole], dtype=torch.float64)[out].mean())
            single[k] = realized(k, f"sample {k}", decision, None, done, out)

    rows = tuple(
        ExitSite(
            site.name,
            layers[j],
            {k: _accuracy(choosing, k, j) for k in choosing.found},
            {k: _accuracy(judging, k, j) for k in judging.found},
            {k: _accuracy(replace(judging, labels=judging.network), k, j) for k in judging.found},
            {size: share[f"site {j}"].share for size, share in shares.items()},
            site.at,
            {k: _accuracy(replace(choosing, labels=choosing.network), k, j) for k in choosing.found},
        )
        for j, site in enumerate(sites)
    )
    if study.shared:
        study.notes.append(PASS_TEST)
    about = provenance(study.device, **model_provenance(study.network), accuracy_choosing=base, seed=study.seed)
    counts = (study.fitted, len(choosing.labels), len(judging.labels))
    right = float(judging.right.mean())
    best = max(max(row.judged.values()) for row in rows)
    yet = f"a read-out at one site is right on {percent(best)}" if not near_chance(best, study.classes.K) else ""
    study.notes += hardly_decides(right, study.classes.K, yet)
    found = (rows, fixed, single, tuple(curve), tuple(study.notes), about, not study.shared, kind)
    data = study.classes.K, float(judging.labels.bincount().max() / len(judging.labels)), study.plan.embedded
    return ExitReport(tolerance, within, whole, right, counts, *found, *data), chosen


def _accuracy(half: Held, kind: ExitKind, site: int) -> float:
    """Of the exits of one kind at one site."""
    return float((half.found[kind][0][site] == half.labels).double().mean())


def layers_before(study: _Study, example: Batch) -> tuple[list[int], int]:
    """How many weight layers have run at each site, and in all."""
    few, count = example.first(2), 0
    names = [name for name, module in modules_of(study.network).items() if is_weight_layer(module)]

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        nonlocal count
        count += 1

    def counted_by(net: nn.Module) -> int:
        nonlocal count
        count = 0
        _called(net, few)
        return count

    with hooked(study.network, names, lambda *_: None, leave):
        whole = counted_by(study.network)
        return [counted_by(study.exit("centers", j)) for j in range(len(study.sites))], whole


def why_together(study: _Study, j: int, example: Batch) -> str:
    """Why the network does not go on rightly with a part of the batch, once others have left at a site; "": it does."""
    few = example.first(min(8, len(example.labels)))
    if len(few.tensors()) != 1:
        return "the network is given several tensors, and those that it reads later would still be of the whole batch"
    if study.sites[j].fold > 1:
        return "a sample is several rows of the tensor there"
    margin = torch.sub(*_called(study.exit("centers", j), few).topk(2, 1).values.unbind(1))
    limit = float(margin.sort().values[len(margin) // 2])
    stay = margin < limit
    try:
        found = _called(study.exit("centers", limits={j: limit}), few)
    except (RuntimeError, ValueError, IndexError, TypeError):  # shapes that no longer fit
        return "it lies on a branch, and what it is joined with later would still be of the whole batch"
    expected = _called(study.exit("centers"), few)
    if torch.allclose(found[stay], expected[stay].to(found.dtype), rtol=1e-3, atol=1e-4):
        return ""
    return "the network decides otherwise on a part of the batch than on all of it"


@users_device()
def _called(net: nn.Module, batch: Batch) -> Tensor:
    """On a copy: a network may overwrite its inputs."""
    here = batch.copy()
    scores: Tensor = net(*here.args, **here.kwargs)
    return scores
