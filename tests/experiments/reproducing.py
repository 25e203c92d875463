"""`layerlaw reproduce` as a process."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [str(Path(sys.executable).parent / "layerlaw"), "reproduce"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def reproduce(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=200, env=ENVIRONMENT)
    assert done.returncode == code, done.stdout + done.stderr
    return done
