"""/dev/shm without room or without files left: ranks are measured all the same, in another directory."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.faults.conftest import WITH_OWN_MOUNTS, Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE, read_results

pytestmark = [pytest.mark.gloo, pytest.mark.own_torch]

_WITH_SMALL_MEMORY = """
mount -t tmpfs -o "$1" tmpfs /dev/shm || exit 99
head -c 200k /dev/zero > /dev/shm/other 2> /dev/null
shift
"$@"
code=$?
test "$(ls /dev/shm)" = other || exit 98
exit $code
"""


def _can_mount() -> bool:
    try:
        command = (*WITH_OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


# With four files, the directory of a launch can still be made, and its heartbeats, but not its store.
@pytest.mark.fault(38)
@pytest.mark.parametrize("options", ["size=64k", "size=1m,nr_inodes=4"], ids=["full", "few files"])
def test_ranks_are_measured(start: Start, tmp_path: Path, seen: Seen, options: str) -> None:
    if not _can_mount():
        pytest.skip("no small /dev/shm can be mounted here")
    script = tmp_path / "small.sh"
    script.write_text(_WITH_SMALL_MEMORY)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = (*WITH_OWN_MOUNTS, "sh", str(script), options, *SCALESCOPE)
    flags = ("--no-breakdown", "--world-size=2")
    run = start("train", *TINY, *flags, command=command, TMPDIR=str(temporary)).finish()
    assert (run.returncode, run.stderr) == (0, "")
    assert [result["status"] for result in read_results(run.folder)] == ["ok"]
    assert list(temporary.glob("scalescope-*")) == []
    seen("measured in TMPDIR, code 0")
