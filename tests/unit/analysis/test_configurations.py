"""Launches and epochs summarised, launches of one trial together, and the reasons to distrust them."""

import dataclasses
import math
from datetime import UTC, datetime, timedelta

import pytest

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.epochs import Epoch, epochs_of, has_epochs, over_launches
from scalescope.analysis.launches import summarise
from scalescope.results.result import Result
from tests.builders.results import make_configuration, make_result, make_trial

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


# configurations


BEGIN = datetime(2026, 1, 15, 10, 30, tzinfo=UTC)


def spread_over(seconds: float, *step_times_s: float) -> Configuration:
    """Launches at equal distances over a span of time."""
    gap = seconds / (len(step_times_s) - 1)
    results = [
        make_result(
            make_trial(),
            [[step] * 10],
            launch=launch,
            started_at=(BEGIN + timedelta(seconds=gap * launch)).isoformat(),
        )
        for launch, step in enumerate(step_times_s)
    ]
    (configuration,) = configurations(results)
    return configuration


def test_results_are_grouped_by_trial_in_order_of_appearance() -> None:
    first, second = make_trial(batch_size=20), make_trial(batch_size=10)
    results = [
        make_result(first, [[0.01] * 5], launch=0),
        make_result(second, [[0.02] * 5], launch=0),
        make_result(first, [[0.03] * 5], launch=1),
    ]
    grouped = configurations(results)
    assert [configuration.trial.trial_id for configuration in grouped] == [first.trial_id, second.trial_id]
    assert [len(configuration.launches) for configuration in grouped] == [2, 1]
    assert grouped[0].step_time_s.value == pytest.approx(math.sqrt(0.01 * 0.03))
    assert grouped[1].step_time_s.value == pytest.approx(2.0 * grouped[0].step_time_s.value)  # as in round 0


def test_only_launches_that_are_ok_count() -> None:
    good = make_result(make_trial(), [[0.01] * 5], launch=0)
    for bad in (dataclasses.replace(good, launch=1, status=status) for status in ("failed", "invalid")):
        (configuration,) = configurations([good, bad])
        assert len(configuration.launches) == 1
        assert configurations([bad]) == ()


def test_step_time_and_throughput_come_from_the_same_logs() -> None:
    configuration = make_configuration(make_trial(world_size=2), 0.010, 0.011, 0.012)
    rate, step = configuration.samples_per_s, configuration.step_time_s
    assert configuration.global_batch == 20
    assert step.value == pytest.approx((0.010 * 0.011 * 0.012) ** (1 / 3))
    assert step.value * rate.value == pytest.approx(20)
    assert rate.low is not None and rate.high is not None
    assert step.low == pytest.approx(20 / rate.high)
    assert step.high == pytest.approx(20 / rate.low)
    configuration = make_configuration(make_trial(), 0.010)
    assert configuration.step_time_s.value == pytest.approx(0.010)
    assert not configuration.step_time_s.has_interval
    assert configuration.measured_steps == 10
    assert configuration.median_step_s == 0.010


def test_the_step_time_is_the_mean_of_steps_where_batches_are_short() -> None:
    """A data set's last batch is smaller: throughput counts its samples, the step takes what it takes."""
    result = make_result(make_trial(batch_size=32), [[0.010] * 20], launch=0)
    (record,) = result.ranks
    short = dataclasses.replace(record, counters={**record.counters, "measured_samples": 400})
    (configuration,) = configurations([dataclasses.replace(result, ranks=[short])])
    assert configuration.step_time_s.value == pytest.approx(0.010)
    assert configuration.samples_per_s.value == pytest.approx(400 / 0.2)
    short_window, remark = configuration.remarks()
    assert short_window == "a launch measured for only 0.2 s (20 steps)"
    assert remark == "steps had 20 samples on average instead of 32: the data's batches are smaller"


