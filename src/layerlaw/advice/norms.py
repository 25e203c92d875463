"""Norms of a trained network in the Layer-Peeled Model's terms: E_W, E_H, and what of them is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.measures.rows import mean_square, used_budget
from layerlaw.record import Record
from layerlaw.stats.labels import checked_labels


@dataclass(frozen=True)
class Norms:
    """E_W = (1/K) Σ‖w_k‖², E_H = (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖², and the budget that class means and rows really use."""

    E_W: float | None = None
    E_H: float | None = None
    used: float | None = None


def of_rows(weight: Any, K: int) -> Tensor:
    """The rows of a classifier (K, d) in double precision, one per class."""
    rows = torch.as_tensor(weight).detach().cpu().double()
    if rows.dim() != 2:
        raise InputError(f"classifier: expected a linear layer or its rows (K, d), got shape {tuple(rows.shape)}.")
    if len(rows) != K:
        raise LabelError(f"counts: expected {len(rows)}, one per row of the classifier, got {K}.")
    if not bool(rows.isfinite().all()):
        raise FeatureError("classifier: expected finite rows, got NaN or infinity.")
    return rows


def of_features(features: Any, rows: Tensor | None, K: int) -> Norms:
    """From features (n, d) with labels (n,), and rows where there are any."""
    if not (isinstance(features, (tuple, list)) and len(features) == 2):
        raise FeatureError(f"features: expected a pair (features, labels), got {type(features).__name__}.")
    h = torch.as_tensor(features[0]).detach().cpu().double()
    labels, _ = checked_labels(torch.as_tensor(features[1]).cpu(), K, where="features")
    if h.dim() != 2 or len(h) != len(labels) or not bool(h.isfinite().all()):
        raise FeatureError(
            f"features: expected finite features (n, d) and labels (n,), got shapes {tuple(h.shape)} and "
            f"{tuple(labels.shape)}."
        )
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


def of_record(record: Record) -> Norms:
    """As a probe measured them, where the classifier reads."""
    for site in record.sites:
        if site.values.get("feature_square") is not None:
            columns = ("classifier_square", "feature_square", "classifier_budget")
            return Norms(*(site.values.get(column) for column in columns))
    why = next((note for note in record.notes if "classifier" in note), "it was written before they were measured")
    raise InputError(f"record '{record.name}': expected norms of its classifier, found none ({why.rstrip('.')}).")
