"""Scaling: speedup, efficiency, baselines, exposed communication, Amdahl and the words for them."""

import math
from functools import partial
from statistics import geometric_mean
from typing import Any

import pytest

from scalescope.analysis.scaling.rows import ScalingRow, scaling_rows, smallest_batch_reaching
from scalescope.analysis.statistics import Estimate, mean_of_logs, mean_with_interval
from scalescope.experiment.trial import Trial
from tests.builders.results import make_configuration, make_trial

ONE = (0.0100, 0.0101, 0.0099, 0.0102, 0.0098)
FOUR = (0.0120, 0.0123, 0.0118, 0.0121, 0.0119)


def plain(**settings: Any) -> Trial:
    return make_trial(world_size=1, **settings)


def ddp(ranks: int, **settings: Any) -> Trial:
    return make_trial(world_size=ranks, strategy="ddp", **settings)


def rows_of(*pairs: tuple[Trial, float]) -> tuple[ScalingRow, ...]:
    """Rows of trials measured without any noise."""
    return scaling_rows([make_configuration(trial, *[step] * 3) for trial, step in pairs])


def row_with(efficiency: float, ranks: int = 4, batch: int = 10, low: float | None = None) -> ScalingRow:
    """A row against one rank whose efficiency is given."""
    configuration = make_configuration(ddp(ranks, batch_size=batch), 0.01)
    interval = (None, None) if low is None else (low, 2 * efficiency - low)
    return ScalingRow(
        configuration=configuration,
        baseline_ranks=1,
        speedup=Estimate(efficiency * ranks),
        efficiency=Estimate(efficiency, *interval),
        wrapped=None,
        efficiency_of_wrapped=None,
        communication_s=None,
    )


def test_weak_and_strong_scaling_are_exact_without_noise() -> None:
    baseline, row = rows_of((plain(), 0.010), (ddp(4), 0.0125))
    assert (baseline.speedup, baseline.efficiency) == (Estimate(1.0), Estimate(1.0))
    assert (row.trial.mode, row.ranks, row.batch, row.baseline_ranks) == ("weak", 4, 10, 1)
    assert row.speedup.value == pytest.approx(4 * 0.010 / 0.0125)
    assert row.efficiency.value == pytest.approx(0.8)
    assert row.efficiency.low == pytest.approx(0.8)
    assert row.efficiency.high == pytest.approx(0.8)
    _, row = rows_of((plain(global_batch_size=64), 0.040), (ddp(4, global_batch_size=64), 0.016))
    assert (row.trial.mode, row.batch) == ("strong", 64)
    assert row.speedup.value == pytest.approx(2.5)
    assert row.efficiency.value == pytest.approx(0.625)


def test_the_interval_is_that_of_the_ratio_of_rates() -> None:
    _, row = scaling_rows([make_configuration(plain(), *ONE), make_configuration(ddp(4), *FOUR)])
    pairs = [math.log(4 * one / four) for one, four in zip(ONE, FOUR, strict=True)]  # of each round
    ratio = mean_of_logs(pairs)
    assert ratio.low is not None and ratio.high is not None
    ends = ratio.value, ratio.low, ratio.high
    assert (row.speedup.value, row.speedup.low, row.speedup.high) == pytest.approx(ends)
    share = row.efficiency
    assert (share.value, share.low, share.high) == pytest.approx(tuple(end / 4 for end in ends))


def test_the_plain_run_is_the_baseline_before_the_wrapped_one() -> None:
    for order in (1, -1):
        pairs = [(plain(), 0.010), (ddp(1), 0.011), (ddp(2), 0.0125)][::order]
        baseline, row = rows_of(*pairs)
        assert baseline.trial.settings["strategy"] == "single"
        assert row.efficiency.value == pytest.approx(0.8)
        assert baseline.wrapped is not None
        assert baseline.wrapped.step_time_s.value == pytest.approx(0.011)
        assert baseline.efficiency_of_wrapped is None
        assert row.efficiency_of_wrapped is not None
        assert row.efficiency_of_wrapped.value == pytest.approx(0.88)


