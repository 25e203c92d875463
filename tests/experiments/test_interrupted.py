"""`layerlaw reproduce` goes on where it was stopped."""

import signal
import subprocess
import time
from pathlib import Path

from reproducing import COMMAND, ENVIRONMENT, reproduce


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    sweeps = tmp_path / "layerlaw-reproduce" / "quick" / "sweeps"
    running = subprocess.Popen([*COMMAND, "s11", "--quick"], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    for _ in range(600):
        time.sleep(0.1)
        if running.poll() is not None or list(sweeps.rglob("fleet-*.pt")):
            break
    running.send_signal(signal.SIGINT)
    assert running.wait(60) in (0, 130)
    kept = {file: file.stat().st_mtime_ns for file in sweeps.rglob("fleet-*.pt")}
    assert kept
    done = [file for file in kept if _finished(file)]
    reproduce("s11", "--quick", "--json", cwd=tmp_path)
    assert [file.stat().st_mtime_ns for file in done] == [kept[file] for file in done]  # not trained again
    assert all(map(_finished, sweeps.rglob("fleet-*.pt")))


def _finished(file: Path) -> bool:
    from layerlaw.lab.jobs import Checkpoint

    return Checkpoint.from_file(file)[0].done
