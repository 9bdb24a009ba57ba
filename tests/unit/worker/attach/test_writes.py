"""Side effects of scripts are left out and counted."""

import io
from pathlib import Path

import torch

from scalescope.worker.attach.writes import Writes


def test_files_are_not_written_and_memory_is(tmp_path: Path) -> None:
    writes = Writes()
    writes.install()
    try:
        torch.save({"a": 1}, tmp_path / "a.pt")
        with (tmp_path / "b.pt").open("wb") as stream:
            torch.save({"a": 1}, stream)
        memory = io.BytesIO()
        torch.save({"a": 1}, memory)
    finally:
        writes.remove()
    assert not (tmp_path / "a.pt").exists()
    assert (tmp_path / "b.pt").stat().st_size == 0
    assert memory.getvalue()
    assert writes.calls == {"torch.save": 2}


def test_removed_writes_write(tmp_path: Path) -> None:
    writes = Writes()
    writes.install()
    writes.remove()
    torch.save({"a": 1}, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").exists()
