"""The study of `memory`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.memory import BATCHES
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.study import Host, Report, Study

if TYPE_CHECKING:
    from scalescope.results.run import Run

_LEAST_TO_NORMALISE = 2  # over the batch: a single sample has no spread


@dataclass(frozen=True, kw_only=True)
class MemoryStudy(Study):
    """Measures small batches, then looks for the largest."""

    verb: ClassVar[str] = "memory"
    runs_on_slurm: ClassVar[bool] = True
    benchmark: ClassVar[str] = "memory"
    defaults: ClassVar[Mapping[str, Any]] = {"repeats": 1}
    planned_defaults: ClassVar[Mapping[str, str]] = {
        "batch_size": f"{','.join(map(str, BATCHES))}; 32 with your own workload"
    }

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        experiment = experiment.with_default(world_size=(host.ranks or 1,))
        expansion = expand(_with_small_batches(experiment), host.machine, many=many)
        return Plan(
            experiment=expansion.experiment,
            trials=with_one_forecaster(expansion.trials),
            machine=host.machine,
            notes=expansion.notes,
        )

    def next_launches(self, run: "Run", remaining_s: float | None) -> Sequence[Launch]:
        """For every job, the one launch that tells most about its largest batch."""
        from scalescope.analysis.memory.forecast import memory_groups

        tries = [group.next_try() for group in memory_groups(run)]
        return tuple(Launch(trial) for trial in tries if trial is not None)

    def present(self, run: "Run") -> Report:
        from scalescope.report.memory.sections import memory_sections, next_after_memory
        from scalescope.studies.stored import report_of

        return report_of(self, run, memory_sections(run), next_after_memory(run))


def _with_small_batches(experiment: Experiment) -> Experiment:
    """Batches where none were asked for; a pipeline needs a sample for each rank, or each microbatch.

    Custom data may come in batches of one size, and a custom model may refuse the smallest.
    """
    custom = any(cards.card("workloads", name).brings_data for name in experiment.asked("workload"))
    if custom or {"batch_size", "global_batch_size"} & set(experiment.settings):
        return experiment
    least = 1
    strategies = [name for name in experiment.asked("strategy") if name != "auto"]
    if any(cards.card("strategies", name).divides_batch for name in strategies):
        least = math.lcm(*experiment.asked("world_size"), *filter(None, experiment.asked("microbatches")))
    return experiment.with_settings(batch_size=tuple(least * batch for batch in BATCHES))


def with_one_forecaster(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Only one batch of each job forecasts larger batches and other ways to train: they are the same for all.

    That is a small one, which hardly runs out of memory, but not one sample, which some models refuse.
    """
    from scalescope.analysis.memory.forecast import memory_job

    jobs: dict[str, list[Trial]] = {}
    for trial in trials:
        jobs.setdefault(memory_job(trial), []).append(trial)
    chosen = {
        min(
            job, key=lambda trial: (trial.micro_batch_size < _LEAST_TO_NORMALISE, trial.micro_batch_size)
        ).trial_id
        for job in jobs.values()
    }
    return tuple(trial if trial.trial_id in chosen else trial.replace(purpose="compare") for trial in trials)
