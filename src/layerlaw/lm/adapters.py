"""What the folder of an adapter (PEFT) holds, against what the adapter needs: weights that are not there are not drawn."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from layerlaw.errors import DataError, shown
from layerlaw.packed import read_torch, safetensors_header

FILES = ("adapter_model.safetensors", "adapter_model.bin")  # in the order in which PEFT looks for them
PLACE = re.compile(r"[^.]+\.\d+\..*$")  # a name from its first number on: what stands before changes between versions
EXPERTS = re.compile(r"\.experts\.")  # which a version may hold in one tensor and another in many: PEFT warns itself


def stored_names(folder: Path) -> list[str]:
    """The names of the weights in an adapter's folder; only a header is read where there is one."""
    for name in FILES:
        path = folder / name
        if path.is_file() and path.suffix == ".safetensors":
            return sorted(safetensors_header(path))
        if path.is_file():
            content = read_torch(path, what="the weights of an adapter")
            if not isinstance(content, Mapping):
                raise DataError(f"{path}: expected weights by their names, got {shown(type(content).__name__)}.")
            return sorted(map(str, content))
    raise DataError(f"{folder}: expected the weights of an adapter ({' or '.join(FILES)}), found none.")


def not_stored(expected: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Names of weights that an adapter needs and its file lacks; what stands before the layers may be called otherwise.

    >>> needed = ["base.model.layers.0.q.lora_A.weight", "base.model.layers.0.q.lora_B.weight"]
    >>> not_stored(needed, ["base.layers.0.q.lora_A.weight"])
    ['base.model.layers.0.q.lora_B.weight']
    """
    left = Counter(map(_place, stored))
    missing = []
    for name in sorted(expected):
        if left[_place(name)] > 0:
            left[_place(name)] -= 1
        elif not EXPERTS.search(name):
            missing.append(name)
    return missing


def refuse_missing_adapter(expected: Iterable[str], folder: Path) -> None:
    """Weights that the file of an adapter lacks would be those of a new adapter: that is refused."""
    missing = not_stored(expected, stored_names(folder))
    if missing:
        raise _lacking(folder, missing)


@contextmanager
def missing_refused(folder: Path) -> Iterator[None]:
    """What newer versions of PEFT warn of while they load an adapter, or fail for: missing weights, also of experts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing adapter keys", category=UserWarning)
        try:
            yield
        except KeyError as error:  # a whole module that was saved beside the adapter
            raise _lacking(folder, [str(error.args[0] if error.args else "a part")]) from None
        except UserWarning as told:
            names = re.findall(r"'([^' ]+\.[^' ]+)'", str(told))
            if not names:  # another warning, of someone to whom all are errors
                raise
            raise _lacking(folder, names) from None


def _lacking(folder: Path, names: Sequence[str]) -> DataError:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    got = f"none for {', '.join(map(shown, names[:3]))}{more}"
    cure = "Is adapter_config.json that of these weights, and is the file whole?"
    return DataError(f"{folder}: expected weights for all parts of the adapter, got {got}. {cure}")


def _place(name: str) -> str:
    found = PLACE.search(name)
    return found[0] if found else name
