"""Signals to the command itself: what is finished is kept, nothing is left running, a resume goes on."""

import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import FinishedRun, RunsHere, StartedRun, read_results

pytestmark = pytest.mark.gloo

_STUCK = "stall:3600@1:5"
_STUCK_ALONE = "stall:3600@0:5"
_FLAGS = ("train", *TINY, "--world-size=1,2")


@pytest.fixture(scope="module")
def measured(run_here: RunsHere) -> Path:
    """A folder with one finished launch on one rank and one on two."""
    run = run_here(*_FLAGS)
    assert run.returncode == 0
    return run.folder


def _go_on(start: Start, measured: Path, folder: Path, fault: str = _STUCK) -> StartedRun:
    """Continue what is measured by a second launch of each; the one on two ranks gets stuck."""
    shutil.copytree(measured, folder)
    return start(*_FLAGS, "--repeats=2", "--resume", folder=folder.name, SCALESCOPE_FAULT=fault)


def _assert_ends_cleanly(
    run: StartedRun, number: signal.Signals, finished_before: int, ranks: int = 2
) -> str:
    """Send the signal, look at the end; returns what was seen."""
    run.wait_for_ranks(ranks)
    sent_at = time.monotonic()
    run.send(number)
    finished = run.finish(5)
    after_s = time.monotonic() - sent_at
    assert run.leftovers() == []
    return f"{_clean_end(finished, number, finished_before, ranks)} after {after_s:.1f} s"


def _clean_end(finished: FinishedRun, number: signal.Signals, finished_before: int, ranks: int = 2) -> str:
    """Look at what a stopped command left; returns what was seen."""
    assert finished.returncode == 128 + number
    (line,) = finished.stderr.splitlines()
    assert number.name in line
    assert f"scalescope resume {finished.folder} continues" in line
    *done, stopped = finished.results
    assert len(done) >= finished_before
    assert all(result["status"] == "ok" for result in done)
    assert (stopped["status"], stopped["settings"]["world_size"]) == ("interrupted", ranks)
    assert number.name in stopped["reason"]
    statuses = [row["status"] for row in finished.summary["results"]["training"]]
    assert statuses == [*["ok"] * finished_before, "interrupted"]
    return f"{number.name}: code {finished.returncode}, one line, {len(done)} launches kept"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=[pytest.mark.fault(15), pytest.mark.basic], id="SIGINT"),
        pytest.param(signal.SIGTERM, marks=pytest.mark.fault(16), id="SIGTERM"),
        pytest.param(signal.SIGHUP, marks=pytest.mark.fault(16), id="SIGHUP"),
    ],
)
def test_a_signal_ends_the_run_cleanly(
    start: Start, measured: Path, tmp_path: Path, seen: Seen, number: signal.Signals
) -> None:
    seen(_assert_ends_cleanly(_go_on(start, measured, tmp_path / "run"), number, 2))


@pytest.mark.fault(17)
def test_a_warning_before_preemption_ends_the_run_to_be_resumed(
    start: Start, run_here: RunsHere, measured: Path, tmp_path: Path, seen: Seen
) -> None:
    run = _go_on(start, measured, tmp_path / "run")
    run.wait_for_ranks(2)
    ranks = [pid for pid in run.processes() if pid != run.pid]
    for pid in ranks:  # a scheduler warns all processes of a job step
        os.kill(pid, signal.SIGUSR1)
    text = _assert_ends_cleanly(run, signal.SIGUSR1, 2)
    before = read_results(run.folder)
    resumed = run_here(*_FLAGS, "--repeats=2", "--resume", folder=str(run.folder))
    assert resumed.returncode == 0
    assert resumed.results[: len(before)] == before
    launches = _finished_launches(resumed.results)
    assert len(launches) == 4 and set(launches.values()) == {1}
    seen(f"{text}; --resume: {len(launches)} of 4 launches, each once")


