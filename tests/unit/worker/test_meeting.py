"""Ranks of one host that meet in a file: what one says the others hear, and they notice when it is gone."""

from pathlib import Path

import pytest

from scalescope.worker.meeting import Meeting, _Leader


def meet(rank: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> Meeting:
    for name, value in (("RANK", rank), ("WORLD_SIZE", 2), ("SCALESCOPE_STORE_FILE", path)):
        monkeypatch.setenv(name, str(value))
    return Meeting()


def test_what_one_says_the_others_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (meet(rank, tmp_path / "store", monkeypatch) for rank in (0, 1))
    assert second.heard("request/0") is None
    first.say("request/0", "train")
    assert second.hear("request/0") == b"train"
    with pytest.raises(TimeoutError, match=r"nobody said request/1 within 0\.01 s"):
        first.hear("request/1", limit_s=0.01)


def test_who_waits_for_a_first_rank_that_has_ended_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = meet(1, tmp_path / "store", monkeypatch)
    gone = _Leader(tmp_path / "leader")
    gone.take()
    with pytest.raises(TimeoutError):  # it lives
        second.hear("request/0", limit_s=0.02)
    gone.let_go()
    with pytest.raises(ConnectionError, match="rank 0 is gone"):
        second.hear("request/0", limit_s=5.0)


def test_a_leader_that_has_not_come_yet_is_waited_for(tmp_path: Path) -> None:
    waiting = _Leader(tmp_path / "leader")
    assert not waiting.is_gone()
    leader = _Leader(tmp_path / "leader")
    leader.take()
    assert not waiting.is_gone()
    (tmp_path / "leader").unlink()
    assert waiting.is_gone()
