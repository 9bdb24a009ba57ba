"""A full /dev/shm: ranks are measured all the same, because another directory serves."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE, read_results

pytestmark = pytest.mark.gloo

_UNSHARE = ("unshare", "--mount", "--map-root-user")
_FULL = """
mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 99
head -c 200k /dev/zero > /dev/shm/full 2> /dev/null
"$@"
code=$?
test "$(ls /dev/shm)" = full || exit 98
exit $code
"""


def _can_mount() -> bool:
    try:
        command = (*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize("flags", [(), ("--env=SOME_NAME=1",)], ids=["zygote", "fresh"])
def test_ranks_are_measured(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    if not _can_mount():
        pytest.skip("no small /dev/shm can be mounted here")
    script = tmp_path / "full.sh"
    script.write_text(_FULL)
    command = (*_UNSHARE, "sh", str(script), *SCALESCOPE)
    run = start("train", *TINY, "--world-size=2", *flags, command=command).finish()
    assert (run.returncode, run.stderr) == (0, "")
    assert [result["status"] for result in read_results(run.folder)] == ["ok"]
