"""layerlaw: the laws of depth in neural networks, measured layer by layer.

    import layerlaw as ll

    record = ll.probe(model, loader)
    print(record.law("separation"))
    ll.report(record, "page.html")

Importing it loads torch and numpy, nothing else; everything heavy comes with its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerlaw.advice.exits import early_exit
    from layerlaw.capture.network import untrained
    from layerlaw.errors import LayerlawError
    from layerlaw.integrations.monitor import Monitor
    from layerlaw.lab import SVSL, EvenSteps
    from layerlaw.law import LawFit, fit_law
    from layerlaw.lm import probe_lm
    from layerlaw.measures import cdnv, measure, nc1, ncc_accuracy, separation_fuzziness
    from layerlaw.pages import plot, report
    from layerlaw.probing import probe, sites
    from layerlaw.probing.given_features import record_of
    from layerlaw.record import Record
    from layerlaw.verdict import find_modules

__all__ = [  # noqa: RUF022 - sorted as Python sorts
    "EvenSteps", "LawFit", "LayerlawError", "Monitor", "Record", "SVSL", "cdnv", "early_exit", "find_modules", "fit_law",
    "measure", "nc1", "ncc_accuracy", "plot", "probe", "probe_lm", "record_of", "report", "separation_fuzziness", "sites",
    "untrained",
]  # fmt: skip

_HOMES = {name: home for home, names in {
    "advice.exits": ("early_exit",),
    "capture.network": ("untrained",),
    "errors": ("LayerlawError",),
    "integrations.monitor": ("Monitor",),
    "lab": ("SVSL", "EvenSteps"),
    "law": ("LawFit", "fit_law"),
    "lm": ("probe_lm",),
    "measures": ("cdnv", "measure", "nc1", "ncc_accuracy", "separation_fuzziness"),
    "pages": ("plot", "report"),
    "probing": ("probe", "sites"),
    "probing.given_features": ("record_of",),
    "record": ("Record",),
    "verdict": ("find_modules",),
}.items() for name in names}  # fmt: skip

_PACKAGES = ("advice", "data", "integrations", "lab", "lm", "peeled", "verdict")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("layerlaw")
    if name in _HOMES:
        return getattr(importlib.import_module(f"layerlaw.{_HOMES[name]}"), name)
    if name in _PACKAGES:
        return importlib.import_module(f"layerlaw.{name}")
    raise AttributeError(f"module 'layerlaw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
