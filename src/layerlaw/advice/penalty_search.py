"""α and the first site of SVSL for a recipe: a Bayesian search on a validation split, never on test data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.choice import RULES
from layerlaw.capture.hooks import Capture
from layerlaw.capture.plan import Site
from layerlaw.errors import Demand, InputError, LayerlawError, check_whole, demand, needed, shown
from layerlaw.lab import Recipe, Samples, Schedule, sweep
from layerlaw.lab.losses import CrossEntropy, Loss, plan_sites
from layerlaw.lab.variability import Reduction, VariabilityCrossEntropy, with_logits
from layerlaw.progress import Progress
from layerlaw.wording import counted, percent

ALPHAS = (5e-8, 5e-5)  # the authors' range of α, for their summed penalty
RANDOM_TRIALS = 4  # before the search learns from what it has seen


@dataclass(frozen=True)
class PenaltyTrial:
    """One training of a search; `accuracy` is that on the validation split, `None` where it diverged."""

    alpha: float
    first: str
    accuracy: float | None


@dataclass(frozen=True)
class PenaltySearch:
    """What a search found: the best `alpha` and `first` site, all trials, and the same training without the penalty.

    The best of several trials is better than itself by chance alone: `standard_error` is that of an accuracy on so many
    validation samples, and a gain of fewer than two of them is called noise.
    """

    alpha: float
    first: str
    reduction: Reduction
    trials: tuple[PenaltyTrial, ...]
    plain: float | None
    validation: int
    sites: str | tuple[str, ...] = "auto"

    @property
    def best(self) -> PenaltyTrial:
        """The trial that was chosen."""
        return next(t for t in self.trials if (t.alpha, t.first) == (self.alpha, self.first))

    @property
    def standard_error(self) -> float:
        """Of the best accuracy, by the number of validation samples."""
        p = self.best.accuracy or 0.0
        return math.sqrt(max(p * (1 - p), 1 / self.validation) / self.validation)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        more = {"standard_error": self.standard_error, "sentence": self.sentence, "loss": self.loss}
        return {"format": "layerlaw svsl search", "version": 1, **asdict(self), **more}

    @property
    def loss(self) -> str:
        """What was found, as a line of code; the reduction is in it, since α of one is none of the other."""
        sites = "" if self.sites == "auto" else f"sites={self.sites!r}, "
        return f'll.SVSL(model, alpha={self.alpha:.3g}, {sites}first="{self.first}", reduction="{self.reduction}")'

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        chosen = f"α = {self.alpha:.3g} from {self.first} on ({self.reduction}) is the best of "
        found = f"{chosen}{counted(len(self.trials), 'trial')}: {percent(self.best.accuracy, 2)} of validation samples"
        if self.plain is None or self.best.accuracy is None:
            return f"{found}; training without the penalty diverged. In a loop of your own: {self.loss}"
        gain = self.best.accuracy - self.plain
        noise = ", inside the noise" if abs(gain) < 2 * math.sqrt(2) * self.standard_error else ""
        return f"{found}, {percent(self.plain, 2)} without the penalty{noise}. In a loop of your own: {self.loss}"

    def __str__(self) -> str:
        tried = [f"  α = {t.alpha:.3g} from {t.first} on: {percent(t.accuracy, 2)}" for t in self.trials]
        return "\n".join([self.sentence, *tried])


def svsl_search(
    recipe: Recipe,
    samples: Samples,
    *,
    sites: str | Sequence[str] = "auto",
    trials: int = 12,
    alphas: tuple[float, float] = ALPHAS,
    reduction: Reduction = "authors",
    share: float = 0.1,
    folder: str | Path | None = None,
    device: str = "cpu",
    workers: int = 1,
    progress: bool | Progress = True,
) -> PenaltySearch:
    """Search α (log scale) and the first site with Optuna's TPE, seeded by the recipe; each trial is one training.

    A `share` of the training samples is held back and judges the trials; test samples are not looked at. `sites` are
    those of the penalty as for `SVSL` (a rule takes the logits too); the first one may be any but the last. `workers`
    trials are trained at a time, each by a process of its own; the search then learns from so many at once. With a
    `folder` an interrupted search goes on where it was.
    """
    check_whole(1, trials=trials, workers=workers)
    _check_given(recipe, samples)
    _check_names(sites)
    demand(alphas=(alphas, Demand("a range of positive numbers (low, high)", _is_range)))
    low, high = alphas
    where = sites if isinstance(sites, str) else tuple(sites)
    names = _first_sites(recipe, samples, where)
    optuna: Any = needed("optuna", "search", "searching α")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    split = samples.held_back(share, recipe.seed)
    assert split.test_labels is not None
    schedule = Schedule(batchnorm=("running",), test=True)
    place = None if folder is None else Path(folder)

    def accuracies_of(losses: Sequence[Loss], name: str) -> list[float | None]:
        how: dict[str, Any] = {"schedule": schedule, "device": device, "progress": progress, "networks": False}
        how |= {"folder": place and place / name, "workers": workers if workers > 1 else None}
        runs = sweep([replace(recipe, loss=loss) for loss in losses], {recipe.data: split}, **how)
        return [
            None if run.diverged is not None else run.measurement(batchnorm="running", split="test").accuracy
            for run in runs
        ]

    sampler = optuna.samplers.TPESampler(seed=recipe.seed, n_startup_trials=RANDOM_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    found: list[PenaltyTrial] = []
    plain: float | None = None
    while len(found) < trials:
        others: list[Loss] = [] if found else [CrossEntropy()]  # without the penalty: beside the first trials
        asked = [study.ask() for _ in range(min(max(1, workers - len(others)), trials - len(found)))]
        drawn = [(t.suggest_float("alpha", low, high, log=True), t.suggest_categorical("first", names)) for t in asked]
        losses = [VariabilityCrossEntropy(a, first=first, reduction=reduction, where=where) for a, first in drawn]
        accuracies = accuracies_of([*others, *losses], f"trial-{asked[0].number}")
        plain = accuracies.pop(0) if others else plain
        for trial, (alpha, first), accuracy in zip(asked, drawn, accuracies, strict=True):
            study.tell(trial, accuracy or 0.0)
            found.append(PenaltyTrial(alpha, first, accuracy))
    known = [trial for trial in found if trial.accuracy is not None]
    if not known:
        raise LayerlawError(f"search: all {trials} trials diverged. Use a lower learning rate, or smaller alphas.")
    best = max(known, key=lambda trial: trial.accuracy or 0.0)
    return PenaltySearch(best.alpha, best.first, reduction, tuple(found), plain, len(split.test_labels), where)


def _is_range(pair: Any) -> bool:
    low, high = pair
    return bool(0 < low < high < math.inf)


def _check_given(recipe: Any, samples: Any) -> None:
    """Raise unless these are a recipe and samples."""
    if isinstance(recipe, Samples) and isinstance(samples, Recipe):
        cure = "Write svsl_search(recipe, samples)"
        raise InputError(f"recipe: expected the recipe first and the samples second, got them swapped. {cure}.")
    if not isinstance(recipe, Recipe):
        came = f"a {type(recipe).__name__}" if isinstance(recipe, nn.Module) else shown(recipe)
        own = "a network of your own is described by a subclass of layerlaw.lab.Architecture, see docs/lab.md"
        cure = f"Every trial trains from the start: write Recipe('resnet18', epochs=…); {own}"
        raise InputError(f"recipe: expected a layerlaw.lab.Recipe, got {came}. {cure}.")
    if not isinstance(samples, Samples):
        cure = "Make them with layerlaw.lab.Samples.of((inputs, labels))"
        raise InputError(f"samples: expected layerlaw.lab.Samples, got a {type(samples).__name__}. {cure}.")
    recipe.network.check_inputs(tuple(samples.inputs.shape[1:]))


def _check_names(sites: Any) -> None:
    """Raise unless these are a rule, or names of modules."""
    names = [sites] if isinstance(sites, str) else sites
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) and name for name in names):
        cure = "Write sites='auto', or sites=['layer1', 'layer2'] with names of the recipe's network"
        raise InputError(
            f"sites: expected a rule ({', '.join(RULES)}) or names of modules, got {shown(sites)}. {cure}."
        )


def _first_sites(recipe: Recipe, samples: Samples, where: str | tuple[str, ...]) -> list[str]:
    """Where the penalty may begin: every site that has another behind it and carries a gradient, unlike the raw input."""
    batch, network = Batch((samples.inputs[:3],), {}, samples.labels[:3]), recipe.network.build().eval()
    plan = plan_sites(network, batch, with_logits(where))
    learns: dict[str, bool] = {}

    def consume(site: Site, features: Tensor) -> None:
        learns[site.name] = features.requires_grad

    how: dict[str, Any] = {"reduce": "flatten", "consume": consume, "gradients": True}
    with torch.enable_grad(), Capture(network, plan, plan.along_depth, **how) as capture:
        capture.run(batch, where="sites")
    names = [site.name for site in plan.along_depth if learns.get(site.name)][:-1]
    if not names:
        raise InputError(f"sites: expected at least two along depth, got {where!r}.")
    return names
