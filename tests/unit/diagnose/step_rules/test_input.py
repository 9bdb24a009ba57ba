"""Rules about samples: waited for, or copied too slowly."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.analysis.training.input import LoaderFacts
from scalescope.analysis.training.step_waterfall import COPIES, IDLE_INPUT, INPUT
from scalescope.diagnose.step_facts import StepFacts
from scalescope.diagnose.step_rules.input import copy_bound_rule, input_bound_rule
from scalescope.results.traces import step_parts
from tests.builders.facts import ON_GPUS, evidence_of, finding, levers
from tests.builders.steps import host_times, loader, recording, step_facts

SLOW_COPY, SLOW_LOADER = (0.001, 0.02), (0.02, 0.001)
MB = 1_000_000


def waiting(
    *preloaded_s: float,
    ranks: int = 2,
    batch_times_s: tuple[float, float] | None = None,
    changes: Mapping[str, object] | None = None,
    known: Mapping[str, Any] | None = None,
    **settings: Any,
) -> StepFacts:
    """Steps of 100 ms, and what they take preloaded."""
    loading = None
    if batch_times_s is not None:  # as runs stored it before loaders were watched
        loading = LoaderFacts(rank=0, wait_s=batch_times_s[0], copy_s=batch_times_s[1])
    return step_facts(
        ranks=ranks,
        settings={"num_workers": 2, **settings},
        changes=changes,
        preloaded_s=preloaded_s,
        **{"loading": loading, **(known or {})},
    )


def copying(batch_times_s: tuple[float, float] | None = SLOW_COPY, **changes: object) -> StepFacts:
    return waiting(0.08, batch_times_s=batch_times_s, changes={**ON_GPUS, **changes})


def prepared(
    prepare_s: float, collate_s: float = 0.0, *, cores: int = 8, workers: int = 2, **known: Any
) -> StepFacts:
    """One rank that waits 80 of 100 ms for a loader whose processes take so long for a batch."""
    facts = loader(
        prepare_s=prepare_s, collate_s=collate_s, cpu_s=prepare_s, workers=workers, cores=cores, wait_s=0.08
    )
    return waiting(
        0.02,
        ranks=1,
        num_workers=workers,
        known={"loading": dataclasses.replace(facts, **known), "machine": {"cores": cores}},
    )


def with_settings(facts: StepFacts, **changes: object) -> StepFacts:
    trial = facts.trial.replace(**changes)
    return dataclasses.replace(facts, configuration=dataclasses.replace(facts.configuration, trial=trial))


# input-bound


def test_one_rank_that_waits_as_well_costs_speed_and_not_scaling() -> None:
    cause = finding(input_bound_rule(waiting(0.08, known={"alone_wait_s": 0.019})))
    assert evidence_of(cause) == {"input": pytest.approx(0.02)}
    assert "One rank alone waits as well" in cause.claim
    assert cause.share == pytest.approx(0.2)
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.02), False)
    cause = finding(input_bound_rule(waiting(0.08, ranks=1, known={"alone_wait_s": 0.02})))
    assert "One rank" not in cause.claim
    assert cause.lost == pytest.approx(0.2)
    for alone_s in (0.002, None):  # ranks wait for each other's loaders
        cause = finding(input_bound_rule(waiting(0.08, known={"alone_wait_s": alone_s})))
        assert "One rank" not in cause.claim


def test_where_an_interval_includes_zero_the_clock_tells() -> None:
    unsure = {"step_s": (0.1, 0.11), "preloaded_s": (0.06, 0.09)}
    clocked = finding(input_bound_rule(step_facts(**unsure, activities=host_times({"input": 0.03}))))
    assert (clocked.cost_s, clocked.estimated) == (pytest.approx(0.03, rel=0.1), True)
    assert input_bound_rule(step_facts(**unsure, activities=host_times({"input": 0.001}))) is None
    assert input_bound_rule(step_facts(**unsure)) is None
    on_gpu = step_facts(**unsure, activities=host_times({"input": 0.03}), changes=ON_GPUS)
    assert input_bound_rule(on_gpu) is None


def test_more_loader_processes_are_advised_and_then_to_look_further_ahead() -> None:
    assert levers(finding(input_bound_rule(waiting(0.08)))) == ["num_workers=4", "prefetch_factor=8"]
    assert levers(finding(input_bound_rule(waiting(0.08, num_workers=0)))) == ["num_workers=2"]
    cause = finding(input_bound_rule(waiting(0.08, prefetch_factor=16)))
    assert levers(cause) == ["num_workers=4"]


def test_no_more_loader_processes_are_advised_than_there_are_cores() -> None:
    cases = {(64, 2): ["num_workers=4"], (6, 2): ["num_workers=3"], (4, 2): [], (2, 0): ["num_workers=1"]}
    for (cores, workers), advised in cases.items():
        facts = waiting(0.08, num_workers=workers, known={"machine": {"cores": cores}})  # on two ranks
        assert [lever for lever in levers(finding(input_bound_rule(facts))) if "workers" in lever] == advised


def test_waits_that_are_short_uncertain_or_not_for_samples_are_no_finding() -> None:
    assert input_bound_rule(waiting(0.098)) is None
    facts = step_facts(ranks=2, step_s=(0.09, 0.10, 0.11), preloaded_s=(0.05, 0.08, 0.11))
    assert input_bound_rule(facts) is None
    assert input_bound_rule(step_facts(ranks=2)) is None
    assert input_bound_rule(step_facts()) is None
    facts = step_facts(changes=ON_GPUS, activities=host_times({"input": 0.09}))
    assert input_bound_rule(facts) is None
    facts = step_facts(changes=ON_GPUS, terms_s={IDLE_INPUT: 0.001}, activities=host_times({"input": 0.09}))
    assert input_bound_rule(facts) is None


def test_input_yields_to_copies() -> None:
    assert input_bound_rule(copying()) is None
    assert finding(input_bound_rule(copying(SLOW_LOADER))).share == pytest.approx(0.2)


def test_without_preloaded_samples_the_waterfall_or_the_host_s_clock_tells() -> None:
    for term, changes in ((IDLE_INPUT, ON_GPUS), (INPUT, {})):
        facts = step_facts(changes=changes, terms_s={term: 0.05}, activities=host_times({"input": 0.09}))
        cause = finding(input_bound_rule(facts))
        assert (cause.cost_s, cause.estimated) == (pytest.approx(0.05), True)
        assert cause.evidence[0].source == "recorded steps"
    facts = step_facts(activities=host_times({"input": 0.03, "forward": 0.07}, {"input": 0.04}))
    cause = finding(input_bound_rule(facts))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.04), True)
    assert "preloaded" not in cause.claim


def test_what_takes_long_is_named_with_the_processes_that_would_hide_it() -> None:
    cause = finding(input_bound_rule(prepared(0.1, 0.02)))  # 20 ms of compute: five processes keep up
    assert evidence_of(cause)["getting samples"] == pytest.approx(0.08)
    assert evidence_of(cause)["collating"] == pytest.approx(0.02)
    assert "80 % getting samples, 20 % collating" in cause.claim
    assert "5 loader processes would hide it" in cause.claim
    assert levers(cause) == ["num_workers=5"]  # more batches ahead make none of them cheaper


def test_a_process_that_needs_longer_than_the_rank_is_named() -> None:
    cause = finding(input_bound_rule(prepared(0.05, workers=0, process_s=0.1)))
    assert "and 100 ms on one thread, which a loader process has; 5 loader processes" in cause.claim
    assert evidence_of(cause)["a batch on one thread"] == 0.1
    assert "thread" not in finding(input_bound_rule(prepared(0.05, workers=0, process_s=0.05))).claim


def test_one_process_is_counted_as_one() -> None:
    cause = finding(input_bound_rule(prepared(0.01, cores=2, workers=0)))
    assert "; 1 loader process would hide it." in cause.claim
    assert cause.advice[0].label == "1 loader process per rank"
    waiting_for_one = finding(input_bound_rule(prepared(0.1, 0.02, workers=1)))
    assert "in its loader process" in waiting_for_one.claim
    assert "would" not in finding(input_bound_rule(prepared(0.01, workers=2))).claim.partition("Preparing")[2]


def test_cores_that_cannot_keep_up_are_told_and_samples_must_become_cheaper() -> None:
    cause = finding(input_bound_rule(prepared(0.1, cores=4)))
    assert "even 4 processes would not hide it" in cause.claim
    assert levers(cause)[0] == "num_workers=4"
    assert "samples" in cause.advice[-1].label
    assert cause.advice[-1].argv == ()
    assert "collate_fn" in finding(input_bound_rule(prepared(0.1, 0.09, cores=2))).advice[-1].label
    cause = finding(input_bound_rule(prepared(0.1, cores=2, cpu_s=0.001)))
    assert levers(cause)[0] == "num_workers=5"
    assert "5 loader processes would hide it" in cause.claim


def test_a_loader_that_is_pinned_to_few_cores_may_use_them_all() -> None:
    facts = dataclasses.replace(prepared(0.1, cores=1), machine={"cores": 16})
    assert "pin_cores=no" in levers(finding(input_bound_rule(facts)))
    assert "pin_cores=no" not in levers(finding(input_bound_rule(prepared(0.1, cores=1))))


def test_shared_memory_without_room_for_more_batches_is_named() -> None:
    small = {"shm_free_bytes": 3 * MB, "batch_bytes": MB, "prefetch_factor": 2}
    cause = finding(input_bound_rule(prepared(0.1, **small)))
    assert "/dev/shm has room for only 3 more batches" in cause.claim
    assert "/dev/shm" in cause.advice[-1].label
    roomy = finding(input_bound_rule(prepared(0.1, **{**small, "shm_free_bytes": 100 * MB})))
    assert "/dev/shm" not in roomy.claim
    assert all(advice.argv for advice in roomy.advice)


def test_processes_that_start_anew_every_epoch_are_kept() -> None:
    restarting = {"restarts": 4, "persistent": False, "first_batch_s": 0.15}  # in 10 steps: 60 ms each
    cause = finding(input_bound_rule(prepared(0.01, **restarting)))
    assert levers(cause)[0] == "persistent_workers=True"
    rarely = finding(input_bound_rule(prepared(0.01, **{**restarting, "restarts": 1})))
    assert levers(rarely)[-1] == "persistent_workers=True"
    kept = finding(input_bound_rule(prepared(0.01, **{**restarting, "persistent": True})))
    assert not any("persistent" in lever for lever in levers(kept))


def test_an_iterable_of_ready_batches_needs_a_loader_first() -> None:
    facts = waiting(0.08, num_workers=0, known={"loading": loader(workers=None, wait_s=0.02)})
    (advice,) = finding(input_bound_rule(facts)).advice
    assert (advice.argv, "DataLoader" in advice.label) == ((), True)


def test_processes_are_those_the_loader_asked_for_and_batches_those_of_a_pass() -> None:
    # The setting is not given then, and settings that need it cannot be tried.
    facts = with_settings(prepared(0.1, workers=2), num_workers=None)
    assert levers(finding(input_bound_rule(facts))) == ["num_workers=5"]
    facts = with_settings(prepared(0.04, workers=1), accumulation_steps=2)
    assert "4 loader processes would hide it" in finding(input_bound_rule(facts)).claim


# copy-bound


def test_batches_that_are_ready_and_still_hold_steps_up_are_copy_bound() -> None:
    cause = finding(copy_bound_rule(copying()))
    evidence = evidence_of(cause)
    assert (evidence["waiting"], evidence["copying"]) == (pytest.approx(0.001), pytest.approx(0.02))
    assert cause.root
    assert cause.share == pytest.approx(0.2)
    assert levers(cause) == ["prefetch_stream=True", "pin_memory=True"]
    assert levers(finding(copy_bound_rule(copying(pin_memory=True)))) == ["prefetch_stream=True"]
    both = copying(pin_memory=True, prefetch_stream=True)
    assert finding(copy_bound_rule(both)).advice == ()


def test_a_loader_is_ready_that_takes_less_than_a_third_of_the_wait() -> None:
    """Of 20 ms: a copy may be short on the host, where the GPU waits for it."""
    assert copy_bound_rule(copying((0.005, 0.001))) is not None
    for times in ((0.007, 0.001), SLOW_LOADER, None):
        assert copy_bound_rule(copying(times)) is None
    assert copy_bound_rule(waiting(0.08, batch_times_s=SLOW_COPY)) is None  # nothing is copied on the CPU
    assert copy_bound_rule(waiting(0.099, batch_times_s=SLOW_COPY, changes=ON_GPUS)) is None  # too little


def pageable(
    *, exposed_s: float = 0.02, copies: float = 1.0, size: float = 60 * MB, time_s: float = 0.02, **known: Any
) -> StepFacts:
    """One rank on a GPU that copies from pageable memory, by its recording."""
    recorded = recording(
        pageable_copies=copies, pageable_bytes=size, pageable_s=time_s, parts={step_parts.COPIES: exposed_s}
    )
    return step_facts(
        settings={"num_workers": 2}, changes=ON_GPUS, recording=recorded, **{"loading": loader(), **known}
    )


def test_pageable_copies_are_named_with_their_rate() -> None:
    cause = finding(copy_bound_rule(pageable()))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.02), True)
    assert evidence_of(cause)["rate"] == pytest.approx(3e9)
    assert "60.0 MB per step" in cause.claim and "3.0 GB/s" in cause.claim
    assert levers(cause) == ["prefetch_stream=True", "pin_memory=True"]
    assert copy_bound_rule(pageable(waterfall=step_facts(terms_s={COPIES: 0.001}).waterfall)) is None
    cause = finding(copy_bound_rule(pageable(waterfall=step_facts(terms_s={COPIES: 0.01}).waterfall)))
    assert cause.cost_s == pytest.approx(0.01)
    facts = dataclasses.replace(copying(), recording=pageable().recording)
    cause = finding(copy_bound_rule(facts))
    assert "3.0 GB/s" in cause.claim
    assert not cause.estimated


def test_copies_that_are_hidden_small_or_page_locked_are_no_finding() -> None:
    assert copy_bound_rule(pageable(exposed_s=0.001)) is None
    assert copy_bound_rule(pageable(copies=1000.0, size=4000.0)) is None
    assert copy_bound_rule(pageable(copies=0.0, size=0.0, time_s=0.0)) is None
    assert copy_bound_rule(step_facts(changes=ON_GPUS, recording=recording())) is None


def test_what_preloaded_batches_do_not_save_is_copied_by_the_model() -> None:
    preloaded = step_facts(settings={"num_workers": 2}, preloaded_s=(0.1,)).preloaded
    facts = pageable(preloaded=preloaded, loading=loader(batch_bytes=15 * MB))
    cause = finding(copy_bound_rule(facts))
    assert cause.cost_s == pytest.approx(0.015)
    (advice,) = cause.advice
    assert (advice.argv, "in the model" in advice.label) == ((), True)
    batches_alone = pageable(preloaded=preloaded, loading=loader(batch_bytes=60 * MB))
    assert copy_bound_rule(batches_alone) is None


def test_copies_of_the_model_itself_get_a_line_to_change() -> None:
    for loading in (loader(pinned=True), loader(batch_bytes=15 * MB)):
        assert "in the model" in finding(copy_bound_rule(pageable(loading=loading))).advice[-1].label
    facts = step_facts(changes=ON_GPUS, recording=pageable().recording)  # batches are on the device already
    (advice,) = finding(copy_bound_rule(facts)).advice
    assert "in the model" in advice.label


def test_an_iterable_pins_its_batches_itself() -> None:
    cause = finding(copy_bound_rule(pageable(loading=loader(workers=None))))
    assert cause.advice[0].argv == ()
    assert levers(cause)[1:] == ["prefetch_stream=True"]
