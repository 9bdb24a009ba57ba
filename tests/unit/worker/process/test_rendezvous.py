"""Ranks of one host that meet in a file: what one says the others hear."""

from pathlib import Path

import pytest

from scalescope.worker.process.rendezvous import Rendezvous


def meet(rank: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    for name, value in (("RANK", rank), ("WORLD_SIZE", 2), ("SCALESCOPE_STORE_FILE", path)):
        monkeypatch.setenv(name, str(value))
    return Rendezvous()


def test_what_one_says_the_others_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (meet(rank, tmp_path / "store", monkeypatch) for rank in (0, 1))
    assert second.heard("request/0") is None
    first.say("request/0", "train")
    assert second.hear("request/0") == b"train"
    with pytest.raises(TimeoutError, match=r"nobody said request/1 within 0\.01 s"):
        first.hear("request/1", limit_s=0.01)
