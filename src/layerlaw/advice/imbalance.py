"""Will rare classes lose their classifiers? A forecast from class counts and norms, by the Layer-Peeled Model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.advice.collapse import ClassifierRows, Forecast
from layerlaw.advice.outlook import Outlook, outlook_at, shown_groups, solved_sizes
from layerlaw.capture.batches import Batches
from layerlaw.capture.modules import classifier_weight, modules_of
from layerlaw.capture.network import Randomness, device_of, network_of, probing_state
from layerlaw.capture.plan import Plan
from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.measures.collapse import mean_cosine, mean_norm, mean_square, rare_classes, used_budget
from layerlaw.peeled import critical_budget
from layerlaw.peeled.counts import Counts, check_budgets, check_flag
from layerlaw.probing import probe, sites
from layerlaw.probing.classes import Classes
from layerlaw.probing.sources import source_of
from layerlaw.progress import Progress
from layerlaw.record import Record
from layerlaw.stats.labels import checked_labels
from layerlaw.wording import finite

Pair = tuple[Tensor, Tensor]  # features (n, d) in double precision, labels (n,)
WELL_BELOW = 0.5  # of the accuracy of the most frequent classes


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
    accuracy    share of right training samples per class, as measured; known from a linear layer with features
    bias        the model with a free bias (the paper's has none): several rare classes of one size then collapse a little
                later, a single rare class is lost earlier

    Norms given as numbers go before measured ones. Up to 40 distinct sizes are solved as they are, in some seconds, which
    `progress` shows; more are put into bins that err on the pessimistic side, and the headline says so.

    >>> found = forecast({5000: 5, 50: 5}, E_W=1, E_H=5)
    >>> found.by_norms.phases, found.by_norms.cosine, round(found.by_norms.repeats, 3)
    (('separated', 'collapsed'), 1.0, 8.202)
    """
    check_flag(bias, "bias")
    if record is not None and not isinstance(record, Record):
        raise InputError(f"record: expected what `probe` returns, got {type(record).__name__}.")
    counts = record.counts if record is not None and counts is None else counts
    if counts is None:
        raise InputError("counts: expected samples per class, or a record that knows them, got neither.")
    if isinstance(counts, Mapping) and not (classifier is None and features is None and accuracy is None):
        got = "a mapping, which does not say which class is which"
        raise InputError(f"counts: expected one number per class beside classifier, features or accuracy, got {got}.")
    groups, every, solved = shown_groups(counts), solved_sizes(counts, math.inf), solved_sizes(counts)
    K = every.groups.K
    rows = None if classifier is None else _rows_of(classifier, K)
    if record is not None and len(record.counts) != K:
        raise LabelError(f"counts: expected {len(record.counts)}, one per class of the record, got {K}.")
    pair = None if features is None else _pair(features, K)
    known = _norms(record, rows, pair, K)
    used = known[2] if E_W is None and E_H is None else None
    unused = used is None and known[2] is not None
    E_W, E_H = (known[0] if E_W is None else E_W), (known[1] if E_H is None else E_H)
    # With a bias there is a closed form for any sizes
    critical = critical_budget((every if bias else solved).groups, bias=bias, progress=progress)  # type: ignore[arg-type]
    if E_W is None or E_H is None:
        missing = "E_W and E_H" if E_W is E_H else "E_W" if E_W is None else "E_H"
        lose = "may lose" if solved.binned and not bias else "lose"
        below = f" These counts {lose} classes where √(E_W E_H) is below {critical:.3g}." if critical else ""
        given = "given as numbers or measured on a model, its features or a record"
        raise InputError(f"{missing}: expected norms, {given}, got none.{below}")
    c = check_budgets(E_W, E_H)

    def at(c: float) -> Outlook:
        closed = bias and c > critical * (1 + 1e-9)
        return outlook_at(groups, every if closed else solved, c, bias=bias, progress=progress)

    right = _shares_right(accuracy, classifier, pair, K)
    listed = [list(g.classes or ()) for g in groups]
    means, already_lost = None, 0
    if right is not None:
        means = tuple(sum(right[k] for k in own) / g.number for g, own in zip(groups, listed, strict=True))
        # Of equal sizes none is the rare one
        already_lost = sum(right[k] < WELL_BELOW * means[0] for own in listed[1:] for k in own)
    few, many = ([k for g in groups if g.rare is rare for k in g.classes or ()] for rare in (True, False))
    rare, frequent = _recorded(record, few)
    if rows is not None:
        rare, frequent = (_measured(rows, few) if few else None), _measured(rows, many)
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
        measured=None if rows is None else tuple(_measured(rows, own) for own in listed),
        rare=rare,
        frequent=frequent,
        accuracy=means,
        already_lost=already_lost,
        unused=unused,
    )


