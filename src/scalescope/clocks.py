"""The clocks of the system, taken before a script can replace those of the time module.

Scripts under test freeze or shift `time.*`, and libraries for that also replace every reference to these
functions that they find in a module: hence functions of our own, with the system's as default arguments.
"""

import time as _time
from collections.abc import Callable

_Clock = Callable[[], float]


def monotonic(_now: _Clock = _time.monotonic) -> float:
    return _now()


def perf_counter(_now: _Clock = _time.perf_counter) -> float:
    return _now()


def perf_counter_ns(_now: Callable[[], int] = _time.perf_counter_ns) -> int:
    return _now()


def thread_time(_now: _Clock = _time.thread_time) -> float:
    return _now()


def time(_now: _Clock = _time.time) -> float:
    return _now()


def sleep(seconds: float, _sleep: Callable[[float], None] = _time.sleep) -> None:
    _sleep(seconds)
