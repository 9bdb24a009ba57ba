"""The fault matrix on real ranks: the right one is named, what was finished is kept, nothing is left running.

How each signal and exit code is named, and which silence is whose, is tested with smaller processes in
tests/unit/launch/local/test_supervised_faults.py. Here is what depends on torch and on whole commands.
"""

import json
import math
import re
from typing import Any

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.real_runs import FinishedRun, RunsHere
from tests.speed import duration, limit, patience

pytestmark = pytest.mark.gloo

_CRASHES = {
    "exit@1:6": (2, "exited at step 6 with code 0"),
    "exit:7@1:5": (3, "exited with code 7"),
    "kill@1:1": (4, "SIGKILL"),
    "segv@1:5": (5, "SIGSEGV"),
    "abort@0:4": (5, "SIGABRT"),
}


def _run(run_here: RunsHere, fault: str, *flags: str, world_size: str = "2") -> FinishedRun:
    """A run with a fault, which must leave nothing behind."""
    run = run_here("train", *TINY, f"--world-size={world_size}", *flags, SCALESCOPE_FAULT=fault)
    assert run_here.leftovers() == []
    return run


def _verdict(result: dict[str, Any]) -> tuple[str, int | None, int | None]:
    return result["status"], result["rank"], result["step"]


@pytest.mark.basic
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.fault(row)) for fault, (row, _) in _CRASHES.items()]
)
def test_a_rank_that_crashes_is_named(run_here: RunsHere, seen: Seen, fault: str) -> None:
    run = _run(run_here, fault)
    assert run.returncode == 4
    (failed,) = run.results
    _, _, rank, step = re.split("[@:]", fault if fault.count(":") == 2 else fault.replace("@", ":0@"))
    assert _verdict(failed) == ("failed", int(rank), int(step))
    assert _CRASHES[fault][1] in failed["reason"]
    assert failed["reason"] in run.stdout and failed["log"] in run.stdout
    assert failed["log"].endswith(f"-{rank}.log")
    seen(f"code {run.returncode}, {failed['duration_s']:.1f} s after the launch began: {failed['reason']}")


@pytest.mark.fault(1)
def test_a_raising_rank_ends_the_command_soon_and_logs_its_traceback(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "raise@0:5")
    assert run.returncode == 4
    (failed,) = run.results
    assert _verdict(failed) == ("failed", 0, 5)
    name = f"{failed['trial_id']}-{failed['launch']}-0.json"
    record = json.loads((run.folder / "ranks" / name).read_text())
    after_s = run.ended_at - record["error"]["at_wall_s"]
    assert after_s < patience(3)
    log = run.log(failed, 0).splitlines()
    assert log[0].startswith("Traceback")
    assert log[-1] == "RuntimeError: injected fault"
    seen(f"code {run.returncode} after {after_s:.1f} s: {failed['reason']}")


@pytest.mark.fault(1)
def test_other_trials_are_kept(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "raise@1:3", world_size="1,2")  # rank 1 is in one of the trials only
    assert run.returncode == 4
    assert _verdict(run.only(world_size=2)) == ("failed", 1, 3)
    finished = run.only(world_size=1)
    assert finished["status"] == "ok"
    assert len(finished["ranks"][0]["samples"]["step_time_s"]) == 5
    assert {row["status"] for row in run.summary["results"]["training"]} == {"ok", "failed"}
    seen("the other trial of the sweep is kept")


def _assert_stacks(run: FinishedRun, result: dict[str, Any], culprit: int) -> None:
    for rank in (0, 1):
        assert "most recent call first" in run.log(result, rank)
    assert "faults.py" in run.log(result, culprit)


