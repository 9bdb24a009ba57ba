"""StepFacts: every configuration that was asked for, what was measured beside it, what its ranks noted."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scalescope.diagnose.step_facts import LEAST_SHARE, StepFacts, step_facts_of
from scalescope.diagnose.varied import varied_settings
from scalescope.experiment.explanations import (
    arrivals_of,
    breakdown_of,
    single_rank_baseline,
    with_preloaded_input,
    without_communication,
    without_optimizer,
)
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.results.traces import step_parts
from tests.builders.facts import measured
from tests.builders.results import make_configuration, make_result, make_trial
from tests.builders.steps import step_facts, step_facts_from
from tests.simulated.costs import simulated_record

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
    assert facts.preloaded is facts.configuration and facts.input_wait_s is None


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


@pytest.mark.parametrize("status", ["failed", "invalid"])
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
    facts = facts_from(measured(ONE, 0.1), measured(TWO, 0.1))
    assert {case.strategies for case in facts} == {("ddp",)}


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


def make(step_s: float = 0.1, ranks: int = 2, launches: int = 2) -> StepFacts:
    trial = TWO.replace(world_size=ranks)
    configuration = make_configuration(trial, *[step_s] * launches)
    return StepFacts(path=Path("/run"), varied=(), strategies=(), configuration=configuration)


def test_a_cost_is_a_share_of_the_step_on_every_rank() -> None:
    finding = make().finding("rule", "claim", 0.025, root=True)
    assert (finding.share, finding.lost, finding.cost_s) == (pytest.approx(0.25), pytest.approx(0.5), 0.025)
    assert finding.root and not finding.single
    assert [make().finding("rule", "claim", cost_s).share for cost_s in (0.3, -0.1)] == [1.0, 0.0]
    assert make(launches=1).finding("rule", "claim", 0.01).single
    assert not make().is_worth(LEAST_SHARE * 0.1)
    assert make().is_worth(1.01 * LEAST_SHARE * 0.1)


# what ranks noted


FED = {"strategy": "ddp", "world_size": 2, "num_workers": 1}


def fed(*step_times_s: float, preloaded: tuple[float, ...] | None = None) -> StepFacts:
    trial = make_trial(**FED)
    results = [measured(trial, *step_times_s)]
    if preloaded is not None:
        results.append(measured(with_preloaded_input(trial), *preloaded))
    (facts,) = step_facts_from(*results)
    return facts


def test_waiting_for_samples_is_what_preloaded_ones_save() -> None:
    wait = fed(0.051, 0.05, 0.049, preloaded=(0.03, 0.029, 0.031)).input_wait_s
    assert wait is not None and wait.low is not None and wait.high is not None
    assert wait.value == pytest.approx(0.02, rel=1e-3)
    assert wait.low < 0.02 < wait.high
    assert fed(0.05).input_wait_s is None


def test_what_one_rank_waits_is_known_where_it_was_measured() -> None:
    trial = make_trial(**FED)
    alone = single_rank_baseline(trial)
    both = [measured(trial, 0.05), measured(alone, 0.04)]
    two, one_rank = step_facts_from(*both, measured(with_preloaded_input(alone), 0.03))
    assert (two.ranks, one_rank.ranks) == (2, 1)
    assert two.alone_wait_s == one_rank.alone_wait_s == pytest.approx(0.01)
    assert step_facts_from(*both)[0].alone_wait_s is None
    assert step_facts_from(both[0])[0].alone_wait_s is None


def counting(**counters: float | int | str) -> StepFacts:
    results = measured(make_trial(strategy="ddp", world_size=2), 0.05)
    for rank in results[0].ranks:
        rank.counters.update(counters)
    (facts,) = step_facts_from(results)
    return facts


def test_what_ranks_counted_is_read_and_the_rest_unknown() -> None:
    facts = counting(
        parameters=300, parameter_tensors=4, buffer_bytes=8, model_collectives=3, affinity="0-3,8",
        optimizer_is_fused=0, loader_s=0.1, copy_s=0.2,
    )  # fmt: skip
    model = facts.model
    assert (model.parameters, model.parameter_tensors, model.buffer_bytes) == (300, 4, 8)
    assert (model.sync_batch_norms, model.rank_cores, model.optimizer_is_fused) == (3, 5, False)
    assert facts.loading is not None
    assert (facts.loading.wait_s, facts.loading.copy_s) == (0.1, 0.2)
    facts = counting()
    assert facts.loading is None
    assert facts.model.buffer_bytes is None
    assert (facts.model.rank_cores, facts.model.optimizer_is_fused) == (None, None)


def test_short_formats_are_those_that_all_gpus_have() -> None:
    results = measured(make_trial(strategy="ddp", world_size=2), 0.05)
    for gpus, formats in (
        ([{"fp16": True, "tf32": True, "bf16": True}], ("tf32", "bf16", "fp16")),
        ([{"fp16": True, "tf32": True}, {"fp16": True, "tf32": False}], ("fp16",)),
        ([{"fp16": False, "tf32": False, "bf16": False}], ()),
        ([{}], None),
        ([], None),
    ):
        recorded: list[dict[str, Any]] = [
            {"memory_bytes": 1, "precisions": [{"name": name, "native": on} for name, on in gpu.items()]}
            for gpu in gpus
        ]
        (facts,) = step_facts_from(results, environment={"machine": {"gpus": recorded}})
        assert facts.short_formats == formats


def test_a_configuration_is_named_by_the_batch_that_was_given() -> None:
    strong = step_facts(ranks=2, settings={"batch_size": None, "global_batch_size": 64})
    assert (strong.batch, strong.about) == (64, "2 ranks, batch 64")
    accumulating = step_facts(settings={"batch_size": 8, "accumulation_steps": 4})
    assert (accumulating.batch, accumulating.about) == (8, "1 rank, batch 8")


# what differs between trials


def test_settings_that_differ_among_the_same_number_of_ranks_are_named() -> None:
    trials = [make_trial(optimizer=name, seed=seed) for name, seed in (("sgd", 0), ("adamw", 0), ("sgd", 1))]
    assert set(varied_settings(trials)[1]) == {"optimizer", "seed"}
    trials = [make_trial(batch_size=10), make_trial(batch_size=20, without_communication=True)]
    assert varied_settings(trials) == {1: ()}
    trials = [make_trial(optimizer="sgd"), make_trial(optimizer="adamw", world_size=2, strategy="ddp")]
    assert varied_settings(trials) == {1: (), 2: ()}
    assert varied_settings([]) == {}
