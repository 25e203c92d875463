"""Where people already work: a monitor for training loops, callbacks of Lightning and Hugging Face, trackers, named models.

Each file is thin, and imports the package that it is for with its first use, not before. The callbacks stand in files named
after the package: `layerlaw.integrations.lightning.LawMonitor`, `layerlaw.integrations.transformers.LawCallback`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerlaw.integrations.by_name import load_named, probe_named
    from layerlaw.integrations.monitor import Monitor

__all__ = ["Monitor", "load_named", "probe_named"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'layerlaw.integrations' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{'monitor' if name == 'Monitor' else 'by_name'}"), name)
