"""The study of `train`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.explanations import only_explains, step_ablations, step_recordings
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.studies.commands import check_keep_running, keeps_running, phases_of, remaining_launches
from scalescope.studies.flags import read_flags
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.study import Host, Interim, Report, Study
from scalescope.studies.trace import Profiling, with_nsys

if TYPE_CHECKING:
    from scalescope.results.run import Run


@dataclass(frozen=True, kw_only=True)
class TrainStudy(Study):
    """Measures what was asked for, and records a trace of it where one is wanted."""

    verb: ClassVar[str] = "train"
    runs_on_slurm: ClassVar[bool] = True
    every_placement: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 1, "window": 10.0}

    profiling: Profiling | None = None
    breakdown: bool = True  # also launch what explains a step

    def flags(self) -> tuple[str, ...]:
        profiled = () if self.profiling is None else self.profiling.flags()
        return profiled if self.breakdown else (*profiled, "--no-breakdown")

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self:
        return cls(profiling=Profiling.from_flags(flags), breakdown="no-breakdown" not in read_flags(flags))

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        experiment = experiment.with_default(world_size=(host.ranks or 1,))
        if experiment.is_command:
            experiment = self._of_command(experiment)
        expansion = expand(experiment, host.machine, many=many)
        asked, is_command = expansion.trials, experiment.is_command
        explains = self.breakdown and not is_command  # what explains a command follows from its launches
        continues = is_command and self.breakdown and not keeps_running(experiment)
        profiled = () if self.profiling is None else self.profiling.trials(asked)
        return Plan(
            experiment=expansion.experiment,
            trials=(*asked, *(step_ablations(asked) if explains else ())),
            machine=host.machine,
            notes=expansion.notes,
            once=(*profiled, *(step_recordings(asked) if explains else ())),
            first=frozenset(trial.trial_id for trial in asked),
            explains_failures=False,
            continues=continues,
            phases=phases_of(asked, _explained, step_recordings) if continues else {},
        )

    def _of_command(self, experiment: Experiment) -> Experiment:
        """The request of a training command; refuses what cannot be done with one."""
        if self.profiling is not None:
            raise BadInput("--profile cannot be used with a command")
        return check_keep_running(experiment)

    def next_launches(self, run: "Run", remaining_s: float | None) -> Sequence[Launch]:
        return remaining_launches(self, run, _explained, step_recordings) if self.breakdown else ()

    def interim(self, run: "Run") -> Interim | None:
        from scalescope.report.training.sections import training_so_far

        text = training_so_far(run)
        return None if text is None else Interim(text)

    def is_expected_failure(self, result: Result) -> bool:
        return Study.is_expected_failure(self, result) or only_explains(result.trial)

    def after_measuring(self, report: Report, *, own_ranks: bool) -> Report:
        if self.profiling is None or not self.profiling.nsys:
            return report
        return with_nsys(report, self.profiling, run=own_ranks)

    def present(self, run: "Run") -> Report:
        from scalescope.report.analyzed_run import AnalyzedRun
        from scalescope.report.trace.sections import profile_sections
        from scalescope.report.training.sections import next_after_training, training_sections
        from scalescope.studies.stored import report_of

        analyzed = AnalyzedRun(run)
        sections = (*training_sections(analyzed), *profile_sections(run))
        return report_of(self, analyzed, sections, next_after_training(analyzed))


def _explained(asked: tuple[Trial, ...]) -> tuple[Trial, ...]:
    return (*asked, *step_ablations(asked))
