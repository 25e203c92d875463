"""Commands that are stopped, or that cannot write: one line, an exit code, and nothing trained in vain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LIMITED = """
import resource, signal, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from layerlaw.cli import main
main()
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def stopped(cwd: Path, when: Callable[[int], bool], *arguments: str) -> tuple[int, str, str]:
    """Ctrl-C as soon as something is so; the exit code, standard output and standard error."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "layerlaw", *arguments]
    with subprocess.Popen(command, cwd=cwd, text=True, env=ENVIRONMENT, preexec_fn=_heeding, **pipes) as process:
        end = time.monotonic() + 60
        while not when(process.pid) and time.monotonic() < end:
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        return process.returncode, out, errors


def _heeding() -> None:
    """A shell that runs the tests in the background lets them, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def loaded(library: str) -> Callable[[int], bool]:
    """Whether a process has begun to load a library."""
    return lambda pid: library in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("library", ["libtorch_cpu", "_multiarray_umath"])
def test_ctrl_c_during_imports_ends_in_one_line(library: str, tmp_path: Path) -> None:
    assert stopped(tmp_path, loaded(library), "demo") == (130, "", "interrupted\n")


def test_ctrl_c_during_training_ends_in_one_line(tmp_path: Path) -> None:
    code, out, errors = stopped(tmp_path, lambda pid: (tmp_path / "d").exists(), "demo", "--out", "d")
    assert (code, out, errors.splitlines()) == (130, "", ["interrupted"])


@pytest.mark.parametrize(
    "arguments",
    [("demo", "--quick", "--out", "d"), ("reproduce", "fig1", "--quick", "--out", "d")],
    ids=lambda given: given[0],
)
def test_who_cannot_write_is_told_before_anything_is_trained(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, "1000", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "error: d: expected space on the disk for this file, got a limit of 1 kB for the size of files: 65.5 kB"
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
