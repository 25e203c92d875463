"""A network that stops early: it runs up to a site and decides there by stored class means, or by a linear read-out."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerlaw.advice.readouts import ExitKind, Readout, check_about, checked_readout
from layerlaw.capture.batches import Batch
from layerlaw.capture.modules import entering, main_input, modules_of, tensors_in
from layerlaw.capture.network import network_of
from layerlaw.capture.plan import Reduce, Site, reduced, samples_first
from layerlaw.capture.scores import Scores
from layerlaw.errors import CaptureError, DataError, InputError, LayerlawError, needed
from layerlaw.files import as_path, check_format, json_safe, replace_whole
from layerlaw.packed import check_safetensors, digest_of
from layerlaw.plain import Misfit, misfit
from layerlaw.progress import Counter, Progress, silent
from layerlaw.provenance import parameter_digest
from layerlaw.threads import users_device

if TYPE_CHECKING:
    from layerlaw.advice.exit_report import ExitReport

FORMAT, VERSION = "layerlaw early exit", 1
SECONDS = 8.0  # that one comparison of times may take, beyond its first rounds
ROUNDS = (5, 30)  # of one comparison: at least and at most
WILD = 3.0  # times: so far apart the middle half of rounds must not lie for a speed-up to be trusted
SHORTEST = 0.02  # seconds that the whole network is timed for at once: other programs interrupt shorter ones unevenly


@dataclass(frozen=True)
class Timing:
    """Time as a share of the whole network's: the median of paired rounds, and the ends of their middle half."""

    share: float
    low: float
    high: float

    @property
    def wild(self) -> bool:
        """Whether the rounds disagree too much: other programs were running."""
        return self.high > WILD * self.low


class _Stop(BaseException):
    """Everything that was wanted has been seen; no `except Exception` of a model's own holds it up."""


