"""The engine: warm-up, window and soaking, over loops whose steps take a given time."""

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from scalescope import clocks
from scalescope.catalog.benchmarks.train import warmup_of
from scalescope.experiment.trial import Trial
from scalescope.worker.engine import steps as engines
from scalescope.worker.engine.steps import (
    MOST_STEPS,
    Engine,
    GpuReading,
    LoopEnded,
    Steps,
    driven,
    extra_steps,
    is_steady,
    steps_in_window,
    typical_step_s,
)
from scalescope.worker.machine import rates
from tests.builders.loops import OneRank, PlainLoop, engine_of
from tests.builders.results import make_trial


def timed_trial(**settings: Any) -> Trial:
    return make_trial(**{"steps_per_epoch": "auto", "window": "1s", "strategy": "single", **settings})


class Time:
    """A clock that moves only with steps, the length of which is given by their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: Callable[[int], float]) -> None:
        self._step_s, self.steps, self.now = step_s, 0, 0.0
        monkeypatch.setattr(clocks, "monotonic", lambda: self.now)
        monkeypatch.setattr(clocks, "perf_counter_ns", lambda: round(self.now * 1e9))

    def step(self) -> None:
        self.now += self._step_s(self.steps)
        self.steps += 1


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Trial, PlainLoop, Any], Engine]:
    """An engine that takes the host for a GPU."""

    def make(trial: Trial, loop: PlainLoop, ranks: Any) -> Engine:
        monkeypatch.setattr(Engine, "on_gpu", property(lambda _: True))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
        return engine_of(trial, loop, ranks=ranks)

    return make


def test_a_warm_up_a_window_and_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch, lambda number: 3.0 if number == 0 else 0.01)
    loop, trial = PlainLoop(window=7), timed_trial(warmup_steps=4)
    engine = engine_of(trial, loop)
    measured = driven(engine.trained(), time.step)
    assert loop.calls == [*["warm-up"] * 4, "window", "end", "collect"]
    assert measured.samples["warmup_step_time_s"] == pytest.approx([3.0, 0.01, 0.01, 0.01])
    assert measured.samples["step_time_s"] == pytest.approx([0.01] * 7)
    assert measured.counters["measured_steps"] == 7
    assert engine.position.completed == 11
    assert loop.alive_steps == engine.position.completed


def planned_after(time: Time, monkeypatch: pytest.MonkeyPatch, ahead: int) -> tuple[float, int]:
    """The step by which a window of 1 s is planned, and how many steps that took."""
    loop, planned = PlainLoop(ahead=ahead), []
    monkeypatch.setattr(loop, "windows", lambda step_s, made: planned.append(step_s) or [5])
    measured = driven(engine_of(timed_trial(warmup_steps=4), loop).trained(), time.step)
    return planned[0], len(measured.samples["warmup_step_time_s"])


def test_batches_that_were_ready_do_not_tell_how_long_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Time(monkeypatch, lambda number: 0.001 if number < 8 else 0.1)
    assert planned_after(ready, monkeypatch, ahead=8) == (pytest.approx(0.1), 8 + 8)


def test_batches_that_come_in_groups_are_counted_as_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Time(monkeypatch, lambda number: 0.4 if number % 4 == 0 else 0.0)
    step_s, made = planned_after(groups, monkeypatch, ahead=4)
    assert step_s == pytest.approx(0.1)
    assert made == 4 + 4


def test_slow_steps_are_not_probed_for_longer_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Time(monkeypatch, lambda number: 2.0)
    assert planned_after(slow, monkeypatch, ahead=256) == (pytest.approx(2.0), 4 + 4)


def test_a_gpu_that_became_faster_is_planned_by_its_last_steps(
    monkeypatch: pytest.MonkeyPatch, as_gpu: Callable[[Trial, PlainLoop, Any], Engine]
) -> None:
    time = Time(monkeypatch, lambda number: 0.005 if number < 5 else 0.001)
    loop, planned = PlainLoop(), []
    monkeypatch.setattr(loop, "windows", lambda step_s, made: planned.append(step_s) or [5])
    driven(as_gpu(timed_trial(warmup_steps=4), loop, OneRank()).trained(), time.step)
    assert planned == pytest.approx([0.001])


def test_the_first_steps_of_a_warm_up_do_not_count() -> None:
    assert typical_step_s([9.0, 8.0, 0.3, 0.2, 0.25]) == 0.2
    assert typical_step_s([9.0, 0.4, 0.3]) == 0.3


@pytest.mark.parametrize(("others", "extra"), [(0.0, 89), (200.0, 200)])
def test_a_gpu_warms_up_for_a_second_of_usual_steps(
    monkeypatch: pytest.MonkeyPatch,
    as_gpu: Callable[[Trial, PlainLoop, Any], Engine],
    others: float,
    extra: int,
) -> None:
    time = Time(monkeypatch, lambda number: 3.0 if number == 0 else 0.01)
    trial = timed_trial(warmup_steps=11)
    measured = driven(as_gpu(trial, PlainLoop(), OneRank(others)).trained(), time.step)
    assert warmup_of(trial.settings) == 11
    # Two more follow on the sensors' reading; all ranks make as many as the one that needs most.
    assert len(measured.samples["warmup_step_time_s"]) == 11 + extra + 2
    assert measured.counters["peak_memory_bytes"] == 7
    assert extra_steps(1e-5, 5) == 10_000


def test_a_launch_that_counts_its_steps_makes_no_more(
    monkeypatch: pytest.MonkeyPatch, as_gpu: Callable[[Trial, PlainLoop, Any], Engine]
) -> None:
    time = Time(monkeypatch, lambda number: 0.01)
    trial = make_trial(strategy="single", steps_per_epoch=30, warmup_steps=5)
    measured = driven(as_gpu(trial, PlainLoop(25), OneRank()).trained(), time.step)
    assert time.steps == 30
    assert len(measured.samples["step_time_s"]) == 25


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.3, 5), (0.02, 75), (0.002, 750), (1e-5, MOST_STEPS), (0.0, MOST_STEPS), (60, 5)]
)
def test_steps_in_a_window(step_s: float, steps: int) -> None:
    assert steps_in_window(1.5, step_s, 5) == steps == steps_in_window(None, step_s, 5)


@pytest.mark.parametrize(("step_s", "made"), [(0.1, 6), (0.001, 6), (0.1, 4)])
def test_a_loop_that_ends_in_its_window_keeps_its_steps_if_they_are_enough(
    monkeypatch: pytest.MonkeyPatch, step_s: float, made: int
) -> None:
    time = Time(monkeypatch, lambda number: step_s)
    trial = timed_trial(warmup_steps=3, min_steps=5)
    measurement = engine_of(trial, PlainLoop(window=100)).trained()
    next(measurement)
    for _ in range(3 + made):
        time.step()
        next(measurement)
    with pytest.raises(StopIteration if made > 5 else LoopEnded) as end:
        measurement.throw(LoopEnded)
    if isinstance(end.value, StopIteration):
        assert len(end.value.value.samples["step_time_s"]) == made


def test_watches_end_with_a_step_that_fails() -> None:
    callbacks = list(gc.callbacks)
    steps = itertools.count(1)

    def fail_later() -> None:
        if next(steps) > 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driven(engine_of(timed_trial(warmup_steps=3), PlainLoop(window=10)).trained(), fail_later)
    assert gc.callbacks == callbacks


def test_an_error_of_a_step_reaches_what_measures_it() -> None:
    seen: list[str] = []

    def careful() -> Steps[int]:
        try:
            yield
            yield
        except ValueError as error:
            seen.append(str(error))
        yield
        return 3

    steps = itertools.count(1)

    def make_step() -> None:
        if next(steps) == 2:
            raise ValueError("no batch")

    assert driven(careful(), make_step) == 3
    assert seen == ["no batch"] and next(steps) == 4

    def careless() -> Steps[None]:
        try:
            yield
        finally:
            seen.append("closed")

    def fail() -> None:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        driven(careless(), fail)
    assert seen[-1] == "closed"


def test_where_the_device_is_behind_the_end_of_the_window_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(rates.CpuClock):
        behind = 3

        def finished(self) -> int:
            self.behind = max(0, self.behind - 1)
            return super().finished() - self.behind

    slow = Slow()
    slept: list[float] = []
    monkeypatch.setattr(engines, "clock_for", lambda device, count: slow)
    monkeypatch.setattr(clocks, "sleep", slept.append)
    engine = engine_of(timed_trial(), PlainLoop())
    driven(engine.timed(2, publish_every=10), lambda: None)
    assert len(slept) == 1 and engine.position.completed == 2


def _soaked(
    monkeypatch: pytest.MonkeyPatch, step_s: Callable[[int], float], most_s: float, ranks: Any = None
) -> dict[str, Any]:
    time = Time(monkeypatch, step_s)
    loop = PlainLoop()
    recorded = driven(engine_of(timed_trial(), loop, ranks=ranks)._soaked(step_s(0), most_s), time.step)
    assert loop.forgotten > 0
    return dict(recorded)


def test_soaking_ends_when_step_times_are_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _soaked(monkeypatch, lambda number: 0.01, 60.0)
    assert recorded["soak_reached"] == 1
    assert recorded["soak_s"] == pytest.approx(30.0)


def test_soaking_goes_on_while_steps_become_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _soaked(monkeypatch, lambda number: 0.01 * (1 + number / 20_000), 60.0)
    assert recorded["soak_reached"] == 0
    assert 50.0 < recorded["soak_s"] <= 61.0
    settling = _soaked(monkeypatch, lambda number: 0.01 * (1 + min(number, 2000) / 20_000), 300.0)
    assert settling["soak_reached"] == 1
    assert 30.0 < settling["soak_s"] < 120.0


def test_soaking_lasts_until_all_ranks_are_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unsteady(OneRank):
        def common(self, name: str, value: float) -> float:
            return 1.0 if name.endswith("steady") else value

    assert _soaked(monkeypatch, lambda number: 0.01, 60.0, Unsteady())["soak_reached"] == 0


def _readings(*values: tuple[float, float | None, float | None]) -> list[GpuReading]:
    return [
        GpuReading(step_s=step_s, clock_hz=clock_hz, temperature_c=celsius)
        for step_s, clock_hz, celsius in values
    ]


def test_sensors_decide_where_they_can_be_read() -> None:
    noisy = [0.010, 0.013, 0.009, 0.010, 0.014, 0.012]
    assert is_steady(_readings(*((step_s, 1.98e9, 60.0) for step_s in noisy)))
    assert not is_steady(_readings(*((step_s, None, None) for step_s in noisy)))
    assert not is_steady(_readings(*((0.01, 1.98e9 - number * 2e7, 60.0) for number in range(6))))
    assert not is_steady(_readings(*((0.01, 1.98e9, 50.0 + 2 * number) for number in range(6))))
    assert not is_steady(_readings(*[(0.01, None, None)] * 5))
