"""Waiting in recorded launches: a rank's exchange minus the shortest over ranks, as far as exposed."""

import pytest

from scalescope.analysis.arrivals import recorded_launch
from tests.builders.results import make_trial
from tests.builders.traces import recorded_result

FOUR = make_trial(world_size=4, strategy="ddp", oversubscribe=True)


def test_the_mean_wait_is_how_much_earlier_ranks_arrive_than_the_last() -> None:
    launch = recorded_launch(recorded_result(FOUR, (0.10, 0.12, 0.10, 0.12), 0.03))
    assert launch is not None
    assert launch.waiting_s == pytest.approx(0.01)
    assert launch.transfer_s == pytest.approx(0.03)
    assert launch.compute_s == pytest.approx(0.11)
    assert launch.rank_compute_s == pytest.approx((0.10, 0.12, 0.10, 0.12))
    launch = recorded_launch(recorded_result(FOUR, (0.10, 0.12, 0.10, 0.12), 0.03, hidden_s=0.015))
    assert launch is not None
    assert launch.waiting_s == pytest.approx((0.005 + 0.005) / 4)


def test_exchanges_or_ranks_without_a_summary_leave_waiting_unknown() -> None:
    result = recorded_result(FOUR, (0.10, 0.12, 0.10, 0.12), 0.03)
    del result.ranks[2].counters["collectives_per_step"]
    launch = recorded_launch(result)
    assert launch is not None
    assert launch.waiting_s is None and launch.transfer_s is None
    result.ranks[1].samples.clear()
    assert recorded_launch(result) is None
