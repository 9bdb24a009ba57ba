"""Launches of own workloads that fail, disagree or differ, and clocks that jump."""

import re
from pathlib import Path
from unittest import mock

import pytest

from tests.faults.conftest import Seen
from tests.gloo.real_runs import FinishedRun, RunsHere
from tests.speed import duration

_SOURCE = Path(__file__).parents[2] / "src" / "scalescope"
_SHORT = (
    "--device=cpu",
    "--steps-per-epoch=8",
    "--warmup-steps=3",
    "--no-repeat-disturbed",
    "--no-breakdown",
)

_HEAD = """
import itertools, random, time
import torch
import torch.distributed as dist
from torch import nn

def build(rank, batch_size):
    def loss(output, target):
        before_loss(rank, batch_size)
        return nn.functional.mse_loss(output, target)
    return nn.Linear(2, 2), [(torch.zeros(2), torch.zeros(2))] * 512, loss
"""


def _run(run_here: RunsHere, name: str, source: str, *flags: str) -> FinishedRun:
    """Train a small model; `source` has what happens before each loss."""
    (run_here.directory / f"{name}.py").write_text(f"{_HEAD}\n{source}")
    run = run_here("train", *_SHORT, f"--workload={name}.py:build", *flags)
    assert run_here.leftovers() == []
    return run


_SMALL_DEVICE = """
def before_loss(rank, batch_size):
    if batch_size == 8:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
"""


@pytest.mark.gloo
@pytest.mark.fault(26)
def test_a_size_that_does_not_fit_does_not_stop_the_sweep(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "small_device", _SMALL_DEVICE, "--batch-size=4,8,16", "--repeats=2")
    assert run.returncode == 4
    statuses = {
        size: [result["status"] for result in run.results if result["settings"]["batch_size"] == size]
        for size in (4, 8, 16)
    }
    assert statuses == {4: ["ok", "ok"], 8: ["oom"], 16: ["ok", "ok"]}
    rows = {row["batch_size"]: row["status"] for row in run.summary["results"]["training"]}
    assert rows == {4: "ok", 8: "oom", 16: "ok"}
    seen("code 4: batch 8 is `oom` and tried once, batches 4 and 16 have 2 launches each")


_OTHER_SHAPE = """
def before_loss(rank, batch_size):
    dist.all_reduce(torch.zeros(1000 * (1 + rank)))
"""
_OTHER_ORDER = """
def before_loss(rank, batch_size):
    calls = [lambda: dist.all_reduce(torch.zeros(1000)), lambda: dist.broadcast(torch.zeros(10), 0)]
    for call in calls if rank == 0 else reversed(calls):
        call()
"""


@pytest.mark.gloo
@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("name", "source", "second"),
    [
        ("other_shape", _OTHER_SHAPE, "rank 1 all_reduce of [2000] torch.float32"),
        ("other_order", _OTHER_ORDER, "rank 1 broadcast of [10] torch.float32"),
    ],
    ids=["shape", "order"],
)
def test_ranks_that_disagree_are_both_named(
    run_here: RunsHere, seen: Seen, name: str, source: str, second: str
) -> None:
    flags = ("--world-size=2", "--batch-size=4", f"--warmup-timeout={duration(2)}")
    run = _run(run_here, name, source, *flags)
    assert run.returncode == 4
    (result,) = run.results
    assert (result["status"], result["rank"], result["step"]) == ("failed", None, 0)
    assert result["reason"].endswith(f"rank 0 all_reduce of [1000] torch.float32, {second}")
    assert result["reason"] in run.stdout
    seen(f"code 4: {result['reason']}")


_JUMPS_S = 86_400.0
_JUMPING_CLOCK = f"""
real, jumps = time.time, itertools.cycle((0.0, {_JUMPS_S}, -{_JUMPS_S}))
time.time = lambda: real() + next(jumps)

def before_loss(rank, batch_size):
    time.time()
"""


@pytest.mark.gloo
@pytest.mark.fault(32)
def test_a_clock_that_jumps_changes_no_duration(run_here: RunsHere, seen: Seen) -> None:
    times = mock.Mock(side_effect=(1.8e9 + number % 3 * _JUMPS_S for number in range(10**9)))
    with mock.patch("time.time", times):  # of the controller; the workload does the same in its ranks
        run = _run(run_here, "jumping_clock", _JUMPING_CLOCK, "--world-size=2", "--batch-size=4")
    assert run.returncode == 0
    (result,) = run.results
    durations = [result["duration_s"]]
    for rank in result["ranks"]:
        durations += rank["samples"]["step_time_s"]
    assert all(0.0 < time_s < 3600.0 for time_s in durations)
    (row,) = run.summary["results"]["training"]
    assert 0.0 < row["step_time_s"]["mean"] < 3600.0
    seen(f"jumps of a day: all {len(durations)} durations of a launch are below {max(durations):.1f} s")


# Where the wall clock is right: a moment to store, or to compare with what others wrote by it.
_WALL_CLOCKS = {
    "launch/private_directory.py",  # the age of a directory, by its time stamp
    "launch/telemetry/sampler.py",  # moments that the GPU's driver recorded
    "worker/process/rank.py",  # when a rank failed
    "worker/training/activity/compilation.py",  # moments that torch's compiler recorded
}


@pytest.mark.fault(32)
def test_only_listed_files_read_the_wall_clock() -> None:
    reading = {
        str(path.relative_to(_SOURCE))
        for path in _SOURCE.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|\bfrom time import\b.*\btime\b", path.read_text(encoding="utf-8"))
    }
    assert reading <= _WALL_CLOCKS


_UNSTABLE = """
delay_s = random.SystemRandom().uniform(0.001, 0.03)  # another one in each launch

def before_loss(rank, batch_size):
    time.sleep(delay_s)
"""


@pytest.mark.gloo
@pytest.mark.fault(36)
def test_launches_that_differ_are_reported(run_here: RunsHere, seen: Seen) -> None:
    run = _run(run_here, "unstable", _UNSTABLE, "--batch-size=4", "--repeats=4", "--strict")
    assert run.returncode == 6
    (row,) = run.summary["results"]["training"]
    (noise,) = (warning for warning in row["warnings"] if warning.startswith("noisy: launches differ by"))
    assert noise in run.stdout
    seen(f"code 6 with --strict: {noise}")
