"""Limits of the system: descriptors, processes, and a disk that output must not fill."""

import os
import shutil
import subprocess

import pytest

from scalescope.launch.local import logs
from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE, RunsHere

pytestmark = pytest.mark.gloo

# Root has no limit on processes: another user, who may read all files.
_AS_ANOTHER_USER = (
    "setpriv",
    "--reuid=64999",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)


@pytest.mark.fault(33)
def test_too_few_descriptors_are_refused(start: Start, seen: Seen) -> None:
    limited = ("sh", "-c", 'ulimit -n 24; exec "$@"', "sh")
    run = start("train", *TINY, "--world-size=2", command=(*limited, *SCALESCOPE)).finish()
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert "24 files" in line
    assert not run.folder.exists()
    seen(f"code 3: {line.removeprefix('scalescope: ')}")


@pytest.mark.fault(33)
def test_too_few_processes_are_refused(start: Start, seen: Seen) -> None:
    run = start("train", *TINY, "--world-size=2", command=(*_limited_to(3), *SCALESCOPE)).finish()
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert "of 3 processes" in line
    assert not run.folder.exists()
    seen(f"code 3: {line.removeprefix('scalescope: ')}")


def _limited_to(processes: int) -> tuple[str, ...]:
    if shutil.which("prlimit") is None:
        pytest.skip("needs prlimit")
    limited = ("prlimit", f"--nproc={processes}")
    if os.getuid() != 0:
        return limited
    try:
        can = subprocess.run([*_AS_ANOTHER_USER, "true"], capture_output=True).returncode == 0
    except OSError:
        can = False
    if not can:
        pytest.skip("needs setpriv, as root has no limit on processes")
    return (*limited, *_AS_ANOTHER_USER)


@pytest.mark.fault(34)
def test_a_flood_of_output_is_cut_off(run_here: RunsHere, seen: Seen) -> None:
    run = run_here("train", *TINY, "--world-size=2", SCALESCOPE_FAULT="print:1024@1:3")
    assert run_here.leftovers() == []
    assert run.returncode == 0
    (result,) = run.results
    assert result["status"] == "ok"
    (log,) = run.folder.glob("logs/*-1.log")
    kept = log.stat().st_size
    log.unlink()  # the folders of a few test runs are kept
    assert 1 << 20 < kept <= logs._LARGEST_BYTES
    seen(f"code 0 after {result['duration_s']:.1f} s: {kept >> 20} of 1,024 MiB kept")
