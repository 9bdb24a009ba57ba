"""Events are found with their periods and costs, also where they share steps; noise is never one."""

import random
import statistics
from collections.abc import Iterable, Mapping

import pytest

from scalescope.analysis.events import Note, StepEvents, StepSeries, step_events
from scalescope.results.result import CHECKPOINT, EVALUATION, LOGGING
from tests.simulated.noisy_steps import KINDS, noisy_steps

STEP_S = 0.04


def _series(
    count: int, lengths: Mapping[int, float], seed: int = 0, kind: str = "", notes: Iterable[Note] = ()
) -> StepSeries:
    """Steps with events by their period, the last of each period; without a kind of noise, of 1 %."""
    rng = random.Random(f"{kind} {seed}")
    work_s = [
        STEP_S + sum(length for period, length in lengths.items() if step % period == period - 1)
        for step in range(count)
    ]
    if kind:
        return StepSeries(times_s=noisy_steps(rng, kind, work_s), notes=tuple(notes))
    return StepSeries(times_s=tuple(w * rng.lognormvariate(0, 0.01) for w in work_s), notes=tuple(notes))


def _periods(events: StepEvents) -> list[int | None]:
    return [event.period for event in events.events]


@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_no_events(kind: str) -> None:
    false_alarms = [
        seed
        for seed in range(60)
        if step_events((_series((40, 90, 150, 200)[seed % 4], {}, seed, kind),)).events
    ]
    assert len(false_alarms) <= 1


@pytest.mark.parametrize("kind", ["calm", "bursts"])
@pytest.mark.parametrize(("period", "least"), [(10, 1.0), (50, 3.0)])
def test_periods_are_found_in_noise(kind: str, period: int, least: float) -> None:
    found = [
        period in _periods(step_events((_series(210, {period: times * STEP_S}, seed, kind),)))
        for seed, times in enumerate((least, 3.0, 10.0) * 4)
    ]
    assert sum(found) >= 10


def test_events_that_share_steps_have_their_own_costs() -> None:
    events = step_events((_series(1000, {10: 0.02, 50: 0.4, 100: 0.2}),))
    costs = {event.period: event.cost_s for event in events.events}
    assert costs == {
        10: pytest.approx(0.002, rel=0.05),
        50: pytest.approx(0.008, rel=0.05),
        100: pytest.approx(0.002, rel=0.05),
    }
    assert events.events[0].name == "work every 50 steps"
    assert events.plain_s == pytest.approx(STEP_S, rel=0.01)
    series = _series(1000, {10: 0.02, 50: 0.4, 100: 0.2})
    assert events.plain_s + events.cost_s == pytest.approx(sum(series.times_s) / 1000)


def test_an_event_is_found_once_in_noise() -> None:
    for seed in range(6):
        periods = _periods(step_events((_series(600, {50: 0.16, 100: 0.08}, seed, KINDS[-1]),)))
        assert periods.count(50) == 1


def test_a_single_long_step_and_two_are_no_period() -> None:
    assert step_events((_series(150, {100: 0.4}),)).events == ()
    assert step_events((_series(110, {50: 0.4}),)).events == ()
    assert step_events(()) == StepEvents(plain_s=0.0)
    assert step_events((StepSeries(),)).events == ()
    assert step_events((StepSeries(times_s=(STEP_S,) * 100),)).events == ()


def test_two_in_each_launch_are_a_period_wherever_it_begins() -> None:
    launches = tuple(
        StepSeries(times_s=_series(200, {50: 0.4}, seed).times_s[seed * 13 :][:110]) for seed in range(3)
    )
    events = step_events(launches)
    assert _periods(events) == [50]
    assert events.events[0].length_s == pytest.approx(0.4, rel=0.02)
    others = (launches[0], *(_series(110, {}, seed) for seed in (1, 2)))
    assert step_events(others).events == ()  # of one launch alone


def _notes(kind: str, steps: Iterable[int], time_s: float | None = None) -> list[Note]:
    return [Note(step=step, kind=kind, time_s=time_s) for step in steps]


def test_notes_name_events_however_few() -> None:
    notes = [*_notes(EVALUATION, (49, 99)), *_notes(CHECKPOINT, (99,), 0.2)]
    series = _series(110, {50: 0.4, 100: 0.2}, notes=notes)
    names = {event.name: event.length_s for event in step_events((series,)).events}
    assert names == {
        "evaluation every 50 steps": pytest.approx(0.4, rel=0.01),
        "checkpoint in 1 step": pytest.approx(0.2, rel=0.05),
    }


def test_what_is_noted_and_takes_no_time_or_is_in_every_step_is_no_event() -> None:
    notes = [*_notes(LOGGING, range(9, 200, 10)), *_notes(EVALUATION, range(200))]
    assert step_events((_series(200, {}, notes=notes),)).events == ()
    events = step_events((_series(200, {20: 0.1}, notes=notes),))
    assert [(event.kind, event.period) for event in events.events] == [(None, 20)]


def test_kinds_in_the_same_steps_are_parted_by_their_own_times() -> None:
    steps = (49, 99)
    notes = [*_notes(EVALUATION, steps), *_notes(CHECKPOINT, steps, 0.1)]
    events = step_events((_series(110, {50: 0.4}, notes=notes),))
    lengths = {event.kind: event.length_s for event in events.events}
    assert lengths == {EVALUATION: pytest.approx(0.3, rel=0.02), CHECKPOINT: pytest.approx(0.1, rel=0.02)}
    assert events.plain_s + events.cost_s == pytest.approx(STEP_S + 0.8 / 110, rel=0.01)


def test_an_irregular_kind_has_no_period() -> None:
    notes = _notes(CHECKPOINT, (10, 20, 60), 0.2)
    times_s = [t + 0.2 * (step in (10, 20, 60)) for step, t in enumerate(_series(100, {}).times_s)]
    (event,) = step_events((StepSeries(times_s=tuple(times_s), notes=tuple(notes)),)).events
    assert (event.name, event.occurrences) == ("checkpoint in 3 steps", 3)


def test_shares_are_kept_when_scaled_and_explained_steps_are_known() -> None:
    events = step_events((_series(200, {50: 0.4}),))
    scaled = events.scaled_to(0.1)
    assert scaled.plain_s + scaled.cost_s == pytest.approx(0.1)
    assert scaled.events[0].cost_s / 0.1 == pytest.approx(
        events.events[0].cost_s / (events.plain_s + events.cost_s)
    )
    assert events.scaled_to(0.1, noted_alone=True) == StepEvents(plain_s=0.1)
    assert events.explain(0, 49) and events.explain(0, 50) and not events.explain(0, 52)


def test_waiting_for_batches_that_come_in_turns_is_not_work() -> None:
    times_s = (0.001, 0.001, 0.001, 0.300) * 20
    assert [event.period for event in step_events((StepSeries(times_s=times_s),)).events] == [4]
    waits = StepSeries(times_s=times_s, input_wait_s=0.075)
    assert step_events((waits,)) == StepEvents(plain_s=statistics.fmean(times_s))
