"""Launches that explain a step: which jobs get them, on the CPU and on a GPU, and how long they measure."""

from typing import Any

import pytest

from scalescope.experiment.expand import expand
from scalescope.experiment.explanations import (
    NO_OPTIMIZER,
    PRELOADED,
    arrivals_of,
    breakdown_of,
    has_ablation,
    only_explains,
    records_arrivals,
    records_breakdown,
    step_ablations,
    step_recordings,
    timed_training_of,
    with_preloaded_input,
    without_optimizer,
)
from scalescope.experiment.trial import Trial
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES

LOADER = {"num_workers": "0"}


def trials(gpus: int = 0, **texts: str) -> tuple[Trial, ...]:
    return expand(ask(**texts), with_gpus(gpus) if gpus else TWO_CORES).trials


def trial(gpus: int = 0, **texts: str) -> Trial:
    (single,) = trials(gpus, **texts)
    return single


# the ablation and the recording


def test_the_optimizer_can_be_removed_where_it_does_not_communicate() -> None:
    for job in (trial(), trial(world_size="2", strategy="ddp")):
        ablation = without_optimizer(job)
        assert ablation is not None
        assert has_ablation(ablation, NO_OPTIMIZER) and ablation.is_ablation
        assert ablation.trial_id != job.trial_id and not job.is_ablation
    assert without_optimizer(trial(world_size="2", strategy="zero1")) is None


def test_a_recording_knows_the_job_that_it_records() -> None:
    job = trial(1)
    recording = breakdown_of(job)
    assert records_breakdown(recording) and not records_arrivals(recording)
    assert not records_breakdown(job)
    assert recording.trial_id != job.trial_id
    assert timed_training_of(recording).trial_id == job.trial_id


def test_what_only_explains_is_not_what_was_asked_for() -> None:
    job = trial(1, **LOADER)
    no_update = without_optimizer(job)
    assert no_update is not None
    explaining = [breakdown_of(job), arrivals_of(job), no_update, with_preloaded_input(job)]
    assert all(map(only_explains, explaining))
    assert only_explains(Trial(settings={"benchmark": "comm"}))
    assert not only_explains(job)


# which launches


def ablations_of(job: Trial) -> list[tuple[str, ...]]:
    return [tuple(ablation.ablations) for ablation in step_ablations((job,))]


def test_on_the_cpu_the_host_s_clock_tells_everything_but_the_input() -> None:
    assert ablations_of(trial()) == []
    assert ablations_of(trial(**LOADER)) == [(PRELOADED,)]
    assert step_recordings((trial(**LOADER),)) == ()


def test_on_a_gpu_the_optimizer_is_removed_and_the_step_recorded() -> None:
    job = trial(1)
    assert ablations_of(job) == [(NO_OPTIMIZER,)]
    assert ablations_of(trial(1, **LOADER)) == [(PRELOADED,), (NO_OPTIMIZER,)]
    assert ablations_of(trial(2, strategy="zero1", world_size="2")) == []
    (recording,) = step_recordings((job,))
    assert timed_training_of(recording).trial_id == job.trial_id


@pytest.mark.parametrize(("jobs", "explained"), [("1,2,3,4", 4), ("1,2,3,4,5", 0)])
def test_a_large_sweep_is_only_measured(jobs: str, explained: int) -> None:
    sweep = trials(1, batch_size=jobs)
    assert len(step_recordings(sweep)) == explained
    assert len(step_ablations(sweep)) == explained


def test_epochs_accuracies_and_ranks_that_sleep_are_not_explained() -> None:
    for changes in (
        {"epochs": 2, "steps_per_epoch": 20},
        {"steps_per_epoch": None},
        {"steps_per_epoch": 20, "eval": True},
    ):
        job = trial(1, **LOADER).replace(**changes)
        assert step_ablations((job,)) == step_recordings((job,)) == ()
    assert step_ablations((trial().replace(stand_in=True, num_workers=0),)) == ()


@pytest.mark.parametrize(("window", "shorter"), [("10s", 3.0), ("1s", 1.0)])
def test_explanations_measure_for_a_short_time_and_are_found_by_the_job(window: str, shorter: float) -> None:
    job = trial(1, window=window, **LOADER)
    launches = (*step_ablations((job,)), *step_recordings((job,)))
    assert [launch.window_s for launch in launches] == [shorter] * 3
    no_update: Any = without_optimizer(job)
    expected = {with_preloaded_input(job).trial_id, no_update.trial_id, breakdown_of(job).trial_id}
    assert {launch.trial_id for launch in launches} == expected


def test_a_counted_number_of_steps_stays() -> None:
    (ablation,) = step_ablations((trial(1, steps_per_epoch="20"),))
    assert ablation.window_s is None
    assert ablation.settings["steps_per_epoch"] == 20
