"""Heartbeats: what a rank writes, the launcher reads; a disk without room is an error and not a signal."""

import errno
import os
from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.results.ranks.heartbeat import Beat, Heartbeats, Phase, RankStage


def test_what_a_rank_writes_is_read(tmp_path: Path) -> None:
    launcher = Heartbeats(tmp_path / "beats", 3, create=True)
    rank = Heartbeats(tmp_path / "beats", 3)
    assert launcher.read(2).stage is RankStage.STARTING
    beat = Beat(4, 5, RankStage.STEADY, Phase.BACKWARD, 0.25, 9)
    rank.write(2, beat)
    assert launcher.read(2) == beat
    assert launcher.read(1).stage is RankStage.STARTING


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(os, "open", lambda *_: full)
    with pytest.raises(CannotRun, match=os.strerror(errno.ENOSPC)):
        Heartbeats(tmp_path / "beats", 2, create=True)
