"""Ends a process when its parent ends: a killed launcher leaves nothing running.

`python -m scalescope.parent_death PARENT COMMAND …` does so for any program.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """End this process when `parent`, its direct parent, ends. Call before torch is imported."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before the signal was armed
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the signal stays armed over exec
    except OSError as problem:
        sys.exit(f"{sys.argv[2]}: could not be started: {problem.strerror}")
