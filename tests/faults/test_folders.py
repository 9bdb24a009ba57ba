"""Files and folders that cannot be written, are held by others, or are cut off while they are written."""

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.results.result import to_json
from scalescope.results.run import load_run
from scalescope.results.run_folder import read_json
from tests.builders.lines import make_result
from tests.conftest import TINY
from tests.faults.conftest import WITH_OWN_MOUNTS, Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE, RunsHere

_SOURCE = Path(__file__).parents[2] / "src"

_HELD_FOR_AN_HOUR = """
import sys, time
from pathlib import Path
from scalescope.results.run_folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]), resume=True)
print("held", flush=True)
time.sleep(3600)
"""

# Forks a writer for every line of input, kills it a moment after its first line, and prints what it wrote.
_KILLS_WRITERS = """
import dataclasses, json, os, signal, sys, time
from pathlib import Path
from scalescope.results.files import to_text
from scalescope.results.result import Result
from scalescope.results.run_folder import RunFolder

def write_for_ever(path, first, acknowledge):
    result = Result(**json.loads((path / "record.json").read_text()))
    folder = RunFolder.open(path, resume=True)
    for launch in range(first, first + 1000):
        folder.append(dataclasses.replace(result, launch=launch))
        os.write(acknowledge, f"{launch}\\n".encode())
        folder.write("results.json", to_text({"launch": launch, "filling": "x" * 20_000}))

for request in sys.stdin:
    first, delay_s = json.loads(request)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(Path(sys.argv[1]), first, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as lines:
        acknowledged = [lines.readline()]
        time.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        acknowledged += lines
    print(json.dumps([code, [int(line) for line in acknowledged]]), flush=True)
"""


