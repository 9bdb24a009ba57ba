"""Recorded training on real CPU ranks: traces that can be read, and that agree with what DDP counts."""

from typing import Any

import pytest

from scalescope.results.traces.events import read_events
from scalescope.results.traces.rank_trace import read_rank
from tests.conftest import TINY, Cli
from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

_FEW_STEPS = ["--device=cpu", "--steps-per-epoch=8", "--warmup-steps=3"]
# Enough to compute that backward lasts longer than a thread takes to wake up.
_BUSY = ["--input-dim=64", "--hidden-dim=512", "--num-layers=6", "--batch-size=128", "--bucket-cap-mb=1"]
_PACED = ["--workload=paced", "--forward-ms=5", "--backward-ms=40", "--layers=8", "--layer-mb=0.25"]
_PROFILED = ("train", *_FEW_STEPS, *_BUSY, "--world-size=2", "--profile", "--profile-steps=10")
_CLOSE = 0.25
_TRIES = 5


@pytest.fixture(scope="module")
def busy(run_here: RunsHere) -> FinishedRun:
    """Two ranks, both recorded."""
    return run_here(*_PROFILED)


def _profile_of(run: FinishedRun) -> dict[str, Any]:
    assert run.returncode == 0, run.stdout + run.stderr
    (profile,) = run.summary["results"]["profile"]
    assert isinstance(profile, dict)
    return profile


def _launches(run: FinishedRun, benchmark: str) -> list[dict[str, Any]]:
    return [result for result in run.results if result["settings"]["benchmark"] == benchmark]


@pytest.mark.basic
def test_two_ranks_leave_two_traces_in_which_every_step_communicates(busy: FinishedRun) -> None:
    files = _profile_of(busy)["files"]
    assert sorted(files) == ["0", "1"]
    assert sorted(path.name for path in (busy.folder / "traces").iterdir()) == sorted(
        name.removeprefix("traces/") for name in files.values()
    )
    for name in files.values():
        rank = read_rank(read_events(busy.folder / name), on_gpu=False)
        assert not rank.on_gpu
        assert len(rank.steps) == 10
        for step in rank.steps:
            assert step.communication_s > 0
            assert step.compute_s > 0
            assert step.collectives and all(collective.size_bytes for collective in step.collectives)


def test_every_recorded_step_has_the_mark_that_other_tools_look_for(busy: FinishedRun) -> None:
    for name in _profile_of(busy)["files"].values():
        events = read_events(busy.folder / name)
        marks = sorted(
            (event for event in events if event["name"].startswith("ProfilerStep#")),
            key=lambda mark: mark["ts"],
        )
        first = int(marks[0]["name"].partition("#")[2])
        assert [mark["name"] for mark in marks] == [f"ProfilerStep#{first + n}" for n in range(10 + 1)]
        assert {mark["cat"] for mark in marks} == {"user_annotation"}
        unmarked = [event for event in events if event not in marks]
        assert read_rank(events, on_gpu=False) == read_rank(unmarked, on_gpu=False)


def test_the_folder_of_the_traces_is_shown(busy: FinishedRun) -> None:
    assert f"Traces: {busy.folder.name}/traces" in busy.stdout


def test_the_trace_and_ddps_own_counters_agree(run_here: RunsHere) -> None:
    """Once at least: on a busy machine the steps that DDP counts may differ from those recorded."""
    for _ in range(_TRIES):
        profile = _profile_of(run_here(*_PROFILED))
        assert 0 <= profile["overlap"] <= 1
        if profile["span_overlap"] == pytest.approx(profile["ddp_overlap"], abs=_CLOSE):
            return
    pytest.fail(f"the trace hides {profile['span_overlap']}, DDP {profile['ddp_overlap']}")


def test_the_exchanges_of_a_step_are_ddps_buckets(busy: FinishedRun) -> None:
    (launch,) = _launches(busy, "profile")
    sizes = launch["ranks"][0]["samples"]["bucket_bytes"]
    assert len(sizes) > 1
    assert sorted(bucket["size_bytes"] for bucket in _profile_of(busy)["buckets"]) == sorted(sizes)


def test_timed_launches_carry_no_trace(busy: FinishedRun) -> None:
    (timed,) = _launches(busy, "train")
    (profiled,) = _launches(busy, "profile")
    for rank in timed["ranks"]:
        assert "trace" not in rank["counters"]
        assert len(rank["samples"]["step_time_s"]) == 5
    for rank in profiled["ranks"]:
        assert "step_time_s" not in rank["samples"]
        assert len(rank["samples"]["recorded_step_time_s"]) == 10 + 1
        assert rank["counters"]["communication_events"] > 0
    assert [row["status"] for row in busy.summary["results"]["training"]] == ["ok"]


def test_the_summary_holds_the_profile_and_the_timed_step(busy: FinishedRun) -> None:
    profile = _profile_of(busy)
    (timed,) = busy.summary["results"]["training"]
    assert profile["untraced_step_s"] == pytest.approx(timed["step_time_s"]["mean"])
    assert profile["unread"] == {}
    assert [rank["rank"] for rank in profile["ranks"]] == [0, 1]
    assert profile["kernels"]
    # gloo sends several buckets at once: then each has its transfer, and a step has no sum of them.
    assert all(bucket["transfer_s"] > 0 for bucket in profile["buckets"])


def test_with_one_bucket_per_step_transfer_and_waiting_are_separated(run_here: RunsHere) -> None:
    profile = _profile_of(run_here("train", *TINY, "--world-size=2", "--profile", "--profile-steps=2"))
    (bucket,) = profile["buckets"]
    assert profile["transfer_s"] == pytest.approx(bucket["transfer_s"])
    assert all(rank["waiting_s"] >= -1e-9 for rank in profile["ranks"])


def test_the_trace_is_shown_at_once_and_explained_later(busy: FinishedRun, cli: Cli) -> None:
    title = "Trace · ddp, 2 ranks, batch 128"
    assert title in busy.stdout
    later = cli("explain", str(busy.folder))
    assert later.returncode == 0
    assert title in later.stdout


def test_only_chosen_ranks_are_recorded(run_here: RunsHere) -> None:
    flags = ("--world-size=2", "--profile", "--profile-steps=2", "--profile-ranks=1")
    run = run_here("train", *TINY, *flags)
    profile = _profile_of(run)
    assert list(profile["files"]) == ["1"]
    assert [rank["rank"] for rank in profile["ranks"]] == [1]
    assert len(list((run.folder / "traces").iterdir())) == 1
    (launch,) = _launches(run, "profile")
    assert ["trace" in rank["counters"] for rank in launch["ranks"]] == [False, True]
    assert profile["transfer_s"] is None


def test_what_a_paced_model_sleeps_hides_its_communication(run_here: RunsHere) -> None:
    flags = ("--world-size=2", "--bucket-cap-mb=0.5", "--profile", "--profile-steps=4")
    profile = _profile_of(run_here("train", *_FEW_STEPS, *_PACED, *flags))
    for rank in profile["ranks"]:
        assert all(step["communication_s"] > 0 for step in rank["steps"])
        assert all(step["compute_s"] > 0.020 for step in rank["steps"])  # the sleep counts
    assert profile["span_overlap"] == pytest.approx(profile["ddp_overlap"], abs=_CLOSE)


def test_ranges_for_another_profiler_leave_no_trace_and_train_the_same(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--world-size=2", "--profile", "--profile-ranges-only")
    assert run.returncode == 0
    assert run.summary["results"]["profile"] == []
    (launch,) = _launches(run, "profile")
    assert launch["status"] == "ok"
    assert not any("trace" in rank["counters"] for rank in launch["ranks"])
