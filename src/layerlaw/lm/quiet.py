"""A transformers that keeps quiet: its bars and warnings speak of loading, not of the result."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_transformers(*, bars: bool = False) -> Iterator[None]:
    """No warnings of transformers, which do not speak of the result, and unless asked for no bars; errors still come."""
    if importlib.util.find_spec("transformers") is None:  # whoever needs it says so
        yield
        return
    import transformers

    logging: Any = transformers.utils.logging
    level, before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|torch\.jit|huggingface_hub)(\..*)?")
            yield
    finally:
        logging.set_verbosity(level)
        if before:
            logging.enable_progress_bar()
