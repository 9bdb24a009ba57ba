"""Whether a profiled launch is valid."""

from scalescope.experiment.ablations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """A trace must show what happened: on a GPU kernels, between ranks their exchange."""
    for record in records:
        if record.counters.get("device_events") == 0:
            reason = f"the trace of rank {record.rank} has no kernels: the profiler could not record the GPU"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    if trial.world_size == 1 or has_ablation(trial, NO_COMM):
        return Outcome(status="ok", records=records)
    for record in records:
        if record.counters.get("communication_events") == 0:
            reason = f"the trace of rank {record.rank} has no communication, although its ranks communicate"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)
