"""What every launcher offers, whichever way it starts ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalescope.catalog.measuring import Measuring
from scalescope.errors import ExitCode, ScalescopeError
from scalescope.experiment.ablations import NO_COMM, has_ablation
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Status
from scalescope.results.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one launch ended, and what its ranks wrote."""

    status: Status
    reason: str | None = None
    rank: int | None = None
    step: int | None = None
    log: str | None = None
    bad_input: bool = False  # the request is wrong: every other launch of it would fail alike
    records: list[RankRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)


class RanksLost(ScalescopeError):
    """Ranks that others started are gone, and without all of them nothing more can be measured."""

    exit_code = ExitCode.WORKER_FAILED

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome or Outcome(
            status="failed", reason=message
        )  # of the launch in which it happened


class Watcher(Protocol):
    """Told what happens while a launch runs."""

    def placed(self, lines: list[str], hosts: list[str]) -> None:
        """All ranks have their place: one line and one host name a rank."""
        ...

    def advanced(self, fraction: float) -> None:
        """This share of the launch's steps is done."""
        ...


class Launcher(Protocol):
    """Starts ranks and brings back what they measured."""

    repeatable: bool  # False where all launches are one and the same set of processes

    def machine(self) -> Machine:
        """What the machine can do."""
        ...

    def nodes(self) -> Mapping[str, Machine]:
        """Every host the ranks run on, by its name."""
        ...

    def systems(self) -> Mapping[str, Mapping[str, Any]]:
        """What every one of these hosts says of itself (`inspection`)."""
        ...

    def check(self, trial: Trial) -> None:
        """Refuse, before anything runs, a trial this launcher can never start."""
        ...

    def launch(
        self, trial: Trial, launch: int, folder: RunFolder, limits: Measuring, watcher: Watcher
    ) -> Outcome:
        """Run one trial once; failure is an outcome, not an exception."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...


def judge(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Whether finished ranks computed the right thing."""
    return _JUDGES[str(trial.settings["benchmark"])](trial, records)


def _judge_training(trial: Trial, records: list[RankRecord]) -> Outcome:
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


def _judge_communication(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every element of every result must be the predicted one."""
    for record in records:
        for name, count in record.counters.items():
            if name.endswith("/wrong") and count:
                case = name.removesuffix("/wrong")
                reason = f"{count} wrong elements in {case} on rank {record.rank}"
                return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)


def _judge_memory(trial: Trial, records: list[RankRecord]) -> Outcome:
    """Every rank must say what it took at its peak, if only that it could not be measured."""
    for record in records:
        if "measured/peak" not in record.counters:
            reason = f"rank {record.rank} measured no memory"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)


def _judge_profile(trial: Trial, records: list[RankRecord]) -> Outcome:
    """A trace must show what happened: on a GPU kernels, between ranks their exchange."""
    for record in records:
        if record.counters.get("device_events") == 0:
            reason = f"the trace of rank {record.rank} shows no kernel: the profiler could not see the GPU"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    if trial.world_size == 1 or has_ablation(trial, NO_COMM):
        return Outcome(status="ok", records=records)
    for record in records:
        if record.counters.get("communication_events") == 0:
            reason = f"the trace of rank {record.rank} shows no communication, and there must be some"
            return Outcome(status="invalid", reason=reason, rank=record.rank, records=records)
    return Outcome(status="ok", records=records)


_JUDGES = {
    "train": _judge_training,
    "comm": _judge_communication,
    "memory": _judge_memory,
    "profile": _judge_profile,
}


def record_from(raw: dict[str, object]) -> RankRecord:
    """A rank's own file as a record; what it could not say stays empty."""
    return RankRecord(
        rank=int(str(raw["rank"])),
        host=str(raw.get("host", "unknown")),
        device=str(raw.get("device", "unknown")),
        placement=str(raw.get("placement", "unknown")),
        samples=raw.get("samples", {}),  # type: ignore[arg-type]
        counters=raw.get("counters", {}),  # type: ignore[arg-type]
    )
