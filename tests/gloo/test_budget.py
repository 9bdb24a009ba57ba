"""A budget ends real ranks, and the command that is printed then goes on, from another folder."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import TINY, clean_environment
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE, read_results
from tests.speed import duration, patience

pytestmark = pytest.mark.gloo


def _scalescope(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SCALESCOPE, *words],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=patience(120),
    )


@pytest.mark.basic
def test_the_budget_ends_a_launch_and_resume_repeats_it(start: Start, tmp_path: Path) -> None:
    for seconds in (5, 20, 80, 200):  # on a busy machine starting alone may take the first
        run = start(
            "train",
            *TINY,
            "--world-size=2",
            "--stall-timeout=1h",
            f"--budget={duration(seconds)}",
            folder=f"my run of {seconds}",
            SCALESCOPE_FAULT="stall:3600@1:5",
        )
        finished = run.finish(seconds + 60)
        if finished.results:
            break
    assert run.leftovers() == []
    assert finished.returncode == 3
    (line,) = finished.stderr.splitlines()
    assert "before any launch was finished" in line
    (stopped,) = finished.results
    assert (stopped["status"], stopped["stopped_by"]) == ("interrupted", "budget")
    command = line.partition("; scalescope resume ")[2].partition(" continues it")[0]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    resumed = _scalescope(elsewhere, "resume", *shlex.split(command))
    assert resumed.returncode == 0, resumed.stderr
    assert [result["status"] for result in read_results(run.folder)] == ["interrupted", "ok"]
    refused = _scalescope(elsewhere, "resume", str(run.folder))
    assert refused.returncode == 2
    assert "is finished" in refused.stderr
