"""The commands, and what they have in common: human words, JSON for scripts, errors and exit codes."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from layerlaw.errors import DataError, LayerlawError

JsonFlag = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output; human words on standard error.")
]

app = typer.Typer(
    name="layerlaw",
    help="The laws of depth in neural networks: measured layer by layer, tested, shown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run() -> None:
    """Run a command; an error of ours becomes one line and exit code 1."""
    from layerlaw.cli import advice, demo, imbalance, lm, probe, report, reproduce, sites  # noqa: F401  (adds its command)

    try:
        app()
    except LayerlawError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}, ensure_ascii=False))
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {error}", style="red", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def console(as_json: bool) -> Console:
    """Where human words go."""
    return Console(stderr=as_json)


def emit(data: dict[str, Any]) -> None:
    """The one JSON object of a command."""
    print(json.dumps(data, ensure_ascii=False, allow_nan=False))


def made_folder(path: Path) -> Path:
    """The folder for what a command leaves, made if need be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DataError(f"{path}: expected a folder, got a file.") from None
    except OSError as error:
        raise DataError(f"{path}: expected a folder that can be made or used ({error.strerror}).") from None
    return path


def _version(shown: bool) -> None:
    if shown:
        print(importlib.metadata.version("layerlaw"))
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass
