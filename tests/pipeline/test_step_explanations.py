"""Launches that explain a step, from request to stored run, on a machine with GPUs and on one without."""

from pathlib import Path

import pytest

from scalescope.analysis.training import step_waterfall as waterfalls
from scalescope.diagnose.step_facts import StepFacts, step_facts_of
from scalescope.experiment.explanations import records_breakdown
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.run import load_run
from scalescope.studies.stored import explain
from tests.builders.requests import with_gpus
from tests.builders.studies import scale, train
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(fixed_s=0.010, per_sample_s=0.001, exposed_comm_s={2: 0.005}, input_s={1: 0.030, 2: 0.030})
LOADER = {"num_workers": 0, "batch_size": 10}
FASTER = CostModel(fixed_s=0.010, factors={(("without_optimizer", True),): 0.8})


def facts() -> tuple[StepFacts, ...]:
    return step_facts_of(load_run("run"))


def broken_explanation(trial: Trial, launch: int) -> Outcome | None:
    broken = records_breakdown(trial) or trial.is_ablation
    return Outcome(status="failed", reason="it broke", rank=0) if broken else None


def test_a_gpu_s_step_is_recorded_and_its_waterfall_adds_up() -> None:
    watcher = RecordingWatcher()
    report = train(ask("train", **LOADER), FakeLauncher(MODEL, with_gpus(1)), watcher)
    assert report.exit_code == 0
    (row,) = summary_of(report.path)["results"]["training"]  # of what was asked for
    assert row["step_time_s"]["mean"] == pytest.approx(0.050)
    assert "Side by side" not in [section.title for section in report.sections]
    assert sum(records_breakdown(trial) for trial, _ in watcher.launched) == 1
    (case,) = facts()
    waterfall = case.waterfall
    assert waterfall is not None
    assert waterfall.step_s == pytest.approx(0.050)
    assert sum(term.time_s.value for term in waterfall.terms) == pytest.approx(0.050)
    assert waterfall.time_s(waterfalls.IDLE_INPUT) == pytest.approx(0.030)
    term = waterfall.term(waterfalls.IDLE_INPUT)
    assert term is not None and term.source == "ablation"


def test_what_the_optimizer_costs_is_measured_without_it() -> None:
    train(ask("train", batch_size=10), FakeLauncher(FASTER, with_gpus(1)), RecordingWatcher())
    (case,) = facts()
    assert case.optimizer_s is not None
    assert case.optimizer_s.value == pytest.approx(0.2 * FASTER.step_time_s(case.trial))


def test_on_the_cpu_only_the_loader_is_measured_apart() -> None:
    watcher = RecordingWatcher()
    train(ask("train", **LOADER), FakeLauncher(MODEL), watcher)
    assert not any(records_breakdown(trial) for trial, _ in watcher.launched)
    (case,) = facts()
    assert case.input_wait_s is not None and case.input_wait_s.value == pytest.approx(0.030)


def test_a_run_whose_explanations_fail_still_succeeds() -> None:
    launcher = FakeLauncher(MODEL, with_gpus(1), outcomes=broken_explanation)
    report = train(ask("train", **LOADER), launcher, RecordingWatcher())
    assert report.exit_code == 0
    (case,) = facts()
    assert (case.recording, case.preloaded, case.without_optimizer, case.waterfall) == (None,) * 4
    assert explain(Path("run"))


def test_a_job_that_fails_is_not_launched_again_to_explain_it() -> None:
    def failing(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="it broke", rank=0)

    launcher = FakeLauncher(MODEL, with_gpus(1), outcomes=failing)
    report = train(ask("train", **LOADER), launcher, RecordingWatcher())
    assert report.exit_code > 0
    assert len(launcher.launched) == 1


def test_scale_records_one_rank_at_every_batch() -> None:
    watcher = RecordingWatcher()
    request = ask("scale", world_size=[1, 2], batch_size=[10, 20])
    report = scale(request, FakeLauncher(MODEL, with_gpus(2)), watcher)
    assert report.exit_code == 0
    recorded = [trial for trial, _ in watcher.launched if records_breakdown(trial)]
    batches = [(trial.world_size, trial.strategy, trial.rank_batch_size) for trial in recorded]
    assert sorted(batches) == [(1, "single", 10), (1, "single", 20)]
    known = {(case.ranks, case.trial.rank_batch_size): case.recording for case in facts()}
    assert all(known[ranks, batch] is not None for ranks in (1, 2) for batch in (10, 20))


def test_for_a_fixed_global_batch_one_rank_is_recorded_with_its_part() -> None:
    watcher = RecordingWatcher()
    scale(ask("scale", world_size=[1, 2], global_batch_size=20), FakeLauncher(MODEL, with_gpus(2)), watcher)
    recorded = [trial for trial, _ in watcher.launched if records_breakdown(trial)]
    assert sorted(trial.rank_batch_size for trial in recorded) == [10, 20]
    (two,) = [case for case in facts() if case.ranks == 2]
    assert two.recording is not None


@pytest.mark.parametrize(("machine_gpus", "waterfall"), [(0, True), (2, False)])
def test_scale_records_no_step_on_the_cpu_or_without_a_waterfall(machine_gpus: int, waterfall: bool) -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(MODEL, with_gpus(machine_gpus)) if machine_gpus else FakeLauncher(MODEL)
    scale(ask("scale", world_size=[1, 2], batch_size=10), launcher, watcher, waterfall=waterfall)
    assert not any(records_breakdown(trial) for trial, _ in watcher.launched)


def test_a_scaling_run_whose_recording_fails_still_succeeds() -> None:
    launcher = FakeLauncher(MODEL, with_gpus(2), outcomes=broken_explanation)
    report = scale(ask("scale", world_size=[1, 2], batch_size=10), launcher, RecordingWatcher())
    assert report.exit_code == 0
