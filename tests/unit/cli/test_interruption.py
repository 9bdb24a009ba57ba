"""Signals while measuring: handled once, handlers restored afterwards, and ignored under nohup."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from scalescope.cli.streams import interruptible
from scalescope.errors import CannotRun, Interrupted
from scalescope.studies.prepared import time_limit

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers_given_back() -> Iterator[None]:
    """Whatever a test does, the signals of the test run stay what they were; here they are all handled."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_raised_where_the_main_thread_is_and_handlers_are_restored(
    number: signal.Signals,
) -> None:
    def previous_handler(number: int, frame: object) -> None: ...

    signal.signal(number, previous_handler)
    with pytest.raises(Interrupted) as caught, interruptible():
        os.kill(os.getpid(), number)
        pytest.fail("the signal was not handled")
    assert caught.value.signum == number
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is previous_handler


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    number = signal.SIGHUP
    signal.signal(number, signal.SIG_IGN)
    with interruptible():
        assert signal.getsignal(number) is signal.SIG_IGN
        os.kill(os.getpid(), number)
        for other in SIGNALS:
            assert (signal.getsignal(other) is signal.SIG_IGN) == (other == number)
    assert signal.getsignal(number) is signal.SIG_IGN


TWICE = """
import os, signal
from scalescope.cli.streams import interruptible
from scalescope.errors import Interrupted
with interruptible():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Interrupted:
        print("first", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        print("not reached", flush=True)
"""


def test_the_second_signal_ends_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGINT, "first\n", "")


def test_a_time_limit_raises_its_error_and_leaves_no_alarm() -> None:
    spent = CannotRun("spent")
    before, alarm = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with pytest.raises(CannotRun) as caught, time_limit(0.05, spent):
        signal.pause()
    assert caught.value is spent
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) == bool(alarm[0])
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_limit_that_is_over_or_missing() -> None:
    reached = []
    with pytest.raises(CannotRun), time_limit(-1.0, CannotRun("spent")):
        reached.append("over")
    with time_limit(None, CannotRun("spent")):
        reached.append("missing")
    with time_limit(1000.0, CannotRun("spent")):
        reached.append("kept")
    assert reached == ["missing", "kept"]


def test_a_thread_has_no_alarm_but_keeps_a_limit_that_is_over() -> None:
    reached = []

    def work() -> None:
        with time_limit(1000.0, CannotRun("spent")):
            reached.append("kept")
        with contextlib.suppress(CannotRun), time_limit(-1.0, CannotRun("spent")):
            reached.append("over")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reached == ["kept"]