def _norms(record: Record | None, rows: Tensor | None, pair: Pair | None, K: int) -> list[float | None]:
    """E_W = (1/K) Σ‖w_k‖², E_H = (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖², and the budget that class means and rows really use.

    That is c = ‖M Wᵀ‖_*/K, M and W centered. Centering W is free (the softmax does not see it). Centering the class means
    takes one logit per class out of account, which only a bias gives for nothing: without one the number is a lower bound of
    what the logits need (‖P Z‖_* ≤ ‖Z‖_* for a projection P), so it errs on the pessimistic side. Features and rows at hand
    go before a record.
    """
    E_W, E_H, used = (None if rows is None else float(mean_square(rows))), None, None
    if pair is not None:
        h, labels = pair
        d, counts = h.shape[1], torch.bincount(labels, minlength=K)
        if rows is not None and rows.shape[1] != d:
            raise FeatureError(f"features: expected {rows.shape[1]} numbers, as the classifier reads, got {d}.")
        if bool((counts == 0).any()):
            none = f"none of class {int(counts.argmin())}"
            raise LabelError(f"features: expected samples of all {K} classes, got {none}.")
        means = torch.zeros(K, d, dtype=h.dtype).index_add_(0, labels, h) / counts.unsqueeze(1)
        squares = torch.zeros(K, dtype=h.dtype).index_add_(0, labels, h.square().sum(1)) / counts
        E_H, used = float(squares.mean()), None if rows is None else float(used_budget(means, rows))
    if record is None:
        return [E_W, E_H, used]
    values = next((site.values for site in record.sites if site.values.get("feature_square") is not None), None)
    if values is None:
        why = next((note for note in record.notes if "classifier" in note), "it was written before they were measured")
        raise InputError(f"record '{record.name}': expected norms of its classifier, found none ({why.rstrip('.')}).")
    columns = {"classifier_square": E_W, "feature_square": E_H, "classifier_budget": used}
    return [values.get(name) if own is None else own for name, own in columns.items()]


def _measured(rows: Tensor, ids: list[int]) -> ClassifierRows:
    own, centered = rows[ids], (rows - rows.mean(0))[ids]
    return ClassifierRows(float(mean_norm(own)), *(finite(float(mean_cosine(part))) for part in (own, centered)))


def _recorded(record: Record | None, rare: list[int]) -> tuple[ClassifierRows | None, ClassifierRows | None]:
    """Rare and frequent rows as a record knows them, if it means the same classes by these words."""
    if record is None or not rare or rare_classes(record.counts) != sorted(rare):
        return None, None
    values = next((s.values for s in record.sites if s.values.get("classifier_norm_minority") is not None), {})

    def rows(which: str) -> ClassifierRows | None:
        norm = values.get(f"classifier_norm_{which}")
        return None if norm is None else ClassifierRows(norm, values.get(f"classifier_cosine_{which}"), None)

    return rows("minority"), rows("majority")


def _rows_of(classifier: Any, K: int) -> Tensor:
    expected = "classifier: expected a linear layer or its rows (K, d), got"
    weight = getattr(classifier, "weight", None) if isinstance(classifier, nn.Module) else classifier
    if isinstance(classifier, nn.Module) and not isinstance(weight, Tensor):
        raise InputError(f"{expected} {type(classifier).__name__}. Give the last linear layer of the network.")
    try:
        rows = torch.as_tensor(weight).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{expected} {type(weight).__name__}.") from None
    if rows.dim() != 2:
        raise InputError(f"{expected} shape {tuple(rows.shape)}.")
    if len(rows) != K:
        cure = "Give counts, or data, with all classes of the model, or the rows of these alone"
        raise LabelError(f"counts: expected {len(rows)} classes, one per row of the classifier, got {K}. {cure}.")
    if not bool(rows.isfinite().all()):
        raise FeatureError("classifier: expected finite rows, got NaN or infinity.")
    return rows