def _start(script: str, *arguments: str) -> "subprocess.Popen[str]":
    """A light process that knows of this package only what it imports itself."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", script, *arguments],
        env={"PYTHONPATH": str(_SOURCE)},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


@pytest.mark.fault(20)
def test_kills_during_writes_leave_every_file_readable(tmp_path: Path, seen: Seen) -> None:
    (tmp_path / "record.json").write_text(json.dumps(to_json(make_result())), encoding="utf-8")
    delays = random.Random("kills")
    acknowledged: set[int] = set()
    with _start(_KILLS_WRITERS, str(tmp_path)) as process:
        assert process.stdin is not None and process.stdout is not None
        for kill in range(100):
            process.stdin.write(f"{json.dumps([1000 * kill, delays.uniform(0.0, 0.02)])}\n")
            process.stdin.flush()
            code, lines = json.loads(process.stdout.readline())
            assert code == -signal.SIGKILL
            acknowledged.update(lines)
            run = load_run(tmp_path)
            assert acknowledged <= {result.launch for result in run.results}
            assert len(run.warnings) <= kill + 1  # at most the line that was being written
            assert kill == 0 or isinstance(read_json(tmp_path / "results.json"), dict)
    assert len(acknowledged) >= 100
    seen(f"100 kills: all {len(acknowledged)} acknowledged lines read back, {len(run.warnings)} warnings")


@pytest.fixture
def mounts(tmp_path: Path) -> tuple[str, ...]:
    """Words before a command: it runs where file systems can be mounted that nobody else sees."""
    command = (*WITH_OWN_MOUNTS, "sh", str(tmp_path / "mounts.sh"))
    (tmp_path / "mounts.sh").write_text("mount -t tmpfs tmpfs /dev/shm")
    (tmp_path / "small").mkdir()
    with contextlib.suppress(OSError):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return command
    pytest.skip("no file system can be mounted here")


_FULL = """
mount -t tmpfs -o size=128k tmpfs small || exit 99
"$@"
code=$?
mkdir kept
cp -r small/run/. kept
exit $code
"""


@pytest.mark.own_torch
@pytest.mark.gloo
@pytest.mark.fault(21)
def test_a_full_disk_keeps_what_was_written(
    start: Start, mounts: tuple[str, ...], tmp_path: Path, seen: Seen
) -> None:
    (tmp_path / "mounts.sh").write_text(_FULL)
    flags = ("--repeats=40", "--no-breakdown")
    run = start("train", *TINY, *flags, folder="small/run", command=(*mounts, *SCALESCOPE)).finish()
    assert run.returncode == 7
    (line,) = run.stderr.splitlines()
    assert "small/run/" in line
    stored = load_run(tmp_path / "kept")
    assert stored.warnings == ()
    finished = stored.of_status("ok")
    assert [result.launch for result in finished] == list(range(len(finished)))
    assert 0 < len(finished) < 40
    assert json.loads((tmp_path / "kept" / "environment.json").read_text())
    seen(f"code 7: {line.removeprefix('scalescope: ')}; all {len(finished)} finished launches are whole")


@pytest.mark.basic
@pytest.mark.gloo
@pytest.mark.fault(22)
def test_a_read_only_folder_is_refused_before_a_launch(
    start: Start, mounts: tuple[str, ...], tmp_path: Path, seen: Seen
) -> None:
    (tmp_path / "mounts.sh").write_text('mount -t tmpfs -o ro tmpfs small || exit 99; "$@"')
    run = start("train", *TINY, folder="small/run", command=(*mounts, *SCALESCOPE)).finish()
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert "small/run" in line
    assert "[Rank" not in run.stdout  # no rank was started
    seen(f"code 3: {line.removeprefix('scalescope: ')}")


_NOTHING_TEMPORARY = """
mount -t tmpfs -o ro tmpfs small && mount -t tmpfs -o ro tmpfs /dev/shm || exit 99
TMPDIR=$PWD/small exec "$@"
"""


@pytest.mark.own_torch
@pytest.mark.gloo
@pytest.mark.fault(23)
def test_the_run_folder_serves_where_nothing_temporary_can_be_written(
    start: Start, mounts: tuple[str, ...], tmp_path: Path, seen: Seen
) -> None:
    (tmp_path / "mounts.sh").write_text(_NOTHING_TEMPORARY)
    run = start("train", *TINY, "--world-size=2", command=(*mounts, *SCALESCOPE)).finish()
    assert (run.returncode, run.stderr) == (0, "")
    assert [result["status"] for result in run.results] == ["ok"]
    assert list(run.folder.glob("scalescope-launch-*")) == []
    seen("code 0: neither TMPDIR nor /dev/shm could be written; another folder served and was cleaned")


@pytest.mark.gloo
@pytest.mark.fault(23)
def test_a_tmpdir_that_is_not_there_does_not_matter(run_here: RunsHere, seen: Seen) -> None:
    run = run_here("train", *TINY, TMPDIR="/nowhere/at/all")
    assert (run.returncode, run.stderr) == (0, "")
    seen("code 0 with a TMPDIR that does not exist")


@pytest.fixture
def used(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A folder that another process holds."""
    path = str(tmp_path / "used")
    holder = _start(_HELD_FOR_AN_HOUR, path)
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield path, holder
        holder.kill()


Used = tuple[str, "subprocess.Popen[str]"]


@pytest.mark.basic
@pytest.mark.gloo
@pytest.mark.fault(30)
def test_a_folder_in_use_is_refused(run_here: RunsHere, used: Used, seen: Seen) -> None:
    path, holder = used
    refused = run_here("train", *TINY, folder=path)
    assert run_here.leftovers() == []
    assert refused.returncode == 3
    (line,) = refused.stderr.splitlines()
    assert path in line and f"process {holder.pid} on " in line
    seen("code 3: the folder is in use by process N on HOST")


@pytest.mark.gloo
@pytest.mark.fault(31)
def test_the_folder_of_a_process_that_is_gone_is_taken_over(
    run_here: RunsHere, used: Used, seen: Seen
) -> None:
    path, holder = used
    holder.kill()
    holder.wait()
    assert f"process {holder.pid} on " in (Path(path) / ".lock").read_text()
    run = run_here("train", *TINY, folder=path)
    assert run.returncode == 0
    assert [result["status"] for result in run.results] == ["ok"]
    seen("code 0; the lock file still named the killed process")


@pytest.mark.gloo
@pytest.mark.fault(22)
def test_a_folder_that_cannot_exist_is_refused(run_here: RunsHere, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    below = str(tmp_path / "file" / "run")
    refused = run_here("train", *TINY, folder=below)
    assert run_here.leftovers() == []
    assert refused.returncode == 7
    (line,) = refused.stderr.splitlines()
    assert below in line
