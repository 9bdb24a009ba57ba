"""Shaped links: the rate that was asked for, the slow rank named, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.launch.local import launcher as local
from scalescope.launch.local.emulation import ShapedNetwork
from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.gloo.real_runs import FinishedRun, RunsHere, StartedRun
from tests.speed import patience

pytestmark = pytest.mark.netns

_COMM = ("comm", "--device=cpu", "--collective=all_reduce")


def _namespace_of(pid: int | str) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


def _namespaces() -> set[str | None]:
    """The network namespaces that any process is in, and those that this one keeps open."""
    return {_namespace_of(pid) for pid in os.listdir("/proc") if pid.isdigit()} | _kept_open("self")


def _kept_open(pid: int | str) -> set[str | None]:
    """The network namespaces that a process has among its open files."""
    names = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            names.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return {name for name in names if name.startswith("net:[")}


def _inside(run: StartedRun) -> list[str]:
    """The namespaces of a run's ranks that are not in the host's, one entry for each process."""
    host_namespace = _namespace_of("self")
    namespaces = [_namespace_of(pid) for pid in run.processes() if not _makes_namespace(pid)]
    return [name for name in namespaces if name is not None and name != host_namespace]


def _wait_for_ranks_inside(run: StartedRun, ranks: int) -> set[str | None]:
    """Wait until all ranks are inside; returns their namespaces and the bridge's."""
    run.wait_until(lambda: len(_inside(run)) >= ranks, "rank in its namespace")
    entered: set[str | None] = set(_inside(run))
    assert len(entered) == ranks
    kept = _kept_open(run.pid)
    assert entered < kept and len(kept) == ranks + 1
    return kept


def _makes_namespace(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("unshare", "sleep")
    return False


def _assert_gone(run: StartedRun | RunsHere, namespaces: set[str | None]) -> None:
    assert run.leftovers() == []
    assert namespaces
    deadline = time.monotonic() + patience(5.0)
    while (left := namespaces & _namespaces()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == set()
    mounted = Path("/proc/self/mountinfo").read_text()
    assert [name for name in namespaces if str(name) in mounted] == []


@pytest.fixture(autouse=True)
def host_network() -> Iterator[None]:
    """Whatever a test does, the host's own interfaces and their queues stay as they were."""

    def describe() -> list[str]:
        commands = (["ip", "-o", "address"], ["ip", "route"], ["tc", "qdisc", "show"])
        return [subprocess.run(command, capture_output=True, text=True).stdout for command in commands]

    before = describe()
    yield
    assert describe() == before


def _best_share(run: FinishedRun, rate_bits_per_s: float) -> float:
    """Bus bandwidth of the best iteration as a share of the link; two ranks' factor is one."""
    assert run.returncode == 0, run.stdout + run.stderr
    (result,) = run.results
    (key,) = result["ranks"][0]["samples"]
    times = [max(pair) for pair in zip(*(rank["samples"][key] for rank in result["ranks"]), strict=True)]
    return int(key.split("/")[2]) * 8 / float(min(times)) / rate_bits_per_s


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> set[str | None]:
    """The namespaces that commands in this process make, noted when they are there."""
    names: set[str | None] = set()

    class Noted(ShapedNetwork):
        def __init__(self, rates: list[float]) -> None:
            super().__init__(rates)
            names.update(os.readlink(self.namespace_of(rank)) for rank in range(-1, len(rates)))

    monkeypatch.setattr(local, "ShapedNetwork", Noted)
    return names


@pytest.mark.parametrize(("link", "rate", "size"), [("1gbit", 1e9, "32M"), ("100mbit", 1e8, "4M")])
def test_all_reduce_gets_the_rate_of_the_link(
    run_first: RunsHere, namespaces: set[str | None], link: str, rate: float, size: str
) -> None:
    flags = ("--world-size=2", f"--link={link}", "-b", size, "-e", size, "-n", "6", "-w", "1")
    run = run_first(*_COMM, *flags)
    # Never more than the link; a half where directions took turns. Other work on the cores costs a share.
    assert 0.6 < _best_share(run, rate) < 1.0
    assert f"Note: network emulated at {link}." in run.stdout
    assert run.results[0]["settings"]["link"] == link
    assert len(namespaces) == 3  # one for each rank, and the bridge's
    _assert_gone(run_first, namespaces)


def test_pairs_name_the_rank_with_the_slow_link(run_first: RunsHere, namespaces: set[str | None]) -> None:
    link = "0:1gbit,1:1gbit,2:100mbit,3:1gbit"
    run = run_first("comm", "--device=cpu", "--pairs", "--world-size=4", f"--link={link}", "-n", "3")
    assert run.returncode == 0, run.stdout + run.stderr
    (named,) = (line for line in run.stdout.splitlines() if line.startswith("Slow: "))
    assert "rank 2" in named
    assert "slow to each other" not in run.stdout
    _assert_gone(run_first, namespaces)


def test_both_directions_are_busy_at_once(run_first: RunsHere) -> None:
    """Taking turns, two ranks would get half of the link each."""
    flags = ("--collective=sendrecv", "--world-size=2", "--link=100mbit", "-b", "2M", "-e", "2M", "-n", "8")
    run = run_first("comm", "--device=cpu", *flags, "-w", "1")
    assert 0.55 < _best_share(run, 1e8) < 1.0


def test_nothing_is_left_when_the_command_is_killed(start: Start) -> None:
    started = start(*_COMM, "--world-size=2", "--link=100mbit", "-b", "8M", "-e", "8M", "-n", "1000")
    namespaces = _wait_for_ranks_inside(started, 2)
    started.send(signal.SIGKILL)
    assert started.finish().returncode == -signal.SIGKILL
    _assert_gone(started, namespaces)


def test_training_on_a_shaped_link_notes_the_link(run_first: RunsHere, namespaces: set[str | None]) -> None:
    run = run_first("train", *TINY, "--world-size=2", "--link=1gbit")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Warning          : network emulated at 1gbit" in run.stdout
    (result,) = run.results
    assert (result["status"], result["settings"]["link"]) == ("ok", "1gbit")
    _assert_gone(run_first, namespaces)
