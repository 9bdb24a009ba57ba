"""Ranks other than 0: they do not outlive rank 0, and the first one of a node has its node watched."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.errors import TimedOut
from scalescope.launch.attached import follower, worker_child
from scalescope.launch.attached.rank_context import RankContext


def test_a_follower_does_not_wait_for_ever_for_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(follower, "start_worker", lambda *_, **__: subprocess.Popen(sleeping))
    monkeypatch.setattr(follower, "_LEADER_POLL_S", 0.01)
    monkeypatch.setattr(worker_child, "shared_directory", lambda name: contextlib.nullcontext(tmp_path))
    with pytest.raises(TimedOut, match="rank 0 did not appear"):
        follower.follow(RankContext(1, 2, directory="77.0.0"), 0.05)


class Started:
    """What a worker was started with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.variables: dict[str, str] = {}
        self.pipes: tuple[int, int] = (0, 0)
        monkeypatch.setattr(follower, "start_worker", self)

    def __call__(self, variables: dict[str, str], stdin: int, stdout: int) -> "subprocess.Popen[bytes]":
        self.variables, self.pipes = variables, (stdin, stdout)
        return subprocess.Popen(["true"], stdin=stdin, stdout=stdout)


@pytest.mark.parametrize(("local_rank", "watched"), [("0", True), ("1", False)])
def test_the_first_rank_of_a_node_has_it_watched(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, watched: bool
) -> None:
    started = Started(monkeypatch)
    context = RankContext(4, 8, {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": "4"})
    assert follower.follow(context) == 0
    assert ("SCALESCOPE_NODE_WATCH" in started.variables) is watched
    pipe = subprocess.PIPE if watched else subprocess.DEVNULL
    assert started.pipes == (pipe, pipe)
