"""`layerlaw demo | probe | lm | sites | report` and more: thin commands over the library."""

import os
import signal
import sys
from types import FrameType

from layerlaw.errors import MissingExtraError


def _leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-C while packages are being imported, which may turn it into errors of their own: there is nothing to save."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def main() -> None:
    """The entry point; says what to install when the command line's own packages are missing."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
        signal.signal(signal.SIGINT, _leave)
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit(f"error: {MissingExtraError('typer', 'cli', 'The command line')}")
    from layerlaw.cli.app import run

    run()
