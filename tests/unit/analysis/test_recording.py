"""Recordings of a step: what a record says, and what it does not say stays unknown."""

import dataclasses
from typing import Any

import pytest

from scalescope.analysis.recording import ReplayedStep, StepRecording, SyncSite, fitted, recordings
from scalescope.results.result import RankRecord
from scalescope.results.traces import step_parts
from tests.builders.results import make_result, make_trial
from tests.simulated.costs import simulated_record

REPLAY: dict[str, float] = {
    "step_s": 0.02,
    "without_sync_s": 0.008,
    "fast_host_s": 0.005,
    "without_allocation_s": 0.019,
    "fast_gpu_s": 0.012,
    "fused_optimizer_s": 0.02,
    "without_recomputation_s": 0.02,
    "host_factor": 0.5,
}
SITE = {"file": "model.py", "line": 31, "function": "forward", "code": "x.item()", "per_step": 48.0}


def record(
    rank: int = 0,
    counters: dict[str, Any] | None = None,
    samples: dict[str, list[float]] | None = None,
    **tables: list[dict[str, Any]],
) -> RankRecord:
    steps = {"parts/step_s": [0.1, 0.3], "parts/forward_s": [0.05, 0.15]}
    made = simulated_record(rank, steps if samples is None else samples, counters or {})
    return dataclasses.replace(made, tables=tables)


def recording_of(*records: RankRecord) -> tuple[StepRecording, ...]:
    result = make_result(make_trial(), [[0.1]])
    return recordings(dataclasses.replace(result, ranks=list(records)))


def only(made: RankRecord) -> StepRecording:
    (recording,) = recording_of(made)
    return recording


def test_parts_are_means_over_the_recorded_steps() -> None:
    recording = only(record())
    assert recording.recorded_step_s == pytest.approx(0.2)
    assert recording.parts[step_parts.FORWARD] == pytest.approx(0.1)
    assert set(recording.parts) == set(step_parts.PARTS)
    records = [record(0, samples={}), record(1), record(2, samples={"parts/step_s": []})]
    assert [recording.rank for recording in recording_of(*records)] == [1]


def test_what_was_not_recorded_is_unknown_and_zero_is_known() -> None:
    recording = only(record())
    counted = [field.name for field in dataclasses.fields(StepRecording) if field.default is None]
    assert {getattr(recording, name) for name in counted if name != "product_flops_per_s"} == {None}
    assert recording.plain_step_s is None
    assert not recording.product_flops_per_s
    assert recording.syncs == ()
    recording = only(record(counters={"pageable_copies": 0, "optimizer_kernels": 0.0}))
    assert (recording.pageable_copies, recording.optimizer_kernels) == (0.0, 0.0)


def test_counters_have_their_fields() -> None:
    counters = {
        "plain_step_s": 0.09,
        "kernels_per_step": 120,
        "allocations_per_step": 2,
        "releases_per_step": 1,
        "matmul_flops_per_s/bf16": 5e14,
        "matmul_flops_per_s/fp32": 5e13,
    }
    recording = only(record(counters=counters))
    assert (recording.plain_step_s, recording.kernels) == (0.09, 120.0)
    assert (recording.allocations, recording.releases) == (2.0, 1.0)
    assert recording.product_flops_per_s == {"fp32": 5e13, "bf16": 5e14}


def test_a_replay_is_known_as_a_whole_and_costs_are_what_it_saves() -> None:
    assert only(record(replays=[{**REPLAY, "step_s": None}])).replays == ()
    replay = ReplayedStep(**REPLAY)
    assert only(record(replays=[REPLAY])).replays == (replay,)
    assert replay.sync_cost_s == pytest.approx(0.012)
    assert replay.host_cost_s == pytest.approx(0.003)
    assert replay.allocation_cost_s == pytest.approx(0.001)
    slower = dataclasses.replace(replay, without_sync_s=0.03, fast_host_s=0.04, without_allocation_s=0.03)
    assert (slower.sync_cost_s, slower.host_cost_s, slower.allocation_cost_s) == (0.0, 0.0, 0.0)


