"""The path of one prediction: how far a sample is from its class at every layer, and from which layer on it is decided."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batches
from layerlaw.capture.modules import main_input
from layerlaw.capture.network import Randomness, network_of, placed, probing_state
from layerlaw.capture.plan import Reduce, Site
from layerlaw.capture.site_rules import SiteChoice, find_sites
from layerlaw.errors import FeatureError, InputError, needed
from layerlaw.files import json_safe, write_json
from layerlaw.measures.separation import auroc, cross_fitted
from layerlaw.notebook import Shown, View
from layerlaw.outcome import Table
from layerlaw.probing.aside import token_notes, without_repetition
from layerlaw.probing.classes import ClassChoice, Classes, told_classes
from layerlaw.probing.run import Options, Prober, run_batch
from layerlaw.probing.shards import first_batch
from layerlaw.probing.sources import source_of
from layerlaw.probing.state import Split
from layerlaw.progress import Progress, choose
from layerlaw.provenance import model_provenance, provenance
from layerlaw.sheet import ImagePanel, Sheet
from layerlaw.stats import Frame, project
from layerlaw.stats.labels import near_chance
from layerlaw.stats.precision import double
from layerlaw.stats.ranks import measured_together
from layerlaw.threads import claimed, on_cpu
from layerlaw.verdict.sentences import hardly_decides
from layerlaw.wording import counted, number, percent

SHOWN = 10  # samples that are pictured
FEWEST_WRONG = 10  # an AUROC of fewer wrong (or right) predictions is not to be trusted
DECIDED = "Decided at: the site from which on the nearest class center is the prediction; never: not even at the last."
OWN_D = (
    "D of a sample: its squared distance to the mean of its class, over the spread of all class means; small is near."
)


@dataclass(frozen=True, eq=False)
class Paths(Shown):
    """Of every sample (n): label, prediction, confidence (softmax), and at every site (n, s) its D and its nearest center.

    separation  D_i = (x_i − μ_y)ᵀ SS_b⁺ (x_i − μ_y), around the class means of the data; their mean over the data is D
    decided     number of the site from which on every nearest center is the prediction; s: not even at the last one
    last        numbers of the samples that were decided last, the least confident first among equals; `inputs` are theirs
    """

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    labels: Tensor
    predictions: Tensor
    confidence: Tensor
    separation: Tensor
    nearest: Tensor
    last: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    provenance: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def decided(self) -> Tensor:
        """(n,)"""
        agrees = (self.nearest == self.predictions.unsqueeze(1)).long()
        return len(self.sites) - agrees.flip(1).cumprod(1).sum(1)

    @property
    def wrong(self) -> Tensor:
        """Which predictions are not the label (n,)."""
        return self.predictions != self.labels

    def finds_errors(self) -> dict[str, float]:
        """How well wrong predictions are told from right ones (AUROC, .5 by chance, 1 at best).

        By low confidence, by a late decision, and by both: a logistic regression on them that each half of the samples fits
        for the other half. NaN where there are too few wrong or right ones.
        """
        doubt, late = (1 - self.confidence).clamp_min(1e-12).log(), self.decided.double()
        both = cross_fitted(torch.stack([doubt, late], 1), self.wrong)
        scores = {"confidence": doubt, "decision_layer": late, "both": both}
        return {name: auroc(values, self.wrong) for name, values in scores.items()}

    @property
    def sentence(self) -> str:
        """When right and wrong predictions are decided."""
        late, wrong, n = self.decided, self.wrong, len(self.sites)
        words = []
        for name, of in (("right", ~wrong), ("wrong", wrong)):
            if bool(of.any()):
                at = int(late[of].median())
                never = f"are never decided: at '{self.sites[-1]}', the last site, another class center is nearer"
                when = f"from '{self.sites[at]}' on" if at < n else never
                words.append(f"at least half of the {name} ones {when}")
        many = f"of {counted(n, 'site')}, '{self.sites[0]}' to '{self.sites[-1]}'"
        right = f"{counted(len(wrong), 'sample')}, {percent(float((~wrong).double().mean()))} predicted rightly"
        return f"Where predictions are decided ({many}; {right}): {'; '.join(words)}."

    @property
    def findings(self) -> list[str]:
        """Whether the decision layer helps to find errors, with their number; nothing where there are none."""
        found, wrong, n = self.finds_errors(), int(self.wrong.sum()), len(self.labels)
        if math.isnan(found["both"]):
            return [f"How well errors are found is not told: {self.too_few}"] if wrong and self.too_few else []
        more = f"{number(found['confidence'])} by confidence alone, {number(found['both'])} with the decision layer"
        said = f"The {wrong:,} wrong predictions of {n:,} are found with an AUROC (0.5 by chance, 1 at best) of {more}."
        return [f"{said} {self.too_few}".rstrip()]

    @property
    def too_few(self) -> str:
        """Words where there are too few wrong or right predictions to trust an AUROC; else ""."""
        kinds = {"wrong": int(self.wrong.sum()), "right": int((~self.wrong).sum())}
        kind, least = min(kinds.items(), key=lambda one: one[1])
        said = f"{counted(least, f'{kind} prediction')}, fewer than {FEWEST_WRONG}: too few to trust an AUROC."
        return said if least < FEWEST_WRONG else ""

    @property
    def error_table(self) -> Table:
        """AUROC of finding errors by each of the ways, with the number of wrong and right predictions."""
        told = {"confidence": "low confidence", "decision_layer": "a late decision", "both": "both"}
        counts = int(self.wrong.sum()), int((~self.wrong).sum())
        rows = [(told[way], number(value), *counts) for way, value in self.finds_errors().items()]
        note = f"AUROC: 0.5 by chance, 1 at best. {self.too_few}".rstrip()
        return Table("Finding wrong predictions", ("found by", "AUROC", "wrong", "right"), rows, note)

    def rows(self, samples: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """One row per sample, all or some: number, label, prediction, confidence, decided at, D at every site.

        `decided` is the number of the site, from 0 on; the number of sites means "never".
        """
        decided, names = self.decided, (*self.sites, "never")
        return [
            {
                "sample": i,
                "label": self.classes[int(self.labels[i])],
                "prediction": self.classes[int(self.predictions[i])],
                "confidence": float(self.confidence[i]),
                "decided": int(decided[i]),
                "decided_at": names[int(decided[i])],
                **{f"D {site}": float(self.separation[i, j]) for j, site in enumerate(self.sites)},
            }
            for i in (range(len(self.labels)) if samples is None else samples)
        ]

    @property
    def decided_last(self) -> list[list[str]]:
        """The samples of `last` as a table with its heads: number, label, prediction, confidence, decided at."""
        rows = [
            [str(row["sample"]), row["label"], row["prediction"], percent(row["confidence"], 0), row["decided_at"]]
            for row in self.rows(self.last)
        ]
        return [["sample", "label", "prediction", "confidence", "decided at"], *rows]

    def to_pandas(self) -> Any:
        """The same as a table; labels and predictions are numbers where classes have no names."""
        table = needed("pandas", "tables", "Paths.to_pandas()").DataFrame(self.rows())
        unnamed = all(name.isdecimal() and str(int(name)) == name for name in self.classes)
        return table.astype({"label": int, "prediction": int}) if unnamed else table

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        answer: dict[str, Any] = {"sentence": self.sentence, "findings": self.findings}
        answer |= {"finds_errors": self.finds_errors(), "sites": list(self.sites)}
        answer |= {"samples": len(self.labels), "accuracy": float((~self.wrong).double().mean())}
        answer |= {"notes": list(self.notes), "last": list(self.last), "wrong": int(self.wrong.sum())}
        return dict(json_safe({**answer, "rows": self.rows(), "provenance": self.provenance}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """The images that were decided last."""
        panels = []
        for row, image in zip(self.rows(self.last), map(as_image, self.inputs), strict=True):
            right = row["prediction"] == row["label"]
            said = row["prediction"] if right else f"{row['prediction']} (is {row['label']})"
            when = f"decided at {row['decided_at']}" if row["decided"] < len(self.sites) else "never decided"
            note = f"{percent(row['confidence'], 0)} sure, {when}"
            panels += [ImagePanel(said, image, note)] if image is not None else []
        if not panels:
            raise InputError(
                "sheet: expected inputs that are images, (c, h, w) with one or three channels, got others."
            )
        below = (
            "Above: the prediction, and the label if it differs. Below: confidence (softmax), and where it is decided."
        )
        return Sheet(f"The {len(panels)} that were decided last", panels, columns=min(5, len(panels)), caption=below)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib."""
        return self.sheet().plot()

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page: what the decision layer tells, the images decided last, a table of their paths."""
        from layerlaw.pages.html.outcomes import finding_page  # needs matplotlib

        heads, *rows = self.decided_last
        body = [[*row, *self.separation[int(row[0])].tolist()] for row in rows]
        table = Table("Decided last", [*heads, *(f"D {site}" for site in self.sites)], body, f"{DECIDED} {OWN_D}")
        sheets, tables = [self.sheet()] if self.pictured else [], [self.error_table] * bool(self.wrong.any())
        how: Any = {"sheets": sheets, "tables": [*tables, table], "notes": self.notes, "provenance": self.provenance}
        return finding_page(path, "Paths of predictions", [self.sentence, *self.findings], **how)

    @property
    def pictured(self) -> bool:
        """Whether the inputs are images."""
        return any(as_image(one) is not None for one in self.inputs)

    def _view(self) -> View:
        """What a notebook shows of it: the samples that were decided last."""
        return View(self.sentence, self.decided_last, [*self.findings, *self.notes])

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.findings, *self.notes])


@on_cpu
@measured_together
def sample_paths(
    model: nn.Module,
    data: Any,
    *,
    test: Any = None,
    sites: SiteChoice = "auto",
    reduce: Reduce = "flatten",
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    classes: ClassChoice = None,
    scores: str | int | Callable[[Any], Any] = "auto",
    labels: int | str | None = None,
    memory_gib: float = 2.0,
    progress: bool | Progress = True,
) -> Paths:
    """How each sample goes through the network: the samples of `test` where it is given, else those of `data`.

    Class means are those of `data`; arguments are as for `probe`. Side branches are left out, and so is what the classifier
    reads where it is the end of the last block once more.
    """
    check_decides(scores)
    network = network_of(model)
    given = [source_of(one, network, labels=labels) for one in (data, test)]
    sources, labels = [one.data for one in given], given[0].labels_at
    how: Any = {"batch_size": batch_size, "batchnorm": "running", "network": network, "labels_at": labels}
    train, known = Batches(sources[0], where="data", **how), given[0].class_names
    shown = train if test is None else Batches(sources[1], where="test", **how)
    options = Options(reduce, "running", "samples", False, memory_gib, 0, choose(progress))
    with (
        claimed(network),
        Randomness(*sources) as randomness,
        placed(network, device) as home,
        probing_state(network, "running"),
    ):
        example = first_batch(train)
        told: Any = {"scores_at": scores, "classes_told": told_classes(classes, known)}
        plan = find_sites(network, example.to(home), choice=sites, reduce=reduce, **told)
        chosen = deciding(Classes.of(classes, plan, train.labels, known, first=example.labels))
        if why := chosen.undecided or "no scores" * (plan.classes is None):
            raise InputError(f"expected a network that decides among the classes, got none: {why}.")
        prober = Prober(network, plan, chosen, options, randomness, home)
        found = _Walked(prober, prober.measure(train, "data", whole=True), own=test is None)
        found.go(shown)
    about = provenance(home, **model_provenance(network), data="data" if test is None else "test")
    return found.paths(about)


class _Walked:
    """What a pass over the samples leaves of each of them."""

    def __init__(self, prober: Prober, split: Split, *, own: bool) -> None:
        self.prober, self.split, self.own = prober, split, own
        fitted = prober.classes.fitted
        read_out = prober.plan.read_out()
        self.sites = without_repetition(read_out, prober.plan.reads, lambda site: fitted(split, site))
        self.frames = {site: Frame.of(split.around[site].centers) for site in self.sites}
        self.separation: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        self.nearest: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        self.labels: list[Tensor] = []
        self.decisions: list[Tensor] = []
        self.confidence: list[Tensor] = []
        self.finite: dict[str, Tensor] = {}  # of the last batch, by site
        self.latest: list[tuple[tuple[int, float], int, Tensor]] = []  # a heap: the earliest of the latest on top

    def go(self, data: Batches) -> None:
        """One pass."""
        classes = self.prober.classes
        assert isinstance(classes, Classes)
        at = 0
        with self.prober.capturing(self.sites, self.consume) as capture:
            for step in self.prober.steps(data, "paths", None):
                self.here = step.labels
                output = run_batch(capture, step, self.finite)
                self.decisions.append(check_decided(classes.decide(output, step.rows), step.where).cpu())
                self.labels.append(step.labels.cpu())
                sure = classes.confidence(output, step.rows)
                assert sure is not None  # where there are decisions
                self.confidence.append(sure.cpu())
                self._remember(main_input(step.batch.args, step.batch.kwargs), step.rows, at)
                at += len(step.labels)

    def consume(self, site: Site, features: Tensor) -> None:
        """D of each sample, and which center is nearest to it."""
        self.finite[site.name] = features.isfinite().all()
        centers = self.split.around[site].centers
        labels = self.here.to(features.device)
        z = double(project(features, labels, self.frames[site])[0])  # (r, n)
        hot = torch.nn.functional.one_hot(labels, len(centers.counts)).T.to(z)
        points = centers.corners.mT @ hot + z
        self.nearest[site.name].append((centers.corners @ points - centers.half_norms).argmax(0).cpu())
        if self.own:  # the class mean of pass 1 is a rounded number: its rest is taken off, as D does
            scatter = self.split.scatters[site]
            z = z - (scatter.residuals / scatter.counts.unsqueeze(1)).mT @ hot
        self.separation[site.name].append((z * centers.inverse_scales.unsqueeze(1)).square().sum(0).cpu())

    def _remember(self, inputs: Tensor | None, rows: Tensor | None, at: int) -> None:
        """Keep the inputs of those that are decided last so far."""
        nearest = torch.stack([self.nearest[site.name][-1] for site in self.sites])
        agrees = (nearest == self.decisions[-1]).long()
        decided = (len(self.sites) - agrees.flip(0).cumprod(0).sum(0)).tolist()
        mine = None if inputs is None else inputs if rows is None else inputs[rows.to(inputs.device)]
        for i, (late, confidence) in enumerate(zip(decided, self.confidence[-1].tolist(), strict=True)):
            entry = ((late, -confidence), -(at + i))
            if len(self.latest) < SHOWN or entry > self.latest[0][:2]:
                kept = torch.zeros(0) if mine is None else mine[i].detach().cpu().clone()
                (heapq.heappush if len(self.latest) < SHOWN else heapq.heapreplace)(self.latest, (*entry, kept))

    def paths(self, about: dict[str, Any]) -> Paths:
        """All of it."""
        last = sorted(self.latest, key=lambda entry: entry[:2], reverse=True)
        return Paths(
            sites=tuple(site.name for site in self.sites),
            classes=self.prober.classes.names,
            labels=torch.cat(self.labels),
            predictions=torch.cat(self.decisions),
            confidence=torch.cat(self.confidence),
            separation=torch.stack([torch.cat(self.separation[site.name]) for site in self.sites], 1),
            nearest=torch.stack([torch.cat(self.nearest[site.name]) for site in self.sites], 1),
            last=tuple(-number for _, number, _ in last),
            inputs=tuple(inputs for _, _, inputs in last),
            provenance=about,
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the measurement."""
        classes, accuracy = self.prober.classes, self.split.accuracy
        if not isinstance(classes, Classes) or accuracy is None:
            return ()
        doubts = classes.doubts(self.split)
        if not doubts:
            right = max(
                float(s.near.hits.sum() / s.counts.sum()) for s in map(self.split.scatters.get, self.sites) if s
            )
            yet = f"the nearest class center at one site is right on {percent(right)}"
            doubts = hardly_decides(accuracy, classes.K, "" if near_chance(right, classes.K) else yet)
        return (*token_notes(self.prober), *doubts)