def _shares_right(accuracy: Sequence[float] | None, classifier: Any, pair: Pair | None, K: int) -> list[float] | None:
    """Share of right samples per class: as given, or as a linear layer decides on the features; `None` if neither is there.

    Rows alone do not say: a bias may belong to them.
    """
    if accuracy is not None:
        given = torch.empty(0)
        with suppress(TypeError, ValueError, RuntimeError):
            given = torch.as_tensor(accuracy, dtype=torch.float64)
        if given.shape != (K,) or not bool(((given >= 0) & (given <= 1)).all()):
            raise InputError(f"accuracy: expected {K} shares from 0 to 1, one per class, got {accuracy!r:.80}.")
        return [float(share) for share in given]
    if pair is None or not isinstance(classifier, nn.Linear):
        return None
    h, labels = pair
    bias = 0.0 if classifier.bias is None else classifier.bias.detach().cpu().double()
    right = (h @ classifier.weight.detach().cpu().double().T + bias).argmax(1) == labels
    return [float(right[labels == k].double().mean()) for k in range(K)]


def _pair(features: Any, K: int) -> Pair:
    if not (isinstance(features, (tuple, list)) and len(features) == 2):
        raise FeatureError(f"features: expected a pair (features, labels), got {type(features).__name__}.")
    try:
        h, given = torch.as_tensor(features[0]).detach().cpu().double(), torch.as_tensor(features[1]).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeatureError(f"features: expected numbers (n, d) and whole-number labels (n,), got: {error}.") from None
    labels, _ = checked_labels(given, K, where="features")
    if h.dim() != 2 or len(h) != len(labels) or not bool(h.isfinite().all()):
        shapes = f"{tuple(h.shape)} and {tuple(labels.shape)}"
        raise FeatureError(f"features: expected finite features (n, d) and labels (n,), got shapes {shapes}.")
    return h, labels


def measured_classifier(network: nn.Module, data: Any, classes: Sequence[str] | None) -> tuple[Any, bool | None]:
    """What `forecast` takes from a network, its record, the rows of its classifier, the share that is right in every class;
    and whether the classifier has a bias, where one is found."""
    plan = sites(network, data)
    last = None if plan.classifier is None else modules_of(network_of(network))[plan.classifier]
    rows = None if last is None else classifier_weight(last)
    if rows is not None and not bool(rows.isfinite().all()):
        raise FeatureError(f"'{plan.classifier}': expected finite weights, got NaN or infinity. Did training diverge?")
    record = probe(network, data, classes=classes, uncertainty=False)
    bias = None if last is None else getattr(last, "bias", None) is not None
    return {"record": record, "classifier": rows, "accuracy": _class_accuracy(network, data, plan)}, bias


def _class_accuracy(network: nn.Module, data: Any, plan: Plan) -> list[float] | None:
    source = source_of(data, network).data
    batches = Batches(source, batch_size=None, batchnorm="running", where="data", network=network_of(network))
    classes = Classes.of(None, plan, batches.labels)
    right, seen = torch.zeros(2, classes.K)
    with Randomness(source), probing_state(network_of(network), "running"), torch.no_grad():
        for i, batch in enumerate(batches):
            batch = batch.to(device_of(network))
            labels = classes.positions(batch.labels, f"labels of data, batch {i}")[0].cpu()
            decided = classes.decide(network(*batch.args, **batch.kwargs), None)
            if decided is None:
                return None
            seen += torch.bincount(labels, minlength=classes.K)
            right += torch.bincount(labels[decided.cpu() == labels], minlength=classes.K)
    return [float(share) for share in right / seen] if bool((seen > 0).all()) else None
