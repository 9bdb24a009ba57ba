"""Finished ranks are held against what right training, and a whole trace, looks like."""

from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.experiment.explanations import arrivals_of, breakdown_of
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import record_from
from scalescope.launch.validity import RULES, judge
from scalescope.results.result import RankRecord
from tests.builders.commands import command_trial
from tests.builders.results import make_trial
from tests.simulated.costs import simulated_record


def _trial(without_communication: bool = False) -> Trial:
    return Trial(
        settings={"benchmark": "train", "without_communication": without_communication, "warmup_steps": 3}
    )


def _records(*counters: dict[str, Any]) -> list[RankRecord]:
    return [
        RankRecord(rank=rank, host="h", device="cpu", placement="", counters=counter)
        for rank, counter in enumerate(counters)
    ]


_SAME, _OTHER = {"parameter_checksum": "a"}, {"parameter_checksum": "b"}


@pytest.mark.parametrize(
    ("silent", "counters", "found", "reason"),
    [
        (False, (_SAME, _SAME), ("ok", None, None), None),
        (
            False,
            (_SAME, _SAME | {"first_step_with_bad_loss": 7}),
            ("invalid", 1, 7),
            "the loss of rank 1 is not finite at step 7",
        ),
        (  # the rank that had it first is named, also in the warm-up
            False,
            ({"first_step_with_bad_loss": 1}, {"first_step_with_bad_loss": 0}),
            ("invalid", 1, 0),
            "the loss of rank 1 is not finite at step 0 (a warm-up step)",
        ),
        (False, (_SAME, _OTHER), ("invalid", None, None), "the ranks' parameters differ after training"),
        (True, (_SAME, _OTHER), ("ok", None, None), None),  # without communication
        (
            True,
            ({"first_step_with_bad_loss": 3},),
            ("invalid", 0, 3),
            "the loss of rank 0 is not finite at step 3",
        ),
    ],
)
def test_losses_must_be_finite_and_ranks_that_communicate_have_equal_parameters(
    silent: bool, counters: tuple[dict[str, Any], ...], found: tuple[Any, ...], reason: str | None
) -> None:
    records = _records(*counters)
    outcome = judge(_trial(without_communication=silent), records)
    assert (outcome.status, outcome.rank, outcome.step) == found
    assert (outcome.reason, outcome.records) == (reason, records)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((8, 8), None),
        ((8, None), "rank 1 measured no step"),
        ((8, 9), "the ranks measured different numbers of steps: 8 on rank 0, 9 on rank 1"),
    ],
)
def test_ranks_of_a_command_must_have_measured_the_same_steps(
    steps: tuple[int | None, ...], reason: str | None
) -> None:
    records = _records(*({"measured_steps": count} for count in steps))
    outcome = judge(command_trial("python train.py"), records)
    assert (outcome.status, outcome.reason) == ("ok" if reason is None else "invalid", reason)
    assert outcome.records == records


def _recorded(world_size: int = 2, **ablations: bool) -> Trial:
    return Trial(settings={"benchmark": "profile", **ablations, "world_size": world_size})


_NONE, _SENT = {"communication_events": 0}, {"communication_events": 3}
_BLIND, _KERNELS = {"device_events": 0}, {"device_events": 5}


@pytest.mark.parametrize(
    ("trial", "counters", "rank", "words"),
    [
        (_recorded(), (_SENT, _SENT), None, None),
        (_recorded(), (_SENT, _NONE), 1, "no communication"),
        (_recorded(), ({}, _SENT), None, None),  # a rank that recorded nothing owes no trace
        (_recorded(world_size=1), (_NONE,), None, None),
        (_recorded(without_communication=True), (_NONE, _NONE), None, None),
        (_recorded(with_preloaded_input=True), (_NONE, _NONE), 0, "no communication"),
        (_recorded(), (_SENT | _KERNELS, _SENT | _KERNELS), None, None),
        (_recorded(), (_SENT | _KERNELS, _SENT | _BLIND), 1, "no kernels"),
        (_recorded(world_size=1), (_NONE | _BLIND,), 0, "no kernels"),
        (_recorded(without_communication=True), (_NONE | _BLIND, _NONE | _BLIND), 0, "no kernels"),
    ],
)
def test_a_trace_must_show_the_communication_and_the_kernels_that_there_must_be(
    trial: Trial, counters: tuple[dict[str, int], ...], rank: int | None, words: str | None
) -> None:
    records = _records(*counters)
    outcome = judge(trial, records)
    assert (outcome.status, outcome.rank) == ("ok" if words is None else "invalid", rank)
    assert (words or "None") in str(outcome.reason)
    assert outcome.records == records


def test_missing_fields_of_a_rank_file_are_unknown_in_the_record_and_tables_kept() -> None:
    record = record_from({"rank": 1})
    assert (record.rank, record.host) == (1, "unknown")
    assert record.samples == record.counters == record.tables == {}
    rows = {"synchronizations": [{"file": "model.py", "line": 31}]}
    assert record_from({"rank": 0, "tables": rows}).tables == rows


def test_every_benchmark_has_rules_of_validity() -> None:
    assert set(RULES) == set(cards.names("benchmarks"))


ARRIVALS = arrivals_of(make_trial(world_size=2, strategy="ddp"))


def test_a_rank_without_recorded_arrivals_or_kernels_makes_the_launch_invalid() -> None:
    records = [simulated_record(0, {"trace/step_s": [0.1]}, {}), simulated_record(1, {}, {})]
    outcome = judge(ARRIVALS, records)
    assert (outcome.status, outcome.rank) == ("invalid", 1)
    records = [simulated_record(0, {"trace/step_s": [0.1], "trace/compute_s": [0.0]}, {})]
    assert judge(ARRIVALS.replace(device="cuda"), records).status == "invalid"
    assert judge(ARRIVALS, records).status == "ok"


BREAKDOWN = breakdown_of(make_trial(world_size=2, strategy="ddp")).replace(device="cuda")


def _breakdown(rank: int, steps: int = 3, kernels: int = 100) -> RankRecord:
    return simulated_record(rank, {"parts/step_s": [0.1] * steps}, {"kernels_per_step": kernels})


def test_ranks_that_recorded_steps_and_kernels_are_valid() -> None:
    records = [_breakdown(0), _breakdown(1)]
    outcome = judge(BREAKDOWN, records)
    assert (outcome.status, outcome.records) == ("ok", records)


@pytest.mark.parametrize(
    "bad", [_breakdown(1, steps=0), _breakdown(1, kernels=0), simulated_record(1, {}, {})]
)
def test_a_rank_without_steps_or_kernels_makes_the_launch_invalid(bad: RankRecord) -> None:
    outcome = judge(BREAKDOWN, [_breakdown(0), bad])
    assert (outcome.status, outcome.rank) == ("invalid", 1)
    assert outcome.reason and outcome.records == [_breakdown(0), bad]