def test_without_a_plain_run_the_smallest_world_is_the_baseline() -> None:
    baseline, row = rows_of((ddp(1), 0.011), (ddp(2), 0.0125))
    assert baseline.is_baseline and baseline.ranks == 1
    assert baseline.efficiency_of_wrapped is None
    assert row.efficiency.value == pytest.approx(0.88)
    baseline, row = rows_of((ddp(2), 0.010), (ddp(4), 0.0125))
    assert (baseline.ranks, baseline.is_baseline, baseline.reading) == (2, True, "baseline")
    assert row.baseline_ranks == 2
    assert row.speedup.value == pytest.approx(1.6)
    assert row.efficiency.value == pytest.approx(0.8)
    assert row.serial_fraction is None


def test_jobs_and_batches_have_baselines_of_their_own() -> None:
    rows = rows_of(
        (plain(batch_size=100), 0.100),
        (plain(batch_size=10), 0.010),
        (ddp(2, batch_size=100), 0.100),
        (ddp(2, batch_size=10), 0.040),
    )
    assert [(row.batch, row.ranks) for row in rows] == [(10, 1), (10, 2), (100, 1), (100, 2)]
    assert [row.efficiency.value for row in rows] == pytest.approx([1.0, 0.25, 1.0, 1.0])
    rows = rows_of((plain(), 0.010), (ddp(2, hidden_dim=64), 0.020))
    assert [row.is_baseline for row in rows] == [True, True]
    assert {row.baseline_ranks for row in rows} == {1, 2}


def test_two_bucket_sizes_share_the_plain_baseline_or_keep_to_their_own_kind() -> None:
    rows = rows_of((plain(), 0.010), (ddp(2, bucket_cap_mb=1), 0.020), (ddp(2, bucket_cap_mb=25), 0.0125))
    assert sorted(row.efficiency.value for row in rows) == pytest.approx([0.5, 0.8, 1.0])
    rows = rows_of(
        (ddp(2, bucket_cap_mb=1), 0.020),
        (ddp(2, bucket_cap_mb=25), 0.010),
        (ddp(4, bucket_cap_mb=1), 0.020),
        (ddp(4, bucket_cap_mb=25), 0.010),
    )
    assert [row.efficiency.value for row in rows] == pytest.approx([1.0, 1.0, 1.0, 1.0])


def test_communication_is_the_step_minus_the_step_without_communication() -> None:
    full = make_configuration(ddp(4), *FOUR)
    (row,) = scaling_rows([full, make_configuration(ddp(4, without_communication=True), *ONE)])
    assert row.communication_s is not None
    value = geometric_mean(FOUR) - geometric_mean(ONE)
    means = mean_with_interval([four - one for one, four in zip(ONE, FOUR, strict=True)])
    assert means.low is not None and means.high is not None
    moved = value - means.value  # the same interval around the typical difference
    measured = row.communication_s.value, row.communication_s.low, row.communication_s.high
    assert measured == pytest.approx((value, means.low + moved, means.high + moved))
    assert row.communication_fraction == pytest.approx(value / full.step_time_s.value)


def test_exposed_communication_is_unknown_without_the_ablation_on_the_same_ranks() -> None:
    _, row = rows_of((ddp(2), 0.010), (ddp(4), 0.012), (ddp(2, without_communication=True), 0.009))
    assert row.communication_s is None
    assert row.communication_fraction is None
    assert rows_of((ddp(2, without_communication=True), 0.010)) == ()
    assert scaling_rows([]) == ()
    _, row = scaling_rows([make_configuration(plain(), 0.010), make_configuration(ddp(2), 0.0125)])
    assert row.efficiency.value == pytest.approx(0.8)
    assert not row.efficiency.has_interval


def strong(strategy: str, ranks: int) -> Trial:
    """Fixed work in all: 40 samples a step, however many ranks share them."""
    return make_trial(strategy=strategy, world_size=ranks, global_batch_size=40)


