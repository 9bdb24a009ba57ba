"""Which trials are the same job."""

from scalescope.experiment.same_job import BATCH, LENGTH, job_key
from scalescope.experiment.trial import Trial

SETTINGS = {"benchmark": "train", "batch_size": 8, "global_batch_size": None, "epochs": 1, "lr": 0.1}


def test_two_trials_are_one_job_where_only_ignored_settings_differ() -> None:
    trial = Trial(settings=SETTINGS)
    larger = trial.replace(batch_size=16)
    assert job_key(trial) != job_key(larger)
    assert job_key(trial, ignoring=BATCH) == job_key(larger, ignoring=BATCH)
    assert job_key(trial, ignoring=LENGTH) != job_key(larger, ignoring=LENGTH)
    trial = Trial(settings=SETTINGS)
    assert job_key(trial.replace(accumulation_steps=1)) == job_key(trial)
    assert job_key(trial.replace(accumulation_steps=2)) != job_key(trial)
    assert job_key(Trial(settings=SETTINGS)) == job_key(Trial(settings=dict(reversed(SETTINGS.items()))))


def test_a_workload_s_file_counts_by_its_name_and_function() -> None:
    here, there, other = (
        job_key(Trial(settings={**SETTINGS, "workload": workload}))
        for workload in (
            "jobs/my model.py:build",
            "/home/me/jobs/my model.py:build",
            "jobs/my model.py:large",
        )
    )
    assert here == there
    assert here != other
