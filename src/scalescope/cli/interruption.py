"""Signals while measuring: the first asks to stop and keeps what is done, the second ends at once; alarms."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from scalescope.cli.leaving import leave_at_once
from scalescope.errors import Interrupted

_SHOW_CURSOR = b"\x1b[?25h"
# SIGUSR1 is how schedulers warn a job that its time is up or that it is preempted.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextlib.contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt inside, where the entry point would have it end the process."""
    if signal.getsignal(signal.SIGINT) is not leave_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, leave_at_once)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first stopping signal into `Interrupted`, raised where the main thread is."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:  # ranks and zygote are bound to our life and go with us
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)  # the progress bar hides it
            os._exit(128 + number)
        caught.append(number)
        raise Interrupted(number)

    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
