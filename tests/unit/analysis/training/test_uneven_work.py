"""Uneven work: its cost is recovered where step times follow it, and nothing is claimed where they do not."""

import random
from collections.abc import Mapping, Sequence

import pytest

from scalescope.analysis.arrivals import RecordedLaunch
from scalescope.analysis.recording import StepRecording
from scalescope.analysis.training.activity import RankActivity, RankWork
from scalescope.analysis.training.uneven_work import uneven_work
from scalescope.results.traces.step_parts import BACKWARD, COMMUNICATION, FORWARD

PER_ELEMENT_S = 1e-5
STEPS = 100


def _work(elements: Sequence[float], *, text: bool = True) -> RankWork:
    mean = sum(elements) / len(elements)
    varies = len(set(elements)) > 1
    return RankWork(
        elements=mean, tokens=mean if text else None, variation=0.0, by_step=tuple(elements) if varies else ()
    )


def _ranks(
    *elements: Sequence[float],
    noise: float = 0.1,
    follows: bool = True,
    host_s: Sequence[Mapping[str, float]] = (),
    text: bool = True,
) -> tuple[RankActivity, ...]:
    """Ranks that wait for the most work in each step, on a machine with noise and some stalls."""
    made = random.Random(3)
    most = [max(step) for step in zip(*elements, strict=True)]
    usual = sum(most) / len(most)
    times_s = [
        0.002
        + PER_ELEMENT_S * (work if follows else usual) * made.lognormvariate(0.0, noise)
        + 0.2 * (made.random() < 0.03)
        for work in most
    ]
    return tuple(
        RankActivity(
            rank=rank,
            step_times_s=times_s,
            work=_work(work, text=text),
            host_s=host_s[rank] if host_s else {},
        )
        for rank, work in enumerate(elements)
    )


def _random_lengths(seed: int) -> list[float]:
    made = random.Random(seed)
    return [float(made.randrange(500, 4000)) for _ in range(STEPS)]


@pytest.mark.parametrize("ranks", [2, 8])
def test_batches_of_random_length_cost_what_the_longest_takes_beyond_the_mean(ranks: int) -> None:
    lengths = [_random_lengths(seed) for seed in range(ranks)]
    columns = list(zip(*lengths, strict=True))
    truth = PER_ELEMENT_S * sum(max(c) - sum(c) / ranks for c in columns) / STEPS
    uneven = uneven_work([_ranks(*lengths)] * 2, on_gpu=True)
    assert uneven is not None
    assert uneven.cost_s == pytest.approx(truth, rel=0.35)
    assert (uneven.source, uneven.unit, len(uneven.by_rank)) == ("step times", "tokens", ranks)


def test_ranks_that_take_turns_have_no_heaviest() -> None:
    lengths = [[1000.0, 3000.0] * 50, [3000.0, 1000.0] * 50]
    even = uneven_work([_ranks(*lengths)], on_gpu=False)
    assert even is None  # all steps have the same most, and no rank is behind the other
    mixed = [[1000.0, 3000.0, 1000.0, 2000.0] * 25, [3000.0, 1000.0, 2000.0, 1000.0] * 25]
    uneven = uneven_work([_ranks(*mixed, text=False)], on_gpu=False)
    assert uneven is not None
    assert (uneven.heaviest, uneven.unit) == (None, "elements")


def test_steps_that_do_not_follow_the_work_are_not_uneven() -> None:
    lengths = [_random_lengths(1), _random_lengths(2)]
    assert uneven_work([_ranks(*lengths, follows=False, noise=0.3)], on_gpu=True) is None


CONSTANT = ([1000.0] * STEPS, [3000.0] * STEPS)


def _host(*forward_s: float) -> list[dict[str, float]]:
    return [{"forward": time_s, "backward": 0.03} for time_s in forward_s]


def test_a_rank_with_more_work_and_a_longer_forward_pass_is_the_heaviest() -> None:
    uneven = uneven_work([_ranks(*CONSTANT, host_s=_host(0.004, 0.012))], on_gpu=False)
    assert uneven is not None
    assert (uneven.heaviest, uneven.by_rank, uneven.source) == (1, (1000.0, 3000.0), "host time")
    assert uneven.excess == pytest.approx(1 / 3)
    assert uneven.cost_s == pytest.approx((0.012 + 0.024) / 3)
    assert uneven.behind_s == pytest.approx(2 * uneven.cost_s)
    assert uneven.most_over_mean == pytest.approx(1.5)


def test_more_work_that_takes_no_longer_is_not_the_cause() -> None:
    for host_s in (_host(0.012, 0.012), _host(0.012, 0.004), ()):
        assert uneven_work([_ranks(*CONSTANT, host_s=host_s)], on_gpu=False) is None
    assert uneven_work([_ranks(*CONSTANT, host_s=_host(0.004, 0.012))], on_gpu=True) is None


def _recorded(*compute_s: float) -> RecordedLaunch:
    return RecordedLaunch(
        step_s=0.1, compute_s=0.05, exposed_s=0.0, waiting_s=None, copy_s=0.0, idle_s={},
        rank_compute_s=compute_s,
    )  # fmt: skip


def test_recorded_steps_tell_what_the_work_of_a_rank_takes() -> None:
    uneven = uneven_work([_ranks(*CONSTANT)], recorded=[_recorded(0.02, 0.06)], on_gpu=True)
    assert uneven is not None
    assert (uneven.heaviest, uneven.source) == (1, "recorded steps")
    assert uneven.cost_s == pytest.approx(0.02)
    assert uneven_work([_ranks(*CONSTANT)], recorded=[_recorded(0.06, 0.02)], on_gpu=True) is None


def _recording(communication_s: float) -> StepRecording:
    parts = {FORWARD: 0.01, BACKWARD: 0.02, COMMUNICATION: communication_s}
    return StepRecording(rank=0, parts=parts, recorded_step_s=0.1, plain_step_s=None)


def test_a_recorded_rank_with_less_work_must_wait_for_the_others() -> None:
    uneven = uneven_work([_ranks(*CONSTANT)], recording=_recording(0.06), on_gpu=True)
    assert uneven is not None
    assert uneven.cost_s == pytest.approx(0.03)  # 1000 elements more than the mean, at 30 ms per 1000
    assert uneven_work([_ranks(*CONSTANT)], recording=_recording(0.01), on_gpu=True) is None


def test_even_or_unknown_work_is_not_uneven() -> None:
    equal = ([1000.0] * STEPS, [1010.0] * STEPS)
    assert uneven_work([_ranks(*equal, host_s=_host(0.004, 0.012))], on_gpu=False) is None
    unknown = (RankActivity(rank=0, step_times_s=[0.1]), *_ranks(*CONSTANT)[1:])
    assert uneven_work([unknown], on_gpu=False) is None
    assert uneven_work([_ranks(CONSTANT[0])], on_gpu=False) is None
    assert uneven_work([], on_gpu=False) is None
