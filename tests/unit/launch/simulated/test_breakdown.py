"""Simulated recordings: what a step consists of is what the cost model says."""

import dataclasses

import pytest

from scalescope.analysis.training.recording import recordings
from scalescope.experiment.recordings import breakdown_of
from scalescope.launch.simulated.breakdown import simulate
from scalescope.launch.simulation import CostModel
from scalescope.launch.validity.breakdown import judge
from scalescope.results.result import Result
from scalescope.results.traces import step_parts
from tests.builders.results import make_result, make_trial

MODEL = CostModel(fixed_s=0.06, per_sample_s=0.001, exposed_comm_s={2: 0.02}, input_s={2: 0.01})
TWO = make_trial(world_size=2, strategy="ddp", num_workers=0).replace(device="cuda")


def simulated() -> Result:
    outcome = simulate(MODEL, breakdown_of(TWO), 0)
    assert judge(breakdown_of(TWO), outcome.records).status == "ok"
    return dataclasses.replace(make_result(breakdown_of(TWO), [[1.0], [1.0]]), ranks=outcome.records)


def test_every_rank_records_the_parts_of_the_model_s_step() -> None:
    first, second = recordings(simulated())
    assert (first.rank, second.rank) == (0, 1)
    for recording in (first, second):
        assert recording.recorded_step_s == pytest.approx(MODEL.step_time_s(TWO))
        assert recording.parts[step_parts.COMMUNICATION] == pytest.approx(0.02)
        assert recording.parts[step_parts.IDLE_INPUT] == pytest.approx(0.01)
        computed = recording.parts[step_parts.FORWARD] + recording.parts[step_parts.BACKWARD]
        assert computed == pytest.approx(0.06 + 10 * 0.001)
        assert sum(recording.parts.values()) == pytest.approx(recording.recorded_step_s)
