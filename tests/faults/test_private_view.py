"""What a measured command writes never reaches the user's folder, whatever the system allows.

All ways of saving, with every verb, are run by benchmarks/saving_matrix.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.saving_matrix import RESTRICTED, SCRIPT, state_of
from tests.commands.scripts import saving
from tests.speed import patience

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.skipif(sys.platform != "linux", reason="overlays and Landlock are Linux's"),
]


def _train(
    folder: Path, way: str, *flags: str, without: str | None = None
) -> "subprocess.CompletedProcess[str]":
    words = [] if without is None else [sys.executable, str(RESTRICTED), without]
    words += [sys.executable, "-m", "scalescope", "train", "--window", "0.2s", "--no-breakdown"]
    words += ["--device", "cpu", "--no-repeat-disturbed", "--output-dir", str(folder.parent / "run"), *flags]
    words += ["--", sys.executable, str(SCRIPT), way]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=patience(120)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    saving.user_files(project)
    return project


@pytest.mark.parametrize(
    ("without", "way"),
    [
        pytest.param(None, "rotated", marks=pytest.mark.basic),
        ("privileges", "folder_replaced"),
        ("namespaces", "replaced"),
        ("namespaces", "linked"),
    ],
)
@pytest.mark.fault(51)
def test_checkpoints_are_saved_and_the_folder_stays_as_it_is(
    folder: Path, without: str | None, way: str
) -> None:
    if without is not None and os.geteuid() != 0:
        pytest.skip("requires root")
    before = state_of(folder)
    done = _train(folder, way, without=without)
    assert done.returncode == 0, done.stdout + done.stderr
    assert state_of(folder) == before
    assert "your files are unchanged" in done.stdout


@pytest.mark.parametrize(
    ("without", "way", "said"),
    [
        (
            "namespaces",
            "by_command",
            "the script starts `cp ckpt.pt best.pt`, whose writes cannot be isolated",
        ),
        ("landlock", "plain", "the command's writes cannot be isolated from your files here"),
    ],
)
@pytest.mark.fault(51)
@pytest.mark.skipif(os.geteuid() != 0, reason="requires root")
def test_what_cannot_be_kept_apart_is_refused(folder: Path, without: str, way: str, said: str) -> None:
    before = state_of(folder)
    done = _train(folder, way, without=without)
    assert done.returncode in (2, 3)
    assert said in done.stderr and "--allow-writes" in done.stderr
    assert state_of(folder) == before


def test_files_are_kept_where_they_are_wanted(folder: Path) -> None:
    before = state_of(folder)
    done = _train(folder, "plain", "--output-to", str(folder.parent / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert state_of(folder) == before
    (kept,) = (folder.parent / "kept").rglob("ckpt.pt")
    assert kept.stat().st_size > 1_000 and str(kept).endswith(str(folder / "ckpt.pt"))


def test_a_command_that_may_write_writes(folder: Path) -> None:
    before = state_of(folder)
    assert _train(folder, "opened", "--allow-writes").returncode == 0
    assert state_of(folder) != before
