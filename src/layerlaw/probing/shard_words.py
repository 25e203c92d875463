"""How the shards of a job array are put into words: which of them, and what one measured otherwise than another."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from layerlaw.capture.batches import Pair
from layerlaw.errors import InputError, shown, whole_number
from layerlaw.packed import digest_of
from layerlaw.provenance import parameter_digest, unreadable
from layerlaw.wording import counted

if TYPE_CHECKING:
    from layerlaw.probing.shard_files import ShardFolder

SHOWN = 8  # numbers, commands
MOST_SHARDS = 100_000
OTHER = {"model": "another model", "data": "other data", "test": "other test data", "options": "with other options"}
OTHER |= {"sites": "other sites", "classes": "other classes", "splits": "other data sets"}
UNSEEN = {"content": "other inputs or labels", "places": "other places of the samples in the data set"}  # checksums
TENSORS = "tensors"

ANOTHER = "another measurement needs a folder of its own"

STEADY_SHARDS = (
    "Random augmentation does this, and random_split or shuffle without a seed: make the data deterministic (no random "
    "transform, or one seeded by the place of the sample; generator=torch.Generator().manual_seed(0) for a split), and "
    "measure all shards again in a new folder"
)


def numbers_of(shard: Any) -> tuple[int, int]:
    """(i, n) of the i-th of n shards."""
    pair = [whole_number(one) for one in shard] if isinstance(shard, (tuple, list)) else []
    i, n = pair if len(pair) == 2 else (None, None)
    if i is not None and n is not None and 1 <= i <= n <= MOST_SHARDS:
        return i, n
    raise InputError(f"shard: expected (i, n), the i-th of n shards with i from 1 to n, got {shown(shard)}.")


def checked_about(about: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a user says of the record, if files can hold it: said before the work, not after it."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(about or {})))
    except (TypeError, ValueError) as error:
        raise InputError(f"about: expected a dictionary of text, numbers and lists, got another ({error}).") from None
    return found


def changed_data(where: str) -> str:
    """That a shard found other samples than in an earlier round, and what to do."""
    return f"{where}: the samples or their order changed since an earlier round. {STEADY_SHARDS}."


@dataclass(frozen=True)
class ShardDone:
    """What one shard has done, in which round of how many; `missing` are the shards that have not finished that round.

    `measured`: whether it was done now, and not found in the folder. `ahead`: whether what later rounds leave is there
    already; `behind`: the next round that shards lack, and which do. `damaged`: in words, a file of another shard that is.
    As text it says what to do next.
    """

    shard: int
    round: int
    rounds: int
    measured: bool
    missing: tuple[int, ...]
    folder: ShardFolder
    work: str
    ahead: bool = False
    damaged: str = ""
    behind: tuple[int, Sequence[int]] = (0, ())

    def __str__(self) -> str:
        n, at = self.folder.shards, f"round {self.round} of {self.rounds} ({self.work})"
        did = "done, saved in" if self.measured else "was done already, in"
        lines = [f"shard {self.shard}/{n}, {at}: {did} {self.folder.path}"]
        goal = f"the same commands once more, of all shards (round {self.round + 1})"
        later, lacking = self.behind
        if 0 < len(lacking) < n:
            goal = f"round {later} of {listed_shards(lacking, 'shard')} alone:\n{self.folder.commands(lacking)}"
        if self.round == self.rounds or self.ahead:
            python, path = "{state!r}" in self.folder.command, str(self.folder.path)  # where the command is a call
            goal = f"merge({path!r})" if python else f"layerlaw merge {shlex.quote(path)}"
        if self.damaged:
            return "\n".join([*lines, f"next: {self.damaged}", f"then: {goal}"])
        if not self.missing:
            return "\n".join([*lines, f"next: {goal}"])
        waiting = f"{counted(len(self.missing), 'shard')} of {n} still to come in this round"
        return "\n".join([*lines, f"next: {waiting}:", self.folder.commands(self.missing), f"then: {goal}"])


def listed_shards(numbers: Sequence[int], name: str = "") -> str:
    """Their numbers, of many the first, behind the name for one of them.

    >>> listed_shards([2], "shard"), listed_shards([1, 3], "shard"), listed_shards([4, 8])
    ('shard 2', 'shards 1, 3', '4, 8')
    """
    named = f"{name}{'s' * (len(numbers) > 1)} " * bool(name)
    return named + ", ".join(map(str, numbers[:SHOWN])) + f" and {len(numbers) - SHOWN} more" * (len(numbers) > SHOWN)


def not_done(missing: Sequence[int], shards: int, number: int, rounds: int) -> str:
    """That shards have not done a round.

    >>> not_done([2], 3, 1, 2)
    'shard 2 of 3 has not done round 1 of 2'
    """
    have = "has" if len(missing) == 1 else "have"
    return f"{listed_shards(missing, 'shard')} of {shards} {have} not done round {number} of {rounds}"


def behind(folder: ShardFolder, stages: Sequence[str], number: int, seal: str = "") -> tuple[int, list[int]]:
    """The first round behind round `number` that shards have not done, and these shards; (0, []) where there is none.

    `seal`, where it is known: that of the sums which are there. Scatters around others are to be measured again.
    """
    for later, stage in enumerate(stages[number:], number + 1):
        lacking = folder.missing(stage)
        if seal and stage == "scatters":
            there = [shard for shard in range(1, folder.shards + 1) if shard not in lacking]
            lacking += [shard for shard in there if folder.read(stage, shard)[1]["around"] != seal]
        if lacking:
            return later, sorted(lacking)
    return 0, []


def then_what(shards: int, number: int, rounds: int, behind: tuple[int, Sequence[int]]) -> str:
    """What is to be done behind the commands that make up for a round, on a line of its own; `behind` as that finds it.

    >>> then_what(3, 1, 2, (2, [1, 2, 3])), then_what(3, 1, 2, (2, [2]))
    ('\\nThen run all 3 once more, for round 2.', '\\nThen run shard 2 once more, for round 2.')
    >>> then_what(3, 1, 2, (0, [])), then_what(3, 2, 2, (0, []))
    ('\\nThen merge: round 2 is there.', '')
    """
    later, lacking = behind
    if not lacking:
        return f"\nThen merge: round {number + 1} is there." * (number < rounds)
    which = f"all {shards}" if len(lacking) == shards else listed_shards(lacking, "shard")
    return f"\nThen run {which} once more, for round {later}."


def marks_of_model(network: nn.Module, known: Mapping[str, Any]) -> dict[str, str]:
    """What tells a model from that of another shard; `known` is what a record says of it. Reads all weights."""
    weights = known["parameters_sha256"] or parameter_digest(network, whole=True)
    if weights is None:
        names = unreadable(network)
        some = ", ".join(names[:1]) + f" and {len(names) - 1} more" * (len(names) > 1)
        why = "weights that can be read, since a checksum tells shards of other weights"
        cure = (
            "Load all weights onto one device as plain tensors, or measure in one job, with layerlaw.probe or torchrun"
        )
        raise InputError(f"model: expected {why}, got offloaded, sharded or quantized ones ({some}). {cure}.")
    modules = digest_of(repr(network))  # activations, eps: what no parameter tells
    return {"name": f"{known['model']}, {known['parameters']:,} parameters", "weights": weights, "modules": modules}


def inputs_in_words(inputs: Sequence[Tensor], source: object) -> str:
    """What the network is called with: of tensors all shards must have the same, of other data the same samples.

    >>> import torch
    >>> inputs_in_words([torch.zeros(5, 3)], source=None)
    'samples of float32 (3,)'
    """
    kind = TENSORS if isinstance(source, Pair) else "samples"
    return f"{kind} of " + ", ".join(f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}" for x in inputs)


def difference(what: str, here: Any, there: Any) -> str:
    """What another shard measured, where that is not what this one measures.

    >>> difference("data", {"batch_size": 32, "batches": 4}, {"batch_size": 64, "batches": 2})
    'data in batches of another size (64 there, 32 here)'
    >>> difference("data", {"samples": 9, "content": "a"}, {"samples": 10, "content": "b"})
    'other data (samples 10 there, 9 here; other inputs or labels)'
    """
    kind = OTHER[what]
    if what == "model":
        return _other_model(here, there)
    if isinstance(here, dict) and isinstance(there, dict):
        other = [key for key in here if there.get(key) != here[key]]
        if "batch_size" in other:  # other batches follow from it
            kind = f"{what.replace('test', 'test data')} in batches of another size"
            return f"{kind} ({there.get('batch_size')} there, {here['batch_size']} here)"
        told = [UNSEEN.get(key) or f"{key} {_short(there.get(key))} there, {_short(here[key])} here" for key in other]
        return f"{kind} ({'; '.join(told)})"
    return f"{kind} ({_short(there)} there, {_short(here)} here)"


def cure_of(what: str, here: Any, there: Any) -> str:
    """What to do where another shard measured something else.

    >>> cure_of("data", {"inputs": "samples of float32 (9,)", "content": "a"}, {"inputs": "samples of float32 (9,)"})[:60]
    'Random augmentation does this, and random_split or shuffle w'
    """
    if what == "model" and _differing(here, there) == ["weights"]:
        return f"Load the same weights in every job, or seed what draws them (torch.manual_seed in make); {ANOTHER}"
    if isinstance(here, dict) and isinstance(there, dict) and here == {**there, "content": here.get("content")}:
        if str(here.get("inputs")).startswith(TENSORS):
            return f"If these tensors are drawn or shuffled at random, use the same seed in every job; {ANOTHER}"
        return f"{STEADY_SHARDS}; {ANOTHER}"
    return f"All shards take the same model, data and options; {ANOTHER}"


def _other_model(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """In words, how two models differ, of which `marks_of_model` tells."""
    other, printed = _differing(here, there), "other modules as they are printed: an activation, eps or another setting"
    if other == ["modules"]:
        return f"another model (the same weights, but {printed})"
    if other == ["weights"]:
        weights = f"sha256 {there['weights'][:12]} there, {here['weights'][:12]} here"
        return f"the same architecture with other weights ({here['name']}, {weights})"
    names = f"{there['name']} there, {here['name']} here" if "name" in other else f"{here['name']}, but {printed}"
    return f"another architecture ({names})"


def _differing(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    return [name for name in here if there.get(name) != here[name]]


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 90 else f"{text[:90]}…"
