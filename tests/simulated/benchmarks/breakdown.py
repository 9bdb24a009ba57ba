"""Simulated launches of the benchmark that records what a step consists of."""

from scalescope.catalog.benchmarks.breakdown import MOST_STEPS
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from scalescope.results.traces import step_parts
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.costs import CostModel, simulated_record

_FORWARD = 0.3  # of what is computed


def simulate(model: CostModel | ClusterModel, trial: Trial, launch: int) -> Outcome:
    """Every rank records the same steps: compute, exchange, and waiting for input."""
    if isinstance(model, ClusterModel):
        step_s, exposed_s, input_s = model.compute_s(trial), 0.0, 0.0
    else:
        step_s = model.step_time_s(trial)
        exposed_s = model.exposed_comm_s.get(trial.world_size, 0.0)
        input_s = model.input_wait_s(trial)
    records = [_record(rank, step_s, exposed_s, input_s) for rank in range(trial.world_size)]
    return Outcome(status="ok", records=records)


def _record(rank: int, step_s: float, exposed_s: float, input_s: float) -> RankRecord:
    compute_s = step_s - exposed_s - input_s
    parts = dict.fromkeys(step_parts.PARTS, 0.0) | {
        step_parts.FORWARD: _FORWARD * compute_s,
        step_parts.BACKWARD: (1.0 - _FORWARD) * compute_s,
        step_parts.COMMUNICATION: exposed_s,
        step_parts.IDLE_INPUT: input_s,
        step_parts.STEP: step_s,
    }
    samples = {f"{step_parts.PREFIX}{name}": [time_s] * MOST_STEPS for name, time_s in parts.items()}
    return simulated_record(rank, samples, {"plain_step_s": step_s, "kernels_per_step": 100})
