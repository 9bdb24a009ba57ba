"""The fault matrix on ranks: the right one is named, what was finished is kept, nothing is left running."""

import json
import re
from typing import Any

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.gloo.real_runs import FinishedRun, RunsHere, StartedRun

pytestmark = pytest.mark.gloo

_START_UP_S = 4.0  # fork, join and first steps, on a busy machine

_CRASHES = {
    "raise@1:3": (3, "rank 1 failed at step 3: RuntimeError: injected fault"),
    "exit@1:6": (6, "rank 1 left at step 6 with exit code 0"),
    "exit:7@1:5": (5, "rank 1 exited with code 7 at step 5"),
    "kill@1:1": (1, "rank 1 was killed by SIGKILL at step 1"),
    "segv@1:5": (5, "rank 1 was killed by SIGSEGV at step 5"),
    "abort@1:4": (4, "rank 1 was killed by SIGABRT at step 4"),
    "grandchild@1:5": (5, "rank 1 failed at step 5: RuntimeError: injected fault with a grandchild"),
}


def _finish(run: StartedRun) -> FinishedRun:
    """The end of a run that must leave nothing behind."""
    finished = run.finish()
    assert run.leftovers() == []
    return finished


def _verdict(result: dict[str, Any]) -> tuple[str, int | None, int | None]:
    return result["status"], result["rank"], result["step"]


@pytest.mark.parametrize("fault", _CRASHES)
def test_a_rank_that_crashes_is_named_and_other_trials_are_kept(run_here: RunsHere, fault: str) -> None:
    step, reason = _CRASHES[fault]
    run = run_here("train", *TINY, "--world-size=1,2", SCALESCOPE_FAULT=fault)
    assert run_here.leftovers() == []
    assert run.returncode == 4
    failed = run.only(world_size=2)
    assert _verdict(failed) == ("failed", 1, step)
    assert failed["reason"] == reason
    assert failed["duration_s"] < 2.0 + _START_UP_S
    assert f"failed: {reason} (log: {failed['log']})" in run.stdout
    assert failed["log"].endswith("-1.log")
    kept = run.only(world_size=1)
    assert kept["status"] == "ok"
    assert len(kept["ranks"][0]["samples"]["step_time_s"]) == 5
    assert {one["status"] for one in run.summary["results"]["training"]} == {"ok", "failed"}


def test_a_raising_rank_ends_the_command_within_two_seconds_and_logs_its_traceback(start: Start) -> None:
    run = _finish(start("train", *TINY, "--world-size=2", SCALESCOPE_FAULT="raise@0:5"))
    (failed,) = run.results
    assert _verdict(failed) == ("failed", 0, 5)
    name = f"{failed['trial_id']}-{failed['launch']}-0.json"
    record = json.loads((run.folder / "ranks" / name).read_text())
    assert run.ended_at - record["error"]["at_wall_s"] < 2.0 + 1.0  # the interpreter's own end is slow
    log = run.log(failed, 0).splitlines()
    assert log[0].startswith("Traceback")
    assert log[-1] == "RuntimeError: injected fault"


def _assert_stacks(run: FinishedRun, result: dict[str, Any], culprit: int) -> None:
    for rank in (0, 1):
        assert "most recent call first" in run.log(result, rank)
    assert "faults.py" in run.log(result, culprit)


@pytest.mark.parametrize(("rank", "step"), [(1, 5), (0, 1)], ids=["measured", "warming up"])
def test_a_stopped_rank_is_named(run_here: RunsHere, rank: int, step: int) -> None:
    limits = ("--stall-timeout=2s", "--warmup-timeout=2s")
    run = run_here("train", *TINY, "--world-size=2", *limits, SCALESCOPE_FAULT=f"stop@{rank}:{step}")
    assert run_here.leftovers() == []
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", rank, step)
    assert result["reason"].startswith(f"rank {rank} is stopped by a signal at step {step}: no progress")
    assert 2.0 < result["duration_s"] < 2.0 + 1.0 + _START_UP_S
    assert "step_time_s" not in result["ranks"][rank]["samples"]
    _assert_stacks(run, result, rank)


@pytest.mark.parametrize(
    ("fault", "verdict", "reason"),
    [
        ("deadlock@1:5", ("hang", 1, 5), "rank 1 hangs at step 5: no progress for "),
        ("deadlock@all:4", ("hang", None, 4), "all ranks hang at step 4: no progress for "),
    ],
    ids=["one", "all"],
)
def test_deadlocked_ranks_are_named_one_or_all(
    run_here: RunsHere, fault: str, verdict: tuple[str, int | None, int], reason: str
) -> None:
    limits = ("--stall-timeout=2s", "--init-timeout=1s")  # a group's own limit must not speak first
    run = run_here("train", *TINY, "--world-size=2", *limits, SCALESCOPE_FAULT=fault)
    assert run_here.leftovers() == []
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == verdict
    assert result["reason"].startswith(reason)
    assert result["duration_s"] < 2.0 + 1.0 + _START_UP_S
    _assert_stacks(run, result, 1)


