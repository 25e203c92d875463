"""The one door to SciPy: imported when a problem needs an iterative solver, not before."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.errors import MissingExtraError

Array = npt.NDArray[np.float64]


def lbfgs(f: Callable[[Array], tuple[float, Array]], start: Array, *, steps: int = 3000) -> Array:
    """Where L-BFGS takes `start`, for a function that returns its value and its gradient."""
    try:
        optimize: Any = importlib.import_module("scipy.optimize")
    except ImportError:
        raise MissingExtraError("scipy", "peeled", "Solving the Layer-Peeled Model for more than two groups") from None
    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 1e-16, "gtol": 1e-14}
    found = optimize.minimize(f, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x, dtype=np.float64)
