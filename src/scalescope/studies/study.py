"""Study: the shape of every measuring verb: plan, then launch, then present what is stored.

Modules of studies import what planning needs; what presenting needs they import inside `present`, because the
command line asks them for defaults before it does anything else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.report.section import Section, ShownCommand
from scalescope.results.result import Result

if TYPE_CHECKING:
    from scalescope.results.run import Run
    from scalescope.studies.plan import Launch, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where a study is planned: what the machine can do, and how ranks get started there."""

    machine: Machine
    nodes: int = 1
    repeatable: bool = True  # False where all launches are the same processes
    ranks: int | None = None  # those that torchrun or srun started; None where ranks are started for us
    check: Callable[[Trial], None] = lambda trial: None  # raises where a trial can never be launched


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run shows: made from what is stored, and from nothing else."""

    sections: tuple[Section, ...]
    explain: Callable[[], tuple[Section, ...]] = tuple  # the performance report, made when it is asked for
    headline: str | None = None
    next_step: ShownCommand | None = None
    exit_code: int = 0
    files: Mapping[str, Callable[[], str]] = field(default_factory=dict)  # made when they are written
    run: "Run | None" = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    page: Path | None = None  # report.html, where it was written

    @property
    def path(self) -> Path | None:
        return None if self.run is None else self.run.path


@dataclass(frozen=True, slots=True, kw_only=True)
class InterimRow:
    """One configuration that a search has tried so far."""

    name: str
    speedup: float | None  # over what the search began with; None where it is not known
    launches: int
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Interim:
    """The answer of a study so far, in a few words; of a search also what it has tried."""

    text: str
    rows: tuple[InterimRow, ...] = ()

    @property
    def best(self) -> InterimRow | None:
        return next((row for row in self.rows if row.is_best), None)

    @property
    def ranking(self) -> tuple[InterimRow, ...]:
        """The rows, the best first, then the others by their speedup; unknown speedups come last."""
        return tuple(sorted(self.rows, key=lambda row: (not row.is_best, -(row.speedup or 0.0))))


class NextLaunches(Protocol):
    """What decides by the results so far what to launch next."""

    def next_launches(self, run: "Run", remaining_s: float | None) -> "Sequence[Launch]":
        """What to launch next; empty when it is done."""
        return ()

    def interim(self, run: "Run") -> Interim | None:
        """The answer so far; None while there is none."""
        return None


class Study(NextLaunches, Protocol):
    """What a measuring verb does. Subclasses hold the verb's own flags as fields."""

    verb: ClassVar[str]
    benchmark: ClassVar[str] = "train"
    defaults: ClassVar[Mapping[str, Any]] = {}
    compares_ranks: ClassVar[bool] = False  # one rank alone answers nothing
    planned_defaults: ClassVar[Mapping[str, str]] = {}  # in words, for help: what `plan` decides by the host
    flags_may_differ: ClassVar[tuple[str, ...]] = ()  # of the verb's own: between a run and its --resume
    every_placement: ClassVar[bool] = False  # shows where the ranks of every launch are, not of the first
    runs_on_slurm: ClassVar[bool] = False  # --launcher slurm submits it as a job
    plans_by_formats: ClassVar[bool] = False  # number formats that the machine emulates change its plan
    takes_turns: ClassVar[bool] = False  # launch after launch is decided by results: --only-launch next

    def flags(self) -> tuple[str, ...]:
        """The verb's own flags, as the command that repeats the run needs them."""
        return ()

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        """The study that a stored run was made by."""
        return cls()

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> "Plan":
        """What to launch; more than 10,000 trials only where `many` are wanted."""
        ...

    def preface(self, plan: "Plan") -> tuple[Section, ...]:
        """What is shown before the measurement begins."""
        return ()

    def is_expected_failure(self, result: Result) -> bool:
        """Whether a failed launch answers the question, or was not asked for: the run succeeds anyway."""
        from scalescope.report.trials import is_answer

        return is_answer(result)

    def after_measuring(self, report: Report, *, own_ranks: bool) -> Report:
        """What follows on a measurement and is not stored with it; `own_ranks` is whether we started them."""
        return report

    def present(self, run: "Run") -> Report:
        """Everything that the stored run shows."""
        ...
