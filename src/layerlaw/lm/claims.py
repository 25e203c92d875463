"""What the configuration of a model claims, compared with the weights beside it before memory and time are taken."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerlaw.errors import DataError
from layerlaw.packed import safetensors_header

COUNTED = re.compile(r"(^|_)(layers?|experts)$")  # entries that say how many modules are built: n_layer, num_experts
FEW = 128  # so many modules are built in no time, whatever the weights are
MOST_PER_BYTE = 4  # numbers of a weight that are packed in a byte, at two bits each
SLACK = 2**24  # parameters that may be missing from the weights, such as a head


def check_claims(config: Any, folder: Path, kind: Any) -> None:
    """Raise where a configuration asks for far more than the weights in its folder hold; `kind`: the class of the model."""
    sizes = [path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt")]
    if not sizes:  # none to compare with; whoever loads them says so
        return
    headers = [safetensors_header(path) for path in folder.glob("*.safetensors")]
    tensors, stored = sum(map(len, headers)), sum(sizes)
    for name, count in _counts(config.to_dict()):
        if count > FEW and (count > tensors if headers else count > stored):
            have = f"{tensors:,} tensors" if headers else f"{stored:,} bytes"
            raise DataError(f"{folder}: expected weights for {name} = {count:,}, as config.json says, got {have}.")
    claimed = _numbers(kind, config)
    if claimed > MOST_PER_BYTE * stored + SLACK:
        got = f"{stored:,} bytes of them"
        what = f"weights for the {claimed:,} numbers of its model (parameters, masks, positions)"
        raise DataError(f"{folder}: expected {what}, as config.json says, got {got}.")


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """All entries, also of models inside it, that say how many layers or experts there are."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif isinstance(value, int) and COUNTED.search(str(name)):
            yield str(name), value


def _numbers(kind: Any, config: Any) -> int:
    """How many numbers a model of this configuration holds, without memory for them; 0 where it cannot be built so."""
    own = copy.deepcopy(config)  # building a model writes into it
    try:
        with torch.device("meta"):
            chosen = hasattr(kind, "from_config")  # one of the classes that look for another
            model: nn.Module = kind.from_config(own, trust_remote_code=False) if chosen else kind._from_config(own)
    except Exception:  # whatever is wrong with it is said where it is loaded
        return 0
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
