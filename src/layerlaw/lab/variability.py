"""The penalty of SVSL, the stochastic variability-simplification loss of Ben-Shaul & Dekel: features near their class means.

Cross-entropy + P, P = α/(C·m) Σ_j Σ_c (1/n_c) Σ_{i∈c} ‖g_j(x_i) − μ_c^j‖² over m sites (Def. 10), C the number of logits. As
"paper", P/N is added, the mean over the batch of Eq. 5; as "authors", P itself, since their code sums it. In a recipe it is
`VariabilityCrossEntropy`, in a loop of your own `SVSL`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from layerlaw.capture.choice import RULES
from layerlaw.capture.site_rules import SiteChoice
from layerlaw.errors import Demand, InputError, LabelError, check_choice, demand, whole
from layerlaw.lab.losses import Loss
from layerlaw.stats import checked_labels, one_hot
from layerlaw.stats.precision import at_least_float32, full_precision, row_chunks
from layerlaw.stats.ranks import all_reduce, world_size

Reduction = Literal["paper", "authors"]
Means = Literal["batch", "moving", "whole"]
INTERPOLATION = 0.995  # train accuracy from which an epoch is of the terminal phase (the paper's, for images)
KERNELS = {"cuda"}  # devices that kernels are written for


@dataclass(frozen=True)
class PenaltySettings:
    """The numbers of the penalty, checked.

    alpha        weight α ≥ 0
    first        name of the site γ from which on features are pulled; default: the first one
    reduction    "paper" or "authors"; they differ by the factor N, the size of the batch
    means        of the "batch" (with their gradients), a "moving" average, or of the "whole" data as last measured; the
                 latter two are constants to the gradient
    momentum     share of a batch in the moving average
    start        step from which on it counts, or "terminal": the first epoch after one with 99.5 % train accuracy
    learn_alpha  α is trained too, towards a penalty of this size: −learn_alpha·ln(α/α₀) is added to the loss
    across_ranks class means, counts and N of all processes together; else each process has its own
    """

    alpha: float
    first: str | None = None
    reduction: Reduction = "paper"
    means: Means = "batch"
    momentum: float = 0.1
    start: int | Literal["terminal"] = 0
    learn_alpha: float | None = None
    across_ranks: bool = False

    def __post_init__(self) -> None:
        number = isinstance(self.alpha, (int, float)) and not isinstance(self.alpha, bool)
        if not number or not 0 <= self.alpha < math.inf:
            raise InputError(f"alpha: expected a finite number ≥ 0, got {self.alpha!r}.")
        check_choice("reduction", self.reduction, get_args(Reduction))
        check_choice("means", self.means, get_args(Means))
        if not 0 < self.momentum <= 1:
            raise InputError(f"momentum: expected a share above 0 and at most 1, got {self.momentum!r}.")
        if self.start != "terminal":
            step = whole(0)
            demand(start=(self.start, Demand(f'{step.words}, or "terminal"', step.asked)))
        if self.learn_alpha is not None and not (0 < self.learn_alpha < math.inf and self.alpha > 0):
            expected = "expected a positive size of the penalty, and alpha > 0 to start from"
            raise InputError(f"learn_alpha: {expected}, got {self.learn_alpha!r} with alpha={self.alpha:g}.")


class _WeightedSquares(torch.autograd.Function):
    """Σ_i w_i ‖x_i − μ_{y_i}‖² with the gradient 2 w_i (x_i − μ_{y_i}), in float32 at least.

    It is also the gradient through batch means: the residuals of a class sum to 0. Only x and μ are kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, weights: Tensor, means: Tensor) -> Tensor:
        ctx.save_for_backward(x, labels, weights, means)
        lengths = [
            torch.linalg.vector_norm(_residual(x[rows], labels[rows], means), dim=1)
            for rows in row_chunks(len(x), 4 * x.shape[1], x.device)
        ]
        return torch.cat(lengths).square_() @ weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        x, labels, weights, means = ctx.saved_tensors
        scale = 2 * above[0].to(weights.dtype) * weights.unsqueeze(1)  # (n, 1)
        slope = torch.empty_like(x)
        for rows in row_chunks(len(x), 4 * x.shape[1], x.device):
            torch.mul(_residual(x[rows], labels[rows], means), scale[rows], out=slope[rows])
        return slope, None, None, None


