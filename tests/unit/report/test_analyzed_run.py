"""ReportInput: many runs as one, the newer one of two, and machines kept apart."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, dataset_of, notes_of
from scalescope.results.run import Run
from scalescope.results.run_folder import EXPERIMENT
from scalescope.results.run_record import RunRecord
from tests.builders.known_runs import make_run, make_trials
from tests.simulated.launcher import CostModel

FAST, SLOW = CostModel(fixed_s=0.01, per_sample_s=0.0), CostModel(fixed_s=0.02, per_sample_s=0.0)


def report_input(*runs: Run, datasets: tuple[str, ...] = ()) -> ReportInput:
    return ReportInput(tuple(AnalyzedRun(run) for run in runs), "title", datasets)


def test_of_two_runs_of_a_trial_the_newer_one_counts() -> None:
    trials = make_trials(batch_size=16)
    both = report_input(make_run(trials, 2, SLOW), make_run(trials, 3, FAST))
    (configuration,) = both.measured
    assert configuration.step_time_s.value == pytest.approx(0.01)
    assert len(configuration.launches) == 3


def test_a_newer_run_that_failed_hides_nothing() -> None:
    trials = make_trials(batch_size=16)
    failed = make_run(trials, 2, FAST, status="failed", ranks=[])
    (configuration,) = report_input(make_run(trials, 2, SLOW), failed).measured
    assert configuration.step_time_s.value == pytest.approx(0.02)


def test_two_machines_are_never_mixed() -> None:
    trials = make_trials(world_size=[1, 2], batch_size=16, explained=True)
    both = report_input(make_run(trials, 2, SLOW), make_run(trials, 2, FAST, environment_id="another"))
    alone = [configuration for configuration in both.measured if configuration.trial.strategy == "single"]
    assert [configuration.step_time_s.value for configuration in alone] == pytest.approx([0.02, 0.01])
    assert [row.speedup.value for row in both.rows if not row.is_baseline] == pytest.approx([2.0, 2.0])


def test_one_rank_may_come_from_another_run_than_two() -> None:
    alone, two = (make_run(make_trials(world_size=ranks, threads_per_rank=1), 1) for ranks in (1, 2))
    assert not any(not row.is_baseline for run in (alone, two) for row in AnalyzedRun(run).rows)
    assert [row.ranks for row in report_input(alone, two).rows if not row.is_baseline] == [2]


def test_every_row_is_found_by_its_configuration() -> None:
    everything = report_input(make_run(make_trials(world_size=[1, 2], batch_size=[8, 16]), 1))
    for configuration in everything.measured:
        row = everything.row_of(configuration)
        assert row is not None and row.configuration is configuration


def test_only_the_data_sets_asked_for_are_named() -> None:
    run = make_run([*make_trials(), *make_trials(workload="paced", input_dim=None, hidden_dim=None)], 1)
    assert report_input(run).dataset_names == ("mlp", "paced")
    assert report_input(run, datasets=("paced",)).dataset_names == ("paced",)
    assert [dataset_of(configuration) for configuration in report_input(run).of_dataset("paced")] == ["paced"]


def test_an_own_workload_goes_by_its_file() -> None:
    (configuration,) = report_input(make_run(make_trials(), 1)).measured
    renamed = dataclasses.replace(
        configuration, trial=configuration.trial.replace(workload="some/where/mine.py:build")
    )
    assert dataset_of(renamed) == "mine"


def test_ablations_are_not_shown_as_configurations() -> None:
    run = make_run(make_trials(world_size=[1, 2], explained=True), 1)
    assert not any(configuration.trial.is_ablation for configuration in report_input(run).measured)


def test_a_shaped_link_is_noted_once() -> None:
    (configuration,) = report_input(make_run(make_trials(), 1)).measured
    shaped = dataclasses.replace(configuration, trial=configuration.trial.replace(link="1gbit"))
    assert notes_of([shaped, shaped]) == ("network emulated at 1gbit",)


def test_the_command_is_that_of_the_record(tmp_path: Path) -> None:
    run = dataclasses.replace(make_run(make_trials(), 1), path=tmp_path)
    assert AnalyzedRun(run).command == ""
    recorded = dataclasses.replace(run, record=RunRecord(verb="train", flags=("--profile",)))
    assert AnalyzedRun(recorded).command == f"scalescope train {tmp_path / EXPERIMENT} --profile"
