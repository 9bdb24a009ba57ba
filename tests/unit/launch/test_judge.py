"""Finished ranks are held against what right training, and a whole trace, looks like."""

import importlib
from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import judge, record_from
from scalescope.results.result import RankRecord
from tests.builders.commands import command_trial


def _trial(without_communication: bool = False) -> Trial:
    return Trial(
        settings={"benchmark": "train", "without_communication": without_communication, "warmup_steps": 3}
    )


def _records(*counters: dict[str, Any]) -> list[RankRecord]:
    return [
        RankRecord(rank=rank, host="h", device="cpu", placement="", counters=counter)
        for rank, counter in enumerate(counters)
    ]


def test_equal_parameters_are_ok_and_the_records_are_kept() -> None:
    records = _records({"parameter_checksum": "a"}, {"parameter_checksum": "a"})
    outcome = judge(_trial(), records)
    assert (outcome.status, outcome.reason, outcome.rank, outcome.step) == ("ok", None, None, None)
    assert outcome.records == records


def test_a_loss_that_is_no_number_names_rank_and_step() -> None:
    bad = {"parameter_checksum": "a", "first_step_with_bad_loss": 7}
    outcome = judge(_trial(), _records({"parameter_checksum": "a"}, bad))
    assert (outcome.status, outcome.rank, outcome.step) == ("invalid", 1, 7)
    assert outcome.reason == "the loss of rank 1 is not finite at step 7"


def test_the_rank_that_had_it_first_is_named_also_in_the_warm_up() -> None:
    records = _records({"first_step_with_bad_loss": 1}, {"first_step_with_bad_loss": 0})
    outcome = judge(_trial(), records)
    assert (outcome.status, outcome.rank, outcome.step) == ("invalid", 1, 0)
    assert outcome.reason == "the loss of rank 1 is not finite at step 0 (a warm-up step)"


def test_different_parameters_are_invalid() -> None:
    outcome = judge(_trial(), _records({"parameter_checksum": "a"}, {"parameter_checksum": "b"}))
    assert outcome.status == "invalid"
    assert outcome.reason == "the ranks' parameters differ after training"


def test_without_communication_parameters_may_differ_but_losses_must_be_finite() -> None:
    apart = _records({"parameter_checksum": "a"}, {"parameter_checksum": "b"})
    assert judge(_trial(without_communication=True), apart).status == "ok"
    assert (
        judge(_trial(without_communication=True), _records({"first_step_with_bad_loss": 1})).status
        == "invalid"
    )


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


def test_a_trace_must_show_the_communication_that_there_must_be() -> None:
    records = _records({"communication_events": 3}, {"communication_events": 0})
    outcome = judge(_recorded(), records)
    assert (outcome.status, outcome.rank, outcome.records) == ("invalid", 1, records)
    assert "no communication" in str(outcome.reason)


def test_traces_that_show_communication_are_ok() -> None:
    records = _records({"communication_events": 3}, {"communication_events": 3})
    outcome = judge(_recorded(), records)
    assert (outcome.status, outcome.reason, outcome.records) == ("ok", None, records)


def test_one_rank_and_ranks_that_send_nothing_have_no_communication_to_show() -> None:
    no_events = {"communication_events": 0}
    assert judge(_recorded(world_size=1), _records(no_events)).status == "ok"
    assert judge(_recorded(without_communication=True), _records(no_events, no_events)).status == "ok"
    assert judge(_recorded(with_preloaded_input=True), _records(no_events, no_events)).status == "invalid"


def test_a_trace_of_a_gpu_must_show_kernels() -> None:
    with_kernels, blind = ({"communication_events": 3, "device_events": count} for count in (5, 0))
    outcome = judge(_recorded(), _records(with_kernels, blind))
    assert (outcome.status, outcome.rank) == ("invalid", 1)
    assert "no kernels" in str(outcome.reason)
    assert judge(_recorded(), _records(with_kernels, with_kernels)).status == "ok"


def test_one_rank_and_ranks_that_send_nothing_have_kernels_to_show() -> None:
    blind = {"communication_events": 0, "device_events": 0}
    assert judge(_recorded(world_size=1), _records(blind)).status == "invalid"
    assert judge(_recorded(without_communication=True), _records(blind, blind)).status == "invalid"


def test_a_rank_that_recorded_nothing_owes_no_trace() -> None:
    assert judge(_recorded(), _records({}, {"communication_events": 3})).status == "ok"


def test_missing_fields_of_a_rank_file_are_unknown_in_the_record() -> None:
    record = record_from({"rank": 1})
    assert (record.rank, record.host) == (1, "unknown")
    assert record.samples == record.counters == record.tables == {}


def test_tables_of_a_rank_file_are_kept() -> None:
    rows = {"synchronizations": [{"file": "model.py", "line": 31}]}
    assert record_from({"rank": 0, "tables": rows}).tables == rows


@pytest.mark.parametrize("benchmark", cards.names("benchmarks"))
def test_every_benchmark_has_rules_of_validity(benchmark: str) -> None:
    assert callable(importlib.import_module(f"scalescope.launch.validity.{benchmark}").judge)
