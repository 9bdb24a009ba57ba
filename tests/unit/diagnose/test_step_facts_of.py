"""StepFacts: every configuration that was asked for, with what was measured beside it."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scalescope.diagnose.step_facts import LEAST_SHARE, StepFacts, step_facts_of
from scalescope.experiment.ablations import (
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
    without_optimizer,
)
from scalescope.experiment.recordings import arrivals_of, breakdown_of
from scalescope.experiment.trial import Trial
from scalescope.launch.simulation import simulated_record
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.results.traces import step_parts
from tests.builders.facts import measured
from tests.builders.results import make_configuration, make_result, make_trial

ONE = make_trial(num_workers=0).replace(device="cuda")
TWO = make_trial(world_size=2, strategy="ddp", num_workers=0).replace(device="cuda")


def recorded(trial: Trial, step_s: float = 0.1, **changes: Any) -> Result:
    """A launch that recorded a step of forward alone, the rank's number later in every rank."""
    parts = dict.fromkeys(step_parts.PARTS, 0.0) | {step_parts.STEP: step_s, step_parts.FORWARD: step_s}
    samples = {f"parts/{name}": [time_s] for name, time_s in parts.items()}
    recording = breakdown_of(trial)
    result = make_result(recording, [[1.0]] * trial.world_size)
    ranks = [simulated_record(rank, samples, {}) for rank in range(trial.world_size)]
    return dataclasses.replace(result, ranks=ranks, **changes)


def facts_from(*results: Iterable[Result] | Result, **environment: Any) -> tuple[StepFacts, ...]:
    flat = tuple(r for some in results for r in ([some] if isinstance(some, Result) else some))
    return step_facts_of(Run(path=Path("/run"), environment=environment, results=flat, warnings=()))


def ablation(made: Trial | None) -> Trial:
    assert made is not None
    return made


def test_ablations_and_recordings_belong_to_the_job_that_they_explain() -> None:
    (facts,) = facts_from(
        measured(ONE, 0.100),
        measured(with_preloaded_input(ONE), 0.070),
        measured(ablation(without_optimizer(ONE)), 0.095),
        recorded(ONE),
    )
    assert facts.trial.trial_id == ONE.trial_id
    assert facts.input_wait_s is not None and facts.input_wait_s.value == pytest.approx(0.030)
    assert facts.optimizer_s is not None and facts.optimizer_s.value == pytest.approx(0.005)
    assert facts.recording is not None and facts.recording.recorded_step_s == pytest.approx(0.1)
    assert facts.waterfall is not None and facts.waterfall.step_s == pytest.approx(0.100)


def test_a_job_that_was_only_measured_has_no_explanation() -> None:
    (facts,) = facts_from(measured(ONE, 0.100))
    assert (facts.recording, facts.waterfall, facts.preloaded, facts.without_optimizer) == (None,) * 4
    assert (facts.input_wait_s, facts.optimizer_s, facts.cores) == (None, None, None)


def test_batches_that_are_made_on_the_device_are_not_waited_for() -> None:
    """The job is its own ablation: it has no loader."""
    (facts,) = facts_from(measured(make_trial(), 0.1))
    assert facts.input_wait_s is None


def test_without_an_own_recording_ranks_use_that_of_one_rank_but_not_its_waterfall() -> None:
    alone = single_rank_baseline(TWO)
    two, one = facts_from(measured(TWO, 0.12), measured(alone, 0.1), recorded(alone))
    assert (two.ranks, one.ranks) == (2, 1)
    assert two.recording is not None and two.recording == one.recording
    assert two.waterfall is None
    assert one.waterfall is not None


def test_an_own_recording_goes_before_that_of_one_rank() -> None:
    alone = single_rank_baseline(TWO)
    two, _ = facts_from(measured(TWO, 0.12), measured(alone, 0.1), recorded(alone), recorded(TWO, 0.12))
    assert two.recording is not None and two.recording.recorded_step_s == pytest.approx(0.12)
    assert two.waterfall is not None and two.waterfall.recorded_rank == 0


