"""ReportInput: everything a report is made of, from one run folder or many."""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.collectives import CollectiveRow, collective_rows
from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.prediction.answer import Predicted, predicted_of
from scalescope.analysis.scaling.rows import ScalingRow, scaling_rows
from scalescope.analysis.trace.profile import TraceProfile, profiles
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.finding import Diagnosis
from scalescope.diagnose.step_facts import StepFacts, step_facts_of
from scalescope.report.caveats import context
from scalescope.report.commands import job_name
from scalescope.report.varied import disambiguate
from scalescope.results.ledger import read_ledger
from scalescope.results.run import Run
from scalescope.results.run_commands import repeating_command

_WELL = 0.9  # of the ideal: less counts as a loss


@dataclass(frozen=True)
class AnalyzedRun:
    """One run with its analysis; each part is computed once."""

    run: Run
    label: str = ""  # where two folders have the same name

    @property
    def name(self) -> str:
        return self.label or self.run.path.name

    @functools.cached_property
    def measured(self) -> tuple[Configuration, ...]:
        return configurations(self.run.results)

    @functools.cached_property
    def rows(self) -> tuple[ScalingRow, ...]:
        return scaling_rows(self.measured)

    @functools.cached_property
    def diagnosis(self) -> Diagnosis:
        return diagnose(self.run, self.steps, read_ledger().entries)

    @functools.cached_property
    def steps(self) -> tuple[StepFacts, ...]:
        """What is known of the step of every configuration, the largest world size first."""
        return step_facts_of(self.run)

    @functools.cached_property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        return collective_rows(self.run.results)

    @functools.cached_property
    def predicted(self) -> Predicted:
        """Predictions for the sizes that were measured and larger ones; intervals follow the ledger."""
        return predicted_of(self.run, read_ledger().entries)

    @functools.cached_property
    def profiles(self) -> tuple[TraceProfile, ...]:
        return profiles(self.run)

    @property
    def scales(self) -> bool:
        """Whether several numbers of ranks were compared."""
        return any(not row.is_baseline for row in self.rows)

    @property
    def loses(self) -> bool:
        """Whether more ranks deliver clearly less than their share."""
        return any(not row.is_baseline and row.efficiency.value < _WELL for row in self.rows)

    @property
    def command(self) -> str:
        """The command that repeats it; empty where that is not known."""
        return shlex.join(self.argv)

    @property
    def argv(self) -> tuple[str, ...]:
        """The same word by word."""
        return repeating_command(self.run.path, self.run.record)


def analyzed_run(run: Run | AnalyzedRun) -> AnalyzedRun:
    """A run with what analysis makes of it, each thing computed once."""
    return run if isinstance(run, AnalyzedRun) else AnalyzedRun(run)


@dataclass(frozen=True)
class ReportInput:
    """All runs of a report, oldest first, and how to show them."""

    analyzed_runs: tuple[AnalyzedRun, ...]
    title: str
    datasets: tuple[str, ...] = ()  # only these; all where empty
    skip_epochs: int = 0
    by: str | None = None  # a setting whose values are overlaid

    @functools.cached_property
    def _by_machine(self) -> tuple[tuple[Configuration, ...], ...]:
        """Of every machine its configurations; of two runs of one trial the newer one's."""
        machines: dict[str, dict[str, Configuration]] = {}
        for analyzed in self.analyzed_runs:
            machine_of = {result.trial_id: result.environment_id for result in analyzed.run.results}
            for configuration in analyzed.measured:
                of_machine = machines.setdefault(machine_of[configuration.trial.trial_id], {})
                of_machine.pop(configuration.trial.trial_id, None)  # the newer one comes later
                of_machine[configuration.trial.trial_id] = configuration
        return tuple(tuple(of_machine.values()) for of_machine in machines.values())

    @functools.cached_property
    def measured(self) -> tuple[Configuration, ...]:
        """Every configuration except ablations."""
        everything = (configuration for of_machine in self._by_machine for configuration in of_machine)
        return tuple(configuration for configuration in everything if not configuration.trial.is_ablation)

    @functools.cached_property
    def selected(self) -> tuple[Configuration, ...]:
        """Every configuration on a data set that the report is about."""
        return tuple(job for job in self.measured if dataset_of(job) in self.dataset_names)

    @functools.cached_property
    def rows(self) -> tuple[ScalingRow, ...]:
        """Scaling over all runs of a machine: one rank may have been measured in another run than two."""
        if len(self.analyzed_runs) == len(self._by_machine) == 1:
            return self.analyzed_runs[0].rows
        return tuple(row for of_machine in self._by_machine for row in scaling_rows(of_machine))

    def row_of(self, configuration: Configuration) -> ScalingRow | None:
        """The scaling row of a configuration; None if it has none."""
        return self._rows_by_configuration.get(id(configuration))

    @functools.cached_property
    def _rows_by_configuration(self) -> dict[int, ScalingRow]:
        return {id(row.configuration): row for row in self.rows}

    def of_dataset(self, name: str) -> tuple[Configuration, ...]:
        return tuple(configuration for configuration in self.measured if dataset_of(configuration) == name)

    @functools.cached_property
    def dataset_names(self) -> tuple[str, ...]:
        """Data sets in the report, in the order in which they appear."""
        names = dict.fromkeys(dataset_of(configuration) for configuration in self.measured)
        return tuple(name for name in names if not self.datasets or name in self.datasets)

    @property
    def scaling_runs(self) -> tuple[AnalyzedRun, ...]:
        """Runs that compare several numbers of ranks, the newest first."""
        return tuple(analyzed for analyzed in reversed(self.analyzed_runs) if analyzed.scales)

    @property
    def first(self) -> AnalyzedRun:
        """The run that a report begins with: the newest that scales, or else the newest."""
        return next(iter(self.scaling_runs), self.analyzed_runs[-1])


def dataset_of(configuration: Configuration) -> str:
    """The data a configuration trained on; the workload's name for synthetic samples, the script's of a
    command."""
    trial = configuration.trial
    if trial.data not in ("synthetic", "own"):
        return trial.data
    return job_name(trial) if trial.is_command else Path(trial.workload.partition(":")[0]).stem


def labels_of(measured: Sequence[Configuration]) -> tuple[str, ...]:
    """The trials' labels, with what differs between those that would read the same."""
    trials = [configuration.trial for configuration in measured]
    devices = [configuration.device for configuration in measured]
    return disambiguate([trial.label for trial in trials], trials, devices)


def notes_of(measured: Sequence[Configuration]) -> tuple[str, ...]:
    """What every figure must mention: emulated links, split GPUs, stand-ins."""
    return tuple(dict.fromkeys(note for configuration in measured for note in context(configuration.trial)))