def test_hang_in_initialisation(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--world-size=2", "--init-timeout=2s", SCALESCOPE_FAULT="init-hang@1:0")
    assert run_here.leftovers() == []
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, None)
    assert result["reason"].startswith("rank 1 hangs in starting")
    _assert_stacks(run, result, 1)


def test_a_rank_that_ignores_sigterm_is_killed(start: Start) -> None:
    flags = ("--world-size=2", "--stall-timeout=2s")
    run = _finish(start("train", *TINY, *flags, SCALESCOPE_FAULT="ignore-term@1:5"))
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, 5)
    assert result["duration_s"] > 2.0 + 1.0  # a second of asking after the stall, then SIGKILL


def test_a_slow_rank_is_measured(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--world-size=2", SCALESCOPE_FAULT="slow@1:0")
    assert run_here.leftovers() == []
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    assert all(min(rank["samples"]["step_time_s"]) > 0.1 for rank in result["ranks"])


def test_a_stalling_rank_is_measured(run_here: RunsHere) -> None:
    # The stall is longer than the limit for joining, which is over by then.
    flags = ("--world-size=2", "--init-timeout=3s")
    run = run_here("train", *TINY, *flags, SCALESCOPE_FAULT="stall:5@1:5")
    assert run_here.leftovers() == []
    assert run.returncode == 0
    (result,) = run.results
    times = result["ranks"][1]["samples"]["step_time_s"]
    assert times[2] > 4.9  # step 5 is the third after three of warm-up
    assert max(times[:2] + times[3:]) < 4.0
    assert re.search(r"\b[1-4] (of 5 )?steps? (lie )?far from the median", run.stdout)


def test_hang_in_teardown_costs_no_result(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--world-size=2", SCALESCOPE_FAULT="teardown-hang@1:0")
    assert run_here.leftovers() == []
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    assert result["notes"] == ["rank 1 did not leave within 5 s and was ended"]
    assert f"note: {result['notes'][0]}" in run.stdout
    assert [len(rank["samples"]["step_time_s"]) for rank in result["ranks"]] == [5, 5]
    assert 5.0 < result["duration_s"] < 5.0 + 1.0 + _START_UP_S


def test_a_flood_of_output_is_capped(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--world-size=2", SCALESCOPE_FAULT="print:80@1:3")
    assert run_here.leftovers() == []
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    (log,) = (run.folder / "logs").glob("*-1.log")
    assert 1 << 20 < log.stat().st_size <= 64 << 20


def test_wrong_training_is_invalid(run_here: RunsHere) -> None:
    expected = {
        "nan@1:0": (("invalid", 1, 7), "the loss of rank 1 is not finite at step 7"),
        "diverge@1:0": (("invalid", None, None), "the ranks' parameters differ after training"),
    }
    for fault, (verdict, reason) in expected.items():
        run = run_here("train", *TINY, "--world-size=1,2", SCALESCOPE_FAULT=fault)
        assert run_here.leftovers() == []
        assert run.returncode == 6
        result = run.only(world_size=2)
        assert _verdict(result) == verdict
        assert result["reason"] == reason
        assert f"invalid: {reason}" in run.stdout
        assert run.only(world_size=1)["status"] == "ok"


@pytest.mark.slow
def test_ranks_started_fresh_fail_in_the_same_words(run_here: RunsHere) -> None:
    expected = {
        "kill@0:4": ("failed", 0, 4, "rank 0 was killed by SIGKILL at step 4"),
        "stop@1:5": ("hang", 1, 5, "rank 1 is stopped by a signal at step 5: no progress for 2 s"),
        "grandchild@1:6": (
            "failed",
            1,
            6,
            "rank 1 failed at step 6: RuntimeError: injected fault with a grandchild",
        ),
    }
    sweep = [f"--env=SCALESCOPE_FAULT={fault}" for fault in expected]
    run = run_here("train", *TINY, "--world-size=2", "--stall-timeout=2s", *sweep)
    assert run_here.leftovers() == []
    assert run.returncode == 4
    assert len(run.results) == len(expected)
    for fault, (*verdict, reason) in expected.items():
        result = run.only(env={"SCALESCOPE_FAULT": fault})
        assert _verdict(result) == tuple(verdict)
        assert result["reason"] == reason
    _assert_stacks(run, run.only(env={"SCALESCOPE_FAULT": "stop@1:5"}), 1)
