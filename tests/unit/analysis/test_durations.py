"""How long launches take, from those that ended."""

import dataclasses
from typing import Any

import pytest

from scalescope.analysis.durations import LaunchDurations, estimated_launch_s, has_unknown_steps
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial

SHORT, LONG, NEW = (make_trial(batch_size=batch) for batch in (10, 20, 30))


def lasting(trial: Trial, seconds: float, launch: int = 0) -> Result:
    return dataclasses.replace(make_result(trial, [[0.01] * 10], launch=launch), duration_s=seconds)


def test_launches_take_as_long_as_those_of_the_trial_or_of_others() -> None:
    """A budget allows for the last launch or the longest trial; a total is of means."""
    durations = LaunchDurations([lasting(SHORT, 1.0), lasting(SHORT, 3.0, 1), lasting(LONG, 10.0)])
    assert [durations.expected(trial) for trial in (SHORT, LONG, NEW)] == [3.0, 10.0, 10.0]
    assert durations.total_s([]) == 0.0
    assert durations.total_s([(SHORT, 1), (LONG, 2)]) == pytest.approx(2.0 + 2 * 10.0)
    assert durations.total_s([(NEW, 2)]) == pytest.approx(2 * (2.0 + 10.0) / 2)


def test_nothing_known_is_estimated_from_operations() -> None:
    assert LaunchDurations().estimate_s(SHORT) == estimated_launch_s(SHORT)
    assert not LaunchDurations().knows(SHORT)
    assert LaunchDurations().total_s([(SHORT, 1)]) is None
    assert LaunchDurations().expected(SHORT) == 0.0
    trial = make_trial(batch_size=10_000, steps_per_epoch=100)
    slow, fast = (LaunchDurations(core_flops_per_s=rate).estimate_s(trial) for rate in (1e9, 1e12))
    start_s = estimated_launch_s(trial, 0.0)
    assert (slow - start_s) / (fast - start_s) == pytest.approx(1000.0)


def test_a_launch_is_estimated_as_those_of_its_trial_and_window() -> None:
    earlier = [lasting(SHORT, 7.0), lasting(SHORT, 9.0, 1)]
    durations = LaunchDurations(earlier=earlier)
    assert durations.estimate_s(SHORT) == 8.0
    durations.add(lasting(SHORT, 20.0))  # what this run did says more than what others did
    assert durations.estimate_s(SHORT) == 20.0
    assert durations.knows(SHORT)
    durations = LaunchDurations(earlier=[lasting(timed(3.0), 5.0)])
    assert timed(3.0).trial_id == timed(10.0).trial_id
    assert durations.estimate_s(timed(10.0)) == 12.0
    assert durations.estimate_s(timed(1.0)) == 3.0


def timed(window: float, **settings: Any) -> Trial:
    return make_trial(steps_per_epoch="auto", window=window, **settings)


def test_another_batch_is_estimated_from_the_start_and_the_steps_of_the_known_one() -> None:
    known = make_trial(batch_size=10, steps_per_epoch=100)
    result = dataclasses.replace(make_result(known, [[0.05] * 100]), duration_s=3.0 + 100 * 0.05)
    durations = LaunchDurations(earlier=[result])
    other = make_trial(batch_size=40, steps_per_epoch=200)
    assert durations.estimate_s(other) == pytest.approx(3.0 + 200 * 4 * 0.05)
    assert durations.knows(other)


def test_another_workload_shares_the_start_and_not_the_steps() -> None:
    own = make_trial(batch_size=10, steps_per_epoch=100).replace(workload="model.py:build", data="own")
    result = dataclasses.replace(make_result(own, [[1.0] * 100]), duration_s=3.0 + 100.0)
    durations = LaunchDurations(earlier=[result])
    built_in = make_trial(batch_size=10, steps_per_epoch=100)
    steps_s = estimated_launch_s(built_in) - estimated_launch_s(built_in, 0.0)
    assert durations.estimate_s(built_in) == pytest.approx(3.0 + steps_s)
    # What is known of other workloads says nothing about an own one.
    assert not durations.knows(own.replace(workload="other.py:build"))


def test_the_steps_of_an_own_workload_are_unknown_until_some_were_made() -> None:
    own = make_trial(batch_size=10, steps_per_epoch=100).replace(workload="model.py:build", data="own")
    assert has_unknown_steps(own) and not has_unknown_steps(SHORT)
    few = own.replace(steps_per_epoch=5)
    durations = LaunchDurations([dataclasses.replace(make_result(few, [[0.5] * 5]), duration_s=4.5)])
    assert durations.estimate_s(own) == pytest.approx(2.0 + 100 * 0.5)
    assert durations.estimate_s(own.replace(batch_size=20)) == pytest.approx(2.0 + 100 * 1.0)


def test_a_launch_that_the_budget_ended_takes_at_least_as_long_as_it_did() -> None:
    cut = dataclasses.replace(lasting(SHORT, 50.0), status="interrupted", stopped_by="budget", ranks=[])
    assert LaunchDurations([cut]).estimate_s(SHORT) == 50.0
    by_signal = dataclasses.replace(cut, stopped_by="signal")
    assert LaunchDurations([by_signal]).estimate_s(SHORT) == estimated_launch_s(SHORT)


def test_soaking_counts_until_its_limit() -> None:
    window = make_trial(steps_per_epoch="auto", window=2.0, min_steps=5)
    soaked = window.replace(soak=60.0)
    assert soaked.trial_id == window.trial_id
    assert estimated_launch_s(soaked) == pytest.approx(estimated_launch_s(window) + 60.0)
    known = LaunchDurations([lasting(window, 5.0)])
    assert known.estimate_s(soaked) == pytest.approx(65.0)
    assert LaunchDurations([lasting(soaked, 65.0)]).estimate_s(window) == pytest.approx(5.0)
