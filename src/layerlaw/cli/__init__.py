"""`layerlaw demo | probe | lm | sites | report` and more: thin commands over the library."""

import sys

from layerlaw.errors import MissingExtraError


def main() -> None:
    """The entry point; says what to install when the command line's own packages are missing."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit(f"error: {MissingExtraError('typer', 'cli', 'The command line')}")
    from layerlaw.cli.app import run

    run()
