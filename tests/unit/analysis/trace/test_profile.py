"""The traces of all ranks together: transfer against waiting, and DDP's counters."""

import gzip
import json
import os
from pathlib import Path

import pytest

from scalescope.analysis.trace.profile import TraceProfile, profiles
from scalescope.results.run import Run
from scalescope.results.traces.events import trace_name
from tests.builders.results import make_result, make_trial
from tests.builders.traces import (
    Event,
    cpu_step,
    cuda_step,
    moved,
    profile_result,
    recorded,
    steps_of,
    traced_run,
)

TRIAL = make_trial(world_size=2)
ON_GPUS = TRIAL.replace(device="cuda", backend="nccl")
EARLY = steps_of(cpu_step([(50, 90)]))
LATE = steps_of(cpu_step([(70, 90)]))


def only_profile(run: Run) -> TraceProfile:
    (profile,) = profiles(run)
    return profile


def test_what_ranks_take_longer_than_the_last_is_waiting(tmp_path: Path) -> None:
    profile = only_profile(traced_run(tmp_path, TRIAL, {0: EARLY, 1: LATE}))
    assert profile.transfer_s == pytest.approx(0.020)
    assert profile.waiting_s(0) == pytest.approx(0.020)
    assert profile.waiting_s(1) == pytest.approx(0.0, abs=1e-12)
    early, late = cpu_step([(50, 90)]), cpu_step([(70, 90)])
    first = [*early, *moved(early, 100), *moved(late, 200)]
    second = [*early, *moved(late, 100), *moved(early, 200)]
    profile = only_profile(traced_run(tmp_path / "in turns", TRIAL, {0: first, 1: second}))
    assert profile.transfer_s == pytest.approx(0.020)
    assert [profile.waiting_s(0), profile.waiting_s(1)] == pytest.approx([0.010, 0.010])


def test_every_exchange_of_a_step_is_averaged_over_steps_and_ranks(tmp_path: Path) -> None:
    traces = {0: steps_of(cpu_step([(40, 50), (60, 90)])), 1: steps_of(cpu_step([(45, 50), (60, 90)]))}
    first, second = only_profile(traced_run(tmp_path, TRIAL, traces)).buckets
    assert (first.number, second.number) == (1, 2)
    assert (first.name, first.size_bytes) == ("all_reduce", 4000)
    assert (first.time_s, first.exposed_s, first.transfer_s) == pytest.approx((0.0075, 0.0, 0.005))
    assert (second.time_s, second.exposed_s, second.transfer_s) == pytest.approx((0.030, 0.020, 0.030))


def renamed(events: list[Event], name: str) -> list[Event]:
    """The same steps with another exchange."""
    return [{**event, "name": name} if event["name"] == "gloo:all_reduce" else event for event in events]


def test_exchanges_that_overlap_cannot_be_added_up(tmp_path: Path) -> None:
    both = steps_of(cpu_step([(40, 60), (50, 90)]))
    profile = only_profile(traced_run(tmp_path / "both", TRIAL, {0: both, 1: both}))
    assert [bucket.transfer_s for bucket in profile.buckets] == pytest.approx([0.020, 0.040])
    assert (profile.transfer_s, profile.waiting_s(0), profile.waiting_s(1)) == (None, None, None)
    in_turn, overlapping = (steps_of(cpu_step([(40, end), (60, 90)])) for end in (59, 61))
    alike = only_profile(traced_run(tmp_path / "alike", TRIAL, {0: in_turn, 1: in_turn}))
    assert alike.transfer_s == pytest.approx(0.049)
    profile = only_profile(traced_run(tmp_path / "one", TRIAL, {0: in_turn, 1: overlapping}))
    assert (profile.transfer_s, profile.waiting_s(0)) == (None, None)


