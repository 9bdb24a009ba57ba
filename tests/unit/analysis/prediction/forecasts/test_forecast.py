"""The figures of a setup: what they are made of, and their intervals."""

import dataclasses
import math

import pytest

from scalescope.analysis.prediction.collective_times import CollectiveTime
from scalescope.analysis.prediction.forecast import curve_of, forecast, limit_of
from scalescope.analysis.prediction.intervals import LedgerResidual, Origin
from scalescope.analysis.prediction.jobs import JobInputs
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.analysis.prediction.setup import Fitted, RankLayout, StepTimeline, TimelineEvent
from scalescope.analysis.prediction.simulation import simulate
from scalescope.results.ledger import PredictionKind
from tests.builders.profiles import made_inputs, made_times

STEP_S = 0.026  # of one rank with 32 samples


class Instant:
    """A network that takes no time."""

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        return CollectiveTime(time_s=0.0)


def test_a_row_is_the_simulated_step_with_what_follows_from_it() -> None:
    inputs = made_inputs()
    setup = inputs.job.setup(2)
    timeline = simulate(inputs.job.profiles[0].profile, inputs.times, setup)
    row = forecast(inputs, setup)
    assert row.step_s.value == timeline.step_s > STEP_S
    assert row.exposed_s.value == timeline.exposed_s > 0.0
    assert row.samples_per_step == 64
    assert row.samples_per_s.value == pytest.approx(64 / timeline.step_s)
    assert row.efficiency.value == pytest.approx(STEP_S / timeline.step_s)
    assert row.kind == PredictionKind(strategy="ddp", backend="gloo", curve="same ranks")
    assert not row.is_extrapolated
    for interval in (row.step_s, row.samples_per_s, row.efficiency, row.exposed_s):
        assert interval.low < interval.value < interval.high


def test_other_ranks_are_flagged_and_wider() -> None:
    inputs = made_inputs()
    near, far = forecast(inputs, inputs.job.setup(2)), forecast(inputs, inputs.job.setup(64))
    assert (far.kind.curve, far.curve_ranks, far.is_extrapolated) == ("other ranks", 2, True)
    assert far.assumptions
    assert far.step_s.high / far.step_s.value > near.step_s.high / near.step_s.value


def test_no_network_makes_a_step_faster_than_it_computes() -> None:
    """However far the prediction is, its lower end is what one rank computes, as sure as that is."""
    inputs = made_inputs(batches=(2048,))
    kind = forecast(inputs, inputs.job.setup(64)).kind
    errors = [LedgerResidual(kind=kind, step=0.3, origin=Origin(family="ddp mlp"))] * 20
    row = forecast(inputs, inputs.job.setup(64), errors)
    computing_s = row.step_s.value - row.exposed_s.value
    assert row.step_s.low == pytest.approx(computing_s * math.exp(-0.1))
    assert row.step_s.high > row.step_s.value * math.exp(0.6)
    assert row.efficiency.high == pytest.approx(row.efficiency.value * row.step_s.value / row.step_s.low)


def test_accumulation_counts_all_its_samples_and_one_rank_does_the_same() -> None:
    inputs = dataclasses.replace(made_inputs(), times=Instant())
    setup = dataclasses.replace(inputs.job.setup(4), accumulation_steps=3)
    row = forecast(inputs, setup)
    assert row.samples_per_step == 32 * 3 * 4
    assert row.efficiency.value == pytest.approx(1.0)
    assert (row.kind.curve, row.curve_ranks) == ("assumed", None)


def test_another_batch_follows_a_line_through_two_or_is_stretched() -> None:
    # The optimizer does the same work at every batch.
    inputs = dataclasses.replace(made_inputs(batches=(32, 64)), times=Instant())
    other = forecast(inputs, inputs.job.setup(2), batch=128)
    assert other.step_s.value == pytest.approx(0.9 * (0.010 + 0.0005 * 128) + 0.1 * 0.042)
    assert forecast(inputs, inputs.job.setup(2), batch=64).step_s.value == pytest.approx(0.042)
    inputs = dataclasses.replace(made_inputs(), times=Instant())
    row = forecast(inputs, inputs.job.setup(2), batch=64)
    assert row.step_s.value == pytest.approx(0.9 * 2 * STEP_S + 0.1 * STEP_S)
    assert row.is_extrapolated and "is proportional" in row.assumptions[0]
    assert row.memory_bytes is None


