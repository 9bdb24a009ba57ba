"""Whether a launch that recorded what a step consists of is valid."""

import pytest

from scalescope.experiment.recordings import breakdown_of
from scalescope.launch.simulation import simulated_record
from scalescope.launch.validity.breakdown import judge
from scalescope.results.result import RankRecord
from tests.builders.results import make_trial

TWO = breakdown_of(make_trial(world_size=2, strategy="ddp")).replace(device="cuda")


def record(rank: int, steps: int = 3, kernels: int = 100) -> RankRecord:
    return simulated_record(rank, {"parts/step_s": [0.1] * steps}, {"kernels_per_step": kernels})


def test_ranks_that_recorded_steps_and_kernels_are_valid() -> None:
    records = [record(0), record(1)]
    outcome = judge(TWO, records)
    assert (outcome.status, outcome.records) == ("ok", records)


@pytest.mark.parametrize("bad", [record(1, steps=0), record(1, kernels=0), simulated_record(1, {}, {})])
def test_a_rank_without_steps_or_kernels_makes_the_launch_invalid(bad: RankRecord) -> None:
    outcome = judge(TWO, [record(0), bad])
    assert (outcome.status, outcome.rank) == ("invalid", 1)
    assert outcome.reason and outcome.records == [record(0), bad]
