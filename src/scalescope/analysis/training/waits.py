"""Waits for the GPU that are worth measuring, and what leaving them out saves."""

from collections import Counter
from collections.abc import Iterable, Mapping

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate, difference_of_means
from scalescope.analysis.training.recording import StepRecording, recordings_of
from scalescope.experiment.ablations import without_waits
from scalescope.experiment.step_explanations import shortened
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

_WORTH = 0.02  # of a step, by the recording
_MOST = 0.7  # of the waits


def launches_without_waits(results: Iterable[Result]) -> tuple[tuple[Trial, int], ...]:
    """(trial, number of a launch): as many as the job itself has, which they are compared with."""
    stored = tuple(results)
    recorded = recordings_of(stored)
    timed = [result for result in stored if result.status == "ok" and result.trial.is_training]
    jobs = {result.trial_id: result.trial for result in timed if not result.trial.is_ablation}
    launches = Counter(result.trial_id for result in timed)
    return tuple(
        (shortened(without_waits(trial)), number)
        for trial_id, trial in jobs.items()
        if trial_id in recorded and _may_cost(recorded[trial_id])
        for number in range(launches[trial_id])
    )


def _may_cost(recording: StepRecording) -> bool:
    return bool(recording.frequent_waits) and recording.wait_cost_s > _WORTH * recording.step_s


def measured_wait_s(
    trial: Trial, measured: Mapping[str, Configuration], reads: Mapping[str, float], recording: StepRecording
) -> Estimate | None:
    """What waits add to a step of a job, by leaving them out; None where that was not measured, or where most
    waits are not reads of values and stayed."""
    full, without = measured.get(trial.trial_id), measured.get(without_waits(trial).trial_id)
    if full is None or without is None:
        return None
    waits = sum(site.per_step for site in recording.frequent_waits)
    if reads.get(without.trial.trial_id, 0.0) < _MOST * waits:
        return None
    return difference_of_means(full.mean_steps_s, without.mean_steps_s)


def reads_per_step(results: Iterable[Result]) -> dict[str, float]:
    """By trial, how often a step used a value of an earlier step instead of waiting."""
    counted = {}
    for result in results:
        reads = result.ranks[0].counters.get("remembered_reads_per_step") if result.ranks else None
        if result.status == "ok" and isinstance(reads, int | float):
            counted[result.trial_id] = float(reads)
    return counted
