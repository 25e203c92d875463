"""`layerlaw reproduce` goes on where it was stopped."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from reproducing import COMMAND, ENVIRONMENT, reproduce

from layerlaw.experiments import Clock


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


KILLED = """
import sys, time
from pathlib import Path
from layerlaw.experiments import Clock
Clock.EVERY = 0.05
with Clock(Path(sys.argv[1])):
    time.sleep(60)
"""


def test_wall_time_adds_up_over_kills(tmp_path: Path) -> None:
    file = tmp_path / "sweeps" / "seconds"
    before = 0.0
    for _ in range(2):
        running = subprocess.Popen([sys.executable, "-c", KILLED, str(file)])
        end = time.monotonic() + 60
        while (seconds(file) < before + 0.3) and time.monotonic() < end:
            time.sleep(0.02)
        running.kill()
        running.wait(20)
        assert seconds(file) >= before + 0.3
        before = seconds(file)
    with Clock(file) as clock:
        assert clock.seconds >= before
    file.write_text("nonsense")
    with Clock(file) as clock:
        assert clock.seconds < 10
    assert seconds(file) < 10


def seconds(file: Path) -> float:
    return float(file.read_text()) if file.exists() else 0.0


def _finished(file: Path) -> bool:
    from layerlaw.lab.jobs import Checkpoint

    return Checkpoint.from_file(file)[0].done
