"""A network that is measured again and again: what its first dry run found is used as long as its structure is the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from layerlaw.capture.batches import Batch
from layerlaw.capture.network import probing_state
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.scores import told_by
from layerlaw.capture.site_rules import find_sites
from layerlaw.errors import CaptureError
from layerlaw.later import Together, later
from layerlaw.measures.unread import SiteColumns, Unread, columns_of
from layerlaw.probing.dealt import check_all_features
from layerlaw.probing.plan_keys import PlanKey
from layerlaw.probing.state import taken_over
from layerlaw.provenance import model_provenance, provenance, worked_out
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size

if TYPE_CHECKING:
    from layerlaw.probing.state import Split

P = ParamSpec("P")
T = TypeVar("T")
Curve = Callable[[], list[float | None]] | None
MOST = 4  # plans of one network: other sites, other inputs


class KeptPlans:
    """The plans of one network, and of what each was made: modules, their attributes and code, shapes of weights and inputs.

    Kept are plans that no number in a batch could have made otherwise: those of a classifier that ends in a layer and
    reads no tokens, found by a forward that looks at no number to decide what to do. All others are found anew.
    """

    def __init__(self) -> None:
        self._plans: dict[Hashable, tuple[Plan, list[ref[Any]]]] = {}
        self.used = False
        """Whether the last measurement went by a plan that was kept."""
        self.columns: Together[Unread, list[SiteColumns]] = Together(_numbers)
        """Numbers of measurements that nobody has looked at: those of several are computed at once."""
        self.curves: Together[Unread, list[SiteColumns]] = Together(_numbers)
        """D alone of the same: whether a training should stop is asked more often than anything else."""
        self.curve: Curve = None
        """D at every site of the last measurement."""

    def find(self, network: nn.Module, batch: Batch, **how: Any) -> Plan:
        """The plan: the one that was kept, or found by a dry run."""
        key, found = None, None
        try:
            if not _by_function(how["choice"]):
                key = PlanKey(network, batch, how)
                found = self._plans.get(key.value)
        except Exception:  # NoKeyError, and what attributes of a user's own classes raise
            key = None
        self.used = found is not None and all(one() is not None for one in found[1])
        if found is not None and self.used:
            return found[0]
        plan = _found(network, batch, how)
        if key is not None and _is_settled(plan):
            self._keep(key, plan)
        return plan

    def _keep(self, key: PlanKey, plan: Plan) -> None:
        try:
            references = key.references()
        except TypeError:  # something that may be gone when another thing has its address
            return
        self._plans.pop(key.value, None)
        if len(self._plans) >= MOST:
            del self._plans[next(iter(self._plans))]
        self._plans[key.value] = plan, references

    def forget(self) -> None:
        """Find the next plan anew."""
        self._plans.clear()
        self.used = False


_in_use: ContextVar[KeptPlans | None] = ContextVar("layerlaw kept plans", default=None)
_by_network: Any = WeakIdKeyDictionary()
_lock = threading.Lock()


@contextmanager
def keeping(plans: KeptPlans) -> Iterator[None]:
    """Probes in here use these plans."""
    token = _in_use.set(plans)
    try:
        yield
    finally:
        _in_use.reset(token)


def columns_later(
    split: Split, sites: Sequence[Site], weights: Mapping[Site, Tensor]
) -> dict[Site, SiteColumns] | None:
    """As `Classes.columns`, of one of the measurements by a monitor: computed when somebody looks; `None`: it is alone."""
    kept = _in_use.get()
    if kept is None or split.finished:
        return None
    known = [(split.around[site], split.scatters[site], split.near.get(site)) for site in sites]
    unread = Unread.of(known, {sites.index(site): rows for site, rows in weights.items()})
    whole, curve = kept.columns.later(unread, unread.held), kept.curves.later(unread.only("separation"))
    kept.curve = lambda: [values.get("separation") for values, _ in curve.value()]

    def of(place: int) -> SiteColumns:
        return later(lambda: whole.value()[place][0]), later(lambda: whole.value()[place][1])

    return {site: of(place) for place, site in enumerate(sites)}


def about_model(network: nn.Module) -> dict[str, Any]:
    """What is said of the network; of one that a monitor measures, with a checksum that waits for a look."""
    return model_provenance(network, waits=_in_use.get() is not None)


def origin_of(
    model: dict[str, Any], device: torch.device | None, since: float | None, **more: str | None
) -> dict[str, Any]:
    """The provenance of a measurement of a `model` that began at `since`; in that by a monitor it waits for a look."""
    waits = _in_use.get() is not None
    about = provenance(device, processes=world_size(), **model, **more)
    if since is not None:
        about["seconds"] = round(time.perf_counter() - since, 3)
    return later(lambda: worked_out(about)) if waits else about


def _numbers(measurements: list[Unread]) -> list[list[SiteColumns]]:
    with full_precision():
        return columns_of(measurements)


def plan_of(network: nn.Module, batch: Batch, **how: Any) -> Plan:
    """Where to measure: a plan of this network that was kept, else what a dry run finds."""
    kept = _in_use.get()
    # One rank with a dry run and another one without would wait for each other; a shard is not measured a second time.
    alone = not (dist.is_available() and dist.is_initialized()) and taken_over.get() is None
    if kept is None and not alone:
        return _found(network, batch, how)
    if kept is None:
        with _lock:
            kept = _by_network.setdefault(network, KeptPlans())
    plan = kept.find(network, batch, **how)
    if kept.used and (trial := _trial.get()) is not None:
        trial.begin(plan, kept)
    return plan


class PlanTrial:
    """A kept plan until the first batch has gone through: whether the network still does what it did in the dry run."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._kept: KeptPlans | None = None

    def begin(self, plan: Plan, kept: KeptPlans) -> None:
        """Go by a kept plan."""
        self._plan, self._kept = plan, kept

    def passed(self, output: Any, samples: int) -> None:
        """A batch has gone through: the plan is as good as a new one, unless the model's output has no more such scores."""
        if self._plan is None:
            return
        classes, _ = told_by(self._plan.scores.of(output), samples, from_layer=True)
        if classes != self._plan.classes:
            raise CaptureError(f"expected scores of {self._plan.classes} classes as in the dry run, got {classes}.")
        self._plan = self._kept = None

    def failed(self) -> bool:
        """After an error: whether the plan may be why; it is forgotten then."""
        if self._kept is None:
            return False
        self._kept.forget()
        return True


