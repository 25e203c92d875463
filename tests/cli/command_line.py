"""`layerlaw …` as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def layerlaw(*arguments: str, cwd: Path, code: int = 0, columns: int = 120) -> subprocess.CompletedProcess[str]:
    """Run it with one thread (a second one only costs in small networks) and check its exit code."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": str(columns)}
    command = [str(Path(sys.executable).parent / "layerlaw"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=240, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done
