"""Steps of a simulated cluster: order statistics that are known, and nothing that gets lost."""

import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from scalescope.launch.simulated.cluster.model import ClusterModel
from scalescope.launch.simulated.cluster.timeline import (
    ClusterStep,
    LaunchNoise,
    Timeline,
    launch_timeline,
    normal_steps,
)

COMPUTE_S = 0.1
# A network that takes a tenth of the compute, and nothing else that costs.
CALM = ClusterModel(gradient_bytes=1_000_000_000, buckets=1)
# E[max − mean] of so many normal values, in standard deviations (Harter 1961).
EXPECTED_LARGEST = {2: 0.564, 8: 1.424, 64: 2.344}


def steps_of(model: ClusterModel, ranks: int, count: int = 1) -> list[ClusterStep]:
    timeline = launch_timeline(model, "test", ranks, compute_s=COMPUTE_S)
    return list(normal_steps(timeline, count))


def mean_wait_s(steps: list[ClusterStep]) -> float:
    return statistics.fmean(statistics.fmean(step.waited_s()) for step in steps)


def test_equal_ranks_wait_for_nobody() -> None:
    (step,) = steps_of(CALM, 8)
    transfer_s = CALM.transfer_s(CALM.gradient_bytes, 8)
    assert step.waited_s() == pytest.approx([0.0] * 8)
    assert step.step_s == pytest.approx([COMPUTE_S + transfer_s] * 8)
    assert step.exposed_s == pytest.approx([transfer_s] * 8)


@pytest.mark.parametrize("ranks", EXPECTED_LARGEST)
def test_jitter_makes_ranks_wait_for_the_largest_of_them(ranks: int) -> None:
    sigma_s = 0.002
    steps = steps_of(replace(CALM, jitter_s=sigma_s), ranks, 4000 // ranks + 1000)
    assert mean_wait_s(steps) == pytest.approx(EXPECTED_LARGEST[ranks] * sigma_s, rel=0.05)


def test_all_wait_for_a_slow_rank_as_long_as_it_is_slower() -> None:
    (step,) = steps_of(replace(CALM, slow_rank=3, slow_s=0.02), 8)
    assert step.waited_s() == pytest.approx([0.0 if rank == 3 else 0.02 for rank in range(8)])


def test_a_slow_rank_alone_is_not_slow() -> None:
    timeline = launch_timeline(replace(CALM, slow_rank=0, slow_s=0.02), "test", 1, compute_s=COMPUTE_S)
    assert timeline.free_step() == pytest.approx([COMPUTE_S])


def test_a_backward_pass_hides_all_but_the_last_bucket() -> None:
    (step,) = steps_of(replace(CALM, buckets=4), 8)
    transfer_s = CALM.transfer_s(CALM.gradient_bytes / 4, 8)
    assert step.exposed_s == pytest.approx([transfer_s] * 8)
    hidden, last = step.exposures_s()[:3], step.exposures_s()[3]
    assert [max(times) for times in hidden] == pytest.approx([0.0] * 3)
    assert last == pytest.approx([transfer_s] * 8)


def test_a_slow_network_is_a_queue_in_which_nobody_waits_for_peers() -> None:
    model = replace(CALM, buckets=4, gradient_bytes=40_000_000_000)
    (step,) = steps_of(model, 8)
    starts = [transfer.start_s for transfer in step.transfers]
    transfer_s = model.transfer_s(model.gradient_bytes / 4, 8)
    assert [after - before for before, after in pairwise(starts)] == pytest.approx([transfer_s] * 3)
    assert step.waited_s() == pytest.approx([0.0] * 8)


def test_compute_is_slower_while_a_transfer_runs() -> None:
    usual, slowed = (steps_of(replace(CALM, buckets=4, slowdown=share), 8)[0] for share in (0.0, 0.2))
    # Three of four transfers run beside the backward pass; of their time, 0.2 / 1.2 is lost for compute.
    overlapped_s = 3 * CALM.transfer_s(CALM.gradient_bytes / 4, 8)
    assert slowed.compute_s[0] - usual.compute_s[0] == pytest.approx(overlapped_s * 0.2 / 1.2)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_parts_of_a_step_add_up_on_every_rank(ranks: int) -> None:
    model = replace(
        CALM, buckets=5, jitter_s=0.003, slow_rank=1, slow_s=0.01, slowdown=0.1,
        burst_probability=0.05, burst_s=0.05, rank_noise_s=0.001,
    )  # fmt: skip
    for step in steps_of(model, ranks, 20):
        waited_s = step.waited_s()
        exposures = [sum(times) for times in zip(*step.exposures_s(), strict=True)]
        assert exposures == pytest.approx(step.exposed_s)
        for rank in range(ranks):
            parts = (step.compute_s[rank], step.exposed_s[rank], step.stall_s[rank], step.input_s)
            assert sum(parts) == pytest.approx(step.step_s[rank])
            assert 0.0 <= waited_s[rank] <= step.exposed_s[rank] + 1e-12


def test_the_last_rank_to_arrive_has_the_shortest_time_in_a_transfer() -> None:
    for step in steps_of(replace(CALM, buckets=3, jitter_s=0.003), 8, 5):
        for transfer, durations in zip(step.transfers, step.durations_s(), strict=True):
            last = transfer.arrived_s.index(max(transfer.arrived_s))
            assert durations[last] == min(durations) == pytest.approx(transfer.end_s - transfer.start_s)


def test_stalls_are_as_frequent_as_the_model_has_them() -> None:
    model = replace(CALM, burst_probability=0.01, burst_s=0.05)
    timeline = launch_timeline(model, "test", 50, compute_s=COMPUTE_S)
    stalled = sum(time_s > COMPUTE_S + 0.04 for _ in range(1000) for time_s in timeline.free_step())
    assert stalled == pytest.approx(500, abs=100)


def test_a_launch_always_has_the_same_noise_and_others_have_other() -> None:
    model = replace(CALM, jitter_s=0.003, launch_noise=0.01)
    first, again, other = (
        launch_timeline(model, key, 4, compute_s=COMPUTE_S).free_step() for key in ("a", "a", "b")
    )
    assert first == again != other


def test_noise_and_its_mirror_image_have_the_mean_of_none() -> None:
    model = replace(CALM, launch_noise=0.01, network_noise=0.1, rank_noise_s=0.001)
    noise = LaunchNoise.drawn(model, 4, random.Random(1))
    steps = [
        Timeline(model, launch_noise, random.Random(1), compute_s=COMPUTE_S).free_step()
        for launch_noise in (noise, noise.mirrored)
    ]
    assert [statistics.fmean(pair) for pair in zip(*steps, strict=True)] == pytest.approx([COMPUTE_S] * 4)
