"""Ranks and jobs on several machines: a port that is taken; a SLURM that is missing, refuses or waits."""

import socket
import time
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.speed import duration


@pytest.mark.gloo
@pytest.mark.fault(24)
def test_a_port_that_is_taken_is_named(start: Start, seen: Seen) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        began = time.monotonic()
        run = start("train", *TINY, **rank, **meeting).finish()
        took_s = time.monotonic() - began
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert str(port) in line
    assert run.results == []
    seen(f"code 3 after {took_s:.1f} s: {line.removeprefix('scalescope: ').replace(str(port), 'PORT')}")


def _tools(folder: Path, **scripts: str) -> str:
    """A PATH with these commands of SLURM and no others."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


_JOB = ("train", *TINY, "--launcher=slurm")


@pytest.mark.fault(35)
def test_a_missing_sbatch_is_named(start: Start, tmp_path: Path, seen: Seen) -> None:
    run = start(*_JOB, PATH=_tools(tmp_path / "tools")).finish()
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert "sbatch was not found" in line
    seen(f"code 3: {line.removeprefix('scalescope: ')}")


@pytest.mark.fault(35)
def test_the_message_of_an_sbatch_that_fails_is_shown(start: Start, tmp_path: Path, seen: Seen) -> None:
    tools = _tools(tmp_path / "tools", sbatch="echo 'sbatch: error: no such partition' >&2; exit 1")
    run = start(*_JOB, PATH=tools).finish()
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert line.endswith("sbatch failed: no such partition")
    seen(f"code 3: {line.removeprefix('scalescope: ')}")


@pytest.mark.fault(35)
def test_a_job_that_waits_for_ever_has_a_deadline(start: Start, tmp_path: Path, seen: Seen) -> None:
    pending = f'test -e "{tmp_path}/cancelled" && echo "CANCELLED|None" || echo "PENDING|Resources"'
    tools = _tools(
        tmp_path / "tools", sbatch="echo 17", squeue=pending, scancel=f'echo "$1" > "{tmp_path}/cancelled"'
    )
    began = time.monotonic()
    run = start(*_JOB, f"--queue-timeout={duration(1)}", PATH=f"{tools}:/usr/bin:/bin").finish()
    took_s = time.monotonic() - began
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert "job 17 was pending (Resources) for longer than --queue-timeout" in line
    assert (tmp_path / "cancelled").read_text() == "17\n"
    seen(f"code 3 after {took_s:.1f} s with --queue-timeout {duration(1)}; the job is cancelled")
