"""Whether a launch of the training benchmark is valid."""

from scalescope.experiment.ablations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Losses must be finite, and parameters equal on all ranks; of a command neither is known."""
    if trial.is_command:
        return _judge_command(records)
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


def _judge_command(records: list[RankRecord]) -> Outcome:
    """Every rank must have measured steps, and all of them as many."""
    steps = {record.rank: record.counters.get("measured_steps") for record in records}
    without = [rank for rank, count in steps.items() if not count]
    if without:
        reason = f"rank {without[0]} measured no step"
        return Outcome(status="invalid", reason=reason, rank=without[0], records=records)
    if len(set(steps.values())) > 1:
        counts = ", ".join(f"{count} on rank {rank}" for rank, count in steps.items())
        reason = f"the ranks measured different numbers of steps: {counts}"
        return Outcome(status="invalid", reason=reason, records=records)
    return Outcome(status="ok", records=records)
