"""`train`: what is launched to explain a step, on the CPU and on a GPU, and what may fail."""

import dataclasses
from typing import Any

import pytest

from scalescope.experiment.explanations import breakdown_of, without_optimizer
from scalescope.experiment.given import Given
from scalescope.experiment.machine import Machine
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import prepare
from scalescope.studies.request import Request
from scalescope.studies.study import Host
from scalescope.studies.trace import Profiling
from scalescope.studies.train import TrainStudy
from tests.builders.requests import with_gpus
from tests.builders.results import make_result, make_trial
from tests.simulated.launcher import TWO_CORES

GPU = with_gpus(1)


def planned(machine: Machine, study: TrainStudy | None = None, **asked: str) -> Plan:
    flags = {
        name: tuple(Given(text, f"--{name}") for text in texts.split(",")) for name, texts in asked.items()
    }
    return prepare(study or TrainStudy(), Request(verb="train", flags=flags)).on(Host(machine=machine)).plan


def kinds(plan: Plan) -> list[tuple[str, ...]]:
    return [(trial.benchmark, *trial.ablations) for trial in plan.all_trials]


def test_on_the_cpu_a_loader_is_measured_by_leaving_it_out() -> None:
    assert kinds(planned(TWO_CORES)) == [("train",)]
    assert kinds(planned(TWO_CORES, num_workers="0")) == [("train",), ("train", "with_preloaded_input")]


def test_on_a_gpu_a_step_is_recorded_once() -> None:
    plan = planned(GPU, repeats="3")
    assert kinds(plan) == [("train",), ("train", "without_optimizer"), ("breakdown",)]
    assert [trial.benchmark for trial in plan.once] == ["breakdown"]
    made = [launch.trial.benchmark for launch in plan.launches()]
    assert (made.count("breakdown"), made.count("train")) == (1, 6)


def test_what_was_asked_for_comes_first_in_every_round() -> None:
    plan = planned(GPU, batch_size="8,16", num_workers="0", repeats="2")
    asked = {trial.trial_id for trial in plan.trials if not trial.is_ablation}
    assert plan.first == asked
    launches = plan.launches()
    for number in (0, 1):
        first = [launch.trial for launch in launches if launch.number == number][:2]
        assert {trial.trial_id for trial in first} == asked


@pytest.mark.parametrize("machine", [TWO_CORES, GPU])
def test_without_a_breakdown_only_the_speed_is_measured(machine: Machine) -> None:
    plan = planned(machine, TrainStudy(breakdown=False), num_workers="0")
    assert kinds(plan) == [("train",)]


def test_a_trace_that_was_asked_for_is_recorded_as_well() -> None:
    plan = planned(GPU, TrainStudy(profiling=Profiling()))
    assert [trial.benchmark for trial in plan.once] == ["profile", "breakdown"]


@pytest.mark.parametrize(
    ("study", "flags"),
    [
        (TrainStudy(), ()),
        (TrainStudy(breakdown=False), ("--no-breakdown",)),
        (TrainStudy(breakdown=False, profiling=Profiling()), ("--profile", "--no-breakdown")),
    ],
)
def test_stored_flags_give_the_same_study(study: TrainStudy, flags: tuple[str, ...]) -> None:
    assert study.flags() == flags
    assert TrainStudy.from_flags(flags) == study


def test_a_failed_launch_that_only_explains_does_not_fail_the_run() -> None:
    job = make_trial()
    ablation: Any = without_optimizer(job)
    study = TrainStudy()
    for trial, expected in ((job, False), (ablation, True), (breakdown_of(job), True)):
        failed = dataclasses.replace(
            make_result(trial, [[0.1]]), status="failed", reason="it broke", ranks=[]
        )
        assert study.is_expected_failure(failed) == expected
