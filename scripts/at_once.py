"""Run several experiments at once on one GPU, in the background: `python scripts/at_once.py OUT SECONDS NAME[:WORKERS[:SEEDS]] …`.

Each NAME becomes a process of its own that goes on after this one has ended, so that a machine on which commands may take
only minutes can be used for hours: the same call again starts what has not been started, waits up to SECONDS for all of
them, and says how far they are. Records are left as OUT/NAME.json, what was trained in OUT/sweeps (an interrupted experiment
goes on from it), what was printed in OUT/NAME.log. Where NVIDIA's MPS is installed it is started, so that networks of small
kernels share the GPU. Needs torch, numpy and what the experiment itself needs; no figures are drawn: `scripts/ledger.py OUT`
does that.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DEVICE = "AT_ONCE_DEVICE"  # for a trial on a machine without a GPU: "cpu", which makes the runs quick ones too


def running(out: Path, name: str) -> bool:
    """Whether its process is alive."""
    try:
        pid = int((out / f"{name}.pid").read_text())
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, ValueError):
        return False


def start(out: Path, what: str) -> None:
    """Start an experiment unless it runs or is done."""
    name = what.split(":")[0]
    if running(out, name) or (out / f"{name}.json").exists():
        return
    with (out / f"{name}.log").open("a") as log:
        command = [sys.executable, "-u", __file__, "--one", str(out), what]
        child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (out / f"{name}.pid").write_text(str(child.pid))


def share_the_gpu(out: Path) -> None:
    """NVIDIA's MPS: its daemon and all programs must name the same folder."""
    pipes = out / "mps"
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(pipes)
    if shutil.which("nvidia-cuda-mps-control") and not pipes.exists():
        pipes.mkdir()
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)


def told(items: Iterable[Any], label: str, total: int | None) -> Iterator[Any]:
    """Progress as lines of a log, one every five seconds at most."""
    last = time.monotonic()
    for number, item in enumerate(items):
        if time.monotonic() - last > 5:
            last = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')} {label}: {number} of {total}")
        yield item


def one(out: Path, what: str) -> None:
    """An experiment, in this process."""
    from layerlaw.experiments import reproduce

    name, workers, seeds = [*what.split(":"), "", ""][:3]
    device = os.environ.get(DEVICE, "cuda")
    how: dict[str, Any] = {"workers": int(workers or 1), "seeds": int(seeds) if seeds else None, "progress": told}
    reproduce(name, device=device, quick=device == "cpu", folder=out / "sweeps", **how).save(out / f"{name}.json")


def main() -> None:
    """Start what is missing, wait, tell."""
    out, seconds, wanted = Path(sys.argv[1]).resolve(), float(sys.argv[2]), sys.argv[3:]
    (out / "sweeps").mkdir(parents=True, exist_ok=True)
    share_the_gpu(out)
    for what in wanted:
        start(out, what)
    names, end = [what.split(":")[0] for what in wanted], time.monotonic() + seconds
    while time.monotonic() < end and any(running(out, name) for name in names):
        time.sleep(1)
    for name in names:
        state = "done" if (out / f"{name}.json").exists() else "running" if running(out, name) else "stopped"
        lines = (out / f"{name}.log").read_text(errors="replace").splitlines() if (out / f"{name}.log").exists() else []
        print(f"{name}: {state}", *lines[-3:], sep="\n    ")


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--one":
        one(Path(sys.argv[2]), sys.argv[3])
    elif len(sys.argv) > 3:
        main()
    else:
        sys.exit(__doc__)
