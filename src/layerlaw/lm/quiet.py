"""A transformers that keeps quiet: its bars and warnings speak of loading, not of the result."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars and no warnings of transformers, which speak of loading and not of the result; errors still come."""
    if importlib.util.find_spec("transformers") is None:  # whoever needs it says so
        yield
        return
    import transformers

    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|torch\.jit|huggingface_hub)(\..*)?")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
