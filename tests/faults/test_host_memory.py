"""A rank dies for want of memory: the cause is named, not the signal's number."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.host_memory import group_files
from tests.faults.conftest import Seen
from tests.gloo.real_runs import RunsHere
from tests.speed import patience

_LIMIT_BYTES = 64 << 20
# Joins the group, then starts a rank that takes more than it may; prints what the launcher would say.
_LAUNCHER = """
import pathlib, subprocess, sys
from scalescope.launch.probing import MemoryKills
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
kills = MemoryKills()
code = subprocess.run([sys.executable, "-S", "-c", "bytearray(256 << 20)"]).returncode
print(code, kills.ended(code), kills.text(code))
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group inside our own, with little memory."""
    group = _make_group()
    if group is None:
        pytest.skip("a control group with a memory limit can only be made by root")
    yield group
    group.rmdir()


def _make_group() -> Path | None:
    limits = group_files(Path("/"), "memory.max", "memory.limit_in_bytes")
    ours = next((limit for limit in limits if limit.exists()), None)
    if ours is None or os.geteuid() != 0:
        return None
    group = ours.parent / f"scalescope-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / ours.name).write_text(str(_LIMIT_BYTES))
    except OSError:
        group.rmdir()
        return None
    return group


@pytest.mark.fault(25)
def test_the_kernel_s_own_counter_names_the_cause(small_group: Path, seen: Seen) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, str(small_group)],
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    code, ended, said = done.stdout.strip().split(" ", 2)
    assert (int(code), ended) == (-9, "True"), done.stderr
    assert "out of memory" in said
    seen("a rank in a control group of 64 MiB: `oom`, by the kernel's counter")


# A library that gets no more memory crashes. One of these ranks has taken all it may before, the other not.
_CRASHING = """
import os, resource, signal, time
import torch
from torch import nn


class Crashing(nn.Module):
    def __init__(self, greedy):
        super().__init__()
        self.layer, self.greedy, self.taken = nn.Linear(4, 2), greedy, []

    def forward(self, vectors):
        if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:  # the forecast has none
            return self.layer(vectors)
        try:
            for _ in range(256 if self.greedy else 0):
                self.taken.append(bytearray(1 << 20))
        except MemoryError:
            time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSEGV)


def _job(greedy):
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    return Crashing(greedy), data, nn.functional.cross_entropy


def greedy():
    return _job(True)


def modest():
    return _job(False)
"""


@pytest.mark.own_torch
@pytest.mark.gloo
@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process need Linux")
@pytest.mark.fault(25)
@pytest.mark.parametrize(("function", "status"), [("greedy", "oom"), ("modest", "failed")])
def test_a_rank_that_crashes_at_its_memory_limit_is_out_of_memory(
    run_here: RunsHere, tmp_path: Path, seen: Seen, function: str, status: str
) -> None:
    (tmp_path / "crashing.py").write_text(_CRASHING)
    workload = f"--workload={tmp_path / 'crashing.py'}:{function}"
    done = run_here("memory", workload, "--device=cpu", "--batch-size=8", "--memory-limit=64M", "--no-search")
    (result,) = done.results
    assert result["status"] == status, result["reason"]
    assert "SIGSEGV" in result["reason"]
    assert ("of the 64.0 MiB of --memory-limit" in result["reason"]) == (status == "oom")
    seen(f"a crash under --memory-limit is `{status}`: {result['reason']}")
