"""StepFacts of a run: what was measured beside a configuration, and what its ranks noted."""

from typing import Any

import pytest

from scalescope.diagnose.step_facts import StepFacts
from scalescope.experiment.ablations import single_rank_baseline, with_preloaded_input
from tests.builders.facts import measured
from tests.builders.results import make_trial
from tests.builders.steps import step_facts, step_facts_from

FED = {"strategy": "ddp", "world_size": 2, "num_workers": 1}


def fed(*step_times_s: float, preloaded: tuple[float, ...] | None = None) -> StepFacts:
    trial = make_trial(**FED)
    results = [measured(trial, *step_times_s)]
    if preloaded is not None:
        results.append(measured(with_preloaded_input(trial), *preloaded))
    (facts,) = step_facts_from(*results)
    return facts


def test_waiting_for_samples_is_what_preloaded_ones_save() -> None:
    wait = fed(0.051, 0.05, 0.049, preloaded=(0.03, 0.031, 0.029)).input_wait_s
    assert wait is not None and wait.low is not None and wait.high is not None
    assert wait.value == pytest.approx(0.02)
    assert wait.low < 0.02 < wait.high


def test_waiting_for_samples_is_unknown_without_preloaded_ones() -> None:
    assert fed(0.05).input_wait_s is None


def test_samples_that_are_on_the_device_already_are_not_waited_for() -> None:
    (facts,) = step_facts_from(measured(make_trial(strategy="ddp", world_size=2), 0.05))
    assert facts.preloaded is facts.configuration
    assert facts.input_wait_s is None


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


def test_what_ranks_counted_is_read() -> None:
    facts = counting(
        parameters=300, parameter_tensors=4, buffer_bytes=8, model_collectives=3, affinity="0-3,8",
        optimizer_is_fused=0, loader_s=0.1, copy_s=0.2,
    )  # fmt: skip
    model = facts.model
    assert (model.parameters, model.parameter_tensors, model.buffer_bytes) == (300, 4, 8)
    assert (model.sync_batch_norms, model.rank_cores, model.optimizer_is_fused) == (3, 5, False)
    assert facts.loading is not None
    assert (facts.loading.wait_s, facts.loading.copy_s) == (0.1, 0.2)


def test_what_ranks_did_not_count_is_unknown() -> None:
    facts = counting()
    assert facts.loading is None
    assert facts.model.buffer_bytes is None
    assert (facts.model.rank_cores, facts.model.optimizer_is_fused) == (None, None)


@pytest.mark.parametrize(
    ("gpus", "formats"),
    [
        ([{"fp16": True, "tf32": True, "bf16": True}], ("tf32", "bf16", "fp16")),
        ([{"fp16": True, "tf32": False, "bf16": False}], ("fp16",)),
        ([{"fp16": True, "tf32": True}, {"fp16": True, "tf32": False}], ("fp16",)),
        ([{"fp16": False, "tf32": False, "bf16": False}], ()),
        ([{}], None),
        ([], None),
    ],
)
def test_short_formats_are_those_that_all_gpus_have(
    gpus: list[dict[str, bool]], formats: tuple[str, ...] | None
) -> None:
    recorded: list[dict[str, Any]] = [
        {"memory_bytes": 1, "precisions": [{"name": name, "native": native} for name, native in gpu.items()]}
        for gpu in gpus
    ]
    results = measured(make_trial(strategy="ddp", world_size=2), 0.05)
    (facts,) = step_facts_from(results, environment={"machine": {"gpus": recorded}})
    assert facts.short_formats == formats


def test_cores_come_from_the_machine() -> None:
    (facts,) = step_facts_from(measured(make_trial(), 0.05), environment={"machine": {"cores": 6}})
    assert facts.cores == 6
    assert step_facts_from(measured(make_trial(), 0.05))[0].cores is None


def test_a_configuration_is_named_by_the_batch_that_was_given() -> None:
    strong = step_facts(ranks=2, settings={"batch_size": None, "global_batch_size": 64})
    assert (strong.batch, strong.about) == (64, "2 ranks, batch 64")
    accumulating = step_facts(settings={"batch_size": 8, "accumulation_steps": 4})
    assert (accumulating.batch, accumulating.about) == (8, "1 rank, batch 8")
