"""What ranks and launcher exchange through files: calls, heartbeats, and files that killed writers left."""

import errno
import os
from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.results.ranks import (
    Beat,
    CallSlot,
    CollectiveCall,
    Heartbeats,
    Phase,
    RankStage,
    find_disagreement,
    read_calls,
    remove_stray_files,
    slot_file,
)
from scalescope.results.run_folder import WRITTEN, RunFolder


def _call(number: int, name: str = "all_reduce", tensor: str = "[2] float32") -> CollectiveCall:
    return CollectiveCall(number=number, name=name, tensor=tensor)


def test_the_last_call_is_read_back(tmp_path: Path) -> None:
    slot = CallSlot(slot_file(tmp_path, 1))
    for call in (_call(1, tensor="[1000000] float32"), _call(2, name="barrier", tensor="")):
        slot.write(call)
    assert read_calls(tmp_path, 2) == [None, _call(2, name="barrier", tensor="")]


def test_a_slot_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    slot_file(tmp_path, 0).write_text("[1, ")
    slot_file(tmp_path, 1).write_text("7")
    assert read_calls(tmp_path, 2) == [None, None]


def test_equal_calls_agree() -> None:
    assert find_disagreement([_call(3), _call(3), None]) is None


def test_ranks_ahead_of_each_other_do_not_disagree() -> None:
    assert find_disagreement([_call(4, name="broadcast"), _call(3)]) is None


def test_different_shapes_or_names_disagree() -> None:
    for other in (_call(3, tensor="[3] float32"), _call(3, name="broadcast")):
        disagreement = find_disagreement([_call(3), None, _call(4), other])
        assert disagreement is not None
        assert (disagreement.ranks, disagreement.calls) == ((0, 3), (_call(3), other))


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


def _write(*paths: Path) -> None:
    for path in paths:
        path.write_text("{")


def test_a_held_folder_is_cleared_of_half_written_files(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, resume=False).close()
    stray = (tmp_path / "ranks" / ".abc-0-1.json.k3_x9abc", tmp_path / ".run.json.abcd1234")
    kept = (
        tmp_path / ".report.html.abcd1234",  # `report` may be writing it
        tmp_path / ".mine.json.abcd1234",
        tmp_path / "ranks" / "abc-0-1.json",
        tmp_path / "ranks" / ".abc-0-1.json.ABCD",
    )
    _write(*stray, *kept)
    folder = RunFolder.open(tmp_path, resume=True)
    assert [path for path in stray if path.exists()] == []
    assert all(path.exists() for path in kept)
    _write(*stray)  # a rank was killed meanwhile
    folder.close()
    assert [path for path in stray if path.exists()] == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    _write(elsewhere / ".abc-0-1.json.k3_x9abc")
    run.mkdir()
    (run / "ranks").symlink_to(elsewhere)
    (run / ".run.json.abcd1234").symlink_to(elsewhere)
    remove_stray_files(run, WRITTEN)
    assert (elsewhere / ".abc-0-1.json.k3_x9abc").exists()
    assert (run / ".run.json.abcd1234").is_symlink()
