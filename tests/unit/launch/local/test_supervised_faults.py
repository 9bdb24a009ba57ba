"""The fault matrix with processes that are ranks in all but torch: who is named, and that nothing is left.

What only real ranks can show (torch's own errors and the group's reaction to a death) is in tests/faults.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalescope.launch.launcher import Outcome
from scalescope.launch.local import logs
from scalescope.launch.local.rank_watch import SupervisedLaunch, SupervisedRank
from scalescope.launch.local.supervisor import Supervisor
from scalescope.results.ranks import Heartbeats
from tests.builders.acted_rank import STEPS
from tests.builders.commands import Recorder
from tests.builders.launching import lives, usual_limits
from tests.conftest import clean_environment
from tests.speed import limit, patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

_RANKS = 2
_STALL_S = 1.0  # only where a hang is expected: a busy machine may take longer over any step
_ROOT = Path(__file__).parents[4]


class Launch:
    """Two acted ranks under a supervisor."""

    def __init__(self, folder: Path, fault: str) -> None:
        self.folder = folder
        self._beats = Heartbeats(folder / "beats", _RANKS, create=True)
        self.processes = [self._start(rank, fault) for rank in range(_RANKS)]

    def _start(self, rank: int, fault: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.builders.acted_rank", str(rank), str(_RANKS)]
        with self.log(rank).open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.folder)],
                cwd=_ROOT,
                env=clean_environment(SCALESCOPE_FAULT=fault),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, rank: int) -> Path:
        return self.folder / f"{rank}.log"

    def run(self, **limits: float) -> Outcome:
        """Supervise to the end; limits are a user's usual ones, and those given are for a fast machine."""
        given = {name: limit(value) for name, value in limits.items()}
        ranks = [
            SupervisedRank(process=process, rank_file=self.folder / f"{rank}.json", log=self.log(rank))
            for rank, process in enumerate(self.processes)
        ]
        launch = SupervisedLaunch(ranks=ranks, beats=self._beats, limits=usual_limits(**given), steps=STEPS)
        outcome = Supervisor(launch, Recorder(), _wait).run()
        assert [process.poll() is None for process in self.processes] == [False] * _RANKS
        return outcome

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _wait(seconds: float) -> None:
    time.sleep(min(seconds, 0.02))


Begin = Callable[[str], Launch]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start two acted ranks with a fault; whatever a failing test leaves is ended."""
    begun: list[Launch] = []

    def start(fault: str) -> Launch:
        begun.append(Launch(tmp_path, fault))
        return begun[-1]

    yield start
    for launch in begun:
        launch.end()


_ENDS = {
    "raise@1:3": (3, "rank 1 exited with code 1 at step 3"),
    "exit@1:6": (6, "rank 1 exited at step 6 with code 0 and without a result"),
    "exit:7@1:5": (5, "rank 1 exited with code 7 at step 5"),
    "kill@0:1": (1, "rank 0 was killed by SIGKILL at step 1"),
    "segv@1:5": (5, "rank 1 was killed by SIGSEGV at step 5"),
    "abort@1:4": (4, "rank 1 was killed by SIGABRT at step 4"),
}


@pytest.mark.parametrize("fault", _ENDS)
def test_a_rank_that_ends_early_is_named_with_how_it_ended(begin: Begin, fault: str) -> None:
    step, reason = _ENDS[fault]
    outcome = begin(fault).run()
    assert (outcome.status, outcome.rank, outcome.step) == ("failed", int(reason.split()[1]), step)
    assert outcome.reason == reason


def test_without_a_fault_all_is_well(begin: Begin) -> None:
    outcome = begin("exit@5:0").run()
    assert (outcome.status, outcome.notes, len(outcome.records)) == ("ok", [], _RANKS)


_HANGS = {
    "stop@1:5": ("rank 1 is stopped by a signal at step 5: no progress for ", 1, 5),
    "deadlock@1:5": ("rank 1 hangs at step 5: no progress for ", 1, 5),
    "deadlock@all:4": ("all ranks hang at step 4: no progress for ", None, 4),
    "init-hang@1:0": ("rank 1 hangs in starting: no progress for ", 1, None),
}


@pytest.mark.parametrize("fault", _HANGS)
def test_a_stalled_rank_is_named_and_stacks_are_written(begin: Begin, fault: str) -> None:
    reason, rank, step = _HANGS[fault]
    launch = begin(fault)
    outcome = launch.run(stall_timeout=_STALL_S, warmup_timeout=_STALL_S, init_timeout=5.0)
    assert (outcome.status, outcome.rank, outcome.step) == ("hang", rank, step)
    assert outcome.reason is not None and outcome.reason.startswith(reason)
    for number in range(_RANKS):
        assert "most recent call first" in launch.log(number).read_text()
    assert "faults.py" in launch.log(rank or 0).read_text()


def test_a_rank_that_ignores_sigterm_is_killed(begin: Begin) -> None:
    launch = begin("ignore-term@1:5")
    outcome = launch.run(stall_timeout=_STALL_S)
    assert (outcome.status, outcome.rank, outcome.step) == ("hang", 1, 5)
    assert [process.returncode for process in launch.processes] == [-signal.SIGTERM, -signal.SIGKILL]


@pytest.mark.parametrize("stage", ["teardown", "exit"])
def test_a_hang_after_the_last_step_costs_no_result(begin: Begin, stage: str) -> None:
    outcome = begin(f"{stage}-hang@1:0").run(teardown_timeout=_STALL_S)
    assert outcome.status == "ok"
    assert [record.rank for record in outcome.records] == [0, 1]
    assert outcome.notes == [f"rank 1 did not exit within {limit(_STALL_S):g} s and was killed"]


def test_what_a_rank_started_ends_with_it(begin: Begin) -> None:
    launch = begin("grandchild@1:5")
    outcome = launch.run()
    assert (outcome.status, outcome.rank, outcome.step) == ("failed", 1, 5)
    (line,) = (line for line in launch.log(1).read_text().splitlines() if line.startswith("grandchild "))
    grandchild = int(line.split()[1])
    deadline = time.monotonic() + patience(10)
    while lives(grandchild) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lives(grandchild)


def test_a_flood_of_output_is_capped(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST_BYTES", 8 << 20)
    launch = begin("print:20@1:3")
    assert launch.run().status == "ok"
    assert 1 << 20 < os.stat(launch.log(1)).st_size <= 8 << 20


def test_a_rank_that_stalls_for_less_than_the_limit_is_waited_for(begin: Begin) -> None:
    assert begin("stall:1@1:5").run(stall_timeout=5.0).status == "ok"
