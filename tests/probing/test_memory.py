"""The memory of a streamed probe does not grow with the number of samples."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "stream_memory.py"


def peak_mib(batches: int) -> float:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(batches)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_eight_times_the_samples_take_the_same_memory() -> None:
    few, many = peak_mib(20), peak_mib(160)
    assert many - few < 10  # the features of the other 140 batches would be 213 MiB
