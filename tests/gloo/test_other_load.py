"""Other load around real ranks: processes that compute beside them are seen, and the ranks are not."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start

pytestmark = [pytest.mark.gloo, pytest.mark.own_torch]

_LOOP = "while True: pass"
_WINDOW = ("--window=1s", "--no-repeat-disturbed")


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here other load is looked at."""
    monkeypatch.delenv("SCALESCOPE_HIDE_LOAD")


@pytest.fixture
def busy_loops() -> Iterator[int]:
    """Processes that compute without end, one for every core."""
    cores = sorted(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in cores]
    yield len(cores)
    for loop in loops:
        loop.kill()
        loop.wait()


def test_processes_that_compute_beside_the_ranks_are_the_first_finding(start: Start, busy_loops: int) -> None:
    flags = [flag for flag in TINY if not flag.startswith("--steps-per-epoch")]
    run = start("scale", *flags, *_WINDOW, "--world-size=1,2", "--repeats=1", "--no-waterfall").finish()
    assert run.returncode == 0, run.stderr
    loads = [
        result["telemetry"]["load"] for result in run.results if result["settings"]["benchmark"] == "train"
    ]
    for load in loads:
        assert load["cores"] == busy_loops
        assert 0.3 <= load["other_cores"] <= load["cores"]
        # Unknown where a rank ended before the second look: its steps are short, and their number is limited.
        assert all(0.0 <= wait <= 1.0 for wait in load.get("rank_waits", ()))
    assert any("rank_waits" in load for load in loads)
    assert "Other load: other processes use" in run.stdout  # before the first launch
    findings = run.summary["results"]["findings"]
    assert "other load" in [finding["rule"] for finding in findings]
    assert all(row["reading"] != "excellent" for row in run.summary["results"]["scaling"])
