"""Which rank the others wait for, and how long ranks wait in recorded launches."""

import random
import statistics

import pytest

from scalescope.analysis.arrivals import recorded_launch
from scalescope.analysis.culprit import delays_s, find_culprit, last_to_arrive, typical_steps_s
from scalescope.analysis.statistics import mean_with_interval
from tests.builders.results import make_trial
from tests.builders.traces import recorded_result


def test_a_rank_that_is_slow_in_both_halves_of_the_launches_is_persistent() -> None:
    launches = [(1.0, 1.0 + 0.01 * number, 3.0, 1.0) for number in range(5)]
    straggler = find_culprit(launches)
    assert straggler is not None
    assert (straggler.rank, straggler.persistent) == (2, True)
    assert straggler.time_s == pytest.approx(2.0)
    straggler = find_culprit([(1.0, 1.0, 3.0), (1.5, 1.0, 1.0), (1.0, 1.0, 2.0), (1.6, 1.0, 1.0)])
    assert straggler is not None and not straggler.persistent
    assert find_culprit([(1.0, 1.0, 3.0)]) is None
    assert delays_s([(1.0, 1.0, 3.0)]) is None


def test_of_two_ranks_the_faster_one_is_typical() -> None:
    assert typical_steps_s([(1.0, 1.1, 9.0)]) == [1.1]
    assert typical_steps_s([(1.0, 3.0), (1.0, 3.1)]) == [1.0, 1.0]
    assert typical_steps_s([(1.0, 3.0)]) == [2.0]  # one launch cannot tell
    assert delays_s([(1.0, 3.0), (1.0, 3.0)]) == [2.0, 2.0]
    straggler = find_culprit([(1.0, 3.0), (1.0, 3.0)])
    assert straggler is not None
    assert straggler.time_s == 2.0


@pytest.mark.parametrize("ranks", [8, 256])
def test_pure_jitter_has_no_delay_however_many_ranks(ranks: int) -> None:
    """The largest of so many values is 1.4 to 2.8 standard deviations above the others by itself."""
    noise = random.Random(ranks)
    estimates = []
    for _ in range(40):
        launches = [[1.0 + noise.gauss(0.0, 0.01) for _ in range(ranks)] for _ in range(6)]
        delays = delays_s(launches)
        assert delays is not None
        estimates.append(statistics.fmean(delays))
    assert abs(statistics.fmean(estimates)) < 0.2 * 0.01
    straggler = find_culprit(launches)
    assert straggler is None or not straggler.persistent


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_of_two_ranks_the_interval_holds_the_delay(delay: float) -> None:
    noise, held = random.Random(2), 0
    for _ in range(400):
        delays = delays_s([(noise.gauss(1.0, 0.01), noise.gauss(1.0 + delay, 0.01)) for _ in range(5)])
        assert delays is not None
        estimate = mean_with_interval(delays)
        assert estimate.low is not None and estimate.high is not None
        held += estimate.low <= delay <= estimate.high
    assert held > 0.91 * 400


def test_the_rank_that_waits_least_arrives_last() -> None:
    assert last_to_arrive([(3.0, 1.0), (2.0, 1.0), (2.0, 1.5), (1.0, 1.5)]) == 1
    assert last_to_arrive([(3.0, 1.0), (1.0, 2.0)]) is None
    assert last_to_arrive([(3.0,), (1.0,)]) is None


# waiting in recorded launches


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


def test_ranks_are_compared_where_their_steps_have_the_same_exchanges() -> None:
    """Some steps may have more than others, such as a gathered metric; but alike on all ranks."""
    result = recorded_result(FOUR, (0.10, 0.12, 0.10, 0.12), 0.03)
    plain = recorded_launch(result)
    for record in result.ranks:
        record.samples["trace/collectives"] = [2.0, 0.0, 1.0]
    launch = recorded_launch(result)
    assert launch is not None and plain is not None and launch.waiting_s == pytest.approx(plain.waiting_s)
    result.ranks[2].samples["trace/collectives"] = [1.0, 1.0, 1.0]
    launch = recorded_launch(result)
    assert launch is not None and launch.waiting_s is None


def test_exchanges_or_ranks_without_a_summary_leave_waiting_unknown() -> None:
    result = recorded_result(FOUR, (0.10, 0.12, 0.10, 0.12), 0.03)
    del result.ranks[2].samples["trace/collectives"]
    launch = recorded_launch(result)
    assert launch is not None
    assert launch.waiting_s is None and launch.transfer_s is None
    result.ranks[1].samples.clear()
    assert recorded_launch(result) is None