def test_launches_that_differ_by_more_than_three_percent_are_unstable() -> None:
    wide = make_configuration(make_trial(), 0.0100, 0.0104, 0.0096, 0.0104, 0.0096)
    narrow = make_configuration(make_trial(), 0.0100, 0.0102, 0.0098, 0.0102, 0.0098)
    assert wide.instabilities() == ["launches differ by 4.0 % (CV; above 3 % is noisy)"]
    assert narrow.instabilities() == []
    assert make_configuration(make_trial(), *[0.010] * 5).instabilities() == []


def test_every_kind_of_instability_counts_its_launches() -> None:
    trial = make_trial()
    calm = [0.010, 0.0101, 0.0099, 0.0102, 0.0098] * 2
    (configuration,) = configurations(
        [
            make_result(trial, [calm], launch=0, calibration=[(1e9, 1e9)]),
            make_result(trial, [[0.0098] * 5 + [0.0102] * 5], launch=1, calibration=[(1e9, 1e9)]),
            make_result(trial, [calm], launch=2, calibration=[(1e9, 1e9)]),
            make_result(trial, [[*calm[:-1], 0.013]], launch=3, calibration=[(1e9, 0.9e9)]),
        ]
    )
    assert configuration.instabilities() == [
        "the rank drifted by more than 2 % over the window, in 1 of 4 launches",
        "the rank ran a bare matrix product at another speed after the window, in 1 of 4 launches",
    ]


def test_ranks_that_drift_are_counted() -> None:
    """Each by its own steps: the slowest of all ranks need not move at all."""
    steady, late = [0.010] * 10, [0.020] * 10
    falling = [0.010] * 5 + [0.011] * 5
    ranks = [falling if rank < 3 else late if rank == 3 else steady for rank in range(16)]
    trial = make_trial(world_size=16, without_communication=True)
    (configuration,) = configurations(
        [make_result(trial, ranks, launch=0), make_result(trial, [steady] * 16, launch=1)]
    )
    drifting = "3 of 16 ranks drifted by more than 2 % over the window, in 1 of 2 launches"
    assert drifting in configuration.instabilities()


def test_outliers_and_short_windows_are_remarks_and_no_instability() -> None:
    trial = make_trial(world_size=2)
    calm = [0.010, 0.0101, 0.0099, 0.0102, 0.0098] * 2
    (configuration,) = configurations(
        [
            make_result(trial, [calm, [*calm[:-1], 5.0]], launch=0),
            make_result(trial, [[5.0, *calm[1:]], [*calm[:-1], 5.0]], launch=1),
        ]
    )
    assert configuration.remarks() == [
        "3 of 20 steps are far from the median (rank 0: 1, rank 1: 2); they are included"
    ]
    assert not any("median" in cause for cause in configuration.instabilities())
    assert make_configuration(trial, 0.1, 0.1).remarks() == []
    assert make_configuration(make_trial(), 0.099).remarks() == [
        "a launch measured for only 0.99 s (10 steps)"
    ]


FALLING = (0.01000, 0.01001, 0.01002, 0.01003, 0.01004)
WAVERING = (0.01000, 0.01004, 0.01001, 0.01003, 0.01002)


def test_drift_is_claimed_over_two_minutes_where_the_interval_excludes_zero() -> None:
    assert spread_over(120.0, *FALLING).instabilities() == ["speed drifts over the launches"]
    assert spread_over(120.0, *reversed(FALLING)).instabilities() == ["speed drifts over the launches"]
    assert spread_over(119.0, *FALLING).instabilities() == []
    assert spread_over(600.0, *WAVERING).instabilities() == []
    assert spread_over(600.0, *[0.01] * 5).instabilities() == []
    assert spread_over(600.0, 0.01000, 0.01004).instabilities() == []


