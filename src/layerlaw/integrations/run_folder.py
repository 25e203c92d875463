"""The folder of a training run: records of epochs that were measured before a training was resumed."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

from layerlaw.capture.network import network_of
from layerlaw.errors import DataError, InputError
from layerlaw.progress import warn
from layerlaw.record import LANGUAGE_MODEL, Record

NAMES = re.compile(r"(epoch|step)-\d{6,8}\.json")  # as a monitor writes them; `layerlaw checkpoints` has more digits


def records_in(folder: Path, model: nn.Module) -> list[Record]:
    """What a monitor wrote into the folder before, in the order of training; an error where that is of another network.

    Networks are told apart by their class and number of parameters, which needs no forward. A file that cannot be read is
    passed over with a warning.
    """
    network = network_of(model)
    own = type(network).__name__, sum(p.numel() for p in network.parameters())
    found: list[Record] = []
    for path in sorted(path for path in folder.iterdir() if NAMES.fullmatch(path.name)):
        try:
            record = Record.load(path)
        except DataError as error:
            warn(f"layerlaw monitor: an earlier record is left out: {error}")
            continue
        other = record.provenance.get("model"), record.provenance.get("parameters")
        counts = {own[1], _packed(network)} if record.kind == LANGUAGE_MODEL else {own[1]}
        if None not in other and (other[0] != own[0] or other[1] not in counts):
            expected = f"expected a folder for records of this network ({_told(*own)})"
            came = f"got {path}, which is of another one ({_told(*other)})"
            raise InputError(f"folder: {expected}, {came}. Choose another folder, or move those records away.")
        if isinstance(record.settings.get("step"), int):
            found.append(record)
    return sorted(found, key=lambda record: int(record.settings["step"]))


def _packed(network: nn.Module) -> int:
    """How many weights there are where several are packed into one parameter, as records of language models count them."""
    from layerlaw.lm.weights import weight_count

    return weight_count(network)


def _told(model: object, parameters: object) -> str:
    return f"{model}, {parameters:,} parameters"


def is_like(record: Record, other: Record) -> bool:
    """Whether two records are of the same kind and the same sites, so that one page can show them along a training."""
    names = [[(site.name, site.in_fit) for site in one.sites] for one in (record, other)]
    return record.kind == other.kind and names[0] == names[1]
