"""Whether a launch of the training benchmark is valid."""

from scalescope.experiment.ablations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Losses must be finite, and parameters equal on all ranks."""
    bad_steps = [
        (int(step), record.rank)
        for record in records
        if (step := record.counters.get("first_step_with_bad_loss")) is not None
    ]
    if bad_steps:
        step, rank = min(bad_steps)  # gradients carry it to the other ranks, a step later
        when = " (a warm-up step)" if step < trial.warmup_steps else ""
        reason = f"the loss of rank {rank} is not finite at step {step}{when}"
        return Outcome(status="invalid", reason=reason, rank=rank, step=step, records=records)
    sums = {record.counters.get("parameter_checksum") for record in records}
    if len(sums) > 1 and not has_ablation(trial, NO_COMM):
        reason = "the ranks' parameters differ after training"
        return Outcome(status="invalid", reason=reason, records=records)
    return Outcome(status="ok", records=records)
