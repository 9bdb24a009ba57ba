"""Faults that never end add their time to every step, by chance, or now and then."""

import pytest

from scalescope.worker.process import faults
from scalescope.worker.process.faults import fault_of


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, without sleeping."""
    times: list[float] = []
    monkeypatch.setattr(faults.clocks, "sleep", times.append)
    return times


def ten_steps(monkeypatch: pytest.MonkeyPatch, text: str, rank: int = 1) -> None:
    monkeypatch.setenv("SCALESCOPE_FAULT", text)
    fault = fault_of(rank)
    assert fault is not None
    for step in range(10):
        fault.at_step(step)


@pytest.mark.parametrize(("text", "time_s"), [("slow@1:0", 0.2), ("slow:15@1:0", 0.015)])
def test_a_slow_rank_is_late_in_every_step(
    text: str, time_s: float, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ten_steps(monkeypatch, text)
    assert slept == [time_s] * 10


def test_jitter_differs_from_step_to_step_and_stays_within_twice_its_mean(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ten_steps(monkeypatch, "jitter:20@all:0", rank=0)
    assert len(set(slept)) == 10
    assert all(0.0 <= time_s <= 0.04 for time_s in slept)


def test_a_hiccup_comes_once_in_ten_steps(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    ten_steps(monkeypatch, "hiccup:80@1:0")
    assert slept == [0.08] + [0.0] * 9


def test_other_ranks_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_FAULT", "slow:15@1:0")
    assert fault_of(0) is None
