"""A log that grows without end is shortened, and keeps what was printed last."""

from pathlib import Path

import pytest

from scalescope.launch.local import logs
from scalescope.launch.local.logs import cap_log, tail_of


def test_a_large_log_keeps_its_beginning_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST_BYTES", 100)
    monkeypatch.setattr(logs, "_KEPT_END_BYTES", 8)
    log = tmp_path / "0.log"
    log.write_bytes(b"began " + b"x" * 200 + b"the end\n")
    cap_log(log)
    assert log.read_bytes() == b"began " + b"x" * 36 + b"the end\n"


def test_a_small_log_is_left_alone_and_a_missing_one_is_none(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(b"short")
    for path in (log, tmp_path / "none.log"):
        cap_log(path)
    assert log.read_bytes() == b"short"
    assert (tail_of(log, 3), tail_of(log, 30), tail_of(tmp_path / "none.log", 3)) == (b"ort", b"short", b"")
