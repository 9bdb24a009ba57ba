"""Nothing of a run is left: detached processes, shared memory, temporary files; also if it is killed."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import RunsHere, StartedRun

pytestmark = [
    pytest.mark.own_torch,
    pytest.mark.gloo,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux adopts"),
]

_SHORT = (
    "--device=cpu",
    "--world-size=2",
    "--steps-per-epoch=6",
    "--warmup-steps=3",
    "--no-repeat-disturbed",
)
_LONG = ("--device=cpu", "--world-size=2", "--window=300s", "--no-repeat-disturbed")
_DETACHING = """
import subprocess
import torch
from torch import nn

def build():
    subprocess.Popen(["sleep", "600"])
    subprocess.run(["sh", "-c", "setsid env -i sh -c 'sleep 600 & sleep 600' &"])
    data = [(torch.zeros(2), torch.zeros(2))] * 64
    return nn.Linear(2, 2), data, nn.functional.mse_loss
"""

_NOTING = """
import multiprocessing.util
import os
import torch
from torch import nn

class Noted(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        note()
        return torch.zeros(2), torch.zeros(2)

def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

def build():
    note()
    multiprocessing.util.get_temp_dir()
    nn.functional.conv2d(torch.ones(4, 3, 32, 32), torch.ones(8, 3, 3, 3))
    loader = torch.utils.data.DataLoader(Noted(), batch_size=4, num_workers=1)
    return nn.Linear(2, 2), loader, nn.functional.mse_loss
"""


def _sleepers() -> set[int]:
    """All `sleep 600`: one without environment carries no mark."""
    return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _words(pid) == [b"sleep", b"600"]}


def _words(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def _launch_directories(pid: int) -> list[str]:
    """Those of one command: other tests may run beside this one."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"scalescope-launch-{pid}-")]


def _temporary_files(directory: Path) -> list[str]:
    """What lies there beside the cache of compiled code, which is meant to last."""
    return [name for name in os.listdir(directory) if not name.startswith("torchinductor_")]


@pytest.fixture(autouse=True)
def end_sleepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End what a failing test leaves, by where it was started."""
    yield
    for pid in _sleepers():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(tmp_path_factory.getbasetemp())):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.fault(47)
@pytest.mark.parametrize("extra", [(), ("--env=X=1",)], ids=["forked", "fresh"])
def test_detached_processes_of_a_workload_end_with_its_launch(
    start: Start, tmp_path: Path, seen: Seen, extra: tuple[str, ...]
) -> None:
    (tmp_path / "detaching.py").write_text(_DETACHING)
    before = _sleepers()
    started = start("train", "--workload=detaching.py:build", "--no-breakdown", *_SHORT, *extra)
    run = started.finish()
    assert run.returncode == 0, run.stderr
    assert _sleepers() <= before
    assert started.leftovers() == []
    if not extra:
        (result,) = run.results
        assert any("sleep" in note for note in result["notes"])
    seen("detached grandchildren of ranks were ended")


def _wait_for_sleepers(started: StartedRun, before: set[int]) -> None:
    started.wait_until(lambda: len(_sleepers() - before) >= 4, "detached process")


@pytest.mark.basic
@pytest.mark.fault(47, 18)
def test_a_killed_command_line_leaves_neither_processes_nor_files(
    start: Start, tmp_path: Path, seen: Seen
) -> None:
    (tmp_path / "detaching.py").write_text(_DETACHING)
    (tmp_path / "tmp").mkdir()
    processes = _sleepers()
    started = start("train", "--workload=detaching.py:build", *_LONG, TMPDIR=str(tmp_path / "tmp"))
    _wait_for_sleepers(started, processes)
    started.wait_for_ranks()
    assert _launch_directories(started.pid)
    started.send(signal.SIGKILL)
    started.finish()
    assert started.leftovers() == []
    assert _sleepers() <= processes
    assert _launch_directories(started.pid) == []
    assert _temporary_files(tmp_path / "tmp") == []
    seen("after SIGKILL of the command line: no process, shared memory or temporary file")


_COMMAND = """
import subprocess
import torch
subprocess.run(["sh", "-c", "setsid env -i sh -c 'sleep 600 & sleep 600' &"])
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000000):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.fault(47)
def test_a_killed_command_line_ends_what_a_training_command_has_detached(
    start: Start, tmp_path: Path, seen: Seen
) -> None:
    script = tmp_path / "train_me.py"
    script.write_text(_COMMAND)
    processes = _sleepers()
    flags = ("--device=cpu", "--world-size=1", "--window=300s")
    started = start("train", *flags, "--", sys.executable, "train_me.py")
    started.wait_until(lambda: len(_sleepers() - processes) >= 2, "detached process")
    started.send(signal.SIGKILL)
    started.finish()
    assert started.leftovers() == []
    assert _sleepers() <= processes
    assert _launch_directories(started.pid) == []
    seen("also what a training command had detached")


@pytest.mark.fault(47)
def test_ranks_and_their_loader_workers_leave_no_temporary_files(
    start: Start, tmp_path: Path, seen: Seen
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "noting.py").write_text(_NOTING)
    began = time.time()
    flags = ("--workload=noting.py:build", "--no-breakdown", *_SHORT)
    run = start("train", *flags, TMPDIR=str(tmp_path / "tmp")).finish()
    assert run.returncode == 0, run.stderr
    pids = set((tmp_path / "pids").read_text().split())
    assert len(pids) >= 4  # two ranks, with a worker each for every epoch
    assert _temporary_files(tmp_path / "tmp") == []
    maps = [path for pid in pids if (path := Path(f"/tmp/perf-{pid}.map")).exists()]
    assert [path for path in maps if path.stat().st_mtime >= began] == []  # others are of earlier days
    seen("no pymp-* folders or perf-PID.map files")


@pytest.mark.fault(47)
def test_half_written_files_of_killed_ranks_are_removed_by_resume(run_here: RunsHere, seen: Seen) -> None:
    run = run_here("train", *_SHORT)
    kept = run.folder / "ranks" / ".mine.json.backup-of-me"
    stray = [run.folder / "ranks" / ".0123456789ab-0-1.json.k3_x9abc", run.folder / ".results.json.abcd1234"]
    for path in (kept, *stray):
        path.write_text(json.dumps({}))
    assert run_here("train", *_SHORT, "--resume", folder=run.folder.name).returncode == 0
    assert [path for path in stray if path.exists()] == []
    assert kept.exists()
    seen("half-written files are removed by --resume")