@pytest.mark.parametrize(("after_hz", "remarks"), [(1.97e9, 0), (1.90e9, 1), (2.05e9, 1), (None, 0)], ids=str)
def test_clocks_that_move_during_the_window_are_remarked(after_hz: float | None, remarks: int) -> None:
    results = [make_result(make_trial(), [[0.2] * 10], launch=launch) for launch in range(2)]
    for result in results:
        result.ranks[0].counters["sm_clock_hz_before"] = 1.98e9
    results[1].ranks[0].counters["sm_clock_hz_after"] = after_hz
    (configuration,) = configurations(results)
    assert len([remark for remark in configuration.remarks() if "1 of 1 launches" in remark]) == remarks


@pytest.mark.parametrize(("reached", "remarks"), [(0, 1), (1, 0), (None, 0)])
def test_a_soak_without_a_steady_state_is_remarked(reached: int | None, remarks: int) -> None:
    result = make_result(make_trial(steps_per_epoch="auto", window=2.0, soak=60.0), [[0.2] * 10])
    result.ranks[0].counters["soak_reached"] = reached
    (configuration,) = configurations([result])
    assert (
        len([remark for remark in configuration.remarks() if "soaking ended after 60 s" in remark]) == remarks
    )


# epochs


def result_with(times: list[list[float]], accuracies: list[float] | None = None, launch: int = 0) -> Result:
    """A launch of ranks with these epoch times, and accuracies only rank 0's of which count."""
    made = make_result(make_trial(world_size=len(times)), [[0.1] * 10] * len(times), launch=launch)
    ranks = []
    for rank, record in enumerate(made.ranks):
        samples = {**record.samples, "epoch_time_s": times[rank]}
        if accuracies is not None:
            rank_accuracies = [value if rank == 0 else 0.0 for value in accuracies]
            samples |= {
                "train_accuracy": [0.9] * len(rank_accuracies),
                "validation_accuracy": rank_accuracies,
            }
        ranks.append(dataclasses.replace(record, samples=samples))
    return dataclasses.replace(made, ranks=ranks)


def test_an_epoch_takes_as_long_as_its_slowest_rank_and_accuracies_are_rank_0s() -> None:
    first, second = epochs_of(result_with([[1.0, 2.0], [1.5, 1.8]]))
    assert (first.number, first.time_s) == (1, 1.5)
    assert (second.number, second.time_s) == (2, 2.0)
    assert first.validation_accuracy is None
    epochs = epochs_of(result_with([[1.0, 2.0], [1.0, 2.0]], [0.5, 0.75]))
    assert [epoch.validation_accuracy for epoch in epochs] == [0.5, 0.75]
    assert [epoch.train_accuracy for epoch in epochs] == [0.9, 0.9]


def test_launches_are_summarised_by_their_medians() -> None:
    results = [
        result_with([[time]], [accuracy], launch)
        for launch, (time, accuracy) in enumerate([(1.0, 0.5), (9.0, 0.7), (2.0, 0.6)])
    ]
    (configuration,) = configurations(results)
    assert configuration.epochs == (Epoch(number=1, time_s=2.0, train_accuracy=0.9, validation_accuracy=0.6),)
    assert over_launches([]) == ()


def test_epochs_are_reported_where_there_are_several_or_an_evaluation() -> None:
    assert not has_epochs(epochs_of(result_with([[1.0]])))
    assert has_epochs(epochs_of(result_with([[1.0, 1.0]])))
    assert has_epochs(epochs_of(result_with([[1.0]], [0.5])))
    assert epochs_of(make_result(make_trial(), [[0.1] * 10])) == ()


def test_tokens_are_those_of_a_texts_length() -> None:
    texts = make_trial(workload="transformer", max_seq_len=64)
    (configuration,) = configurations([make_result(texts, [[0.1] * 10])])
    assert configuration.tokens_per_s == configuration.samples_per_s.value * 64
    (vectors,) = configurations([make_result(make_trial(), [[0.1] * 10])])
    assert vectors.tokens_per_s is None