class EarlyExit(nn.Module):
    """The network up to its exits: scores (n, K) as from the whole network, of which the largest decides.

    It is for inference: it puts the network into eval mode, and raises where somebody has put that into train mode since.

    With one exit and no threshold all samples leave there. With thresholds a sample leaves at the first exit where its two
    largest scores differ by at least so much, the others go on without it; scores of different exits have different scales.
    `exits` says of the last call at which exit each sample left (their number: it ran to the end). Without any exit it is
    the network itself. `report` is what `early_exit` has measured, where it comes from there.
    """

    def __init__(
        self,
        network: nn.Module,
        sites: Sequence[Site],
        readouts: Sequence[Readout],
        *,
        reduce: Reduce = "flatten",
        thresholds: Sequence[float] | None = None,
        scores: Scores | None = None,
        threshold: float = 0.0,
        kind: ExitKind = "centers",
    ) -> None:
        super().__init__()
        self.network, self.readouts = network, nn.ModuleList(readouts)
        self.sites, self.reduce, self.kind = tuple(sites), reduce, kind
        self.thresholds = None if thresholds is None else tuple(map(float, thresholds))
        self._scores, self._threshold = scores, threshold  # where scores are; above which a single one means class 1
        self.exits: Tensor | None = None
        self.report: ExitReport | None = None
        self._alternative: tuple[EarlyExit, ...] = ()  # no module of its own: it holds the same network
        modules = modules_of(network)
        self._modules_at = {site.module: modules[site.module] for site in sites}
        self.eval()

    @property
    def site(self) -> str | None:
        """The name of the site where all samples leave; `None` where they do not, or where there is no exit."""
        return self.sites[0].name if self.thresholds is None and self.sites else None

    @property
    def keeps(self) -> bool:
        """Whether there is anything to save: an exit, or exits of single samples."""
        return bool(self.sites or self._alternative)

    def per_sample(self) -> EarlyExit:
        """The form in which every sample leaves where its margin allows; a form of that kind is its own."""
        if self.thresholds is not None:
            return self
        if not self._alternative:
            again = "the file keeps none: `early_exit` found none that save time, or an older version wrote the file"
            why = f"{again}. Run `early_exit` again and read its report"
            if self.report is not None:
                why = f"{self.report.least_time(self.kind)}. Try another `by`, or a larger tolerance"
            raise InputError(f"per_sample: expected exits of single samples that save time, got none: {why}.")
        return self._alternative[0]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Scores (n, K) of the samples."""
        return self.walk(args, kwargs)

    def walk(self, args: Any, kwargs: Any, limits: Sequence[float] | None = None) -> Tensor:
        """The same under other thresholds."""
        if self.training or self.network.training:
            raise InputError(
                "early exit: expected eval mode, in which its exits were found, got train mode. Call .eval()."
            )
        if not self.sites:
            return self._final(self.network(*args, **kwargs))
        given = main_input(args, kwargs)
        if given is not None and given.numel() == 0:  # no samples: many layers could not be run at all
            bias = self.readouts[0].get_buffer("bias")
            self.exits = torch.zeros(0, dtype=torch.long, device=given.device)
            return bias.new_zeros(0, len(bias), device=given.device)
        walk = _Walk(self, self.thresholds if limits is None else limits)
        with walk.hooks():
            try:
                rest = self._final(self.network(*args, **kwargs))
            except _Stop:
                rest = None
        return walk.gathered(rest)

    def _final(self, output: Any) -> Tensor:
        scores = output if self._scores is None else self._scores.of(output)
        if not isinstance(scores, Tensor):
            raise CaptureError("expected class scores (n, K) from the network, got none.")
        if scores.dim() == 1 or scores.shape[1] == 1:
            score = scores.reshape(-1)
            return torch.stack([torch.full_like(score, self._threshold), score], 1)
        return scores

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Class means or read-outs, sites and thresholds as one safetensors file, with those of `per_sample`.

        The network's weights are not in it.
        """
        writer = needed("safetensors.torch", "weights", "Writing .safetensors")
        if self._scores is not None and self._scores.function is not None:
            raise InputError(
                "save: expected scores found by an index or a key, got a function, which no file can hold."
            )
        single = self._alternative[0] if self._alternative else None
        readouts = [*self.readouts, *(single.readouts if single else ())]  # its own first, then those of single samples
        # copies: both forms may hold the same read-out, and no file holds one tensor under two names
        tensors = {f"{i}.{name}": value.clone().contiguous() for i, readout in enumerate(readouts)
                   for name, value in readout.named_buffers()}  # fmt: skip
        about = {
            "format": FORMAT, "version": VERSION, "kind": self.kind, "reduce": self.reduce, "threshold": self._threshold,
            "sites": [asdict(site) for site in self.sites], "thresholds": json_safe(self.thresholds),
            "network": type(self.network).__name__, "digest": parameter_digest(self.network),
            "scores": None if self._scores is None else list(self._scores.place or ()),
        }  # fmt: skip
        if single is not None:
            sites = [asdict(site) for site in single.sites]
            about["per_sample"] = {"sites": sites, "thresholds": json_safe(single.thresholds)}
        about["sha256"] = _sealed(about, tensors)
        said = {"layerlaw": json.dumps(about)}
        wanted = sum(tensor.nbytes for tensor in tensors.values())
        return replace_whole(path, lambda part: writer.save_file(tensors, part, said), wanted=wanted)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> EarlyExit:
        """The inverse of `save`, for the network that it was made for."""
        if isinstance(path, nn.Module):
            raise InputError(f"load: expected EarlyExit.load(path, model), got the model first: {type(path).__name__}.")
        safetensors = needed("safetensors", "weights", "Reading .safetensors")
        try:
            check_safetensors(as_path(path))
            with safetensors.safe_open(str(path), "pt") as file:
                metadata = (file.metadata() or {}).get("layerlaw", "null")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dictionary
        except FileNotFoundError:
            raise DataError(f"{path}: expected an early exit, found nothing there.") from None
        except safetensors.SafetensorError as error:
            raise DataError(f"{path}: expected a safetensors file, got another or a damaged one ({error}).") from None
        network = network_of(model)
        try:
            about = json.loads(metadata)
            check_format(about, "early exit", VERSION, where=str(path), writer="EarlyExit.save")
            if about.pop("sha256", None) not in (None, _sealed(about, tensors)):  # older files have none
                raise DataError(f"{path}: expected the exits that were written, got others: their checksum differs.")
            return cls._made(path, about, tensors, network)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, RecursionError) as error:
            if isinstance(error, LayerlawError):
                raise
            wrong = f"a part is missing or wrong ({type(error).__name__}: {error})"
            raise DataError(f"{path}: expected an early exit, but {wrong}. Save it again.") from None

    @classmethod
    def _made(
        cls, path: str | os.PathLike[str], about: dict[str, Any], tensors: dict[str, Tensor], network: nn.Module
    ) -> EarlyExit:
        digest = parameter_digest(network)
        if about["digest"] is not None and digest != about["digest"]:
            came = "one with other weights" if about["network"] == type(network).__name__ else type(network).__name__
            raise DataError(f"{path}: expected the {about['network']} that the exits were made for, got {came}.")
        check_about(about, "")
        found = cls._part(about, about, tensors, network, "", 0)
        if about.get("per_sample") is not None:  # older files have none
            single = cls._part(about, about["per_sample"], tensors, network, "per_sample.", len(found.sites))
            found._alternative = (single,)
        if (
            len({len(readout.get_buffer("bias")) for net in (found, *found._alternative) for readout in net.readouts})
            > 1
        ):
            raise Misfit("expected read-outs of equally many classes, got different ones")
        return found

    @classmethod
    def _part(
        cls,
        about: dict[str, Any],
        part: dict[str, Any],
        tensors: dict[str, Tensor],
        network: nn.Module,
        at: str,
        first: int,
    ) -> EarlyExit:
        """One exit for all samples, or those of single samples, whose read-outs are numbered from `first` on."""
        sites = [Site(**{**site, "shape": tuple(site["shape"])}) for site in part["sites"]]
        modules = modules_of(network)
        for i, site in enumerate(sites):
            if site.module not in modules:
                raise misfit(f"{at}sites[{i}].module", "a module of the network", site.module)
        limits = part["thresholds"]
        if limits is not None and len(limits) != len(sites):
            raise misfit(f"{at}thresholds", f"one for each of {len(sites)} sites", limits)
        readouts = [checked_readout(first + i, site, tensors) for i, site in enumerate(sites)]
        # JSON knows no infinity: nobody leaves there
        limits = None if limits is None else [math.inf if limit is None else limit for limit in limits]
        scores = None if about["scores"] is None else Scores(tuple(about["scores"]))
        how: Any = {"thresholds": limits, "scores": scores, "kind": about["kind"], "threshold": about["threshold"]}
        return cls(network, sites, readouts, reduce=about["reduce"], **how)