# what lines that wait cost


def waiting(*sites: SyncSite, busy_waits_s: float | None = None, **known: Any) -> StepRecording:
    """A recorded step of 18 ms, 2 of them busy and 12 idle after waits; without a profiler it takes 10."""
    parts = dict.fromkeys(step_parts.PARTS, 0.0) | {
        step_parts.FORWARD: 0.002,
        step_parts.IDLE_SYNC: 0.012,
        step_parts.IDLE_HOST: 0.004,
    }
    basic: dict[str, Any] = {"rank": 0, "parts": parts, "recorded_step_s": 0.018, "plain_step_s": 0.010}
    return StepRecording(**{**basic, "syncs": sites, "busy_waits_s": busy_waits_s, **known})


def line(per_step: float = 4.0, time_s: float | None = None) -> SyncSite:
    return SyncSite(
        file="m.py", line=1, function="f", code="", operation="", per_step=per_step, time_s=time_s
    )


def test_idle_time_is_what_kernels_leave_of_a_step_without_a_profiler() -> None:
    assert waiting().step_s == 0.010
    assert waiting().idle_s == pytest.approx(0.008)
    assert waiting(plain_step_s=None).step_s == 0.018
    assert waiting(plain_step_s=None).idle_s == pytest.approx(0.016)
    assert waiting(plain_step_s=0.001).idle_s == 0.0


def test_the_replay_has_the_host_of_the_timed_step() -> None:
    """Its times lie between those of the two nearest hosts; beyond all, it is the fastest or the slowest."""
    fast, slow = (
        ReplayedStep(**{**REPLAY, "host_factor": factor, "step_s": step_s, "fast_host_s": 0.010})
        for factor, step_s in ((0.5, 0.012), (1.0, 0.020))
    )
    between = fitted((slow, fast), 0.014)
    assert between is not None
    assert (between.host_factor, between.step_s) == pytest.approx((0.625, 0.014))
    assert fitted((slow, fast), 0.011) == fast
    assert fitted((slow, fast), 0.030) == slow
    assert fitted((), 0.030) is None


def test_waits_cost_their_share_of_idle_time_or_what_is_known_beyond_it() -> None:
    assert waiting(line()).wait_cost_s(0.010) == pytest.approx(0.008 * 12 / 16)
    replay = ReplayedStep(**{**REPLAY, "step_s": 0.010, "without_sync_s": 0.003})
    assert waiting(line(), replays=(replay,)).wait_cost_s(0.010) == pytest.approx(0.007)
    lines = (line(time_s=0.005), line(time_s=0.004), line(time_s=None), line(0.1, time_s=1.0))
    assert waiting(*lines, busy_waits_s=0.0015).wait_cost_s(0.010) == pytest.approx(0.0075)
    assert waiting(*lines, busy_waits_s=None).wait_cost_s(0.010) == pytest.approx(0.006)
    assert waiting(*lines, busy_waits_s=0.02).wait_cost_s(0.010) == pytest.approx(0.006)
    assert waiting(line(time_s=0.5), busy_waits_s=0.0).wait_cost_s(0.010) == pytest.approx(0.008)
    often, rare = line(0.5), line(0.1)
    assert waiting(often, rare).frequent_waits == (often,)


def test_lines_are_read_from_tables() -> None:
    traced = {"operation": "aten::nonzero", "per_step": 2, "from_trace": True, "file": None, "line": None}
    timed = {**SITE, "time_s": 0.002}
    assert only(record(synchronizations=[timed])).syncs[0].time_s == 0.002
    recording = only(record(synchronizations=[SITE, traced, {}]))
    located, unlocated, empty = recording.syncs
    assert located == SyncSite(
        file="model.py", line=31, function="forward", code="x.item()", operation="", per_step=48.0
    )
    assert located.time_s is None
    assert (located.location, unlocated.location, empty.location) == ("model.py:31", "", "")
    assert (unlocated.operation, unlocated.from_trace, unlocated.per_step) == ("aten::nonzero", True, 2.0)
