"""Zygote or ranks that stop, or output that blocks: limits apply, and what was finished is stored."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import RunsHere, StartedRun
from tests.speed import duration

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.fault(39),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

_BLOCKED_OUTPUT = """
import os
import sys

import torch

reading, writing = os.pipe()

def build():
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(1 << 16))
    except BlockingIOError:
        os.set_blocking(writing, True)
    sys.stdout = open(writing, "w")
    print("this waits in the buffer until the rank exits")
    return torch.nn.Linear(4, 2), [(torch.zeros(4), torch.zeros(2))] * 64, torch.nn.functional.mse_loss
"""
_STOPPED_AT_EXIT = """
import os
import signal
import sys

import torch

class StopsWhenFlushed:
    def write(self, text):
        pass

    def flush(self):
        os.kill(os.getpid(), signal.SIGSTOP)

def build():
    sys.stdout = StopsWhenFlushed()
    return torch.nn.Linear(4, 2), [(torch.zeros(4), torch.zeros(2))] * 64, torch.nn.functional.mse_loss
"""
_STEPS = (
    "--steps-per-epoch=5",
    "--warmup-steps=3",
    "--batch-size=4",
    "--device=cpu",
    "--no-repeat-disturbed",
    "--no-breakdown",
)


@pytest.mark.parametrize("workload", [_BLOCKED_OUTPUT, _STOPPED_AT_EXIT], ids=["output blocks", "stopped"])
def test_a_rank_that_does_not_exit_costs_no_result(run_here: RunsHere, seen: Seen, workload: str) -> None:
    (run_here.directory / "late.py").write_text(workload)
    flags = ("--world-size=2", f"--teardown-timeout={duration(1)}", f"--init-timeout={duration(20)}")
    run = run_here("train", "--workload=late.py:build", *_STEPS, *flags)
    assert run.returncode == 0, run.stdout + run.stderr
    (result,) = run.results
    assert result["status"] == "ok"
    assert [len(rank["samples"]["step_time_s"]) for rank in result["ranks"]] == [2, 2]
    (note,) = result["notes"]
    assert note.startswith("all ranks did not exit within")
    assert run_here.leftovers() == []
    seen("stored as ok, ranks ended after the teardown limit")


def _zygote_of(run: StartedRun) -> int | None:
    """The process that forks the ranks: they have its command line, but it alone is a guard's child."""
    for pid in run.processes():
        try:
            process = Path("/proc") / str(pid)
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if _is_zygote(process) and _guards(Path("/proc") / str(parent)):
                return pid
        except OSError:
            continue
    return None


def _guard_of(run: StartedRun) -> int | None:
    return next((pid for pid in run.processes() if _guards(Path("/proc") / str(pid))), None)


def _words(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_zygote(process: Path) -> bool:
    return b"scalescope.worker.process.zygote" in _words(process) and not _guards(process)


def _guards(process: Path) -> bool:
    return any(word.endswith(b"guard.py") for word in _words(process))


def _stop(run: StartedRun, which: Callable[[StartedRun], int | None]) -> None:
    run.wait_until(lambda: which(run) is not None, "process to stop")
    pid = which(run)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.own_torch
def test_a_zygote_that_stops_while_ranks_measure_costs_no_launch(start: Start, seen: Seen) -> None:
    flags = ("--world-size=2", "--window=1.5s", "--repeats=2", "--no-breakdown")
    steps = [flag for flag in TINY if not flag.startswith("--steps")]
    run = start("train", *steps, *flags)
    run.wait_for_ranks()
    _stop(run, _zygote_of)
    finished = run.finish()
    assert (finished.returncode, finished.stderr) == (0, "")
    assert [(result["status"], result["notes"]) for result in finished.results] == [("ok", [])] * 2
    assert run.leftovers() == []
    seen("both launches ok, the zygote replaced between them")


@pytest.mark.own_torch
def test_a_zygote_that_stops_while_torch_is_loaded_ends_the_command(start: Start, seen: Seen) -> None:
    run = start("train", *TINY, f"--init-timeout={duration(1)}")
    _stop(run, _zygote_of)
    finished = run.finish()
    assert finished.returncode == 3
    (line,) = finished.stderr.splitlines()
    assert "torch was not loaded within" in line and "stopped by a signal" in line
    assert run.leftovers() == []
    seen("stopped while torch is loaded: one line and code 3 after --init-timeout")


@pytest.mark.own_torch
def test_a_guard_that_stops_holds_nothing(start: Start, seen: Seen) -> None:
    """It may stop before it has started anything, or after: a run ends in either case."""
    run = start("train", *TINY, f"--init-timeout={duration(5)}")
    _stop(run, _guard_of)
    finished = run.finish()
    assert finished.returncode in (0, 3)
    assert run.leftovers() == []
    seen("a stopped guard: the command ends")
