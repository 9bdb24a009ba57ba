"""Ranks that share a store: in a file on one host, or at rank 0's port."""

import socket
from pathlib import Path

import pytest

from scalescope.errors import CannotRun, TimedOut
from scalescope.worker.process.rendezvous import Rendezvous


def rendezvous(
    rank: int, path: Path, monkeypatch: pytest.MonkeyPatch, *, limit_s: float = 60.0, of_watch: bool = False
) -> Rendezvous:
    for name, value in (("RANK", rank), ("WORLD_SIZE", 2), ("SCALESCOPE_STORE_FILE", path)):
        monkeypatch.setenv(name, str(value))
    return Rendezvous(limit_s, of_watch=of_watch)


def test_a_published_value_reaches_the_other_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (rendezvous(rank, tmp_path / "store", monkeypatch) for rank in (0, 1))
    assert second.get("request/0") is None
    first.publish("request/0", "train")
    assert second.wait("request/0") == b"train"
    watch = rendezvous(0, tmp_path / "store", monkeypatch, of_watch=True)  # has a connection of its own
    watch.publish("stall/0/0", b"{}")
    del watch
    assert first.get("stall/0/0") == b"{}"  # the file outlives the watch
    with pytest.raises(TimeoutError, match="request/1"):
        first.wait("request/1", limit_s=0.01)


def test_ranks_that_do_not_come_are_named_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rendezvous(0, tmp_path / "store", monkeypatch, limit_s=0.05)
    assert first.meet() == [1]
    assert "rank 1 of 2 did not join within 0.05 s" in first.missing_text([1])
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more of 2" in first.missing_text(list(range(100)))
    late = rendezvous(1, tmp_path / "store", monkeypatch)
    assert late.meet() == [1]  # rank 0 has given up


def test_all_ranks_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (rendezvous(rank, tmp_path / "store", monkeypatch) for rank in (0, 1))
    second.publish("joined/1", b"1")
    assert first.meet() == second.meet() == []


def _at_port(rank: int, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESCOPE_STORE_FILE", raising=False)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SCALESCOPE_STORE_ADDRESS": "127.0.0.1"}
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, **meeting}.items():
        monkeypatch.setenv(name, str(value))


def test_a_taken_port_and_one_where_nobody_listens_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _at_port(0, port, monkeypatch)
        with pytest.raises(CannotRun, match=f"MASTER_PORT {port} cannot be used"):
            Rendezvous()
    _at_port(1, port, monkeypatch)
    with pytest.raises(TimedOut, match=f"did not listen at 127.0.0.1:{port} within 0.1 s"):
        Rendezvous(0.1)
