"""Periodic pauses are found in noise and beside random ones; random ones are never called periodic."""

import dataclasses
import random
from collections.abc import Iterable, Sequence

import pytest

from scalescope.analysis.training.activity import LongStep, RankActivity
from scalescope.analysis.training.pauses import REST, find_pauses, periodic_pauses

STEP_S = 0.02
PAUSE_S = 0.05


def _noise(count: int, seed: int, variation: float = 0.05) -> list[float]:
    made = random.Random(seed)
    return [STEP_S * made.lognormvariate(0.0, variation) for _ in range(count)]


def _paused(times_s: list[float], steps: Iterable[int], pause_s: float = PAUSE_S) -> list[float]:
    for step in steps:
        times_s[step] += pause_s
    return times_s


@pytest.mark.parametrize("variation", [0.01, 0.15])
@pytest.mark.parametrize(("count", "period"), [(40, 3), (75, 10), (200, 50), (1500, 250)])
def test_a_period_and_its_cost_are_recovered(count: int, period: int, variation: float) -> None:
    steps = range(14 % period, count, period)
    pauses = find_pauses(_paused(_noise(count, 2, variation), steps))
    assert (pauses.period, pauses.steps) == (period, tuple(steps))
    assert pauses.cost_s == pytest.approx(PAUSE_S * len(steps) / count, rel=0.35)
    assert pauses.length_s == pytest.approx(PAUSE_S, rel=0.35)


def test_random_pauses_are_not_called_periodic() -> None:
    made = random.Random(7)
    periodic = 0
    for seed in range(100):
        count = made.choice((50, 75, 150, 400))
        steps = made.sample(range(count), made.randrange(1, 15))
        pauses = find_pauses(_paused(_noise(count, seed), steps, made.uniform(0.02, 0.2)))
        periodic += pauses.period is not None
    assert periodic <= 2  # three in a row may stand at equal distances by chance


def test_steps_without_pauses_have_none() -> None:
    for variation in (0.0, 0.02, 0.6):
        for seed in range(10):
            assert find_pauses(_noise(200, seed, variation)).period is None
    assert find_pauses([]).period is None
    assert periodic_pauses([], on_gpu=False) is None
    assert periodic_pauses([()], on_gpu=False) is None


def test_a_missing_pause_and_random_ones_do_not_hide_a_period() -> None:
    steps = [step for step in range(9, 200, 10) if step != 99]
    pauses = find_pauses(_paused(_noise(200, 1), [*steps, 33, 101, 164]))
    assert (pauses.period, pauses.steps) == (10, tuple(steps))
    assert pauses.other_cost_s == pytest.approx(3 * PAUSE_S / 200, rel=0.2)


def test_pauses_by_a_clock_need_not_stand_at_exact_steps() -> None:
    steps = [11, 24, 36, 49, 61, 74, 86]  # every 12.5 steps
    pauses = find_pauses(_paused(_noise(98, 2), steps))
    assert pauses.period in (12, 13)
    assert pauses.cost_s == pytest.approx(7 * PAUSE_S / 98, rel=0.2)


@pytest.mark.parametrize("steps", [(5, 25), (5, 25, 46), (30, 40, 50)])
def test_too_few_or_irregular_pauses_are_not_periodic(steps: Sequence[int]) -> None:
    pauses = find_pauses(_paused(_noise(60, 3), steps))
    assert (pauses.period, pauses.cost_s) == (None, 0.0)
    assert pauses.other_cost_s == pytest.approx(len(steps) * PAUSE_S / 60, rel=0.2)


def _row(step: int, gc_s: float = 0.0, **parts_s: float) -> LongStep:
    return LongStep(step=step, beyond_s=PAUSE_S, parts_s=parts_s, gc_s=gc_s)


def _rank(
    rank: int, steps: Sequence[int], rows: Iterable[LongStep] = (), variation: float = 0.03
) -> RankActivity:
    times_s = _paused(_noise(100, rank, variation), steps)
    return RankActivity(rank=rank, step_times_s=times_s, long_steps=tuple(rows))


def _checkpointing(variation: float = 0.03) -> tuple[RankActivity, ...]:
    """Rank 0 pauses after its optimizer step; rank 1 waits for it in its next backward pass."""
    first = range(9, 100, 10)
    second = [step + 1 for step in first if step < 99]
    return (
        _rank(0, first, (_row(step, optimizer=PAUSE_S) for step in first), variation),
        _rank(1, second, (_row(step, backward=PAUSE_S) for step in second), variation),
    )


def test_pauses_begin_on_the_rank_that_does_not_wait() -> None:
    pauses = periodic_pauses([_checkpointing()] * 2, on_gpu=False)
    assert pauses is not None
    assert (pauses.period, pauses.origins, pauses.part, pauses.launches) == (10, (0,), "optimizer", 2)
    assert pauses.cost_s == pytest.approx(PAUSE_S / 10, rel=0.1)
    assert pauses.gc_share == 0.0
    pauses = periodic_pauses([_checkpointing(variation=1.5)], on_gpu=False)
    assert pauses is not None
    assert (pauses.period, pauses.origins, pauses.part) == (10, (0,), "optimizer")
    ranks = tuple(dataclasses.replace(rank, long_steps=None) for rank in _checkpointing())
    pauses = periodic_pauses([ranks], on_gpu=False)
    assert pauses is not None
    assert (pauses.period, pauses.origins, pauses.part, pauses.gc_share) == (10, (), None, None)


def test_where_a_single_rank_pauses() -> None:
    steps = range(9, 100, 10)
    rank = _rank(0, steps, (_row(step, input=0.0) for step in steps))
    pauses = periodic_pauses([(rank,)] * 2, on_gpu=False)
    assert pauses is not None
    assert (pauses.period, pauses.part) == (10, None)
    steps = range(4, 100, 20)
    pauses = periodic_pauses([(_rank(0, steps, (_row(s, backward=PAUSE_S) for s in steps)),)], on_gpu=False)
    assert pauses is not None
    assert (pauses.origins, pauses.part) == ((0,), "backward")
    steps = range(4, 100, 20)
    rows = [_row(step, gc_s=0.8 * PAUSE_S, forward=PAUSE_S) for step in steps]
    pauses = periodic_pauses([(_rank(0, steps, rows),)], on_gpu=False)
    assert pauses is not None
    assert pauses.gc_share == pytest.approx(0.8, rel=0.1)


def test_pauses_outside_all_parts_are_known_on_the_cpu_alone() -> None:
    steps = range(4, 100, 20)
    ranks = (_rank(0, steps, (_row(step) for step in steps)), _rank(1, []))
    on_cpu, on_gpu = (periodic_pauses([ranks], on_gpu=on_gpu) for on_gpu in (False, True))
    assert on_cpu is not None and on_gpu is not None
    assert (on_cpu.origins, on_cpu.part) == ((0,), REST)
    assert (on_gpu.origins, on_gpu.part) == ((), None)


def test_most_launches_must_show_the_same_period() -> None:
    paused, calm = _rank(0, range(4, 100, 20)), _rank(0, [])
    other = _rank(0, range(3, 100, 7))
    assert periodic_pauses([(paused,), (calm,)], on_gpu=False) is None
    assert periodic_pauses([(paused,), (other,)], on_gpu=False) is None
    most = periodic_pauses([(paused,), (calm,), (paused,)], on_gpu=False)
    assert most is not None
    assert (most.period, most.launches) == (20, 2)
    assert most.cost_s == pytest.approx(PAUSE_S / 20 * 2 / 3, rel=0.1)
