"""Ranks of torchrun or srun: what is missing or wrong is said in one line, within its limit."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start, start_as_ranks
from tests.speed import duration

pytestmark = pytest.mark.gloo

_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
}
_INIT_S = 1.0


def _last_line(text: str) -> str:
    assert "Traceback" not in text
    return text.strip().splitlines()[-1]


def _train(start: Start, **variables: str) -> tuple[int, str]:
    run = start("train", *TINY, "--world-size=2", f"--init-timeout={_INIT_S:g}s", **{**_RANK, **variables})
    finished = run.finish()
    assert run.leftovers() == []
    return finished.returncode, finished.stderr


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.fault(48)
@pytest.mark.parametrize(
    ("rank", "missing"), [(0, "rank 1 of 2 did not join"), (1, "rank 0 did not listen at")]
)
def test_a_rank_alone_ends_within_the_time_for_starting(
    rank: int, missing: str, start: Start, seen: Seen
) -> None:
    code, stderr = _train(start, RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=_free_port())
    assert code == 5
    assert f"{missing}" in _last_line(stderr) and f"within {_INIT_S:g} s" in _last_line(stderr)
    seen(f"rank {rank} alone: code 5, the missing rank is named")


_STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}


@pytest.mark.fault(48)
@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"RANK": "5"}, "RANK"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"LOCAL_RANK": "foo"}, "LOCAL_RANK"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT"),
        ({"RANK": "", **_STEP, "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": "7/7"}, "SLURM_JOB_ID"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_variables_are_named_at_once(
    variables: dict[str, str], name: str, start: Start, seen: Seen
) -> None:
    code, stderr = _train(start, **{"MASTER_PORT": "29500", **variables})
    assert (code, stderr.count("\n")) == (3, 1)
    assert stderr.startswith(f"scalescope: {name} is ")
    seen(f"{name}: code 3, one line")


@pytest.mark.fault(24, 48)
def test_a_taken_port_is_named(start: Start, seen: Seen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, stderr = _train(start, MASTER_PORT=str(port))
    assert (code, stderr.count("\n")) == (3, 1)
    assert f"MASTER_PORT {port} cannot be used" in stderr
    seen("code 3, the port is named")


@pytest.mark.fault(48)
def test_a_rank_that_hangs_is_named_within_the_stall_limit(start: Start, seen: Seen) -> None:
    flags = ("train", *TINY, "--world-size=2", f"--stall-timeout={duration(3)}", "--steps-per-epoch=30")
    first, second = start_as_ranks(start, *flags, SCALESCOPE_FAULT="deadlock@1:20")
    leader, follower = first.finish(within_s=180), second.finish()
    assert (leader.returncode, follower.returncode) == (5, 5)
    assert "rank 1 hangs at step 20" in _last_line(leader.stderr)
    (result,) = leader.results
    assert (result["status"], result["rank"], result["step"]) == ("hang", 1, 20)
    assert first.leftovers() == second.leftovers() == []
    seen("a deadlock of rank 1: code 5, rank 1 and its step are named")


_JOB = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_ID": "0"}


@pytest.mark.own_torch
@pytest.mark.fault(18, 48)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says that a parent was killed")
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_killed_ranks_leave_no_directories(launcher: str, start: Start, tmp_path: Path, seen: Seen) -> None:
    """Their private ones, and the one that ranks of a step share; the job's number is this process's."""
    (tmp_path / "tmp").mkdir()
    temporary = {"TMPDIR": str(tmp_path / "tmp")}
    flags = ("train", "--device=cpu", "--world-size=2", "--window=300s", "--no-repeat-disturbed")
    job = f"{os.getpid()}"
    if launcher == "torchrun":
        ranks = start_as_ranks(start, *flags, **temporary)
    else:
        step = {**_JOB, "SLURM_JOB_ID": job, "SLURM_NTASKS": "2", **temporary}
        ranks = [start(*flags, SLURM_PROCID=str(n), SLURM_LOCALID=str(n), **step) for n in (0, 1)]

    def left() -> list[str]:
        ours = tuple(
            f"scalescope-launch-{name}" for name in (*(f"{rank.pid}-" for rank in ranks), f"{job}.0.")
        )
        places = (*os.listdir("/dev/shm"), *os.listdir(tmp_path / "tmp"))
        return [name for name in places if name.startswith(ours)]

    ranks[0].wait_until((tmp_path / "run" / "run.json").exists, "run")
    assert len(left()) == (4 if launcher == "torchrun" else 5)
    for rank in ranks:
        rank.send(signal.SIGKILL)
    for rank in ranks:
        rank.finish()
        assert rank.leftovers() == []
    assert left() == []
    seen(f"SIGKILL of the command lines of {launcher}: no directory is left")
