"""Whether a launch of the training benchmark is valid."""

from scalescope.experiment.ablations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Losses must be finite, and parameters equal on all ranks."""
    for record in records:
        bad = record.counters.get("first_bad_loss_step")
        if bad is not None:
            step = trial.warmup_steps + int(bad)
            reason = f"the loss of rank {record.rank} is not finite at step {step}"
            return Outcome(status="invalid", reason=reason, rank=record.rank, step=step, records=records)
    sums = {record.counters.get("parameter_checksum") for record in records}
    if len(sums) > 1 and not has_ablation(trial, NO_COMM):
        reason = "the ranks' parameters differ after training"
        return Outcome(status="invalid", reason=reason, records=records)
    return Outcome(status="ok", records=records)
