"""Warm-up: its length on a GPU, and when soaking ends."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch

from scalescope.worker.process.group import Group
from scalescope.worker.training import warmup as warming
from scalescope.worker.training.step import StepWindow
from scalescope.worker.training.warmup import (
    GpuReading,
    Warmup,
    extend_on_gpu,
    is_steady,
    soak,
    typical_step_s,
)
from tests.builders.workers import CPU

_CUDA = torch.device("cuda")


class Stepper:
    """Steps of a given length, on a clock that moves with them."""

    def __init__(self, step_s: Callable[[int], float]) -> None:
        self.step_s = step_s
        self.counts: list[int] = []
        self.now = 0.0

    def __call__(self, count: int) -> tuple[list[float], StepWindow]:
        done = sum(self.counts)
        times = [self.step_s(done + number) for number in range(count)]
        self.counts.append(count)
        self.now += sum(times)
        return times, StepWindow()


def _group(others: float = 0.0) -> Group:
    group = mock.Mock(spec=Group)
    group.largest = lambda value, device: max(value, others)
    return group


def test_the_first_steps_of_a_warm_up_do_not_count() -> None:
    assert typical_step_s([9.0, 8.0, 0.3, 0.2, 0.25]) == 0.2
    assert typical_step_s([9.0, 0.4, 0.3]) == 0.3


def _extended(device: torch.device, others: float = 0.0) -> list[int]:
    steps = Stepper(lambda number: 3.0 if number == 0 else 0.01)
    warmup = Warmup()
    warmup.run(steps, 11)
    extend_on_gpu(warmup, steps, _group(others), device)
    assert len(warmup.times_s) == sum(steps.counts)
    return steps.counts[1:]


def test_a_gpu_warms_up_for_a_second_of_usual_steps() -> None:
    assert _extended(_CUDA) == [89]
    assert _extended(CPU) == []
    assert _extended(_CUDA, others=200.0) == [200]  # all ranks make as many as the one that needs most


def _soaked(
    monkeypatch: pytest.MonkeyPatch, step_s: Callable[[int], float], most_s: float
) -> dict[str, object]:
    steps = Stepper(step_s)
    monkeypatch.setattr(warming.clocks, "monotonic", lambda: steps.now)
    return dict(soak(step_s(0), steps, _group(), CPU, most_s))


def test_soaking_ends_when_step_times_are_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _soaked(monkeypatch, lambda number: 0.01, 60.0)
    assert recorded["soak_reached"] == 1
    assert recorded["soak_s"] == pytest.approx(30.0)


def test_soaking_goes_on_while_steps_become_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _soaked(monkeypatch, lambda number: 0.01 * (1 + number / 20_000), 60.0)
    assert recorded["soak_reached"] == 0
    assert 50.0 < float(str(recorded["soak_s"])) <= 61.0
    settling = _soaked(monkeypatch, lambda number: 0.01 * (1 + min(number, 2000) / 20_000), 300.0)
    assert settling["soak_reached"] == 1
    assert 30.0 < float(str(settling["soak_s"])) < 120.0


def test_soaking_lasts_until_all_ranks_are_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Stepper(lambda number: 0.01)
    monkeypatch.setattr(warming.clocks, "monotonic", lambda: steps.now)
    group = mock.Mock(spec=Group)
    group.largest = lambda value, device: max(value, 1.0) if value in (0.0, 1.0) else value
    assert soak(0.01, steps, group, CPU, 60.0)["soak_reached"] == 0


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
