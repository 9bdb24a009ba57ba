"""What others may have written is not run unless the user trusts it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scalescope.errors import BadInput
from scalescope.studies.runs.trust import refuse_untrusted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of ours."""
    path = tmp_path / "run"
    (path / "slurm").mkdir(parents=True, mode=0o755)
    for name in ("experiment.yaml", "run.json", "trials.jsonl", "slurm/request.yaml", "slurm/job.json"):
        (path / name).touch(0o644)
    return path


def test_a_run_of_ours_is_trusted(folder: Path) -> None:
    refuse_untrusted(folder, trusted=False)
    (folder.parent / "latest").symlink_to(folder)
    refuse_untrusted(folder.parent / "latest", trusted=False)


@pytest.mark.parametrize(
    "name", ["", "slurm", "experiment.yaml", "run.json", "trials.jsonl", "slurm/job.json"]
)
def test_what_everybody_can_write_is_not(folder: Path, name: str) -> None:
    (folder / name).chmod((folder / name).stat().st_mode | 0o002)
    with pytest.raises(BadInput, match=r"can be written by everybody.*add --trust"):
        refuse_untrusted(folder, trusted=False)
    refuse_untrusted(folder, trusted=True)


def test_a_link_is_not(folder: Path) -> None:
    (folder / "experiment.yaml").rename(folder.parent / "other.yaml")
    (folder / "experiment.yaml").symlink_to(folder.parent / "other.yaml")
    with pytest.raises(BadInput, match=r"experiment.yaml is a link"):
        refuse_untrusted(folder, trusted=False)


def test_what_belongs_to_another_user_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: Callable[[], int] = os.geteuid
    if owner() == 0:
        os.chown(folder / "run.json", 4711, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner() + 1)
    with pytest.raises(BadInput, match=r"belongs to user \d+.*add --trust"):
        refuse_untrusted(folder, trusted=False)
