"""Ranks other than 0: they do not outlive rank 0, and the first one of a node has its node watched."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.attached import follower, worker_child
from scalescope.launch.attached.rank_context import RankContext


def test_a_follower_does_not_wait_for_ever_for_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(follower, "start_worker", lambda *_, **__: subprocess.Popen(sleeping))
    monkeypatch.setattr(follower, "_LEADER_POLL_S", 0.01)
    monkeypatch.setattr(follower, "_APPEAR_S", 0.05)
    monkeypatch.setattr(worker_child, "shared_directory", lambda name: contextlib.nullcontext(tmp_path))
    with pytest.raises(CannotRun, match="rank 0 did not appear"):
        follower.follow(RankContext(1, 2, directory="77.0.0"))
