"""Kills at random moments, a few of them; `make torture` makes a hundred."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
HARNESS = """
import sys, time
from fuzz import torture

def careless(folder):
    folder.mkdir(exist_ok=True)
    (folder / str(len(list(folder.iterdir())))).write_text("")  # one more each time
    time.sleep(0.4)
    return len(list(folder.iterdir()))

torture.JOBS["careless"] = careless
assert torture.torture(2, 0, ["sweep"]) == []
wrong = torture.torture(4, 0, ["careless"])
assert wrong and all("another result" in one for one in wrong), wrong
print("both as they should be")
"""


def test_a_sweep_survives_kills_and_careless_work_is_found_out() -> None:
    """In a process of its own, since it is forked."""
    paths = os.pathsep.join([*filter(None, sys.path), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-c", HARNESS]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both as they should be" in done.stdout