def check_decides(scores: object) -> None:
    """Raise where the network's decisions are not to be read, by those who need them."""
    if scores is None:
        places = 'expected "auto", or the index or key of the class scores in the output'
        raise InputError(f"scores: {places}, got None: the network's decisions are needed here.")


def deciding(classes: Classes) -> Classes:
    """The same, whose errors about labels do not advise to leave the network's decisions out: they are needed."""
    return replace(classes, hint=classes.hint.partition(" A model without")[0])


def check_decided(decision: Tensor | None, where: str) -> Tensor:
    """The decisions of a batch; raise where the network gives none, or scores that are no numbers."""
    if decision is None:
        raise InputError(f"{where}: expected a network that gives class scores (n, K), got none.")
    if bool((decision < 0).any()):
        raise FeatureError(f"class scores: expected numbers, got NaN in {where}. Look at the last layers.")
    return decision


def as_image(inputs: Tensor) -> list[list[Any]] | None:
    """Pixels from 0 to 1 of (c, h, w) with one or three channels, or of such an image in one row; else `None`."""
    x = inputs.double()
    if x.dim() == 1:
        side = next((s for c in (1, 3) if c * (s := math.isqrt(len(x) // c)) ** 2 == len(x) and s > 1), None)
        x = x.reshape(-1, side, side) if side else x
    if x.dim() != 3 or x.shape[0] not in (1, 3):
        return None
    x = (x - x.min()) / (x.max() - x.min()).clamp_min(1e-12)
    plain: list[list[Any]] = (x[0] if len(x) == 1 else x.permute(1, 2, 0)).tolist()
    return plain
