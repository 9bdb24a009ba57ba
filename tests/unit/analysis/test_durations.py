"""How long launches take, from those that ended."""

import dataclasses

import pytest

from scalescope.analysis.durations import LaunchDurations
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.unit.analysis.made_results import make_result, make_trial

SHORT, LONG, NEW = (make_trial(batch_size=batch) for batch in (10, 20, 30))


def lasting(trial: Trial, seconds: float, launch: int = 0) -> Result:
    return dataclasses.replace(make_result(trial, [[0.01] * 10], launch=launch), duration_s=seconds)


@pytest.fixture
def durations() -> LaunchDurations:
    return LaunchDurations([lasting(SHORT, 1.0), lasting(SHORT, 3.0, 1), lasting(LONG, 10.0)])


@pytest.mark.parametrize(("trial", "seconds"), [(SHORT, 3.0), (LONG, 10.0), (NEW, 10.0)])
def test_a_budget_allows_for_the_last_launch_or_the_longest_trial(
    durations: LaunchDurations, trial: Trial, seconds: float
) -> None:
    assert durations.expected(trial) == seconds


@pytest.mark.parametrize(
    ("launches", "seconds"),
    [
        ([], 0.0),
        ([(SHORT, 3)], 3 * 2.0),
        ([(SHORT, 1), (LONG, 2)], 2.0 + 2 * 10.0),
        ([(NEW, 2)], 2 * (2.0 + 10.0) / 2),
    ],
)
def test_launches_take_as_long_as_those_of_the_trial_or_the_mean_of_others(
    durations: LaunchDurations, launches: list[tuple[Trial, int]], seconds: float
) -> None:
    assert durations.total_s(launches) == pytest.approx(seconds)


def test_nothing_is_known_before_a_launch_has_ended() -> None:
    assert LaunchDurations().total_s([(SHORT, 1)]) is None
    assert LaunchDurations().expected(SHORT) == 0.0