@pytest.mark.parametrize("status", ["failed", "invalid", "interrupted"])
def test_a_recording_that_failed_says_nothing(status: Any) -> None:
    (facts,) = facts_from(measured(ONE, 0.1), recorded(ONE, status=status))
    assert facts.recording is None


def test_what_only_explains_is_not_a_case_of_its_own() -> None:
    results = [
        *measured(TWO, 0.1),
        *measured(ablation(without_communication(TWO)), 0.08),
        recorded(TWO),
        dataclasses.replace(
            recorded(TWO), trial_id=arrivals_of(TWO).trial_id, settings=arrivals_of(TWO).settings
        ),
    ]
    assert [facts.trial.trial_id for facts in facts_from(results)] == [TWO.trial_id]


def test_the_largest_number_of_ranks_comes_first() -> None:
    four = TWO.replace(world_size=4)
    facts = facts_from(measured(ONE, 0.1), measured(four, 0.1), measured(TWO, 0.1))
    assert [case.ranks for case in facts] == [4, 2, 1]


def test_activities_are_those_of_the_first_launch() -> None:
    results = measured(make_trial(), 0.1, 0.1)
    for number, result in enumerate(results):
        result.ranks[0].counters["host/forward_s"] = 0.05 + number
    (facts,) = facts_from(results)
    assert [activity.host_s for activity in facts.activities] == [{"forward": 0.05}]
    assert facts.waterfall is not None


def test_the_machine_and_what_differs_inside_the_run_are_known() -> None:
    sgd, adamw = make_trial(optimizer="sgd"), make_trial(optimizer="adamw")
    facts = facts_from(measured(sgd, 0.1), measured(adamw, 0.1), machine={"cores": 8})
    assert {case.varied for case in facts} == {(("optimizer", "sgd"),), (("optimizer", "adamw"),)}
    assert {case.about for case in facts} == {
        "1 rank, batch 10, optimizer sgd",
        "1 rank, batch 10, optimizer adamw",
    }
    assert {case.cores for case in facts} == {8}


def test_strategies_are_those_that_wrap() -> None:
    facts = facts_from(measured(ONE, 0.1), measured(TWO, 0.1))
    assert {case.strategies for case in facts} == {("ddp",)}


def make(step_s: float = 0.1, ranks: int = 2, launches: int = 2) -> StepFacts:
    trial = TWO.replace(world_size=ranks)
    configuration = make_configuration(trial, *[step_s] * launches)
    return StepFacts(path=Path("/run"), varied=(), strategies=(), configuration=configuration)


def test_a_cost_is_a_share_of_the_step_on_every_rank() -> None:
    finding = make().finding("rule", "claim", 0.025, root=True)
    assert (finding.share, finding.lost, finding.cost_s) == (pytest.approx(0.25), pytest.approx(0.5), 0.025)
    assert finding.root and not finding.single


@pytest.mark.parametrize(("cost_s", "share"), [(0.3, 1.0), (-0.1, 0.0)])
def test_a_share_is_never_more_than_the_step(cost_s: float, share: float) -> None:
    assert make().finding("rule", "claim", cost_s).share == share


def test_one_launch_is_said_to_be_one() -> None:
    assert make(launches=1).finding("rule", "claim", 0.01).single


def test_small_costs_are_not_worth_a_finding() -> None:
    assert not make().is_worth(LEAST_SHARE * 0.1)
    assert make().is_worth(1.01 * LEAST_SHARE * 0.1)


@pytest.mark.parametrize(
    ("trial", "batch"),
    [(make_trial(batch_size=12), 12), (make_trial(global_batch_size=16, world_size=2, strategy="ddp"), 16)],
)
def test_the_batch_is_the_one_that_was_asked_for(trial: Trial, batch: int) -> None:
    configuration = make_configuration(trial, 0.1)
    assert StepFacts(path=Path("/run"), varied=(), strategies=(), configuration=configuration).batch == batch
