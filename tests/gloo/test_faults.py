"""The fault matrix on real ranks: the right one is named, what was finished is kept, nothing is left running.

How each signal and exit code is named, and which silence is whose, is tested with smaller processes in
tests/unit/launch/local/test_supervised_faults.py. Here is what depends on torch and on whole commands.
"""

import json
import math
from typing import Any

import pytest

from tests.conftest import TINY
from tests.gloo.real_runs import FinishedRun, RunsHere
from tests.speed import duration, limit

pytestmark = pytest.mark.gloo

_CRASHES = {
    "raise@1:3": "RuntimeError: injected fault",
    "kill@1:1": "SIGKILL",
    "segv@1:5": "SIGSEGV",
    "grandchild@1:5": "RuntimeError: injected fault with a grandchild",
}


def _run(run_here: RunsHere, fault: str, *flags: str, world_size: str = "2") -> FinishedRun:
    """A run with a fault, which must leave nothing behind."""
    run = run_here("train", *TINY, f"--world-size={world_size}", *flags, SCALESCOPE_FAULT=fault)
    assert run_here.leftovers() == []
    return run


def _verdict(result: dict[str, Any]) -> tuple[str, int | None, int | None]:
    return result["status"], result["rank"], result["step"]


@pytest.mark.parametrize("fault", _CRASHES)
def test_a_rank_that_crashes_is_named(run_here: RunsHere, fault: str) -> None:
    run = _run(run_here, fault)
    assert run.returncode == 4
    (failed,) = run.results
    assert _verdict(failed) == ("failed", 1, int(fault.partition(":")[2]))
    assert _CRASHES[fault] in failed["reason"]
    assert failed["reason"] in run.stdout and failed["log"] in run.stdout
    assert failed["log"].endswith("-1.log")


def test_a_raising_rank_ends_the_command_soon_and_logs_its_traceback(run_here: RunsHere) -> None:
    run = _run(run_here, "raise@0:5")
    assert run.returncode == 4
    (failed,) = run.results
    assert _verdict(failed) == ("failed", 0, 5)
    name = f"{failed['trial_id']}-{failed['launch']}-0.json"
    record = json.loads((run.folder / "ranks" / name).read_text())
    assert run.ended_at - record["error"]["at_wall_s"] < limit(2.0 + 1.0)
    log = run.log(failed, 0).splitlines()
    assert log[0].startswith("Traceback")
    assert log[-1] == "RuntimeError: injected fault"


def test_other_trials_are_kept(run_here: RunsHere) -> None:
    run = _run(run_here, "raise@1:3", world_size="1,2")  # rank 1 is in one of the trials only
    assert run.returncode == 4
    assert _verdict(run.only(world_size=2)) == ("failed", 1, 3)
    finished = run.only(world_size=1)
    assert finished["status"] == "ok"
    assert len(finished["ranks"][0]["samples"]["step_time_s"]) == 5
    assert {row["status"] for row in run.summary["results"]["training"]} == {"ok", "failed"}


def _assert_stacks(run: FinishedRun, result: dict[str, Any], culprit: int) -> None:
    for rank in (0, 1):
        assert "most recent call first" in run.log(result, rank)
    assert "faults.py" in run.log(result, culprit)


def test_a_stopped_rank_is_named(run_here: RunsHere) -> None:
    run = _run(run_here, "stop@1:5", f"--stall-timeout={duration(2)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, 5)
    assert "stopped" in result["reason"]  # not only without progress
    assert result["duration_s"] > limit(2.0)
    assert "step_time_s" not in result["ranks"][1]["samples"]
    _assert_stacks(run, result, 1)


def test_ranks_that_are_all_stuck_are_named_together(run_here: RunsHere) -> None:
    run = _run(run_here, "deadlock@all:4", f"--stall-timeout={duration(2)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", None, 4)
    _assert_stacks(run, result, 1)


def test_a_slow_rank_is_measured(run_here: RunsHere) -> None:
    run = _run(run_here, "slow@1:0")
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    assert all(min(rank["samples"]["step_time_s"]) > 0.1 for rank in result["ranks"])


def test_a_stalling_rank_is_measured(run_here: RunsHere) -> None:
    # The stall is longer than the limit for joining, which is over by then and must not end the group.
    stall_s = math.ceil(limit(5))
    run = _run(run_here, f"stall:{stall_s}@1:5", f"--init-timeout={duration(4)}")
    assert run.returncode == 0
    (result,) = run.results
    times = result["ranks"][1]["samples"]["step_time_s"]
    assert times[2] > 0.99 * stall_s  # step 5 is the third after three of warm-up
    assert max(times[:2] + times[3:]) < times[2]


@pytest.mark.parametrize("stage", ["teardown", "exit"])
def test_a_hang_after_the_last_step_loses_no_result(run_here: RunsHere, stage: str) -> None:
    run = _run(run_here, f"{stage}-hang@1:0", f"--teardown-timeout={duration(1)}")
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    (note,) = result["notes"]
    assert "rank 1" in note and note in run.stdout
    assert [len(rank["samples"]["step_time_s"]) for rank in result["ranks"]] == [5, 5]


@pytest.mark.parametrize(
    ("fault", "verdict", "word"),
    [
        ("nan@1:0", ("invalid", 1, 7), "loss"),
        ("diverge@1:0", ("invalid", None, None), "parameters"),
    ],
)
def test_wrong_training_is_invalid(
    run_here: RunsHere, fault: str, verdict: tuple[str, int | None, int | None], word: str
) -> None:
    run = _run(run_here, fault)
    assert run.returncode == 6
    (result,) = run.results
    assert _verdict(result) == verdict
    assert word in result["reason"] and result["reason"] in run.stdout


@pytest.mark.slow
def test_ranks_started_fresh_fail_the_same_way(run_here: RunsHere) -> None:
    expected = {
        "stop@0:5": (("hang", 0, 5), "stopped"),
        "grandchild@0:6": (
            ("failed", 0, 6),
            "RuntimeError: injected fault with a grandchild",
        ),
    }
    sweep = [f"--env=SCALESCOPE_FAULT={fault}" for fault in expected]
    run = run_here("train", *TINY, f"--stall-timeout={duration(2)}", *sweep)
    assert run_here.leftovers() == []
    assert run.returncode == 4
    assert len(run.results) == len(expected)
    for fault, (verdict, word) in expected.items():
        result = run.only(env={"SCALESCOPE_FAULT": fault})
        assert _verdict(result) == verdict
        assert word in result["reason"]
    stopped = run.only(env={"SCALESCOPE_FAULT": "stop@0:5"})
    assert "faults.py" in run.log(stopped, 0)