def _finished_launches(results: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """How often each launch was finished."""
    return Counter((result["trial_id"], result["launch"]) for result in results if result["status"] == "ok")


@pytest.mark.fault(15)
def test_sigint_ends_fresh_ranks_cleanly(start: Start) -> None:
    run = start("train", *TINY, "--env=X=1", SCALESCOPE_FAULT=_STUCK_ALONE)
    _assert_ends_cleanly(run, signal.SIGINT, 0, ranks=1)


@pytest.mark.fault(15)
def test_a_second_signal_ends_at_once(start: Start, measured: Path, tmp_path: Path, seen: Seen) -> None:
    run = _go_on(start, measured, tmp_path / "run", fault="ignore-term@1:5")
    run.wait_for_ranks(2)
    run.wait_until(lambda: any(map(_is_deaf, run.processes())), "rank that ignores SIGTERM")
    processes = len(run.processes())
    run.send(signal.SIGINT)
    run.wait_until(lambda: len(run.processes()) < processes, "end of the rank that listens")
    sent_at = time.monotonic()
    run.send(signal.SIGINT)  # within the second that the deaf one is given
    finished = run.finish(20)
    after_s = time.monotonic() - sent_at
    assert finished.returncode == 130
    assert finished.stderr == ""  # it ended at once, without a message
    assert run.leftovers() == []
    assert len(finished.results) in (2, 3)
    assert {result["status"] for result in finished.results} == {"ok"}
    seen(f"twice: code 130 after {after_s:.1f} s, although a rank ignored SIGTERM")


def _is_deaf(pid: int) -> bool:
    """Whether a process ignores SIGTERM."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


@pytest.mark.own_torch
@pytest.mark.fault(15)
def test_a_signal_while_torch_starts(start: Start) -> None:
    run = start("train", *TINY)
    run.wait_until(lambda: len(run.processes()) > 1, "process that imports torch")
    run.send(signal.SIGINT)
    finished = run.finish(20)
    assert finished.returncode == 130
    (line,) = finished.stderr.splitlines()
    assert "SIGINT" in line and "--resume" not in line  # nothing was measured
    assert run.leftovers() == []
    assert not run.folder.exists()


@pytest.mark.basic
@pytest.mark.fault(18, 19)
def test_a_killed_run_is_resumed_without_repeating_what_is_done(
    start: Start, run_here: RunsHere, seen: Seen
) -> None:
    arguments = ("train", *TINY, "--world-size=1,2", "--repeats=3")
    run = start(*arguments, SCALESCOPE_FAULT="slow@1:0")
    run.wait_until(lambda: len(read_results(run.folder)) >= 3, "third result")
    run.wait_until(lambda: len(run.processes()) >= 3, "rank in the middle of its steps")
    run.send(signal.SIGKILL)
    killed = run.finish(20)
    assert killed.returncode == -signal.SIGKILL
    assert run.leftovers(2.0) == []
    gone_s = time.time() - killed.ended_at
    before = (run.folder / "trials.jsonl").read_bytes()
    kept = len(killed.results)
    assert 3 <= kept < 6

    resumed = run_here(*arguments, "--resume", folder=str(run.folder))
    assert resumed.returncode == 0
    assert (run.folder / "trials.jsonl").read_bytes().startswith(before)
    launches = _finished_launches(resumed.results)
    assert len(launches) == 6
    assert set(launches.values()) == {1}
    # Launches that other tests disturbed are left out of an estimate.
    assert all(1 <= row["launches"] <= 3 for row in resumed.summary["results"]["training"])
    seen(
        f"no process left {gone_s:.1f} s after SIGKILL, {kept} launches kept; "
        f"--resume: {len(launches)} of 6 launches, each once"
    )


@pytest.mark.own_torch
@pytest.mark.fault(18)
def test_fresh_ranks_die_with_a_killed_command(start: Start) -> None:
    run = start("train", *TINY, "--env=X=1", SCALESCOPE_FAULT=_STUCK_ALONE)
    run.wait_for_ranks(1)
    assert len(run.processes()) >= 2
    run.send(signal.SIGKILL)
    run.finish(20)
    assert run.leftovers() == []
    assert read_results(run.folder) == []
