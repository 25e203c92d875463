"""The end of the network: its class scores, and the layer that gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.trace import Call, Seen, Trace, first_tensor


def logits_of(output: Any) -> Tensor | None:
    """The class scores in a model's output: itself, its `logits`, or its first floating-point tensor; (n, K) or (n,)."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = first_tensor(logits if isinstance(logits, Tensor) else output)
    return found if found is not None and found.dim() in (1, 2) else None


def find_classifier(trace: Trace, layer_calls: Iterable[Call]) -> tuple[Call | None, str]:
    """The last call of a weight layer whose output is the model's output; else `None` and the reason."""
    out = Seen.of(logits_of(trace.output), trace.samples)
    if out is None:
        return None, "the model's output is no tensor of class scores (n, K)"
    matching = [call for call in layer_calls if call.output is not None and call.output.same_content(out)]
    if not matching:
        return None, "no weight layer's output is the model's output (a softmax or pooling may follow the last layer)"
    return max(matching, key=lambda call: call.left), ""


def classifier_weight(module: nn.Module) -> Tensor | None:
    """Rows of a linear classifier (K, d) in float64 on the CPU; `None` where it is not linear."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    full = getattr(weight, "full_tensor", None)  # a parameter that is sharded over ranks
    rows: Tensor = (full() if callable(full) else weight).detach().cpu().to(torch.float64)
    return rows.mT if type(module).__name__ == "Conv1D" else rows  # Hugging Face keeps (inputs, outputs)
