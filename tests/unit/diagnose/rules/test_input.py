"""Rules about samples: waited for, or copied too slowly."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.analysis.scaling.waterfall import INPUT
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.rules import copy_bound, input_bound
from tests.unit.analysis.made_results import make_configuration

from ..made_facts import ON_GPUS, evidence_of, finding, levers, make_facts

SLOW_COPY, SLOW_LOADER = (0.001, 0.02), (0.02, 0.001)


def waiting(
    *preloaded_s: float,
    beyond_s: float = 0.0,
    batch_times_s: tuple[float, float] | None = None,
    changes: Mapping[str, object] | None = None,
    **settings: Any,
) -> Facts:
    """Steps of 100 ms, and what they take preloaded; one rank alone does not wait for `beyond_s` of that."""
    facts = make_facts(
        {INPUT: beyond_s},
        settings={"num_workers": 2, **settings},
        changes=changes,
        batch_times_s=batch_times_s,
    )
    return dataclasses.replace(facts, preloaded=make_configuration(facts.trial, *preloaded_s))


def copying(batch_times_s: tuple[float, float] | None = SLOW_COPY, **changes: object) -> Facts:
    return waiting(0.08, batch_times_s=batch_times_s, changes={**ON_GPUS, **changes})


# input-bound


def test_one_rank_that_waits_as_well_costs_speed_and_not_scaling() -> None:
    cause = finding(input_bound.rule(waiting(0.08)))
    assert evidence_of(cause) == {"input": pytest.approx(0.02)}
    assert "One rank waits as well" in cause.claim
    assert cause.share == pytest.approx(0.2)


def test_ranks_that_wait_for_each_other_s_loaders_cost_scaling() -> None:
    assert "One rank" not in finding(input_bound.rule(waiting(0.08, beyond_s=0.018))).claim


def test_more_loader_processes_are_advised_and_then_to_look_further_ahead() -> None:
    assert levers(finding(input_bound.rule(waiting(0.08)))) == ["num_workers=4", "prefetch_factor=8"]


@pytest.mark.parametrize(
    ("cores", "workers", "advised"),
    [
        (64, 2, ["num_workers=4"]),
        (6, 2, ["num_workers=3"]),
        (4, 2, []),
        (2, 2, []),
        (2, 0, ["num_workers=1"]),
    ],
)
def test_no_more_loader_processes_are_advised_than_there_are_cores(
    cores: int, workers: int, advised: list[str]
) -> None:
    facts = dataclasses.replace(waiting(0.08, num_workers=workers), cores=cores)  # on two ranks
    assert [lever for lever in levers(finding(input_bound.rule(facts))) if "workers" in lever] == advised


def test_a_loader_without_processes_gets_two_and_cannot_look_ahead() -> None:
    assert levers(finding(input_bound.rule(waiting(0.08, num_workers=0)))) == ["num_workers=2"]


def test_a_loader_that_looks_further_ahead_already_is_not_advised_to_look_less_far() -> None:
    cause = finding(input_bound.rule(waiting(0.08, prefetch_factor=16)))
    assert levers(cause) == ["num_workers=4"]


def test_a_wait_of_less_than_three_percent_is_no_finding() -> None:
    assert input_bound.rule(waiting(0.098)) is None


def test_a_wait_that_may_be_none_is_no_finding() -> None:
    facts = waiting(0.05, 0.08, 0.11)
    uncertain = make_configuration(facts.trial, 0.09, 0.10, 0.11)
    row = dataclasses.replace(facts.row, configuration=uncertain)
    assert input_bound.rule(dataclasses.replace(facts, row=row)) is None


def test_samples_that_are_not_loaded_are_not_waited_for() -> None:
    assert input_bound.rule(make_facts({})) is None


def test_input_yields_to_copies() -> None:
    assert input_bound.rule(copying()) is None
    assert finding(input_bound.rule(copying(SLOW_LOADER))).share == pytest.approx(0.2)


# copy-bound


def test_batches_that_are_ready_and_still_hold_steps_up_are_copy_bound() -> None:
    cause = finding(copy_bound.rule(copying()))
    evidence = evidence_of(cause)
    assert (evidence["waiting"], evidence["copying"]) == (pytest.approx(0.001), pytest.approx(0.02))
    assert cause.root
    assert cause.share == pytest.approx(0.2)
    assert levers(cause) == ["prefetch_stream=True", "pin_memory=True"]


@pytest.mark.parametrize(("loader_s", "is_ready"), [(0.005, True), (0.007, False)])
def test_a_loader_is_ready_that_takes_less_than_a_third_of_the_wait(loader_s: float, is_ready: bool) -> None:
    """Of 20 ms: a copy may be short on the host, where the GPU waits for it."""
    outcome = copy_bound.rule(copying((loader_s, 0.001)))
    assert (outcome is not None) is is_ready


@pytest.mark.parametrize("times", [SLOW_LOADER, None])
def test_a_loader_that_is_slower_or_unknown_is_not_copy_bound(times: tuple[float, float] | None) -> None:
    assert copy_bound.rule(copying(times)) is None


def test_nothing_is_copied_on_the_cpu() -> None:
    assert copy_bound.rule(waiting(0.08, batch_times_s=SLOW_COPY)) is None


def test_copies_that_cost_nothing_are_no_finding() -> None:
    facts = waiting(0.099, batch_times_s=SLOW_COPY, changes=ON_GPUS)
    assert copy_bound.rule(facts) is None


def test_memory_that_is_pinned_already_is_not_advised() -> None:
    assert levers(finding(copy_bound.rule(copying(pin_memory=True)))) == ["prefetch_stream=True"]
    both = copying(pin_memory=True, prefetch_stream=True)
    assert finding(copy_bound.rule(both)).advice == ()
