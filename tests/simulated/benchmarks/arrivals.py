"""Simulated launches of the benchmark that records who waits for whom."""

from scalescope.catalog.benchmarks.arrivals import MOST_STEPS
from scalescope.experiment.explanations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.cluster.records import recorded_steps
from tests.simulated.costs import CostModel, simulated_record


def simulate(model: CostModel | ClusterModel, trial: Trial, launch: int) -> Outcome:
    """Every rank records the same steps of normal training."""
    if isinstance(model, ClusterModel):
        return Outcome(status="ok", records=recorded_steps(model, trial, launch, MOST_STEPS))
    records = [_record(model, trial, rank) for rank in range(trial.world_size)]
    return Outcome(status="ok", records=records)


def _record(model: CostModel, trial: Trial, rank: int) -> RankRecord:
    """A single exchange at the end of each step, in which all wait for the latest rank; without noise."""
    late = model.late_s if trial.world_size > 1 else {}
    last_s, late_s = max(late.values(), default=0.0), late.get(rank, 0.0)
    silent = has_ablation(trial, NO_COMM) or trial.world_size == 1
    transfer_s = 0.0 if silent else model.exposed_comm_s.get(trial.world_size, 0.0)
    exposed_s = 0.0 if silent else transfer_s + last_s - late_s
    compute_s = model.step_time_s(trial) - transfer_s + late_s
    values = {
        "recorded_step_time_s": compute_s + exposed_s,
        "trace/step_s": compute_s + exposed_s,
        "trace/compute_s": compute_s,
        "trace/exposed_s": exposed_s,
        "trace/copy_s": 0.0,
        "trace/idle_host_s": 0.0,
        "trace/idle_data_s": 0.0,
        "trace/idle_queued_s": 0.0,
        "trace/collectives": 1.0,
        "trace/collective_s": exposed_s,
        "trace/collective_exposed_s": exposed_s,
    }
    samples = {name: [value] * MOST_STEPS for name, value in values.items()}
    return simulated_record(rank, samples, {})
