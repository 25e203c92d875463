"""The commands, and what they have in common: human words, JSON for scripts, errors and exit codes."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import inspect
import json
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer import Option
from typer.core import TyperCommand, TyperGroup

from layerlaw.errors import DataError, InputError, LayerlawError, visible
from layerlaw.files import FULL, as_path, check_room, full_disk, made_folder, replace_whole

JsonFlag = Annotated[bool, Option("--json", help="One JSON object on standard output; human words on standard error.")]
RENAMED = {
    "--mode": "--batchnorm ('train' is now 'batch', 'eval' is 'running')",
    "--normalise": "--normalize",
    "--optimiser": "--optimizer",
}

# name: (module of this package, first line of its help). Modules of commands load torch, so each waits for its command.
COMMANDS = {
    "demo": ("demo", "Train the paper's 8-layer network on 1000 embedded images and watch the law appear."),
    "probe": (
        "classifier",
        "Measure MODEL layer by layer: does every layer take its share of separating the classes?",
    ),
    "merge": (
        "classifier",
        "Make the record of a measurement whose shards are done (probe --shard i/n --state FOLDER).",
    ),
    "sites": (
        "classifier",
        "Show where a probe would measure MODEL, as a dry run: names, types, shapes, features, memory.",
    ),
    "report": ("classifier", "Write one self-contained HTML page about one record, or comparing several."),
    "modules": (
        "classifier",
        "At which level, layers, blocks or stages, do the modules share the drop of log D evenly?",
    ),
    "lm": (
        "lm",
        "Measure language model MODEL block by block: does every block make the next token more predictable?",
    ),
    "exit": (
        "advice",
        "After which layer could MODEL stop? Accuracy and time of early exits, on samples that did not choose them.",
    ),
    "paths": (
        "advice",
        "How is each sample decided? D of every sample at every layer, and from which layer on its nearest center stays.",
    ),
    "depth": (
        "advice",
        "Which depth? Trains feed-forward networks of several depths and compares the D of their last hidden layer.",
    ),
    "width": ("advice", "Which width is enough? As `layerlaw depth`, for several widths at one depth."),
    "shape": ("advice", "Wide below or wide above? As `layerlaw depth`, for networks of given widths."),
    "imbalance": (
        "advice",
        "Will rare classes lose their classifiers? A forecast from class counts and norms (Layer-Peeled Model).",
    ),
    "svsl-search": (
        "advice",
        "How strong should SVSL be, and from which layer on? Searched with Optuna on images held back from training.",
    ),
    "difficulty": (
        "advice",
        "Which data set is harder for an architecture? By the nearest-class-center mismatch of its first layer.",
    ),
    "checkpoints": (
        "checkpoints",
        "Measure every checkpoint of a training run, and write one page that plays them, layer by layer and step by step.",
    ),
    "check": ("checks", "Check records, for continuous integration: one line per demand."),
    "reproduce": ("reproduce", "Train the networks of a paper's figure, and print the paper's numbers beside ours."),
}


class Commands(TyperGroup):
    """All commands, each by its name and line until it is called: help, version and completion load no torch."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        loaded = self.commands
        self.commands = {
            name: loaded[name] if name in loaded else TyperCommand(name, help=line)
            for name, (_, line) in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, with its options."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = loaded_command(args[0])
        return super().resolve_command(ctx, args)


def loaded_command(name: str) -> Any:
    """The command of a name, from its module."""
    importlib.import_module(f"layerlaw.cli.{COMMANDS[name][0]}")
    group: Any = typer.main.get_command(app)
    return group.commands[name]


app = typer.Typer(
    name="layerlaw",
    cls=Commands,
    help="The laws of depth in neural networks: measured layer by layer, tested, shown.\n\n"
    "Where MODEL is file.py:make or package.module:make, a command runs that code of yours. No command runs code that comes "
    "with data, weights, records or a downloaded model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


BAD_INPUT = {"check": 2}  # exit codes of commands that have another use for 1
MADE_BY = {"merge": "probe", "report": "probe", "modules": "probe"}  # commands that show what another has measured
# Arguments of Python whose option has another name.
ALIASES = {"targets": "target", "share": "validation", "learning_rate": "rate"}
OURS = "layerlaw: "  # at the beginning of a warning
WHERE = ("data", "test")  # at the beginning of a message these name the samples, not an option
HINT = re.compile(
    r"(?<![?&])\b([a-z_]+)=('[^']*'(?:(?:, | or )'[^']*')*|\[[^]]*\]|\([^)]*\)|\{[^}]*\}|(?:[\w…-]+(?:\.\w+)*)?)"
)
SAME_TWICE = re.compile(r"(--[\w-]+) \(or \1\)")  # an argument with its option beside it, both in options now


class Screen(Console):
    """Where human words go: strings are text, of which nothing is markup and nothing steers the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, but for strings."""
        super().print(*(Text(visible(one)) if isinstance(one, str) else one for one in objects), **options)


def in_options(text: str) -> str:
    """A message about arguments of Python in terms of the options of the command that runs: scores=None is --scores none.

    What the command has no option for stays as it is, and so do lines of the user's own code, below the first.
    """
    command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
    known = {o.name: o for o in loaded_command(MADE_BY.get(command, command)).params} if command else {}
    known = {name: option for name, option in known.items() if option.param_type_name == "option"}

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in known:
            return found[0]
        flag, off = known[name].opts[0], known[name].secondary_opts
        if value in ("True", "False"):
            return flag if value == "True" else off[0] if off else found[0]
        values = [part.strip(" '\"") for part in value.strip("[](){}").split(",")]
        if known[name].multiple and value.startswith("["):
            return " ".join(f"{flag} {part}" for part in values)
        plain = value.replace("'", "") if value.startswith("'") else ",".join(values)
        return f"{flag} {'none' if value == 'None' else plain}".strip()

    first, line, rest = text.partition("\n")
    first = SAME_TWICE.sub(r"\1", HINT.sub(option, first))
    name, colon, words = first.partition(": ")
    name = ALIASES.get(name, name) if name not in known else name
    paths = {str(Path(word)) for word in sys.argv[1:] if word}  # a folder may be called like an option
    if name == "classes":
        name = next((one for one in ("classes", "class_map") if _is_given(known.get(one))), "")
    if colon and name in known and name not in WHERE and name not in paths:
        first = f"{known[name].opts[0]}: {words}"
    return first + line + rest


def _is_given(option: Any) -> bool:
    """Whether the command line has it; the classes of a message may also be those of the data."""
    return option is not None and any(word.partition("=")[0] in option.opts for word in sys.argv[1:])


def run() -> None:
    """Run a command; an error of ours becomes one line and exit code 1 (of `check` 2)."""
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        loaded_command(sys.argv[1])  # while Ctrl-C still means: nothing to save
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there may be something to save
    try:
        for name in (word.partition("=")[0] for word in sys.argv[1:]):
            if name in RENAMED:
                raise InputError(f"{name} is now {RENAMED[name]}.")
        with _full_disk_told(), _plain_warnings():
            app()
    except LayerlawError as error:
        said = in_options(str(error))
        if "--json" in sys.argv:
            print_json({"error": {"type": type(error).__name__, "message": said}})
        Screen(stderr=True, soft_wrap=True).print(f"error: {said}", style="red")
        sys.exit(BAD_INPUT.get(next(iter(sys.argv[1:]), ""), 1))
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as left:  # what typer makes of Ctrl-C, without a word
        if isinstance(getattr(left.__context__, "__cause__", None), KeyboardInterrupt):
            _interrupted()
        raise


@contextmanager
def _full_disk_told() -> Iterator[None]:
    """A disk that is full or read-only, wherever it shows (a cache, a temporary folder), is an error of ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in {*FULL, errno.EROFS}:
            raise
        if error.errno == errno.EROFS:
            raise DataError(
                f"{error.filename or 'disk'}: expected a place that can be written to ({error.strerror})."
            ) from None
        raise full_disk(error.filename or tempfile.gettempdir()) from None


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """A warning of ours is one line as an error is, without a line of code; those of other packages stay as they are."""
    usual = warnings.formatwarning

    def plain(message: Warning | str, *where: Any, **more: Any) -> str:
        ours, words = str(message).startswith(OURS), visible(in_options(str(message).removeprefix(OURS)))
        return f"warning: {words}\n" if ours else usual(message, *where, **more)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one, while Python shuts down, would end in a traceback
    print("interrupted", file=sys.stderr)
    sys.exit(130)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Add a command. A parameter that is a dataclass of options stands for its fields, so commands can share options."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            options[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        types = get_type_hints(groups[name], include_extras=True)
        for f in fields(groups[name]):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            default = inspect.Parameter.empty if default is MISSING else default
            kind = inspect.Parameter.KEYWORD_ONLY
            options[f.name] = inspect.Parameter(f.name, kind, default=default, annotation=types[f.name])

    def run_command(**given: Any) -> None:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        function(**made, **given)

    run_command.__doc__, run_command.__name__ = function.__doc__, function.__name__
    run_command.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    run_command.__annotations__ = {name: option.annotation for name, option in options.items()}
    app.command(function.__name__.replace("_", "-"))(run_command)
    return function


def console(as_json: bool) -> Console:
    """Where human words go."""
    return Screen(stderr=as_json)


def print_json(data: Any) -> None:
    """One object on standard output; what would steer a terminal is escaped there, too."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def conclude(screen: Console, as_json: bool, data: dict[str, Any], written: Mapping[str, str] | None = None) -> None:
    """Name the files that were written; with --json one object of `data` and these."""
    written = written or {}
    for what, path in written.items():
        screen.print(f"{what}: {path}", soft_wrap=True)
    if as_json:
        print_json(data | dict(written))


def check_folder(path: Path | None) -> None:
    """A folder for results must be one, or not be there yet, and take files: before the work, not after it."""
    path = None if path is None else as_path(path, "folder")
    if path is not None and path.exists() and not path.is_dir():
        raise DataError(f"{path}: expected a folder, got a file.")
    if path is not None:
        check_room(path)


def save_figure(figure: Any, path: Path) -> Path:
    """A figure of matplotlib as a file, whole or not at all."""
    return replace_whole(path, lambda part: figure.savefig(part, format=path.suffix[1:], dpi=160))


def saved(result: Any, name: str, folder: Path | None) -> dict[str, str]:
    """Save advice and its figure in a folder, where one was named; what was written, and where."""
    if folder is None:
        return {}
    figure = made_folder(folder) / f"{name}.png"
    save_figure(result.plot(), figure)
    return {name: str(result.save(folder / f"{name}.json")), "figure": str(figure)}


def _version(shown: bool) -> None:
    if shown:
        print(importlib.metadata.version("layerlaw"))
        raise typer.Exit


VERSION = Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")


@app.callback()
def _common(version: Annotated[bool, VERSION] = False) -> None:
    pass
