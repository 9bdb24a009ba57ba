"""Simulated clusters: their network, their steps, and the truth about them where it is known."""

import random
import statistics
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from tests.builders.requests import ask
from tests.simulated.cluster.model import ClusterModel, Network
from tests.simulated.cluster.timeline import (
    ClusterStep,
    LaunchNoise,
    Timeline,
    launch_timeline,
    normal_steps,
)
from tests.simulated.cluster.truth import LossTruth, truth_of

SIZE = 100e6
BARE = Network(fast_latency_s=0.0, card_latency_s=0.0)


def test_a_single_node_uses_only_its_fast_links() -> None:
    model = ClusterModel(network=BARE)
    assert model.transfer_s(SIZE, 8) == pytest.approx(2 * 7 / 8 * SIZE / 200e9)


def test_several_nodes_add_what_their_cards_take() -> None:
    model = ClusterModel(network=BARE)
    between = 2 * 3 / 4 * SIZE / 50e9
    assert model.transfer_s(SIZE, 32) - model.transfer_s(SIZE, 8) == pytest.approx(between)


def test_a_slow_card_slows_the_exchange_between_nodes_by_its_ratio() -> None:
    slow = Network(fast_latency_s=0.0, card_latency_s=0.0, slow_node=2, slow_by=3.0)
    assert slow.between_s(SIZE, 4) == pytest.approx(3.0 * BARE.between_s(SIZE, 4))
    assert slow.between_s(SIZE, 2) == BARE.between_s(SIZE, 2)  # without that node
    model = ClusterModel(network=slow)
    assert model.pair_s(SIZE, 0, 16) == pytest.approx(3.0 * model.pair_s(SIZE, 0, 8))
    assert model.pair_s(SIZE, 16, 17) == model.pair_s(SIZE, 0, 1)  # inside that node


def test_latency_is_what_a_small_exchange_takes() -> None:
    model = ClusterModel(network=Network(fast_latency_s=1e-6, card_latency_s=1e-5))
    assert model.transfer_s(0.0, 32) == pytest.approx(14 * 1e-6 + 4 * 1e-5)


def test_the_machine_has_all_nodes_with_a_gpu_for_every_rank() -> None:
    model = ClusterModel(ranks_per_node=8)
    machine = model.machine(1024)
    assert (len(machine.gpus), machine.ranks_per_node, len(model.hosts(1024))) == (1024, 8, 128)
    assert (model.host_of(7), model.host_of(8)) == ("node0", "node1")
    assert model.machine(4).ranks_per_node is None  # a single node


COMPUTE_S = 0.1
# A network that takes a tenth of the compute, and nothing else that costs.
CALM = ClusterModel(gradient_bytes=1_000_000_000, buckets=1)
# E[max − mean] of so many normal values, in standard deviations (Harter 1961).
EXPECTED_LARGEST = {2: 0.564, 8: 1.424}


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


@pytest.mark.parametrize("ranks", [2, 8])
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
    stalled = sum(time_s > COMPUTE_S + 0.04 for _ in range(500) for time_s in timeline.free_step())
    assert stalled == pytest.approx(250, abs=60)


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


PLAIN: dict[str, Any] = {"fixed_s": 0.02, "per_sample_s": 0.001, "buckets": 1}


def trial_of(model: ClusterModel, ranks: int, **texts: str) -> Trial:
    asked = texts or {"batch_size": "50"}
    (trial,) = expand(ask(world_size=str(ranks), **asked), model.machine(ranks)).trials
    return trial


def truth(ranks: int, asked: dict[str, str] | None = None, **parts: Any) -> LossTruth:
    model = ClusterModel(**{**PLAIN, **parts})
    return truth_of(model, trial_of(model, ranks, **(asked or {})))


def test_every_term_is_what_was_put_in() -> None:
    known = truth(8, wrapper_s=0.001, contention_s=0.002, slow_rank=3, slow_s=0.004)
    transfer_s = ClusterModel(**PLAIN).transfer_s(100_000_000, 8)
    assert known.terms() == pytest.approx(
        {
            "wrapper": 0.001,
            "contention": 0.002,
            "stragglers": 0.004,
            "random skew": 0.0,
            "communication": transfer_s,
        },
        abs=1e-9,
    )


def test_of_two_ranks_the_delay_is_that_of_the_slow_one() -> None:
    terms = truth(2, contention_s=0.002, slow_rank=1, slow_s=0.004).terms()
    assert (terms["contention"], terms["stragglers"]) == pytest.approx((0.002, 0.004))
    assert terms["random skew"] == pytest.approx(0.0, abs=1e-9)


def test_random_skew_is_the_expected_largest_of_the_jitter() -> None:
    assert truth(8, jitter_s=0.001).random_skew_s == pytest.approx(1.424 * 0.001, rel=0.03)


def test_terms_add_up_to_the_step() -> None:
    known = truth(
        16, jitter_s=0.002, slow_rank=3, slow_s=0.004, wrapper_s=0.001, contention_s=0.003,
        burst_probability=0.01, burst_s=0.03, slowdown=0.1,
    )  # fmt: skip
    alone_s = 0.02 + 50 * 0.001 + 0.01 * 0.03
    assert alone_s + sum(known.terms().values()) == pytest.approx(known.step_s)


def test_stalls_cost_skew_as_often_as_any_rank_has_one() -> None:
    chance = 1.0 - (1.0 - 0.01) ** 8
    known = truth(8, burst_probability=0.01, burst_s=0.05)
    # All wait for a stalled rank; its own part, 0.01 of the steps, is in every rank's mean.
    assert known.random_skew_s == pytest.approx((chance - 0.01) * 0.05, rel=0.02)


def test_a_share_of_a_batch_takes_more_than_its_share_of_the_time() -> None:
    known = truth(4, {"global_batch_size": "200"})
    assert known.smaller_batch_s == pytest.approx(0.02 * 3 / 4)


def test_input_counts_beyond_what_one_rank_waits() -> None:
    known = truth(4, {"batch_size": "50", "num_workers": "1"}, input_s=0.007, input_alone_s=0.002)
    assert known.input_s == pytest.approx(0.005)
    assert truth(4).input_s is None
