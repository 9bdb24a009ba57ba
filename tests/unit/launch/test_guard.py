"""Guards: they end as their command does, and end all that it started."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.launch.guard import GuardedProcess, start_guarded
from scalescope.launch.local.logs import end_leftovers, leftover_notes, without_perf_maps
from tests.builders.launching import lives
from tests.speed import patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux adopts processes")

# Without environment and in a session of its own; the file has its id.
_DETACH = "setsid env -i sh -c 'echo $$ > {file}; exec sleep 600' &"
_WAIT = "while [ ! -s {file} ]; do sleep 0.01; done; "


@pytest.fixture
def started() -> Iterator[list[GuardedProcess]]:
    processes: list[GuardedProcess] = []
    yield processes
    for process in processes:
        process.end()


def _start(started: list[GuardedProcess], script: str, **options: object) -> GuardedProcess:
    started.append(start_guarded(["sh", "-c", script], **options))  # type: ignore[arg-type]
    return started[-1]


def _wait_for_code(process: GuardedProcess) -> int:
    deadline = time.monotonic() + patience(10.0)
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    code = process.poll()
    assert code is not None
    return code


def _pid_in(file: Path) -> int:
    deadline = time.monotonic() + patience(10.0)
    while not (file.exists() and file.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.01)
    return int(file.read_text())


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", -11)])
def test_a_guard_ends_as_its_command_does(started: list[GuardedProcess], script: str, code: int) -> None:
    assert _wait_for_code(_start(started, script)) == code


def test_what_a_command_detached_ends_with_it(started: list[GuardedProcess], tmp_path: Path) -> None:
    file = tmp_path / "pid"
    process = _start(started, (_DETACH + _WAIT).format(file=file) + "exit 3")
    assert _wait_for_code(process) == 3
    assert not lives(_pid_in(file))


def test_signals_of_the_group_reach_the_command_and_not_the_guard(
    started: list[GuardedProcess], tmp_path: Path
) -> None:
    file = tmp_path / "ready"
    process = _start(started, f"trap 'exit 5' TERM; echo 1 > {file}; while :; do sleep 0.01; done")
    _pid_in(file)
    os.killpg(process.guard.pid, signal.SIGTERM)
    assert _wait_for_code(process) == 5


def test_a_command_may_lead_a_session_of_its_own(started: list[GuardedProcess]) -> None:
    process = _start(started, "sleep 600", own_session=True)
    deadline = time.monotonic() + patience(5.0)
    while os.getsid(process.pid) != process.pid and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.getsid(process.pid) == process.pid


def test_a_stopped_guard_can_be_ended(started: list[GuardedProcess]) -> None:
    process = _start(started, "sleep 600")
    os.kill(process.guard.pid, signal.SIGSTOP)
    process.end()
    assert not lives(process.pid)


_PARENT = """
import os, signal, sys, time
from pathlib import Path
from scalescope.launch.guard import start_guarded
start_guarded(["sh", "-c", sys.argv[1]], removes=[sys.argv[2]])
while not (Path(sys.argv[3]).exists() and Path(sys.argv[3]).read_text()):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_parent_leaves_neither_processes_nor_directories(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    (tmp_path / "mine-1" / "below").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "mine-0-shared").mkdir()
    script = _DETACH.format(file=file) + " sleep 600"
    held = os.open(tmp_path / "mine-0-shared", os.O_RDONLY)  # as another rank does
    fcntl.flock(held, fcntl.LOCK_SH)
    subprocess.run([sys.executable, "-c", _PARENT, script, f"{tmp_path}/mine-", str(file)], check=False)
    deadline = time.monotonic() + patience(10.0)
    while (lives(_pid_in(file)) or (tmp_path / "mine-1").exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lives(_pid_in(file))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-0-shared", "other", "pid"]
    os.close(held)


def test_leftovers_are_named_if_they_left_their_session(
    started: list[GuardedProcess], tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    process = _start(started, _DETACH.format(file=file) + " exec sleep 600")
    detached = _pid_in(file)
    while Path(f"/proc/{detached}/comm").read_text() != "sleep\n":
        time.sleep(0.01)
    assert end_leftovers(process.guard.pid, process.pid, ()) == ["sleep"]
    assert not lives(detached)
    assert lives(process.pid)
    assert end_leftovers(process.guard.pid, process.pid, ()) == []


def test_notes_name_a_few() -> None:
    assert leftover_notes([]) == []
    (note,) = leftover_notes(["sleep", "sleep", "redis"])
    assert "3 detached processes" in note
    assert "redis, sleep" in note


def test_a_profile_of_the_user_is_kept() -> None:
    assert without_perf_maps({}) == {"ONEDNN_JIT_PROFILE": "1"}
    assert (
        without_perf_maps({"ONEDNN_JIT_PROFILE": "6"}) == without_perf_maps({"DNNL_JIT_PROFILE": "2"}) == {}
    )
