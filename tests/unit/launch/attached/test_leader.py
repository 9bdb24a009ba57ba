"""Ranks of one host notice that rank 0 has ended, whatever they wait in."""

from pathlib import Path

from scalescope.launch.attached.leader import Leader


def test_a_leader_that_has_not_come_yet_is_waited_for(tmp_path: Path) -> None:
    assert not Leader(tmp_path).is_gone()


def test_a_leader_is_gone_when_it_lets_go(tmp_path: Path) -> None:
    leader, other = Leader(tmp_path), Leader(tmp_path)
    leader.acquire()
    assert not other.is_gone()
    leader.release()
    assert other.is_gone()


def test_a_leader_that_took_its_file_along_is_gone(tmp_path: Path) -> None:
    leader, other = Leader(tmp_path), Leader(tmp_path)
    leader.acquire()
    assert not other.is_gone()
    (tmp_path / "leader").unlink()
    assert other.is_gone()