def test_only_a_symmetric_exchange_separates_transfer_from_waiting(tmp_path: Path) -> None:
    for name in ("broadcast", "send", "recv", "reduce", "gather", "scatter", "all_gather", "reduce_scatter"):
        traces = {rank: renamed(events, f"gloo:{name}") for rank, events in enumerate([EARLY, LATE])}
        profile = only_profile(traced_run(tmp_path / name, TRIAL, traces))
        (bucket,) = profile.buckets
        transfer_s = pytest.approx(0.020) if name in ("all_gather", "reduce_scatter") else None
        assert (bucket.name, bucket.transfer_s, profile.transfer_s) == (name, transfer_s, transfer_s)
        assert (profile.waiting_s(0) is None) == (transfer_s is None)


@pytest.mark.parametrize(
    ("other", "buckets"),
    [
        (steps_of(cpu_step([(50, 60), (60, 90)])), 0),
        ([*EARLY[: len(EARLY) // 3], *moved(steps_of(cpu_step(())), 100)], 0),
        (renamed(LATE, "gloo:all_gather"), None),
    ],
    ids=["ranks", "steps", "names"],
)
def test_exchanges_that_do_not_match_are_not_compared(
    tmp_path: Path, other: list[Event], buckets: int | None
) -> None:
    profile = only_profile(traced_run(tmp_path, TRIAL, {0: EARLY, 1: other}))
    assert buckets is None or len(profile.buckets) == buckets
    assert (profile.transfer_s, profile.waiting_s(0), profile.waiting_s(1)) == (None, None, None)
    assert profile.overlap is not None


def test_one_rank_alone_cannot_separate_transfer_from_waiting(tmp_path: Path) -> None:
    profile = only_profile(traced_run(tmp_path, TRIAL, {1: LATE}))
    assert list(profile.ranks) == [1]
    assert (profile.transfer_s, profile.waiting_s(1)) == (None, None)
    assert [bucket.transfer_s for bucket in profile.buckets] == [None]


def test_overlap_is_of_all_communication_and_by_ddps_definition_of_each_span(tmp_path: Path) -> None:
    traces = {0: steps_of(cpu_step([(40, 50), (60, 90)])), 1: steps_of(cpu_step([(75, 90)]))}
    profile = only_profile(traced_run(tmp_path, TRIAL, traces))
    assert profile.overlap == pytest.approx(20 / 55)
    assert profile.span_overlap == pytest.approx((30 / 50 + 0.0) / 2)


def test_a_trace_without_communication_has_no_overlap(tmp_path: Path) -> None:
    without_exchange = steps_of(cpu_step(()))
    profile = only_profile(
        traced_run(tmp_path, TRIAL, {0: without_exchange, 1: without_exchange}, ddp=(0.1, 0.05))
    )
    assert (profile.overlap, profile.span_overlap, profile.disagreement) == (None, None, None)
    assert (profile.buckets, profile.transfer_s, profile.waiting_s(0)) == ((), None, None)


def test_ddps_counters_are_held_against_the_trace(tmp_path: Path) -> None:
    traces, buckets = {0: EARLY, 1: EARLY}, (4000.0, 16.0)
    profile = only_profile(traced_run(tmp_path, TRIAL, traces, ddp=(0.040, 0.032), bucket_bytes=buckets))
    assert profile.span_overlap == pytest.approx(0.5)
    assert profile.ddp_overlap == pytest.approx(0.8)
    assert profile.disagreement == pytest.approx(0.3)
    assert profile.bucket_bytes == (4000, 16)
    for number, ddp in enumerate((None, (0.0, 0.0))):
        without = only_profile(traced_run(tmp_path / str(number), TRIAL, traces, ddp=ddp))
        assert (without.ddp_overlap, without.disagreement, without.bucket_bytes) == (None, None, None)


def test_traced_and_untraced_step_times_of_a_configuration_are_kept(tmp_path: Path) -> None:
    timed = [make_result(TRIAL, [[step] * 10] * 2, launch=n) for n, step in enumerate([0.04, 0.09])]
    profile = only_profile(traced_run(tmp_path, TRIAL, {0: EARLY, 1: EARLY}, *timed))
    assert profile.untraced_step_s == pytest.approx(0.06)
    assert profile.traced_step_s == pytest.approx(0.12)  # without the first
    other = make_result(make_trial(world_size=2, batch_size=20), [[0.04] * 10] * 2)
    assert only_profile(traced_run(tmp_path / "other", TRIAL, {0: EARLY}, other)).untraced_step_s is None


def test_idle_time_and_kernels_are_those_of_the_ranks(tmp_path: Path) -> None:
    on_gpu = [recorded_event for number in range(3) for recorded_event in cuda_step(number)]
    profile = only_profile(traced_run(tmp_path, ON_GPUS, {0: on_gpu, 1: on_gpu}))
    assert profile.idle_s == pytest.approx({"data": 0.002, "host": 0.005, "queued": 0.010})
    name, time_s, count = profile.kernels[0]
    assert (name, count) == ("backward_gemm", 2)
    assert time_s == pytest.approx(0.060)
    assert profile.mean(1, lambda step: step.compute_s) == pytest.approx(0.060)
    assert len(profile.steps) == 4


def test_a_missing_or_empty_trace_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    profile = only_profile(traced_run(tmp_path, TRIAL, {0: EARLY, 1: None}))
    name = trace_name(recorded(TRIAL).trial_id, 0, 1)
    assert list(profile.unread) == [1] and profile.unread[1].startswith(f"{name} does not exist")
    assert list(profile.ranks) == [0]
    assert profile.files[1] == name
    assert profile.transfer_s is None
    profile = only_profile(traced_run(tmp_path / "empty", TRIAL, {0: steps_of(cpu_step(), 1), 1: []}))
    assert (profile.ranks, profile.steps, profile.buckets) == ({}, (), ())
    assert all(reason.endswith(" contains no complete step") for reason in profile.unread.values())
    assert sorted(profile.unread) == [0, 1]


WHOLE = gzip.compress(json.dumps({"traceEvents": EARLY}).encode())
BROKEN = {
    "not compressed": b"{}",
    "not JSON": gzip.compress(b"{"),
    "no trace": gzip.compress(b'{"a": 1}'),
    "events without a start": gzip.compress(
        b'[{"ph": "X", "cat": "user_annotation", "name": "gloo:send", "dur": 1}]'
    ),
    "a start that is no number": gzip.compress(b'[{"ph": "X", "cat": "cpu_op", "ts": [], "dur": 1}]'),
    "cut off": WHOLE[: len(WHOLE) // 2],
    "damaged": WHOLE[:100] + bytes(100) + WHOLE[200:],
}


def test_a_trace_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    run = traced_run(tmp_path, TRIAL, {0: EARLY, 1: EARLY})
    name = trace_name(recorded(TRIAL).trial_id, 0, 1)
    for content in BROKEN.values():
        (tmp_path / name).write_bytes(content)
        profile = only_profile(run)
        assert list(profile.ranks) == [0]
        assert profile.unread[1].startswith((f"{name} cannot be read: ", f"{name} contains no complete step"))


def test_a_trace_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    assert only_profile(traced_run(tmp_path, TRIAL, {0: EARLY})).overlap == pytest.approx(0.5)
    run = traced_run(tmp_path, TRIAL, {0: LATE})
    os.utime(tmp_path / trace_name(recorded(TRIAL).trial_id, 0, 0), (1, 1))  # clocks of files are coarse
    assert only_profile(run).overlap == pytest.approx(0.0)


def test_runs_without_traces_have_no_profile(tmp_path: Path) -> None:
    timed = make_result(TRIAL, [[0.04] * 10] * 2)
    for_another_profiler = profile_result(recorded(TRIAL).replace(profile_with="nvtx"), ())
    run = Run(path=tmp_path, environment={}, results=(timed, for_another_profiler), warnings=())
    assert profiles(run) == ()
