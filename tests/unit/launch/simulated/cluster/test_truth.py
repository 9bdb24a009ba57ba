"""The truth about a simulated cluster, where it is known without simulating."""

from typing import Any

import pytest

from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from scalescope.launch.simulated.cluster.model import ClusterModel
from scalescope.launch.simulated.cluster.truth import LossTruth, truth_of
from tests.builders.requests import ask

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


def test_of_two_ranks_the_mean_is_typical_and_half_of_a_delay_is_contention() -> None:
    terms = truth(2, contention_s=0.002, slow_rank=1, slow_s=0.004).terms()
    assert (terms["contention"], terms["stragglers"]) == pytest.approx((0.004, 0.002))
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
