"""Whether a launch that recorded arrivals is valid."""

from scalescope.experiment.recordings import arrivals_of
from scalescope.launch.simulation import simulated_record
from scalescope.launch.validity.arrivals import judge
from tests.builders.results import make_trial

TWO = arrivals_of(make_trial(world_size=2, strategy="ddp"))


def test_a_rank_without_steps_makes_the_launch_invalid() -> None:
    records = [simulated_record(0, {"trace/step_s": [0.1]}, {}), simulated_record(1, {}, {})]
    outcome = judge(TWO, records)
    assert (outcome.status, outcome.rank) == ("invalid", 1)


def test_a_gpu_that_could_not_be_recorded_makes_it_invalid() -> None:
    records = [simulated_record(0, {"trace/step_s": [0.1], "trace/compute_s": [0.0]}, {})]
    assert judge(TWO.replace(device="cuda"), records).status == "invalid"
    assert judge(TWO, records).status == "ok"