def _sealed(about: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A checksum of all that a file holds."""
    return digest_of([json.loads(json.dumps(about)), [[name, tensors[name]] for name in sorted(tensors)]])


class _Walk:
    """One call: who is still there, and what those who left were given."""

    def __init__(self, net: EarlyExit, limits: Sequence[float] | None) -> None:
        self.net, self.limits = net, limits
        self.rows: Tensor | None = None  # of those still there
        self.left: list[tuple[Tensor | None, Tensor]] = []
        self.calls = dict.fromkeys(net._modules_at, 0)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        handles = []
        for name, module in self.net._modules_at.items():
            sites = [(j, site) for j, site in enumerate(self.net.sites) if site.module == name]

            def enter(module: nn.Module, args: Any, kwargs: Any, name: str = name, sites: Any = sites) -> Any:
                number, self.calls[name] = self.calls[name], self.calls[name] + 1
                for j, site in sites:
                    if site.at == "input" and site.call == number:
                        tensor = entering(args, kwargs)
                        if (kept := self.seen(j, site, tensor)) is not None:
                            args = tuple(kept if value is tensor else value for value in args)
                            kwargs = {key: kept if value is tensor else value for key, value in kwargs.items()}
                return args, kwargs

            def leave(module: nn.Module, args: Any, output: Any, name: str = name, sites: Any = sites) -> Any:
                for j, site in sites:
                    if site.at == "output" and site.call == self.calls[name] - 1:
                        found = list(tensors_in(output))
                        if (kept := self.seen(j, site, found[site.pick])) is not None:
                            output = kept
                return output

            if any(site.at == "input" or site.call for _, site in sites):  # every hook costs time at small batches
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            else:
                self.calls[name] = 1
            if any(site.at == "output" for _, site in sites):
                handles.append(module.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def seen(self, j: int, site: Site, tensor: Tensor | None) -> Tensor | None:
        """Let those leave who may; gives the tensor of the others where some left."""
        if tensor is None:
            raise CaptureError(f"site '{site.name}': expected a floating-point tensor as in the dry run, got none.")
        features = reduced(
            samples_first(tensor, site.axis, site.fold), self.net.reduce, channels_last=site.channels_last
        )
        scores = self.net.readouts[j](features)
        if self.limits is None:
            self.left.append((None, scores))
            raise _Stop
        first, second = scores.topk(2, 1).values.unbind(1)
        go = first - second >= self.limits[j]
        rows = torch.arange(len(scores), device=scores.device) if self.rows is None else self.rows
        away, stay = go.nonzero().squeeze(1), (~go).nonzero().squeeze(1)
        self.left.append((rows[away], scores[away]))
        self.rows = rows[stay]
        if len(stay) == 0:
            raise _Stop
        return tensor.index_select(site.axis, stay) if len(away) else None

    def gathered(self, rest: Tensor | None) -> Tensor:
        """Scores of all samples in their order; notes where each left."""
        if self.limits is None:
            scores = self.left[0][1]
            self.net.exits = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
            return scores
        parts = list(self.left)
        if rest is not None:
            parts.append((self.rows, rest))
        rows = torch.cat([where for where, _ in parts if where is not None])
        scores = torch.cat([found.to(parts[0][1].dtype) for _, found in parts])
        ends = [*range(len(self.left)), len(self.net.sites)]
        exits = [torch.full((len(found),), j, device=scores.device) for j, (_, found) in zip(ends, parts, strict=False)]
        order = rows.argsort()
        self.net.exits = torch.cat(exits)[order]
        return scores[order]


def compared(
    whole: nn.Module,
    runs: Mapping[str, nn.Module],
    example: Batch,
    size: int,
    progress: Progress = silent,
    title: str = "times",
) -> dict[str, Timing]:
    """Time of each run as a share of the whole network's: medians of paired rounds in which they take turns.

    The whole network opens and closes every round, and the shorter of its two times counts: one that another program held up
    would make all exits of that round look fast.
    """
    singles = 1 if size > 1 else min(8, len(example.labels))
    n = len(example.labels)
    inputs = [example.at(torch.arange(i * size, (i + 1) * size) % n) for i in range(singles)]

    @users_device()
    def seconds(net: nn.Module) -> float:
        started = time.perf_counter()
        for one in inputs:
            net(*one.args, **one.kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started

    title = f"{title}, batch {size}"
    _, *once = map(seconds, progress((whole, *runs.values()), f"{title}, first runs", 1 + len(runs)))
    again = max(seconds(whole), 1e-6)
    repeats = min(64, 1 + int(SHORTEST / again))
    inputs *= repeats
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    least, most = ROUNDS
    expected = max(least, min(most, 1 + int(SECONDS / repeats / (sum(once) + 2 * again))))  # rounds, for the bar
    counter = Counter(progress, expected * (len(runs) + 2), title)

    def timed(net: nn.Module) -> float:
        found = seconds(net)
        counter.step()
        return found

    started = time.perf_counter()
    for i in range(most):
        if i >= least and time.perf_counter() - started > SECONDS:
            break
        opening = timed(whole)
        taken = {name: timed(runs[name]) for name in (runs if i % 2 else reversed(list(runs)))}
        base = min(opening, timed(whole))
        for name, own in taken.items():
            ratios[name].append(own / base)
    counter.close()
    quarters = {name: statistics.quantiles(found, n=4, method="inclusive") for name, found in ratios.items()}
    return {name: Timing(middle, low, high) for name, (low, middle, high) in quarters.items()}
