"""Combinations of levers: their trials, what is compiled, and what cards expect of them."""

import itertools

import pytest

from scalescope.analysis.tuning.launches import BASELINE, Combination
from scalescope.catalog.setting import Need
from scalescope.experiment.explanations import without_communication
from scalescope.studies.tuning.levers import Combinations, find_levers
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES


def combinations(*asked: str, gpus: int = 0, **texts: str) -> Combinations:
    experiment, machine = ask(**texts), with_gpus(gpus) if gpus else TWO_CORES
    return Combinations(experiment, machine, find_levers(experiment, machine, asked or ("all",)))


def names(*levers: str) -> Combination:
    return frozenset(levers)


JOBS = [
    (0, {}),
    (0, {"world_size": "2", "num_workers": "2"}),
    (0, {"world_size": "2", "strategy": "fsdp"}),
    (0, {"world_size": "2", "bucket_cap_mb": "5", "comm_hook": "fp16"}),
    (1, {"precision": "bf16", "compile": "default", "workload": "cnn"}),
    (2, {"world_size": "2", "env.NCCL_DEBUG": "WARN"}),
]


@pytest.mark.parametrize(("gpus", "texts"), JOBS)
def test_every_combination_is_a_trial_and_is_known_by_it(gpus: int, texts: dict[str, str]) -> None:
    """As a stored run needs it, which has the settings of trials alone."""
    made = combinations(gpus=gpus, **texts)
    fresh = combinations(gpus=gpus, **texts)
    trials = {}
    for count in (1, 2):
        for levers in map(frozenset, itertools.combinations(sorted(made.candidates), count)):
            if made.can_run(levers):
                trial = made.trial_with(levers)
                assert trial is not None
                assert fresh.of_trial(trial) == levers
                trials[trial.trial_id] = levers
    assert len(set(trials.values())) == len(trials) > 3
    assert fresh.of_trial(made.baseline) == BASELINE


def test_what_is_refused_together_cannot_run() -> None:
    made = combinations("strategy=fsdp", "comm_hook=fp16", world_size="2")
    assert made.can_run(names("strategy fsdp")) and made.can_run(names("comm_hook fp16"))
    assert not made.can_run(names("strategy fsdp", "comm_hook fp16"))
    made = combinations("comm_hook", world_size="2")
    assert made.can_run(names("comm_hook fp16"))
    assert not made.can_run(names("comm_hook fp16", "comm_hook bf16"))  # two values of one setting


def test_other_trials_are_no_combination() -> None:
    made = combinations("precision", world_size="2")
    silent = without_communication(made.baseline)
    assert silent is not None
    assert made.of_trial(silent) is None
    assert made.of_trial(made.baseline.replace(batch_size=7)) is None


def test_another_job_is_no_option() -> None:
    made = combinations("batch_size", "precision")
    assert [option.name for option in made.options] == ["precision bf16"]
    assert set(made.candidates) == {"precision bf16"}


def test_options_know_whether_they_were_asked_for() -> None:
    assert {option.asked for option in combinations(world_size="2").options} == {False}
    assert {option.asked for option in combinations("comm_hook", world_size="2").options} == {True}
    options = combinations("comm_hook", world_size="2").options
    assert {option.setting for option in options} == {"comm_hook"}


def test_only_compiling_makes_a_program_and_precision_is_part_of_it() -> None:
    made = combinations("compile=default", "precision", "fused_optimizer", world_size="2")
    assert made.program(BASELINE) is None
    assert made.program(names("precision bf16")) is None
    compiled = names("compile default")
    assert made.program(compiled) == compiled
    both = names("compile default", "precision bf16")
    assert made.program(both) == both
    assert made.program(compiled | {"fused_optimizer True"}) in (
        compiled,
        compiled | {"fused_optimizer True"},
    )


def test_a_compiled_baseline_compiles_with_every_lever() -> None:
    made = combinations("precision", compile="default")
    assert made.program(BASELINE) == BASELINE
    assert made.program(names("precision bf16")) == names("precision bf16")


def test_effects_come_from_the_cards() -> None:
    made = combinations(world_size="2")
    effects = made.effects()
    assert "products" in effects["precision bf16"].factors
    assert "communication" in effects["comm_hook fp16"].factors
    assert set(effects) <= set(made.candidates)


def test_company_is_named_as_levers_are() -> None:
    made = combinations(gpus=1, workload="cnn")
    company = made.effects()["memory_format channels_last"].company
    assert company and company <= {"precision bf16", "precision fp16", "precision tf32"}


def test_the_request_with_levers_keeps_the_rest() -> None:
    made = combinations("precision", "jit", world_size="2", bucket_cap_mb="5")
    experiment = made.experiment_with(names("precision bf16", "jit True"))
    assert experiment.asked("precision") == ("bf16",)
    assert experiment.asked("jit") == (True,)
    assert experiment.asked("bucket_cap_mb") == (5.0,)


def test_what_the_model_does_not_have_makes_levers_useless_unless_they_were_asked_for() -> None:
    absent: dict[Need, str] = {"convolutions": "the model has no convolutions"}
    every = combinations("all", workload="cnn")
    assert every.without_use(absent) == {"memory_format channels_last": "the model has no convolutions"}
    assert combinations("memory_format=channels_last", workload="cnn").without_use(absent) == {}