def test_strong_scaling_has_karp_and_flatts_serial_fraction() -> None:
    serial = 0.1
    step = 0.010 * (serial + (1 - serial) / 4)
    baseline, row = rows_of((strong("single", 1), 0.010), (strong("ddp", 4), step))
    assert baseline.serial_fraction is None
    assert row.serial_fraction == pytest.approx(serial)
    assert row.amdahl_fraction == row.serial_fraction


def test_weak_scaling_has_gustafsons_serial_fraction_and_karp_and_flatts_beside_it() -> None:
    serial = 0.1
    speedup = 4 - serial * 3
    baseline, row = rows_of((plain(), 0.010), (ddp(4), 0.010 * 4 / speedup))
    assert baseline.serial_fraction is None
    assert row.speedup.value == pytest.approx(speedup)
    assert row.serial_fraction == pytest.approx(serial)
    serial = 0.1
    baseline, row = rows_of((plain(), 0.010), (ddp(4), 0.010 * 4 * (serial + (1 - serial) / 4)))
    assert baseline.amdahl_fraction is None
    assert row.amdahl_fraction == pytest.approx(serial)
    assert row.serial_fraction == pytest.approx((4 - 1 / 0.325) / 3)


def test_without_one_rank_no_law_has_a_serial_fraction() -> None:
    for rows in (
        rows_of((ddp(2), 0.010), (ddp(4), 0.012)),
        rows_of((strong("ddp", 2), 0.010), (strong("ddp", 4), 0.008)),
    ):
        assert len(rows) == 2
        assert {(row.amdahl_fraction, row.serial_fraction) for row in rows} == {(None, None)}


def test_serial_fractions_outside_of_any_law() -> None:
    for baseline, scaled, above, below in (
        (plain(), partial(ddp), 0.009, 0.021),
        (strong("single", 1), partial(strong, "ddp"), 0.002, 0.0105),
    ):
        _, faster = rows_of((baseline, 0.010), (scaled(4), above))
        assert faster.serial_fraction is not None and faster.serial_fraction < 0
        _, slower = rows_of((baseline, 0.010), (scaled(2), below))
        assert slower.serial_fraction is not None and slower.serial_fraction > 1
        assert slower.reading == "negative scaling"


def test_ranks_that_share_a_gpu_are_compared_but_not_judged() -> None:
    shared = ddp(2).replace(oversubscribe=True)
    baseline, row = rows_of((plain(), 0.010), (ddp(1), 0.011), (shared, 0.0105))
    assert baseline.ranks == 1
    assert row.efficiency.value == pytest.approx(0.010 / 0.0105)
    assert row.efficiency_of_wrapped is not None
    assert row.reading == "shared GPU"


def test_readings() -> None:
    words = {"excellent": (1.10, 0.901), "good": (0.90, 0.801), "fair": (0.80, 0.501), "poor": (0.50, 0.26)}
    for word, efficiencies in words.items():
        assert [row_with(efficiency, 4).reading for efficiency in efficiencies] == [word, word]
    assert row_with(0.24, 4).reading == row_with(0.49, 2).reading == "negative scaling"


def test_the_smallest_batch_that_reaches_a_share_of_the_largest_world() -> None:
    rows = [
        row_with(0.99, ranks=2, batch=1),
        row_with(0.95, batch=300, low=0.93),
        row_with(0.60, batch=100, low=0.5),
        row_with(0.85, batch=200, low=0.79),
    ]
    reach = smallest_batch_reaching(rows, 0.8)
    assert (reach.batch, reach.certain) == (200, False)
    reach = smallest_batch_reaching(rows, 0.9)
    assert (reach.batch, reach.certain) == (300, True)
    reach = smallest_batch_reaching(rows, 0.96)
    assert (reach.batch, reach.certain) == (None, False)
    reach = smallest_batch_reaching([row_with(0.99)], 0.8)
    assert (reach.batch, reach.certain) == (10, False)
    assert smallest_batch_reaching(rows_of((plain(), 0.010)), 0.8).batch is None
