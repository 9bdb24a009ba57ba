"""What every launcher offers, whichever way it starts ranks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scalescope.catalog.measuring import Measuring
from scalescope.errors import ExitCode, ScalescopeError
from scalescope.experiment.explanations import Phase
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.results.other_load import OtherLoad
from scalescope.results.ranks import AttachPhase, RankPlacement
from scalescope.results.result import RankRecord, Status, StoppedBy
from scalescope.results.run_folder import RunFolder, read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one launch ended, and what its ranks wrote."""

    status: Status
    reason: str | None = None
    stopped_by: StoppedBy | None = None  # of a launch that was interrupted
    rank: int | None = None
    step: int | None = None
    log: str | None = None
    bad_input: bool = False  # the request is wrong: every other launch of it would fail too
    signum: int | None = None  # of a signal that was passed on, and ended the command rather than us
    records: list[RankRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)
    explained: tuple["Explained", ...] = ()  # what was measured after the window in the same start


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Another trial of the same job, which a launch measured after its window."""

    trial: Trial
    records: list[RankRecord]
    telemetry: dict[str, Any] = field(default_factory=dict)


class RanksLost(ScalescopeError):
    """Ranks that torchrun or srun started have ended, and nothing can be measured without them."""

    exit_code = ExitCode.WORKER_FAILED

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome or Outcome(
            status="failed", reason=message
        )  # of the launch in which it happened


class Watcher(Protocol):
    """Is notified while a launch runs."""

    def placed(self, ranks: Sequence[RankPlacement]) -> None:
        """All ranks are placed, in their order."""
        ...

    def advanced(self, fraction: float) -> None:
        """This share of the launch's steps is done."""
        ...


class Launcher(Protocol):
    """Starts ranks and brings back what they measured."""

    repeatable: bool  # False where all launches are one and the same set of processes

    @property
    def ranks(self) -> int | None:
        """How many ranks others started; None where the launcher starts its own."""
        ...

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        """What is known of the machine before torch is loaded; None where that is too little."""
        ...

    def expect(self, trials: Iterable[Trial]) -> None:
        """Say what will be launched, before the machine is asked for."""
        ...

    def machine(self) -> Machine:
        """What the machine can do."""
        ...

    def nodes(self) -> Mapping[str, Machine]:
        """Every host the ranks run on, by its name."""
        ...

    def systems(self) -> Mapping[str, Mapping[str, Any]]:
        """What was inspected on each of these hosts (`inspection`)."""
        ...

    def other_load(self) -> OtherLoad:
        """What other processes use here before any rank runs; unknown where it cannot be measured."""
        ...

    def check(self, trial: Trial) -> None:
        """Refuse, before anything runs, a trial this launcher can never start."""
        ...

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
        phases: Sequence[Phase] = (),
    ) -> Outcome:
        """Run one trial once; failure is an outcome, not an exception.

        At `deadline`, on the monotonic clock, the budget is spent: what still measures is ended. `phases` may
        be measured in the same start.
        """
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...


def record_from(raw: Mapping[str, Any]) -> RankRecord:
    """A rank's file as a record; what is missing stays empty."""
    return RankRecord(
        rank=int(str(raw["rank"])),
        host=str(raw.get("host", "unknown")),
        device=str(raw.get("device", "unknown")),
        placement=str(raw.get("placement", "unknown")),
        samples=raw.get("samples", {}),
        counters=raw.get("counters", {}),
        tables=raw.get("tables", {}),
    )


def attach_phase(folder: RunFolder, phase: Phase, number: int) -> AttachPhase:
    """A phase of a launch, as its ranks see it."""
    return AttachPhase(
        settings=dict(phase.trial.settings),
        rank_files=[str(file) for file in _files_of(folder, phase, number)],
        needs_loader=phase.needs_loader,
    )


def explained_in(
    folder: RunFolder,
    phases: Sequence[Phase],
    number: int,
    sampled: Callable[[Sequence[RankRecord]], dict[str, Any]] = lambda records: {},
) -> tuple[Explained, ...]:
    """The phases that all ranks stored."""
    found = []
    for phase in phases:
        raw = [read_json(file) for file in _files_of(folder, phase, number)]
        records = [record_from(record) for record in raw if isinstance(record, dict)]
        if len(records) == phase.trial.world_size:
            found.append(Explained(trial=phase.trial, records=records, telemetry=sampled(records)))
    return tuple(found)


def _files_of(folder: RunFolder, phase: Phase, number: int) -> list[Path]:
    ranks = range(phase.trial.world_size)
    return [folder.rank_file(phase.trial.trial_id, number, rank).absolute() for rank in ranks]
