"""Shaped networks: a killed process does not cost launches, a tool that hangs ends in one line."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.local import emulation as module
from scalescope.launch.local.emulation import ShapedNetwork
from tests.conftest import TINY
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start
from tests.gloo.real_runs import RunsHere
from tests.netns.conftest import alone as alone

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces require root")]

_HANGING = "#!/bin/sh\nsleep 601 &\nsleep 601\n"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _children() -> set[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def _is_reachable(network: ShapedNetwork) -> bool:
    """Whether the second rank answers the first one."""
    inside = ("nsenter", f"--net={network.namespace_of(0)}")
    command = (*inside, "ip", "route", "get", "10.77.0.2")
    return subprocess.run(command, capture_output=True).returncode == 0 and _has_address(network)


def _has_address(network: ShapedNetwork) -> bool:
    inside = ("nsenter", f"--net={network.namespace_of(1)}")
    shown = subprocess.run((*inside, "ip", "-o", "address"), capture_output=True, text=True)
    return "10.77.0.2" in shown.stdout


@pytest.mark.fault(45)
def test_no_process_holds_a_network_that_is_built(seen: Seen) -> None:
    before, descriptors = _children(), _descriptors()
    network = ShapedNetwork([1e9, 1e9])
    try:
        assert _children() <= before
        assert _is_reachable(network)
    finally:
        network.close()
    assert _descriptors() == descriptors
    seen("no holder is needed once a network is built")


@pytest.mark.fault(45)
def test_a_network_is_built_anew_when_a_process_that_makes_it_is_killed(
    monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    before, descriptors = _children(), _descriptors()
    killed: list[int] = []
    run_tool = module._run

    def kill_once(command: list[str], lines: list[str]) -> None:
        if not killed:
            killed.append(next(iter(_children() - before)))
            os.kill(killed[0], signal.SIGKILL)
            os.waitid(os.P_PID, killed[0], os.WEXITED | os.WNOWAIT)
        run_tool(command, lines)

    monkeypatch.setattr(module, "_run", kill_once)
    network = ShapedNetwork([1e9, 1e9])
    try:
        assert killed
        assert _is_reachable(network)
    finally:
        network.close()
    assert _children() <= before
    assert _descriptors() == descriptors
    seen("killed while a network is built: built anew, no launch is lost")


@pytest.mark.fault(45)
def test_launches_go_on_when_all_makers_of_namespaces_are_killed(
    run_here: RunsHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `sleep` a network leaves running is killed after each launch."""
    ended = run_here._zygote.end_leftovers

    def kill_sleepers(sessions: Any) -> list[str]:
        for pid in _children():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
                    os.kill(pid, signal.SIGKILL)
        return ended(sessions)

    monkeypatch.setattr(run_here._zygote, "end_leftovers", kill_sleepers)
    run = run_here("train", *TINY, "--world-size=2", "--link=1gbit", "--repeats=2", "--no-breakdown")
    assert run.returncode == 0, run.stdout + run.stderr
    assert [result["status"] for result in run.results] == ["ok", "ok"]


@pytest.mark.fault(46)
def test_a_hanging_tool_ends_in_one_line(start: Start, tmp_path: Path, seen: Seen) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tc").write_text(_HANGING)
    (tmp_path / "bin" / "tc").chmod(0o755)
    run = start(
        *("train", *TINY, "--world-size=2", "--link=1gbit"), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    )
    finished = run.finish()
    assert finished.returncode == 3
    assert [line for line in finished.stderr.splitlines() if "did not finish within 5 s" in line]
    assert "Traceback" not in finished.stderr
    assert run.leftovers() == []
    seen("a hanging tc: code 3 after 5 s, one line, nothing left")


@pytest.mark.fault(46)
@pytest.mark.parametrize("tool", ["ip", "nsenter"])
def test_other_tools_that_hang_are_named(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    (tmp_path / tool).write_text(_HANGING)
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_LIMIT_S", 0.5)
    before, descriptors = _children(), _descriptors()
    with pytest.raises(CannotRun, match="did not finish within"):
        ShapedNetwork([1e9])
    assert _children() <= before
    assert _descriptors() == descriptors
    seen("hanging ip and nsenter likewise")
