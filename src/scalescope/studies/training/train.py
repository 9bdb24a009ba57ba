"""`train`: one configuration (or a sweep of them), measured and summarised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scalescope.experiment.expand import expand
from scalescope.studies.plan import Plan
from scalescope.studies.study import Host, Report, Study
from scalescope.studies.trace.profiling import Profiling, with_nsys

if TYPE_CHECKING:
    from scalescope.results.run import Run
    from scalescope.studies.request import Request


@dataclass(frozen=True, kw_only=True)
class TrainStudy(Study):
    """Measures what was asked for, and records a trace of it where one is wanted."""

    verb: ClassVar[str] = "train"
    runs_on_slurm: ClassVar[bool] = True
    every_placement: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 1, "window": 10.0}

    profiling: Profiling | None = None

    def flags(self) -> tuple[str, ...]:
        return () if self.profiling is None else self.profiling.flags()

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        return cls(profiling=Profiling.from_flags(flags))

    def plan(self, request: "Request", host: Host) -> Plan:
        experiment = request.experiment(self.defaults).with_default(world_size=(host.ranks or 1,))
        expansion = expand(experiment, host.machine, many=request.yes)
        return Plan(
            experiment=expansion.experiment,
            trials=expansion.trials,
            machine=host.machine,
            notes=expansion.notes,
            once=() if self.profiling is None else self.profiling.trials(expansion.trials),
        )

    def after_measuring(self, report: Report, *, own_ranks: bool) -> Report:
        if self.profiling is None or not self.profiling.nsys:
            return report
        return with_nsys(report, self.profiling, run=own_ranks)

    def present(self, run: "Run") -> Report:
        from scalescope.report.trace.sections import profile_sections
        from scalescope.report.training.sections import next_after_training, training_sections
        from scalescope.studies.presenting import report_of

        sections = (*training_sections(run), *profile_sections(run))
        return report_of(self, run, sections, next_after_training(run))
