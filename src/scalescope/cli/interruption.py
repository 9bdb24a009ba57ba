"""Signals while measuring: the first asks to stop and keeps what is done, the second ends at once; alarms."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from scalescope.cli.main import leave_at_once
from scalescope.errors import Interrupted, ScalescopeError

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


@contextlib.contextmanager
def time_limit(seconds: float | None, error: ScalescopeError) -> Iterator[None]:
    """Raise `error` where the main thread is, if it is still inside after so long; None is no limit.

    Other threads get no alarm, so there only a limit that has passed already is one.
    """
    if seconds is not None and seconds <= 0.0:
        raise error
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handle)
    alarm = signal.setitimer(signal.ITIMER_REAL, seconds)  # one that somebody else has set
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *alarm)
        signal.signal(signal.SIGALRM, before)
