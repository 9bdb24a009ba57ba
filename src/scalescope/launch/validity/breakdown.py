"""Whether a launch that recorded what a step consists of is valid."""

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every rank must have recorded complete steps, and on a GPU what the GPU did in them."""
    for record in records:
        reason = None
        if not record.samples.get("parts/step_s"):
            reason = f"the trace of rank {record.rank} has no complete step"
        elif trial.on_gpu and not record.counters.get("kernels_per_step"):
            reason = f"the trace of rank {record.rank} has no kernels: the profiler could not record the GPU"
        if reason is not None:
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)