def test_what_ranks_showed_at_a_measured_batch_counts_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a longer step between two batches would look like ranks that compute faster together."""
    inputs = dataclasses.replace(made_inputs(batches=(32, 64)), times=Instant())
    fitted_at: list[int] = []

    def fitted(_: JobInputs, measured: MeasuredProfile) -> Fitted:
        fitted_at.append(measured.profile.samples)
        assert measured in inputs.job.profiles
        return Fitted()

    monkeypatch.setattr(JobInputs, "fitted", fitted)
    forecast(inputs, inputs.job.setup(2), batch=40)
    assert set(fitted_at) == {32}


def test_strong_scaling_shares_the_batch() -> None:
    inputs = made_inputs(batches=(64, 32, 16))
    strong = inputs.job.trial.replace(batch_size=None, global_batch_size=64)
    job = dataclasses.replace(inputs.job, trial=strong)
    inputs = dataclasses.replace(inputs, job=job, times=Instant())
    row = forecast(inputs, job.setup(4))
    assert row.samples_per_step == 64
    assert row.step_s.value == pytest.approx(0.010 + 0.0005 * 16)
    assert row.efficiency.value == pytest.approx((0.010 + 0.0005 * 64) / 4 / (0.010 + 0.0005 * 16))


@pytest.mark.parametrize(("contention", "flagged"), [(1.25, True), (1.005, False)])
def test_contention_is_carried_over_to_other_ranks(
    monkeypatch: pytest.MonkeyPatch, contention: float, flagged: bool
) -> None:
    inputs = dataclasses.replace(made_inputs(), times=Instant())
    monkeypatch.setattr(JobInputs, "fitted", lambda *_: Fitted(contention={2: contention}))
    row = forecast(inputs, inputs.job.setup(16))
    assert row.step_s.value == pytest.approx(contention * STEP_S)
    assert row.is_extrapolated == flagged


def test_where_times_come_from() -> None:
    times = made_times(2, 8)
    assert curve_of(times, 8) == ("same ranks", 8)
    assert curve_of(times, 4) == ("other ranks", 2)
    assert curve_of(times, 64) == ("other ranks", 8)
    assert curve_of(made_times(4), 2) == ("other ranks", 4)
    assert curve_of(Instant(), 8) == ("assumed", None)


def step_of(
    exposed_s: float = 0.0, straggling_s: float = 0.0, bubble_s: float = 0.0, **compute_s: float
) -> StepTimeline:
    events, now_s = [], 0.0
    for name, time_s in compute_s.items():
        events.append(TimelineEvent(lane="compute", name=name, begin_s=now_s, end_s=now_s + time_s))
        now_s += time_s
    return StepTimeline(
        events=tuple(events),
        step_s=now_s + exposed_s + straggling_s + bubble_s,
        exposed_s=exposed_s,
        straggling_s=straggling_s,
        bubble_s=bubble_s,
    )


@pytest.mark.parametrize(
    ("limit", "step"),
    [
        ("compute", step_of(forward=2.0, backward=3.0, input=4.0, optimizer=1.0)),
        ("input", step_of(forward=2.0, input=4.0)),
        ("optimizer", step_of(forward=2.0, optimizer=4.0)),
        ("communication", step_of(forward=2.0, exposed_s=3.0)),
        ("stragglers", step_of(forward=2.0, straggling_s=3.0)),
        ("pipeline bubble", step_of(forward=2.0, bubble_s=3.0)),
        ("host", dataclasses.replace(step_of(forward=2.0), step_s=3.0, host_s=3.0)),
    ],
)
def test_the_limit_is_what_takes_longest(limit: str, step: StepTimeline) -> None:
    assert limit_of(step) == limit


@pytest.mark.parametrize(("strategy", "states", "gathered"), [("zero1", 2, 0), ("fsdp", 4, 1 << 20)])
def test_sharding_takes_less_memory(strategy: str, states: int, gathered: int) -> None:
    inputs = made_inputs(optimizer="adamw")
    plain = forecast(inputs, inputs.job.setup(4)).memory_bytes
    job = inputs.job.with_strategy(strategy)
    profiles = tuple(
        dataclasses.replace(known, trial=known.trial.replace(optimizer="adamw")) for known in job.profiles
    )
    job = dataclasses.replace(job, profiles=profiles)
    sharded = forecast(dataclasses.replace(inputs, job=job), job.setup(4)).memory_bytes
    assert plain is not None and sharded is not None
    assert plain.value - sharded.value == pytest.approx(states * (4 << 20) * 0.75 - gathered)
    unknown = tuple(dataclasses.replace(known, memory_bytes=None) for known in profiles)
    job = dataclasses.replace(job, profiles=unknown)
    assert forecast(dataclasses.replace(inputs, job=job), job.setup(2)).memory_bytes is None