_trial: ContextVar[PlanTrial | None] = ContextVar("layerlaw trial of a kept plan", default=None)


def went_through(output: Any, samples: int) -> Any:
    """Say that a batch of so many samples went through the network by the plan, and gave this output."""
    if (trial := _trial.get()) is not None:
        trial.passed(output, samples)
    return output


def again_without_plan(measure: Callable[P, T]) -> Callable[P, T]:
    """A measurement that is made again, with a dry run, where the first batch shows that a kept plan no longer holds."""

    @wraps(measure)
    def measured(*args: P.args, **kwargs: P.kwargs) -> T:
        trial = PlanTrial()
        token = _trial.set(trial)
        try:
            return measure(*args, **kwargs)
        except Exception:
            if not trial.failed():
                raise
        finally:
            _trial.reset(token)
        return measure(*args, **kwargs)

    return measured


def _found(network: nn.Module, batch: Batch, how: dict[str, Any]) -> Plan:
    with probing_state(network, "running"):
        plan = find_sites(network, batch, **how)
    check_all_features(network, plan, batch, how["reduce"])
    return plan


def _is_settled(plan: Plan) -> bool:
    """Whether numbers could not have made it otherwise, and it keeps nothing of a user's alive."""
    own = plan.scores.function
    plain = own is None or (isinstance(own, FunctionType) and not own.__closure__)
    by_structure = plan.classifier is not None and plan.threshold == 0.0 and plan.tokens is None
    return by_structure and plain and not plan.by_numbers


def _by_function(choice: Any) -> bool:
    """Whether sites are chosen by a user's own function, which may look at anything."""
    chosen = choice if isinstance(choice, (list, tuple)) else [choice]
    return any(not isinstance(item, (str, type)) for item in chosen)
