"""One launch: what its ranks' samples become, and which flags it carries."""

import math

import pytest

from scalescope.analysis.launches import summarise
from tests.builders.results import make_result, make_trial

CALM = [0.010, 0.0101, 0.0099, 0.0102, 0.0098] * 2


def test_a_step_takes_as_long_as_its_slowest_rank_and_the_window_too() -> None:
    launch = summarise(make_result(make_trial(world_size=2), [[1.0, 5.0, 2.0], [4.0, 3.0, 2.5]]))
    assert launch.step_times_s == (4.0, 5.0, 2.5)
    assert launch.window_s == 9.5
    assert launch.samples == 3 * 2 * 10
    assert launch.samples_per_s == pytest.approx(60 / 9.5)
    assert launch.log_rate == pytest.approx(math.log(60 / 9.5))
    assert launch.mean_step_s == pytest.approx(9.5 / 3)
    trial = make_trial(world_size=4, global_batch_size=32)
    assert summarise(make_result(trial, [[1.0] * 5] * 4)).samples == 5 * 32
    with pytest.raises(ValueError, match="shorter"):
        summarise(make_result(make_trial(world_size=2), [[1.0, 1.0], [1.0]]))


def test_a_rank_drifts_where_its_halves_differ_by_more_than_two_percent() -> None:
    for second_half, drifting in ((1.019, ()), (0.981, ()), (1.021, (0,)), (0.979, (0,))):
        times = [0.01] * 5 + [0.01 * second_half] * 5
        assert summarise(make_result(make_trial(), [times])).drifting_ranks == drifting
    assert summarise(make_result(make_trial(), [[0.01]])).drifting_ranks == ()


def test_outliers_beyond_ten_robust_deviations_are_counted_and_kept() -> None:
    stalled = summarise(make_result(make_trial(), [[*CALM, 5.0]]))
    assert summarise(make_result(make_trial(), [CALM])).outliers == ()
    assert stalled.outliers == ((0, 10),)
    assert 5.0 in stalled.step_times_s
    assert stalled.window_s == pytest.approx(sum(CALM) + 5.0)
    # Median 100 and MAD 1 by construction; 10 × 1.4826 MADs is the limit.
    for deviations, outliers in ((14.0, 0), (15.0, 1)):
        times = [99.0, 99.0, 99.0, 99.0, 100.0, 101.0, 101.0, 101.0, 100.0 + deviations]
        assert len(summarise(make_result(make_trial(), [times])).outliers) == outliers


def test_an_outlier_belongs_to_the_only_rank_that_has_it() -> None:
    stalled = [[*CALM], [*CALM], [*CALM[:4], 5.0, *CALM[5:]]]
    assert summarise(make_result(make_trial(world_size=3), stalled)).outliers == ((2, 4),)
    stalled = [[*CALM[:4], 4.9, *CALM[5:]], [*CALM], [*CALM[:4], 5.0, *CALM[5:]]]
    assert summarise(make_result(make_trial(world_size=3), stalled)).outliers == ((None, 4),)


def test_the_calibration_of_ranks() -> None:
    rates = [(1.0e9, 1.0e9), (1.0e9, 1.1e9), (1.0e9, None)]
    result = make_result(make_trial(world_size=3), [CALM] * 3, calibration=rates)
    assert summarise(result).product_changes == (0.0, pytest.approx(math.log(1.1)), None)
    launch = summarise(make_result(make_trial(), [CALM]))
    assert launch.product_changes == (None,)
    assert launch.matmul_flops_per_s is None
    rates = [(1.0e9, 3.0e9), (2.0e9, 9.0e9)]
    result = make_result(make_trial(world_size=2), [CALM, CALM], calibration=rates)
    assert summarise(result).matmul_flops_per_s == 2.5e9


def test_the_start_is_a_moment_in_time_whatever_the_time_zone() -> None:
    here = summarise(make_result(make_trial(), [CALM], started_at="2026-01-15T10:30:00+00:00"))
    there = summarise(make_result(make_trial(), [CALM], started_at="2026-01-15T12:30:00+02:00"))
    assert here.started_s == there.started_s
