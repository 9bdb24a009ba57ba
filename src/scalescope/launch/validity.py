"""Whether finished ranks computed the right thing, by the rules of each benchmark."""

from collections.abc import Callable

from scalescope.experiment.explanations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """The outcome of a launch whose ranks all finished; a benchmark without rules has nothing to check."""
    rules = RULES.get(trial.benchmark)
    return Outcome(status="ok", records=records) if rules is None else rules(trial, records)


def _judge_train(trial: Trial, records: list[RankRecord]) -> Outcome:
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


def _judge_arrivals(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every rank must have recorded complete steps, and on a GPU what the GPU did in them."""
    for record in records:
        reason = None
        if not record.samples.get("trace/step_s"):
            reason = f"the trace of rank {record.rank} has no complete step"
        elif trial.on_gpu and not any(record.samples.get("trace/compute_s", ())):
            reason = f"the trace of rank {record.rank} has no kernels: the profiler could not record the GPU"
        if reason is not None:
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)


def _judge_breakdown(trial: Trial, records: list[RankRecord]) -> Outcome:
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


def _judge_profile(trial: Trial, records: list[RankRecord]) -> Outcome:
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


def _judge_comm(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every element of every result must be the predicted one."""
    for record in records:
        for name, count in record.counters.items():
            if name.endswith("/wrong") and count:
                case = name.removesuffix("/wrong")
                reason = f"{count} wrong elements in {case} on rank {record.rank}"
                return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)


def _judge_memory(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every rank must report its peak memory, even if only that it could not be measured."""
    for record in records:
        if "measured/peak" not in record.counters:
            reason = f"rank {record.rank} measured no memory"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)


RULES: dict[str, Callable[[Trial, list[RankRecord]], Outcome]] = {
    "arrivals": _judge_arrivals,
    "breakdown": _judge_breakdown,
    "comm": _judge_comm,
    "memory": _judge_memory,
    "profile": _judge_profile,
    "train": _judge_train,
}
