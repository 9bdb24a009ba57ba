"""The launcher's end of the zygote: every answer has a limit, and a stopped one hides no rank's end."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.local import processes as module
from scalescope.launch.local.processes import RankProcess, SpawnFailed, SpawnTimeout, Zygote
from scalescope.results.ranks import RankJob
from tests.speed import limit, patience

pytestmark = pytest.mark.skipif(not module.can_fork(), reason="this system does not fork ranks")

_ROOT = Path(__file__).parents[4]
_JOB = RankJob(
    settings={},
    launch=0,
    rank=0,
    local_rank=0,
    world_size=1,
    store_file="",
    heartbeat_file="",
    rank_file="",
    folder="",
    cpus=[],
    namespace="",
    group_timeout_s=1.0,
)


def _act(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Start this where the zygote would be started."""
    monkeypatch.chdir(_ROOT)
    monkeypatch.setattr(module, "python_module", lambda _: [sys.executable, *command])


@pytest.fixture
def zygote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zygote]:
    _act(monkeypatch, "-m", "tests.builders.acted_zygote")
    started = Zygote(limit_s=limit(20))
    yield started
    started.close()


def _start(zygote: Zygote, code: int | None, **environment: str) -> RankProcess:
    given = {} if code is None else {"EXIT_CODE": str(code)}
    return zygote.start(_JOB, {**given, **environment}, Path(os.devnull))


def _stop(zygote: Zygote) -> None:
    os.kill(zygote._guarded.pid, signal.SIGSTOP)
    _wait_until(lambda: not zygote.is_usable)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(20)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _end_of(rank: RankProcess, zygote: Zygote) -> int | None:
    def has_ended() -> bool:
        zygote.wait(0.02)
        return rank.poll() is not None

    _wait_until(has_ended)
    return rank.poll()


def test_it_reports_how_ranks_end_also_while_it_is_stopped(zygote: Zygote) -> None:
    for code in (0, 3):
        assert _end_of(_start(zygote, code), zygote) == code
    runs, killed = _start(zygote, None), _start(zygote, None)
    _stop(zygote)
    os.kill(killed.pid, signal.SIGKILL)
    assert _end_of(killed, zygote) == -signal.SIGKILL
    assert runs.poll() is None


def test_a_stopped_one_starts_no_rank_within_the_limit(zygote: Zygote) -> None:
    _stop(zygote)
    zygote.limit_s = 0.2
    with pytest.raises(
        SpawnTimeout, match=r"starts the ranks is stopped by a signal: no answer within 0\.2 s"
    ):
        _start(zygote, 0)
    with pytest.raises(SpawnTimeout):  # a request that does not fit into the pipe has the same limit
        _start(zygote, 0, LONG="x" * (1 << 20))


def test_one_that_ended_is_not_usable(zygote: Zygote) -> None:
    assert zygote.is_usable
    os.kill(zygote._guarded.pid, signal.SIGKILL)
    _wait_until(lambda: not zygote.is_usable)
    with pytest.raises(SpawnFailed, match=r"starts the ranks has ended$"):
        _start(zygote, 0)


def test_one_that_never_gets_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        f"import os, pathlib, signal; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    )
    _act(monkeypatch, "-c", f"{script}; os.kill(os.getpid(), signal.SIGSTOP)")
    with pytest.raises(
        CannotRun, match=r"torch was not loaded within .* s: its process is stopped by a signal"
    ):
        Zygote(limit_s=limit(2))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
