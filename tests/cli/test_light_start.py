"""Help, version and completion come without torch; a command is loaded with its first call."""

import importlib
import inspect
import os
import pkgutil
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import layerlaw

from layerlaw import cli
from layerlaw.cli.app import COMMANDS, app, loaded_command

CALLED = """
import sys
from layerlaw.cli import main
sys.argv = ["layerlaw", *sys.argv[1:]]
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
heavy = {"torch", "matplotlib", "plotly", "pandas", "transformers", "scipy"} & set(sys.modules)
print("loaded:", *sorted(heavy))
"""
LONGEST = 1.5  # seconds of processor time; measured .33, and 2.7 with torch


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_load_no_torch_and_are_there_at_once(word: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", CALLED, word], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < LONGEST


def test_the_table_of_commands_is_what_the_modules_define() -> None:
    for module in pkgutil.iter_modules(cli.__path__):
        importlib.import_module(f"layerlaw.cli.{module.name}")
    defined = {info.name: info for info in app.registered_commands}
    assert set(defined) == set(COMMANDS), "name a new command in COMMANDS of cli/app.py, with its first line"
    for name, (_, line) in COMMANDS.items():
        assert (inspect.getdoc(defined[name].callback) or "").splitlines()[0] == line


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_its_own_help(name: str) -> None:
    command = loaded_command(name)
    assert command.help.splitlines()[0] == COMMANDS[name][1]
    assert {"as_json"} <= {option.name for option in command.params}


@pytest.mark.parametrize(
    ("typed", "offered"), [("pro", ["probe"]), ("probe --bat", ["--batchnorm", "--batch-size"]), ("nonsense", [])]
)
def test_the_shell_completes_commands_and_their_options(typed: str, offered: list[str]) -> None:
    words = f"layerlaw {typed}"
    asked = {"_LAYERLAW_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(typed.split()))}
    command = [str(Path(sys.executable).parent / "layerlaw")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | asked)
    assert done.stdout.split() == offered


def test_a_mistyped_command_is_answered_with_the_nearest(tmp_path: Path) -> None:
    said = layerlaw("prob", cwd=tmp_path, code=2).stderr
    assert "Did you mean 'probe'?" in said