def _residual(x: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """x − mean of its class (n, d), in memory of its own; never ‖x‖² − ‖μ‖², which loses all digits near collapse."""
    center = means.index_select(0, labels)
    return torch.sub(x, center, out=center)


class VariabilityCriterion(nn.Module):
    """Cross-entropy and the penalty on given features; counts steps, keeps moving and whole-set means in its state."""

    def __init__(
        self, how: PenaltySettings, *, named: bool = False, base: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    ) -> None:
        super().__init__()
        self.how, self.named, self.base = how, named, base
        learned = how.learn_alpha is not None
        self.log_ratio = nn.Parameter(torch.zeros(())) if learned else None  # ln(α/α₀): weight decay draws it to α₀
        self.means: dict[str, Tensor] = {}  # moving or of the whole set, (C, d)
        self.known: dict[str, Tensor] = {}  # which classes have one (C,)
        self.steps, self.terminal = 0, False
        self.acted_on: tuple[str, ...] = ()  # sites of the last penalty
        self._right: Tensor | None = None
        self._told = False  # of a first site without gradient
        self._seen = 0

    @property
    def active(self) -> bool:
        """Whether the penalty counts now."""
        begun = self.terminal if self.how.start == "terminal" else self.steps >= self.how.start
        return begun and self.how.alpha > 0

    @property
    def recordable(self) -> bool:
        """Whether every step does the same with tensors that stay where they are, so that one can be replayed for all."""
        return self.how.start == 0 and self.how.means == "batch" and not self.how.across_ranks

    @property
    def any_order(self) -> bool:
        """Whether the order of the features within a site does not matter, as long as one batch has one order."""
        return self.how.means == "batch" and not self.how.across_ranks

    @property
    def alpha(self) -> Tensor | float:
        """α, as it is now."""
        return self.how.alpha if self.log_ratio is None else self.how.alpha * self.log_ratio.exp()

    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        """logits (n, C), labels (n,), {site: (n, d)} → the loss."""
        loss = self.base(logits, labels)
        active = self.active
        if self.training:
            self.steps += 1
            if self.how.start == "terminal" and not self.terminal:
                right = (logits.detach().argmax(1) == labels).sum()
                self._right, self._seen = (
                    right if self._right is None else self._right + right,
                    self._seen + len(labels),
                )
        if not active:
            return loss
        penalty = self.penalty(features, labels, logits.shape[1])
        if self.log_ratio is not None:
            penalty = penalty - (self.how.learn_alpha or 0.0) * self.log_ratio
        return loss + penalty.to(loss.dtype)

    def end_epoch(self, accuracy: float | None = None) -> bool:
        """Whether the penalty counts from now on; for start="terminal" by this accuracy or by what training has decided
        rightly, in both cases that of all ranks together."""
        if accuracy is not None and not 0 <= accuracy <= 1:
            raise InputError(f"accuracy: expected a share from 0 to 1, got {accuracy!r}.")
        if self.how.start == "terminal" and not self.terminal:
            right, seen = self._right, self._seen
            if accuracy is not None:
                right, seen = torch.tensor(float(accuracy), dtype=torch.float64), 1
            if right is not None:
                parts = torch.stack([right.double(), torch.full_like(right, seen, dtype=torch.float64)])
                all_reduce([parts])  # of all ranks, which must agree on when to begin: the penalty may exchange means
                self.terminal = float(parts[0] / parts[1]) >= INTERPOLATION
        self._right, self._seen = None, 0
        return self.active

    def penalty(self, features: Mapping[str, Tensor], labels: Tensor, classes: int) -> Tensor:
        """α/(C·m) Σ_j Σ_c (1/n_c) Σ_{i∈c} ‖g_i − μ_c‖², over N as "paper"."""
        with torch.autocast(labels.device.type, enabled=False):
            chosen = self.pulled(features)
            self.acted_on = tuple(chosen)
            return self._penalty(chosen, labels, classes)

    def _penalty(self, chosen: Mapping[str, Tensor], labels: Tensor, classes: int) -> Tensor:
        with full_precision():
            counts = one_hot(labels, classes, torch.float32).sum(-1)
        n, ranks = counts.sum(), world_size() if self.how.across_ranks else 1
        parts = []
        if self._in_kernels(chosen, labels, classes):
            parts = _around_batch_means(chosen, labels, counts)
        else:
            with full_precision():
                centers = self._centers({name: x.detach() for name, x in chosen.items()}, labels, counts, classes)
                n = counts.sum()  # with `across_ranks` that of all
            for name, x in chosen.items():
                # DistributedDataParallel averages gradients over the ranks: times their number it is their sum.
                weights = (ranks / counts.to(centers[name].dtype)).index_select(0, labels)
                parts.append(_WeightedSquares.apply(x, labels, weights, centers[name]))  # type: ignore[no-untyped-call]
        home = parts[0]
        total = torch.stack([part.to(home) for part in parts]).sum() * (self.alpha / (classes * len(chosen)))
        return total / n if self.how.reduction == "paper" else total

    def _in_kernels(self, chosen: Mapping[str, Tensor], labels: Tensor, classes: int) -> bool:
        """Whether a GPU does all in kernels written for this: small batches, few classes, their own means."""
        own = self.how.means == "batch" and not self.how.across_ranks and not torch.compiler.is_compiling()
        if not own or any(x.device.type not in KERNELS for x in chosen.values()) or not len(labels):
            return False
        kernels = _kernels()
        return kernels is not None and len(labels) <= kernels.MOST_SAMPLES and classes <= kernels.MOST_CLASSES

    def pulled(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The features from the first site on that carry a gradient; a named site without one is an error."""
        names = list(features)
        if self.how.first is not None and self.how.first not in names:
            learn = [name for name in names if features[name].requires_grad] or names
            raise InputError(f"first: expected one of the sites {', '.join(learn)}, got {self.how.first!r}.")
        names = names[names.index(self.how.first) if self.how.first is not None else 0 :]
        fixed = [name for name in names if not features[name].requires_grad]
        if fixed and (self.named or len(fixed) == len(names)):
            where = f"site '{fixed[0]}' carries no gradient: no trained parameter lies before it"
            if len(fixed) == len(names) > 1:
                where = (
                    f"none of the sites {', '.join(names)} carries a gradient: no trained parameter lies before them"
                )
            raise InputError(f"{where}. Choose other sites, or unfreeze layers.")
        if self.how.first in fixed and not self._told:
            self._told = True  # once, not at every step
            left = next(name for name in names if name not in fixed)
            words = f"first='{self.how.first}' carries no gradient (the raw input, or what frozen layers give)"
            warnings.warn(f"layerlaw: {words}: features are pulled from '{left}' on.", stacklevel=2)
        return {name: features[name] for name in names if name not in fixed}

    def _centers(
        self, features: Mapping[str, Tensor], labels: Tensor, counts: Tensor, classes: int
    ) -> dict[str, Tensor]:
        """Class means of every site, in float32 at least; with `across_ranks` they and the counts become those of all."""
        kind, ranks = self.how.means, self.how.across_ranks
        if kind == "whole":
            if missing := [name for name in features if name not in self.means]:
                cure = "call measure_means(data) before the first step, and again as often as you like"
                raise InputError(f"means='whole': expected class means of site '{missing[0]}', got none: {cure}.")
            if ranks:
                all_reduce([counts])
            return {name: self._kept(name, (classes, x.shape[1])).to(_kept_as(x)) for name, x in features.items()}
        sums = {name: one_hot(labels, classes, at_least_float32(x[:0]).dtype) @ at_least_float32(x)
                for name, x in features.items()}  # fmt: skip
        if ranks:
            all_reduce([counts, *sums.values()])
        found = {}
        for name, total in sums.items():
            n = counts.to(total).unsqueeze(1)
            now = total / n.clamp_min(1)
            found[name] = now if kind == "batch" else self._moved(name, now, n > 0)
        return found

    def _kept(self, name: str, shape: Sequence[int]) -> Tensor:
        """The means of a site (C, d) as they are kept; an error where they are of another network."""
        means = self.means[name]
        if means.shape != tuple(shape):
            came = f"{tuple(means.shape)} in the state that was loaded"
            cure = "Load the state of a loss of the same network"
            raise InputError(f"site '{name}': expected class means of shape {tuple(shape)}, got {came}. {cure}.")
        return means

    def _moved(self, name: str, now: Tensor, present: Tensor) -> Tensor:
        """The moving average with this batch in it; of a class that is seen for the first time the batch's own mean."""
        before = self._kept(name, now.shape) if name in self.means else torch.zeros_like(now)
        before = before.to(now)
        known = self.known.get(name, torch.zeros_like(present)).to(present.device)
        momentum, one = now.new_full((), self.how.momentum), now.new_ones(())  # numbers would give float32
        sound = present & now.isfinite().all(1, keepdim=True)  # else one lost batch would be in the average for ever
        after = torch.where(sound, before + torch.where(known, momentum, one) * (now - before), before)
        if self.training:
            self.means[name], self.known[name] = after, known | sound
        return after

    def get_extra_state(self) -> dict[str, Any]:
        """Steps, means, and whether the terminal phase has begun: they go into the state_dict."""
        return {"steps": self.steps, "terminal": self.terminal, "means": self.means, "known": self.known}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse."""
        self.steps, self.terminal = int(state["steps"]), bool(state["terminal"])
        self.means, self.known = dict(state["means"]), dict(state["known"])


def _around_batch_means(chosen: Mapping[str, Tensor], labels: Tensor, counts: Tensor) -> list[Tensor]:
    """Σ_i ‖x_i − mean of its class‖² / n_c, added up over the sites of one device and dtype."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for x in chosen.values():
        alike.setdefault((x.device, at_least_float32(x[:0]).dtype), []).append(x)
    found = []
    for (device, dtype), features in alike.items():
        with full_precision():
            here = labels.to(device).contiguous()
            weights = (1 / counts.to(device, dtype)).index_select(0, here)  # 1/0: of a class that is not there
        found.append(_kernels().around_batch_means(features, here, weights, len(counts)))
    return found


@cache
def _kernels() -> Any:
    """The kernels; `None` where Triton is not installed."""
    try:
        return importlib.import_module("layerlaw.lab.variability_kernels")
    except ImportError:
        return None


def _kept_as(x: Tensor) -> Tensor:
    """Nothing, in the dtype in which statistics of these features are kept, and on their device."""
    return at_least_float32(x[:0])


@dataclass(frozen=True)
class VariabilityCrossEntropy(Loss, PenaltySettings):
    """SVSL in a recipe: cross-entropy and the penalty at the sites `where`; a rule such as "auto" takes the logits too."""

    where: str | tuple[str, ...] = "auto"

    kind: ClassVar[str] = "svsl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.means == "whole":
            raise InputError(
                "means: expected 'batch' or 'moving' in a recipe, got 'whole', which needs a loop of its own."
            )

    @property
    def sites(self) -> SiteChoice | None:
        """None where there is no penalty: plain training."""
        return with_logits(self.where) if self.alpha else None

    def build(self) -> nn.Module:
        """With the state of moving means and of the terminal phase."""
        return VariabilityCriterion(self, named=self.where not in RULES)

    def __str__(self) -> str:
        return f"SVSL (α {self.alpha:g}, {self.reduction})"


def with_logits(choice: SiteChoice) -> SiteChoice:
    """A rule means the logits too; names mean themselves."""
    if isinstance(choice, str) and choice in RULES:
        return [choice, "logits"]
    return list(choice) if isinstance(choice, tuple) else choice


def check_known(how: Mapping[str, Any], loss: type) -> None:
    """Raise where a keyword of a loss is none of the penalty's settings."""
    settings = [setting.name for setting in fields(PenaltySettings)]
    own = inspect.signature(loss).parameters.values()
    known = list(dict.fromkeys([*(one.name for one in own if one.kind is one.KEYWORD_ONLY), *settings]))
    for name in how:
        if name not in settings:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else f" It has {', '.join(known)}."
            raise TypeError(f"{loss.__name__}() got an unexpected keyword argument '{name}'.{hint}")


def check_batch(logits: Any, labels: Any) -> None:
    """Raise unless these are class scores (n, C) and class numbers (n,)."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"logits: expected class scores of shape (n, C) with C ≥ 2, got {came}.")
    if not isinstance(labels, Tensor):
        raise LabelError(
            f"labels: expected a tensor of class numbers (n,), got {type(labels).__name__}: SVSL needs them."
        )
    if labels.dim() != 1 or labels.is_floating_point() or len(labels) != len(logits):
        came = f"{labels.dtype} of shape {tuple(labels.shape)} for {len(logits)} samples"
        raise LabelError(f"labels: expected class numbers of shape (n,), got {came}.")
    if labels.device.type == "cpu":  # elsewhere a look at them would wait for the device
        checked_labels(labels, logits.shape[1])
