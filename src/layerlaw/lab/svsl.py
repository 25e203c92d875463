"""SVSL in a loop of your own: cross-entropy and the pull to class means, in three lines."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture.batches import Batch, Batches
from layerlaw.capture.choice import RULES, check_sites
from layerlaw.capture.hooks import Capture
from layerlaw.capture.modules import WeakHook, entering, main_input, modules_of, tensors_in
from layerlaw.capture.network import COMPILERS, Randomness, device_of, network_of, probing_state
from layerlaw.capture.plan import Plan, Reduce, Site
from layerlaw.capture.site_rules import SiteChoice
from layerlaw.errors import CaptureError, InputError, LabelError
from layerlaw.lab.losses import leaves_behind, node_number, not_left_out, plan_sites, why_lost
from layerlaw.lab.variability import PenaltySettings, VariabilityCriterion, check_batch, check_known, with_logits
from layerlaw.stats import ClassSums, checked_labels
from layerlaw.stats.passes import check_finite
from layerlaw.stats.ranks import all_reduce
from layerlaw.threads import on_cpu

_Hook = WeakHook  # its name in networks that were pickled by earlier versions


class SVSL(nn.Module):
    """Cross-entropy and the pull to class means, from hooks in the one forward that runs anyway.

        loss = ll.SVSL(model, alpha=1e-5, reduction="authors")
        for x, y in loader:
            loss(model(x), y).backward()

    `sites` as for `probe`: "auto" and other rules with the logits, as far as they carry a gradient; names of modules mean
    their outputs. The other settings are those of `PenaltySettings`. The first forward makes a dry run, unless an `example`
    (inputs) was given. `base` is the loss beside the penalty; without gradients (validation) it is all. With `learn_alpha`
    hand `loss.parameters()` to the optimizer too; means and steps are in `loss.state_dict()`. Make it before the first call
    of a compiled model, which would not notice later hooks. A NaN or infinite loss is told once, with the first such site,
    on a GPU in `torch.autograd.set_detect_anomaly(True)` alone: a look at every loss would wait for the device.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float,
        sites: SiteChoice = "auto",
        reduce: Reduce = "flatten",
        example: Tensor | None = None,
        base: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        **how: Any,
    ) -> None:
        super().__init__()
        if isinstance(model, nn.DataParallel):
            raise InputError("model: expected one network, got DataParallel, which copies it at each step. Use DDP.")
        self._network = weakref.ref(network := network_of(model))  # not registered: its parameters are not the loss's
        if not isinstance(sites, str) and isinstance(sites, (list, tuple)) and not sites:
            raise InputError("sites: expected a rule or names of modules, got an empty list.")
        check_sites(network, sites)
        check_known(how, SVSL)
        self.criterion = VariabilityCriterion(
            PenaltySettings(alpha, **how), named=not (isinstance(sites, str) and sites in RULES), base=base
        )
        self._choice, self._reduce = with_logits(sites), reduce
        self._capture: Capture | None = None
        self._found: dict[str, Tensor] = {}
        self._nodes: list[Any] = []  # of the graph of autograd: the sites and the end of the last forward
        self._span: tuple[int | None, int | None] = None, None  # numbers of nodes that were made in it lie between
        self._told = False  # that logits seem to be of another network
        self._told_lost = False  # that a loss was NaN or infinite
        self._calls: dict[str, int] = {}
        self._names: tuple[str, ...] = ()  # of modules that are listened to
        self._mask: Tensor | None = None
        self._listening, self._running, self._forwards = self.criterion.active, False, 0
        self.register_load_state_dict_post_hook(_listen_again)  # type: ignore[no-untyped-call]
        self._handles = [
            network.register_forward_pre_hook(WeakHook(self, "_begin"), with_kwargs=True),
            network.register_forward_hook(WeakHook(self, "_end")),
        ]
        if example is not None:
            self._prepare(network, (example,), {})

    @property
    def sites(self) -> list[str]:
        """Where it looks, along depth; empty before the first forward or example.

        By a rule, the raw input may be among them, as what enters the first layer: like all that
        carries no gradient (what frozen layers give) it is not pulled; named as `first`, a warning says so.
        """
        return [] if self._capture is None else [site.name for site in self._plan.along_depth]

    @property
    def _listed(self) -> list[str]:
        """The sites without the one that is the raw input, which nothing can pull."""
        return [site.name for site in self._plan.along_depth if site.type != "input"]

    @property
    def alpha(self) -> float:
        """α, as it is now."""
        alpha = self.criterion.alpha
        return alpha.item() if isinstance(alpha, Tensor) else alpha

    @property
    def _pulled(self) -> list[str]:
        """The sites that the penalty acts on: those of the last loss, before it by what is known of their gradients."""
        if self.criterion.acted_on:
            return list(self.criterion.acted_on)
        start = self.sites.index(first) if (first := self.criterion.how.first) is not None else 0
        fixed = {name for name, tensor in self._found.items() if not tensor.requires_grad}
        return [name for name in self.sites[start:] if name in self._listed and name not in fixed]

    def __repr__(self) -> str:
        where = self._pulled if self._capture is not None else self._choice  # before the first forward as chosen
        return f"SVSL(alpha={self.alpha:g}, reduction={self.criterion.how.reduction!r}, sites={where!r})"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of the forward that gave these logits (n, C); labels (n,) are class numbers.

        Logits of an earlier forward are an error, others that have no gradient to the last one a warning.
        """
        check_batch(logits, labels)
        if not torch.is_grad_enabled():
            return self.criterion.base(logits, labels)
        found, forwards, nodes = self._found, self._forwards, self._nodes
        self.reset()
        features = self._features(found, forwards, logits, len(labels)) if self.criterion.active else {}
        self._check_origin(logits, nodes, self._span)
        result: Tensor = self.criterion(logits, labels, features)
        self._listening = self.criterion.active
        self._tell_lost(result, {**features, "logits": logits})
        return result

    def _features(self, found: dict[str, Tensor], forwards: int, logits: Tensor, samples: int) -> dict[str, Tensor]:
        """What the last forward left, as rows (n, d) along depth, the logits among them."""
        if not self._handles:
            why = "by loss.remove(), or because its first forward failed"
            raise InputError(
                f"expected hooks on the model, got a loss whose hooks are removed ({why}). Make a new one."
            )
        compiled = COMPILERS[0] in sys.modules
        unseen = compiled and forwards == 1 and bool(self._names) and not any(self._calls.values())
        if forwards != 1 or unseen or self._capture is None:
            cure = "call the loss after every forward, or loss.reset() after one that needs no loss"
            if forwards > 1:
                cure = f"run validation under torch.no_grad(); in training {cure}"
            came = f"{forwards} forwards" if forwards > 1 else "no forward since the last loss"
            came = "one of which no module was seen" if unseen else came
            if compiled and forwards < 2:
                late = "A model that torch.compile had compiled before the loss was made does not notice its hooks"
                cure += f". {late}: make the loss first, or call torch.compiler.reset() after it"
            raise InputError(f"expected one forward of the model for one loss, got {came}: {cure}.")
        self._capture.counts = Counter(self._calls)
        self._capture.check_calls("this forward")
        self._capture.samples, self._capture.mask = samples, self._mask
        with torch.autocast(logits.device.type, enabled=False):
            return {
                site.name: logits if site.at == "logits" else self._capture.features(site, found[site.name])
                for site in self._plan.along_depth
            }

    def _check_origin(self, logits: Tensor, nodes: Sequence[Any], span: tuple[int | None, int | None]) -> None:
        """Raise where the logits are of an earlier forward of the model; warn, once, where they seem to be another's.

        Nodes of autograd's graph are numbered as they are made: where one behind the logits was made in the last forward,
        they are of it. Else, if all that the last forward trains is behind them, the model has run twice; if not, they are
        another network's, or those of a head that reads detached features. A leaf that is no parameter may be a detached
        output: nothing is said.
        """
        end, (begun, ended) = logits.grad_fn, span
        if end is None or begun is None or ended is None or any(end is node for node in reversed(nodes)):
            return
        known, inside = {node for node in nodes if node is not None}, range(begun, ended)
        leaves = leaves_behind([end], lambda node: node in known or node._sequence_nr() in inside) if known else None
        if not leaves or not all(isinstance(leaf, nn.Parameter) for leaf in leaves):
            return
        if (own := leaves_behind(known)) and leaves >= own:
            cure = "Call the loss with what the last forward gave"
            raise InputError(
                f"logits: expected those of the model's last forward, got those of an earlier one. {cure}."
            )
        if self._told:
            return
        self._told = True
        what = "no gradient leads from the logits to the model's last forward: are they those of another network?"
        warnings.warn(f"layerlaw: {what} The penalty is on features of that forward.", stacklevel=5)

    def _tell_lost(self, result: Tensor, features: Mapping[str, Tensor]) -> None:
        """Warn, once, where the loss is NaN or infinite, with the first site that is so.

        Not an error: mixed precision meets such steps now and then, and its scaler leaves them out. To look at a tensor of a
        GPU is to wait for the device, at every step: there it is told in torch's anomaly mode alone, which waits too.
        """
        seen = result.device.type == "cpu" or torch.is_anomaly_enabled()
        if self._told_lost or not seen or torch.compiler.is_compiling() or bool(result.isfinite().all()):
            return
        self._told_lost = True
        warnings.warn(f"layerlaw: {why_lost(result, features)}. This is told once.", stacklevel=5)

    def reset(self) -> None:
        """Forget the last forward."""
        self._found, self._nodes, self._forwards = {}, [], 0

    def end_epoch(self, accuracy: float | None = None) -> bool:
        """For start="terminal", after every epoch: whether the penalty counts from now on.

        By the train accuracy given (from 0 to 1), else by the share that the training steps since the last call have decided
        rightly. In a process group every rank calls it, and all get the same answer: by the mean over the ranks.
        """
        begun = self.criterion.end_epoch(accuracy)
        self._listening = self.criterion.active
        return begun

    def remove(self) -> None:
        """Take the hooks off the model; the loss cannot be used afterwards."""
        while self._handles:
            self._handles.pop().remove()

    @on_cpu
    def measure_means(self, data: Any, *, batch_size: int | None = None) -> None:
        """For means="whole": class means of all sites over data as for `probe`, in eval mode."""
        network = self._net()
        batches = Batches(data, batch_size=batch_size, batchnorm="running", where="data", network=network)
        sums: dict[str, ClassSums] = {}
        of_batch: dict[Any, Tensor] = {}
        labels = torch.zeros(0)

        def consume(site: Site, features: Tensor) -> None:
            part = ClassSums.of(features, labels, classes)
            of_batch[site.name] = part.sums
            sums[site.name].add(part) if site.name in sums else sums.update({site.name: part})

        with Randomness(data), probing_state(network, "running"):
            first = next(iter(batches)).to(home := device_of(network))
            if self._capture is None:
                self._prepare(network, first.args, first.kwargs)
            classes = self._plan.classes or 0
            plan, sites = self._plan, self._plan.along_depth
            with Capture(network, plan, sites, reduce=self._reduce, consume=consume) as capture:
                for i, batch in enumerate(batches):
                    here = batch.to(home)
                    labels, _ = checked_labels(here.labels, classes, where=f"labels of batch {i}")
                    capture.run(here, where=f"batch {i}")
                    check_finite(of_batch, lambda _, i=i: f"batch {i}")  # type: ignore[misc]
        if self.criterion.how.across_ranks:
            all_reduce([tensor for one in sums.values() for tensor in one.tensors])
        counts = next(iter(sums.values())).counts
        if empty := (counts == 0).nonzero().flatten().tolist():
            raise LabelError(f"data: expected samples of all {classes} classes, got none of class {empty[0]}.")
        found = {name: one.sums / one.counts.unsqueeze(1) for name, one in sums.items()}
        self.criterion.means = {name: means if sums[name].dtype == torch.float64 else means.float()
                                for name, means in found.items()}  # fmt: skip

    def _net(self) -> nn.Module:
        network = self._network()
        if network is None:
            raise InputError("model: it is gone; the loss does not keep it alive.")
        return network

    @on_cpu
    def _prepare(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The dry run, and hooks at the sites; where it fails, no hook stays: a traceback may keep the loss alive."""
        try:
            self._hook_sites(network, args, kwargs)
        except Exception:
            self.remove()
            raise

    def _hook_sites(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = main_input(args, kwargs)
        if first is None:
            raise CaptureError(
                "expected the model to be called with a tensor whose first axis are the samples, got none."
            )
        if len(first) < 2:
            cure = "Pass a few inputs as example=… where batches are that small"
            raise CaptureError(f"expected at least 2 samples in the first forward (dry run), got {len(first)}. {cure}.")
        batch = Batch(args, kwargs, torch.zeros(len(first), dtype=torch.long))
        with _unheard(network):
            self._plan: Plan = plan_sites(network, batch, self._choice, self._reduce)
        sites = [site for site in self._plan.along_depth if site.at != "logits"]  # the loss is given those
        names = [site.name for site in self._plan.along_depth]
        if (start := self.criterion.how.first) is not None and start not in names:
            raise InputError(f"first: expected one of the sites {', '.join(self._listed)}, got {start!r}.")
        self._check_means()
        how: dict[str, Any] = {"reduce": self._reduce, "any_order": self.criterion.any_order}
        self._capture = Capture(network, self._plan, sites, consume=_nothing, **how)
        self._watched = {(site.module, site.at, site.call): site for site in sites}
        modules = modules_of(network)
        self._names = tuple(self._capture.expected)
        for name in self._names:
            before, after = WeakHook(self, "_enter", name), WeakHook(self, "_leave", name)
            self._handles.append(modules[name].register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(modules[name].register_forward_hook(after))

    def _check_means(self) -> None:
        """Raise where a loaded state has class means of sites that this network does not have."""
        names = [site.name for site in self._plan.along_depth] if hasattr(self, "_plan") else None
        if names is not None and (others := [name for name in self.criterion.means if name not in names]):
            came = f"those of '{others[0]}' in the state that was loaded"
            cure = "Load the state of a loss of the same network and sites"
            raise InputError(f"means: expected class means of the sites {', '.join(names)}, got {came}. {cure}.")

    # What follows runs inside the model's forward, and torch.compile traces it: plain and short.

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The model is called."""
        self._running = False
        if not torch.is_grad_enabled():
            return
        fresh = self._capture is None
        if fresh and (self._listening or self.criterion.how.first is not None):  # a wrong name is told at once
            prepare = self._prepare
            if COMPILERS[0] in sys.modules:  # a dry run cannot be traced; loading the compiler takes a second
                prepare = torch.compiler.disable(prepare)  # type: ignore[no-untyped-call]
            prepare(module, args, kwargs)
        if not self._listening:
            return
        if self._reduce != "flatten":
            self._mask = Batch(args, kwargs, torch.zeros(0)).mask
        self._found, self._nodes, self._calls, self._running = {}, [], dict.fromkeys(self._names, 0), True
        self._span = None if torch.compiler.is_compiling() else node_number(), None
        if fresh and "" in self._calls:  # hooks that were added during the call come too late for it
            self._enter("", module, args, kwargs)

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._running:
            site = self._watched.get((name, "input", self._calls[name]))
            self._calls[name] += 1
            if site is not None:
                self._keep(site, entering(args, kwargs))

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if self._running:
            site = self._watched.get((name, "output", self._calls[name] - 1))
            if site is not None:
                self._keep(site, output if isinstance(output, Tensor) else list(tensors_in(output))[site.pick])
            if not name:
                self._finish(module)

    def _keep(self, site: Site, tensor: Tensor | None) -> None:
        wrong = "" if torch.is_grad_enabled() else not_left_out(site.name, self.criterion.named)
        if tensor is None:
            wrong = f"site '{site.name}': expected a floating-point tensor as in the dry run, got none."
        if wrong or tensor is None:
            self.remove()
            raise CaptureError(wrong)
        self._found[site.name] = tensor.clone()  # an in-place layer behind it may change the tensor itself
        if not torch.compiler.is_compiling():  # what is traced has no graph yet
            self._nodes.append(tensor.grad_fn)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        """The model has run; where it is a site itself, the hook that looks at it comes after this one."""
        if self._running and not torch.compiler.is_compiling():
            self._nodes += [tensor.grad_fn for tensor in tensors_in(output)]
            self._span = self._span[0], node_number()
        if self._running and "" not in self._calls:
            self._finish(module)

    def _finish(self, network: nn.Module) -> None:
        """Stop listening: what is computed again during backward (checkpointing) is not looked at."""
        self._running = False
        # In eval mode a forward may be for its own sake: the last one counts.
        self._forwards = self._forwards + 1 if network.training else 1


@contextmanager
def _unheard(network: nn.Module) -> Iterator[None]:
    """No loss of the network listens to a dry run: another one may be in the middle of the forward that makes it."""
    hooks = [*network._forward_pre_hooks.values(), *network._forward_hooks.values()]
    losses = {id(loss): loss for hook in hooks if isinstance(hook, WeakHook) and (loss := hook.owner) is not None}
    before = [(loss, loss._listening, loss._running) for loss in losses.values()]
    for loss, _, _ in before:
        loss._listening = loss._running = False
    try:
        yield
    finally:
        for loss, listening, running in before:
            loss._listening, loss._running = listening, running


def _listen_again(loss: SVSL, keys: Any) -> None:
    """A loaded state may be before or after the start; its means may be those of another network."""
    loss._listening = loss.criterion.active
    loss._check_means()


def _nothing(site: Site, features: Tensor) -> None:
    """For a capture that only turns tensors into rows."""
