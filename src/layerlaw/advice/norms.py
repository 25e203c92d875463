"""Norms of a trained network in the Layer-Peeled Model's terms: E_W, E_H, and what of them is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.measures.collapse import mean_square, used_budget
from layerlaw.record import Record
from layerlaw.stats.labels import checked_labels


@dataclass(frozen=True)
class Norms:
    """E_W = (1/K) Σ‖w_k‖², E_H = (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖², and the budget that class means and rows really use.

    That is c = ‖M Wᵀ‖_*/K, M and W centered. Centering W is free (the softmax does not see it). Centering the class means
    takes one logit per class out of account, which only a bias gives for nothing: without one the number is a lower bound of
    what the logits need (‖P Z‖_* ≤ ‖Z‖_* for a projection P), so it errs on the pessimistic side.
    """

    E_W: float | None = None
    E_H: float | None = None
    used: float | None = None


def of_rows(classifier: Any, K: int) -> Tensor:
    """The rows of a classifier (K, d) in double precision, one per class."""
    expected = "classifier: expected a linear layer or its rows (K, d), got"
    if isinstance(classifier, nn.Module):
        weight = getattr(classifier, "weight", None)
        if not isinstance(weight, Tensor):
            raise InputError(f"{expected} {type(classifier).__name__}. Give the last linear layer of the network.")
    else:
        weight = classifier
    try:
        rows = torch.as_tensor(weight).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{expected} {type(weight).__name__}.") from None
    if rows.dim() != 2:
        raise InputError(f"{expected} shape {tuple(rows.shape)}.")
    if len(rows) != K:
        raise LabelError(f"counts: expected {len(rows)}, one per row of the classifier, got {K}.")
    if not bool(rows.isfinite().all()):
        raise FeatureError("classifier: expected finite rows, got NaN or infinity.")
    return rows


def of_features(features: Any, rows: Tensor | None, K: int) -> Norms:
    """From features (n, d) with labels (n,), and rows where there are any."""
    h, labels = _pair(features, K)
    if rows is not None and rows.shape[1] != h.shape[1]:
        raise FeatureError(f"features: expected {rows.shape[1]} numbers, as the classifier reads, got {h.shape[1]}.")
    counts = torch.bincount(labels, minlength=K)
    if bool((counts == 0).any()):
        raise LabelError(f"features: expected samples of all {K} classes, got none of class {int(counts.argmin())}.")
    means = torch.zeros(K, h.shape[1], dtype=h.dtype).index_add_(0, labels, h) / counts.unsqueeze(1)
    squares = torch.zeros(K, dtype=h.dtype).index_add_(0, labels, h.square().sum(1)) / counts
    E_H = float(squares.mean())
    if rows is None:
        return Norms(E_H=E_H)
    return Norms(float(mean_square(rows)), E_H, float(used_budget(means, rows)))


def shares_right(accuracy: Sequence[float] | None, classifier: Any, features: Any, K: int) -> list[float] | None:
    """Share of right samples per class: as given, or as a linear layer decides on the features; `None` if neither is there.

    Rows alone do not tell: a bias may belong to them.
    """
    if accuracy is not None:
        try:
            given = torch.as_tensor(accuracy, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            given = torch.empty(0)
        if given.shape != (K,) or not bool(((given >= 0) & (given <= 1)).all()):
            raise InputError(f"accuracy: expected {K} shares from 0 to 1, one per class, got {accuracy!r:.80}.")
        return [float(share) for share in given]
    if features is None or not isinstance(classifier, nn.Linear):
        return None
    h, labels = _pair(features, K)
    bias = 0.0 if classifier.bias is None else classifier.bias.detach().cpu().double()
    right = (h @ classifier.weight.detach().cpu().double().T + bias).argmax(1) == labels
    return [float(right[labels == k].double().mean()) for k in range(K)]


def _pair(features: Any, K: int) -> tuple[Tensor, Tensor]:
    """Features (n, d) in double precision and labels (n,), checked."""
    if not (isinstance(features, (tuple, list)) and len(features) == 2):
        raise FeatureError(f"features: expected a pair (features, labels), got {type(features).__name__}.")
    try:
        h, given = torch.as_tensor(features[0]).detach().cpu().double(), torch.as_tensor(features[1]).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeatureError(f"features: expected numbers (n, d) and whole-number labels (n,), got: {error}.") from None
    labels, _ = checked_labels(given, K, where="features")
    if h.dim() != 2 or len(h) != len(labels) or not bool(h.isfinite().all()):
        raise FeatureError(
            f"features: expected finite features (n, d) and labels (n,), got shapes {tuple(h.shape)} and "
            f"{tuple(labels.shape)}."
        )
    return h, labels


def of_record(record: Record) -> Norms:
    """As a probe measured them, where the classifier reads."""
    for site in record.sites:
        if site.values.get("feature_square") is not None:
            columns = ("classifier_square", "feature_square", "classifier_budget")
            return Norms(*(site.values.get(column) for column in columns))
    why = next((note for note in record.notes if "classifier" in note), "it was written before they were measured")
    raise InputError(f"record '{record.name}': expected norms of its classifier, found none ({why.rstrip('.')}).")
