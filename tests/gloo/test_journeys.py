"""The first hour of a new user: an own model, a folder with spaces and umlauts, 80 columns, ASCII, not root.

Every command is a process of its own, as the user would start it.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import clean_environment
from tests.gloo.real_runs import reset_signal_handlers
from tests.speed import duration, patience

pytestmark = [pytest.mark.gloo, pytest.mark.own_torch]

_NOBODY = 65534
_AS_NOBODY = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
_COLUMNS = 80
_SHORT = ("--batch-size=4", "--window=0.2s", "--min-steps=5", "--no-repeat-disturbed")
_DICTIONARIES = """
import torch
from torch import nn
from helpers import WIDTH

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, features, target):
        return self.layer(features)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"features": torch.ones(WIDTH), "target": torch.zeros(4)}

def build():
    def loss(output, batch):
        return nn.functional.mse_loss(output, batch["target"])
    return Model(), Data(), loss
"""
_TRIPLES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, features, weights):
        return self.layer(features) * weights

def build():
    data = torch.utils.data.TensorDataset(torch.ones(64, 6), torch.ones(64, 1), torch.zeros(64, 4))
    return Model(), data, nn.functional.mse_loss
"""


@dataclass
class Finished:
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return [*self.stdout.splitlines(), *self.stderr.splitlines()]


@dataclass
class User:
    """Somebody without rights, at a narrow terminal that knows ASCII only."""

    home: Path
    becoming: tuple[str, ...]  # what a command is started through, so that it has no rights

    @property
    def project(self) -> Path:
        return self.home / "my proj ünï"

    def start(self, *arguments: str, folder: Path | None = None) -> "subprocess.Popen[str]":
        """Start a command in the project, or in another folder."""
        command = [sys.executable, "-P", "-m", "scalescope", *arguments]
        return subprocess.Popen(
            [*self.becoming, *command],
            cwd=folder or self.project,
            env=clean_environment(
                HOME=str(self.home),
                COLUMNS=str(_COLUMNS),
                PYTHONIOENCODING="ascii",  # what cannot be written in it would end the command
                PYTHONDONTWRITEBYTECODE="1",
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=reset_signal_handlers,
        )

    def run(self, *arguments: str, folder: Path | None = None, codes: tuple[int, ...] = (0,)) -> Finished:
        """Run a command to its end, which must have one of these exit codes."""
        with self.start(*arguments, folder=folder) as process:
            stdout, stderr = process.communicate(timeout=patience(180))
        finished = Finished(process.returncode, stdout, stderr)
        assert finished.returncode in codes, f"{shlex.join(arguments)}\n{stdout}\n{stderr}"
        assert (stdout + stderr).isascii()
        assert "Traceback" not in stdout + stderr
        return finished

    def run_folders(self) -> list[Path]:
        return sorted(
            path.parent
            for path in self.project.glob("runs/*/experiment.yaml")
            if not path.parent.is_symlink()
        )

    def newest(self) -> Path:
        return max(self.run_folders(), key=lambda path: (path / "experiment.yaml").stat().st_mtime_ns)


def _becoming_somebody() -> tuple[str, ...]:
    """What makes a process another user than root; nothing where we are not root."""
    if os.geteuid() != 0:
        return ()
    # The second is for an interpreter that only root can read: in a namespace of its own, root is a user.
    for becoming in (_AS_NOBODY, ("unshare", "--user", "--map-user=1000", "--map-group=1000")):
        tried = (
            *becoming,
            "sh",
            "-c",
            '"$0" -c "import os, click; assert os.geteuid() != 0"',
            sys.executable,
        )
        if shutil.which(becoming[0]) and subprocess.run(tried, capture_output=True).returncode == 0:
            return becoming
    pytest.skip("this system does not let root become another user")


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """Somebody with a project of two models, one of which imports a file beside it.

    Not in pytest's folder: every pytest that starts takes the rights of others from that.
    """
    with tempfile.TemporaryDirectory(prefix="scalescope-home-") as home:
        yield _with_project(Path(home))


def _with_project(home: Path) -> User:
    somebody = User(home, _becoming_somebody())
    somebody.project.mkdir()
    (somebody.project / "helpers.py").write_text("WIDTH = 6\n")
    (somebody.project / "dictionaries.py").write_text(_DICTIONARIES)
    (somebody.project / "triples.py").write_text(_TRIPLES)
    if somebody.becoming == _AS_NOBODY:
        for path in (home, somebody.project):
            os.chown(path, _NOBODY, _NOBODY)
    return somebody


def results_of(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((path / "results.json").read_text())
    return summary


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]


def fits(finished: Finished) -> None:
    """Tables fit the terminal; sentences and commands are wrapped by it."""
    tables = [line for line in finished.lines if "  " in line.strip()]
    assert [
        line for line in tables if len(line) > _COLUMNS and "scalescope" not in line and "/" not in line
    ] == []


def test_dictionaries_from_scaling_to_advice_report_comparison_list_and_removal(user: User) -> None:
    scaled = user.run("scale", "--workload=dictionaries.py:build", "--world-size=1,2", "--repeats=2", *_SHORT)
    fits(scaled)
    first = user.newest()
    summary = results_of(first)
    assert [row["world_size"] for row in summary["results"]["scaling"]] == [1, 2]
    explained = user.run("explain", str(first))
    assert "2 ranks" in explained.stdout

    written = user.run("report", str(first))
    assert (first / "report.html").is_file()
    assert "report.html" in written.stdout
    user.run("scale", "--workload=dictionaries.py:build", "--world-size=1,2", "--repeats=2", *_SHORT)
    compared = user.run("compare", str(first), str(user.newest()), codes=(0, 8))  # on a busy machine, slower
    fits(compared)
    listed = user.run("list")
    assert all(len(line) <= _COLUMNS for line in listed.stdout.splitlines())
    second = user.newest()
    assert all(path.name in listed.stdout for path in (first, second))

    refused = user.run("rm", str(second), codes=(2,))
    assert "--yes" in refused.stderr
    assert second.is_dir()
    user.run("rm", str(second), "--yes")
    assert not second.exists()


def test_triples_stopped_by_a_budget_are_resumed_from_another_folder(user: User) -> None:
    for seconds in (15, 50, 150):  # on a busy machine loading torch alone may take the first
        stopped = user.run(
            "scale",
            "--workload=triples.py:build",
            "--world-size=1,2",
            "--repeats=1000",
            f"--budget={duration(seconds)}",
            *_SHORT,
            codes=(0, 3),
        )
        if stopped.returncode == 0:
            break
    folder = user.newest()
    assert json.loads((folder / "run.json").read_text())["end"]["why"] == "budget"
    assert "resume" in stopped.stdout + stopped.stderr
    launches = [result["launch"] for result in records_of(folder)]
    wanted = max(launches) + 2  # one more than there are, at most
    user.run("resume", str(folder), "--budget=none", f"--repeats={wanted}", folder=user.home)
    assert len(records_of(folder)) > len(launches)
    assert json.loads((folder / "run.json").read_text())["end"]["why"] == "finished"
