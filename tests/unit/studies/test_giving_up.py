"""When something is not launched again: it fails for certain, or would explain what failed."""

import dataclasses
from typing import Any

import pytest

from scalescope.experiment.explanations import (
    breakdown_of,
    explained_job,
    with_preloaded_input,
    without_optimizer,
)
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.studies.campaign import TRIES_BEFORE_GIVING_UP, FailedJobs, failure_weight
from tests.builders.results import make_result, make_trial

JOB = make_trial(num_workers=0)
NO_UPDATE: Any = without_optimizer(JOB)
EXPLANATIONS = [with_preloaded_input(JOB), NO_UPDATE, breakdown_of(JOB), with_preloaded_input(NO_UPDATE)]


def ended(status: Any, trial: Trial = JOB) -> Result:
    return dataclasses.replace(make_result(trial, [[0.1]]), status=status)


@pytest.mark.parametrize(
    ("status", "weight"),
    [
        ("ok", 0),
        ("failed", 1),
        ("hang", 1),
        ("oom", TRIES_BEFORE_GIVING_UP),
        ("invalid", TRIES_BEFORE_GIVING_UP),
    ],
)
def test_failures_that_repeat_themselves_count_in_full(status: str, weight: int) -> None:
    assert failure_weight(ended(status)) == weight


def test_what_explains_a_job_knows_it_and_nothing_else_explains_one() -> None:
    for trial in EXPLANATIONS:
        job = explained_job(trial)
        assert job is not None and job.trial_id == JOB.trial_id
    assert explained_job(JOB) is None
    assert explained_job(Trial(settings={"benchmark": "comm", "world_size": 2})) is None


@pytest.mark.parametrize("status", ["failed", "hang", "oom", "invalid"])
def test_a_job_that_failed_is_not_explained(status: str) -> None:
    assert all(map(FailedJobs([ended(status)]).include_job_of, EXPLANATIONS))
    assert not FailedJobs([ended(status)]).include_job_of(JOB)


def test_a_job_that_worked_once_or_was_not_launched_yet_is_explained_whatever_failed_beside_it() -> None:
    for statuses in ((), ("ok",), ("ok", "failed"), ("hang", "ok")):
        jobs = FailedJobs(map(ended, statuses))
        assert not any(map(jobs.include_job_of, EXPLANATIONS))
    other = FailedJobs([ended("failed", JOB.replace(batch_size=77))])
    assert not any(map(other.include_job_of, EXPLANATIONS))
