"""Ranks of a job step, without SLURM: its variables are all that a rank knows of it."""

import contextlib
import os
from pathlib import Path

import pytest

from scalescope.launch.private_directory import shared_directory
from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.gloo.real_runs import StartedRun

pytestmark = pytest.mark.gloo

_LISTENING = "0A"
_JOB = f"{os.getpid()}7"  # no two test runs at once may take each other for their other ranks


def step(start: Start, nodes: str, *arguments: str, step_id: int = 0, **extra: str) -> list[StartedRun]:
    """Two tasks of one step; the first one writes."""
    layout = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": "1(x2)" if "," in nodes else "2"}
    return [
        start(
            *arguments,
            SLURM_JOB_ID=_JOB,
            SLURM_STEP_ID=str(step_id),
            SLURM_NTASKS="2",
            SLURM_PROCID=str(rank),
            SLURM_LOCALID="0" if "," in nodes else str(rank),
            SLURM_NODEID=str(rank) if "," in nodes else "0",
            SLURMD_NODENAME=nodes.split(",")[rank if "," in nodes else 0],
            **layout,
            **extra,
        )
        for rank in (0, 1)
    ]


def addresses_open_to(run: StartedRun) -> list[str]:
    """Where the processes of a run listen, as the system writes it: 0100007F is 127.0.0.1."""
    sockets = {link for pid in run.processes() for link in _links(pid)}
    ranks = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENING and f"socket:[{words[9]}]" in sockets:
                ranks.append(words[1].partition(":")[0])
    return ranks


def _links(pid: int) -> list[str]:
    """What the open files of a process are."""
    ranks = []
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            ranks.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return ranks


def test_ranks_of_one_host_meet_without_a_port(start: Start) -> None:
    long = [word for word in TINY if "steps-per-epoch" not in word]
    first, second = step(start, "here", "train", *long, "--steps-per-epoch=100000")
    ranks = (first, second)
    first.wait_until(lambda: all(map(addresses_open_to, ranks)), "gloo between the ranks")
    assert {address for run in ranks for address in addresses_open_to(run)} == {"0100007F"}
    with shared_directory(f"{_JOB}.0.0") as meeting:
        assert (meeting / "store").exists()
    first.send(15)
    assert first.finish().returncode == 143
    second.finish()
    assert first.leftovers() == second.leftovers() == []
    assert not meeting.exists()


@pytest.mark.basic
def test_one_host_stores_the_same_as_any_run(start: Start) -> None:
    first, second = step(start, "here", "train", *TINY, step_id=1)
    finished = first.finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert second.finish().returncode == 0
    assert "authentication" not in finished.stdout
    assert [rank["host"] for rank in finished.results[0]["ranks"]] == ["here", "here"]


def test_a_lost_rank_is_named_and_ends_the_run(start: Start) -> None:
    apart = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417", "SCALESCOPE_FAULT": "kill@1:4"}
    sizes = [word for word in TINY if "batch-size" not in word]
    asked = ("scale", *sizes, "--batch-size=4,8", "--world-size=2", "--no-waterfall")
    first, second = step(start, "n1,n2", *asked, **apart)
    finished = first.finish(90)
    assert finished.returncode == 4, finished.stdout + finished.stderr
    (result,) = finished.results  # what was not launched is not recorded
    assert result["status"] == "failed" and result["rank"] == 1
    assert [rank["host"] for rank in result["ranks"]] == ["n1", "n2"]
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("scalescope: ")]
    assert "rank 1" in line and "n2" in line
    assert "authentication" in finished.stdout  # of torch's store, which has none
    assert second.finish().returncode != 0
    assert first.leftovers() == second.leftovers() == []
