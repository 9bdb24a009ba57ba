"""Times of lines: only those that were asked for, whatever calls them, and nothing is left behind."""

import itertools
import sys
from types import FrameType
from typing import Any

import pytest

from scalescope.worker.trace import host_lines
from scalescope.worker.trace.host_lines import Line, timed_lines


def waiting(count: int) -> int:
    total = 0
    for number in range(count):
        total += quick(number)
    return total


def quick(number: int) -> int:
    return number + 1


def failing() -> None:
    raise ValueError("it broke")


def line_of(function: Any, offset: int) -> Line:
    code = function.__code__
    return code.co_filename, code.co_firstlineno + offset


CALL, RETURN, RAISE = line_of(waiting, 3), line_of(quick, 1), line_of(failing, 1)


@pytest.fixture(autouse=True)
def readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by 1 at every reading."""
    counter = itertools.count()
    monkeypatch.setattr(host_lines.clocks, "perf_counter", lambda: float(next(counter)))


@pytest.fixture(autouse=True)
def tracer() -> Any:
    """What traced this thread before, a measurement of coverage for instance, is there again afterwards."""
    before = sys.gettrace()
    yield before
    assert sys.gettrace() is before


def test_a_line_is_timed_as_often_as_it_runs_with_what_it_calls() -> None:
    with timed_lines([CALL]) as times_s:
        assert waiting(5) == 15
    assert times_s == {CALL: 5.0}
    # The line inside takes one reading to begin and one to end, while the line outside goes on.
    with timed_lines([CALL, RETURN]) as times_s:
        waiting(3)
    assert times_s[RETURN] == 3.0
    assert times_s[CALL] > times_s[RETURN]


def test_a_line_that_fails_is_timed_until_it_does() -> None:
    with timed_lines([RAISE]) as times_s, pytest.raises(ValueError, match="it broke"):
        failing()
    assert times_s[RAISE] == 1.0


def test_lines_that_do_not_run_or_run_after_the_block_take_no_time(tracer: Any) -> None:
    with timed_lines([CALL]) as times_s:
        quick(1)
    waiting(2)
    assert times_s == {CALL: 0.0}
    with timed_lines([]) as times_s:
        assert sys.gettrace() is tracer  # without lines nothing is traced
    assert times_s == {}


def test_a_line_of_a_function_that_runs_already_is_timed() -> None:
    """The loop of a script was called long before its lines are timed."""
    here = sys._getframe()
    line = (here.f_code.co_filename, here.f_lineno + 6)
    block, counts = timed_lines([line]), []
    times_s = {}
    for number in range(4):
        if number == 1:
            times_s = begun(block)
        counts.append(quick(number))  # the line
    ended(block)
    assert times_s == {line: 3.0}
    assert here.f_trace is None


def begun(block: Any) -> dict[Line, float]:
    """Entered in a function of its own, as at the end of a script's step."""
    times_s: dict[Line, float] = block.__enter__()
    return times_s


def ended(block: Any) -> None:
    block.__exit__(None, None, None)


def test_another_tracer_is_put_back_also_after_a_failure() -> None:
    def other(frame: FrameType, event: str, argument: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        with pytest.raises(ZeroDivisionError), timed_lines([CALL]):
            1 / 0  # noqa: B018
        assert sys.gettrace() is other
    finally:
        sys.settrace(before)
