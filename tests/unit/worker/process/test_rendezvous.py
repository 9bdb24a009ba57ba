"""Ranks of one host that share a store in a file."""

from pathlib import Path

import pytest

from scalescope.worker.process.rendezvous import Rendezvous


def rendezvous(rank: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    for name, value in (("RANK", rank), ("WORLD_SIZE", 2), ("SCALESCOPE_STORE_FILE", path)):
        monkeypatch.setenv(name, str(value))
    return Rendezvous()


def test_a_published_value_reaches_the_other_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (rendezvous(rank, tmp_path / "store", monkeypatch) for rank in (0, 1))
    assert second.get("request/0") is None
    first.publish("request/0", "train")
    assert second.wait("request/0") == b"train"
    with pytest.raises(TimeoutError, match="request/1"):
        first.wait("request/1", limit_s=0.01)
