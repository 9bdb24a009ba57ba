"""SLURM's commands may print anything, or not start: one line says so."""

from pathlib import Path

import pytest

from scalescope.errors import CannotRun
from scalescope.launch.slurm import queue


def program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "sbatch"
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_message_that_is_not_utf_8_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "#!/bin/sh\nprintf 'sbatch: error: caf\\351\\n' >&2\nexit 1\n", monkeypatch)
    with pytest.raises(CannotRun, match=r"sbatch failed: caf\\xe9$"):
        queue.submit(tmp_path / "job.sh")


def test_a_number_among_other_bytes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "#!/bin/sh\nprintf 'caf\\351\\n17\\n'\n", monkeypatch)
    assert queue.submit(tmp_path / "job.sh") == "17"


def test_a_program_that_cannot_be_started_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "neither a script nor a program", monkeypatch)
    with pytest.raises(CannotRun, match=r"^sbatch cannot be started: "):
        queue.submit(tmp_path / "job.sh")
