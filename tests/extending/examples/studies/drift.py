"""`drift`: the same configuration launched again and again: does it get slower?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.studies.plan import Plan
from scalescope.studies.study import Host, Report, Study

if TYPE_CHECKING:
    from scalescope.results.run import Run


@dataclass(frozen=True, kw_only=True)
class Drift(Study):
    """Measures many short launches, and shows them in the order in which they ran."""

    verb: ClassVar[str] = "drift"
    runs_on_slurm: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 10, "window": 2.0}

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        experiment = experiment.with_default(world_size=(host.ranks or 1,))
        expansion = expand(experiment, host.machine, many=many)
        return Plan(
            experiment=expansion.experiment,
            trials=expansion.trials,
            machine=host.machine,
            notes=expansion.notes,
        )

    def present(self, run: "Run") -> Report:
        from scalescope.analysis.configurations import configurations
        from scalescope.report.numbers import in_ms
        from scalescope.report.section import Section
        from scalescope.studies.stored import report_of

        sections = []
        for job in configurations(run.results):
            launches = sorted(job.launches, key=lambda launch: launch.started_s)
            steps = " → ".join(in_ms(launch.mean_step_s) for launch in launches)
            sections.append(Section(title=f"step time by launch · {job.trial.label}", lines=(steps,)))
        return report_of(self, run, tuple(sections))
