"""Errors inside hooks stay there; what a script's signal handler raises goes on."""

import os
import signal
from types import FrameType

import pytest

from scalescope.worker.attach.hook_guard import HookGuard


class Stop(Exception):
    """How some scripts leave their loop."""


def test_an_error_is_reported_and_not_raised_also_from_code_of_the_script() -> None:
    def shape_of_a_batch() -> None:
        raise RuntimeError("hostile")

    errors: list[Exception] = []
    with HookGuard(errors.append):
        shape_of_a_batch()
    assert [str(error) for error in errors] == ["hostile"]


def test_what_a_signal_handler_raises_inside_a_hook_goes_on() -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Stop

    errors: list[Exception] = []
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Stop), HookGuard(errors.append):
            os.kill(os.getpid(), signal.SIGUSR2)
            signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a call in which the handler runs
    finally:
        signal.signal(signal.SIGUSR2, before)
    with pytest.raises(KeyboardInterrupt), HookGuard(errors.append):
        raise KeyboardInterrupt
    assert errors == []