@pytest.mark.fault(6)
def test_a_stopped_rank_is_named(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "stop@1:5", f"--stall-timeout={duration(2)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, 5)
    assert "stopped" in result["reason"]  # not only without progress
    assert result["duration_s"] > limit(2.0)
    assert "step_time_s" not in result["ranks"][1]["samples"]
    _assert_stacks(run, result, 1)
    seen(_hang_text(run, result, "stacks of both ranks in their logs"))


def _hang_text(run: FinishedRun, result: dict[str, Any], and_then: str) -> str:
    return f"code {run.returncode}: {result['reason']} (limit {limit(2.0):.1f} s); {and_then}"


@pytest.mark.basic
@pytest.mark.fault(7)
def test_a_rank_that_waits_for_ever_is_named(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "deadlock@1:5", f"--stall-timeout={duration(2)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, 5)
    _assert_stacks(run, result, 1)
    seen(_hang_text(run, result, "rank 0, which waited for it, is not blamed"))


@pytest.mark.fault(8)
def test_ranks_that_are_all_stuck_are_named_together(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "deadlock@all:4", f"--stall-timeout={duration(2)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", None, 4)
    _assert_stacks(run, result, 1)
    seen(_hang_text(run, result, "stacks of both ranks in their logs"))


@pytest.mark.fault(9)
def test_a_slow_rank_is_named_with_its_cost(run_here: RunsHere, seen: Seen) -> None:
    flags = ("--world-size=1,2", "--repeats=2")
    run = run_here("scale", *TINY, *flags, SCALESCOPE_FAULT="slow:60@1:0")
    assert run_here.leftovers() == []
    assert run.returncode == 0
    slowest = run.summary["results"]["scaling"][-1]["waterfall"]["slowest_rank"]
    assert slowest["rank"] == 1 and slowest["time_s"] > 0.0
    seen(f"code 0: rank 1 named, {slowest['time_s'] * 1e3:.0f} ms per step; 60 ms were added to its steps")


@pytest.mark.fault(10)
def test_a_stall_is_measured_and_counted(run_here: RunsHere, seen: Seen) -> None:
    # The stall is longer than the limit for joining, which is over by then and must not end the group.
    stall_s = math.ceil(limit(3))
    run = _run(run_here, f"stall:{stall_s}@1:5", f"--init-timeout={duration(2)}")
    assert run.returncode == 0
    (result,) = run.results
    times = result["ranks"][1]["samples"]["step_time_s"]
    assert times[2] > 0.99 * stall_s  # step 5 is the third after three of warm-up
    assert max(times[:2] + times[3:]) < times[2]
    (row,) = run.summary["results"]["training"]
    (counted,) = (warning for warning in row["warnings"] if "far from the median" in warning)
    seen(f"code 0, a step of {times[2]:.1f} s: {counted}")


@pytest.mark.fault(11)
def test_a_rank_that_hangs_while_it_starts_is_named(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "init-hang@1:0", f"--init-timeout={duration(2)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, None)
    seen(_hang_text(run, result, "nothing is left"))


@pytest.mark.fault(12)
@pytest.mark.parametrize("stage", ["teardown", "exit"])
def test_a_hang_after_the_last_step_loses_no_result(run_here: RunsHere, seen: Seen, stage: str) -> None:
    run = _run(run_here, f"{stage}-hang@1:0", f"--teardown-timeout={duration(1)}")
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    (note,) = result["notes"]
    assert "rank 1" in note and note in run.stdout
    assert [len(rank["samples"]["step_time_s"]) for rank in result["ranks"]] == [5, 5]
    seen(f"code 0, 5 of 5 steps stored ({stage}): {note}")


@pytest.mark.fault(13)
def test_a_rank_that_ignores_sigterm_is_killed(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "ignore-term@1:5", f"--stall-timeout={duration(1)}")
    assert run.returncode == 5
    (result,) = run.results
    assert _verdict(result) == ("hang", 1, 5)
    seen(f"code {run.returncode}, no process left {result['duration_s']:.1f} s after the launch began")


_LOADING = """
import time
import torch
from torch import nn

class Samples(torch.utils.data.Dataset):
    loaded = 0
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if self.loaded == 0 and torch.utils.data.get_worker_info() is not None:
            print("a worker loads", flush=True)
        self.loaded += 1
        if self.loaded > 14:
            time.sleep(3600)  # this worker would notice the end of its rank only after an hour
        return torch.zeros(2), torch.zeros(2)

def build():
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1)
    return nn.Linear(2, 2), loader, nn.functional.mse_loss
"""


@pytest.mark.fault(14)
def test_data_loader_workers_end_with_their_rank(run_here: RunsHere, seen: Seen) -> None:
    (run_here.directory / "loading.py").write_text(_LOADING)
    flags = ("--device=cpu", "--steps-per-epoch=8", "--warmup-steps=3", "--no-breakdown", "--data=own")
    run = run_here(
        "train", *flags, "--workload=loading.py:build", "--batch-size=2", SCALESCOPE_FAULT="kill@0:5"
    )
    assert run_here.leftovers() == []
    assert run.returncode == 4
    (result,) = run.results
    assert _verdict(result) == ("failed", 0, 5)
    assert "a worker loads" in run.log(result, 0)
    seen(f"code 4: {result['reason']}; its loading worker is gone too")


@pytest.mark.fault(14)
def test_what_a_rank_started_ends_with_it(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "grandchild@1:5")
    assert run.returncode == 4
    (result,) = run.results
    assert _verdict(result) == ("failed", 1, 5)
    assert "grandchild " in run.log(result, 1)  # it was there
    seen("a process that the rank started is gone too")


_WRONG = {
    "nan@1:0": (27, ("invalid", 1, 7), "loss"),
    "diverge@1:0": (29, ("invalid", None, None), "parameters"),
}


@pytest.mark.basic
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.fault(row)) for fault, (row, *_) in _WRONG.items()]
)
def test_wrong_training_is_invalid(run_here: RunsHere, seen: Seen, fault: str) -> None:
    _, verdict, word = _WRONG[fault]
    run = _run(run_here, fault)
    assert run.returncode == 6
    (result,) = run.results
    assert _verdict(result) == verdict
    assert word in result["reason"] and result["reason"] in run.stdout
    seen(f"code {run.returncode}, {result['status']}: {result['reason']}")


@pytest.mark.own_torch
@pytest.mark.fault(6, 14)
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
