"""For times that tell of the code: memory that is let go of stays with the process (Linux, glibc).

Else the kernel hands out fresh pages again and again. What that takes differs from hour to hour on a virtual machine, up to
a third of a probe of a small network, and two processes hinder each other in it.
"""

import os
import sys

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**28)}


def keep_memory() -> None:
    """Begin this program once more, where it was not started so."""
    if not KEPT.items() <= os.environ.items():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KEPT)


def usual() -> dict[str, str]:
    """The environment for a process that is not to keep it."""
    return {name: value for name, value in os.environ.items() if name not in KEPT}
