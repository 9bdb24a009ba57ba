"""What lies in the working folder must not break the tool, and helpers of a workload are found there."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TINY, Cli, clean_environment
from tests.faults.conftest import Seen
from tests.gloo.conftest import Start, start_as_ranks
from tests.gloo.real_runs import RunsHere, read_results

pytestmark = [pytest.mark.gloo, pytest.mark.fault(37)]

_BROKEN = ("profile", "random", "torch", "numpy", "json")
_WORKLOAD = """
import torch
from torch.utils.data import DataLoader, IterableDataset

import beside
import in_working_folder

class Batches(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(4, 4), torch.zeros(4, 2)

def build():
    import loaded_late

    # Not made by fork: the loader's process is an interpreter of its own.
    loader = DataLoader(Batches(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    return torch.nn.Linear(4, 2), loader, torch.nn.functional.mse_loss
"""


_CONSOLE_SCRIPT = "import sys\nfrom scalescope.cli.main import main\nsys.exit(main())\n"


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A working folder with files and a package named like those that torch and scalescope import."""
    for name in _BROKEN:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the module you look for')\n")
    return tmp_path


@pytest.fixture
def installed(shadowed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command `scalescope` as it is installed, in a working folder that has a scalescope as well."""
    (shadowed / "scalescope").mkdir()
    (shadowed / "random.py").rename(shadowed / "scalescope" / "__init__.py")
    script = tmp_path_factory.mktemp("bin") / "scalescope"
    script.write_text(_CONSOLE_SCRIPT)
    return (sys.executable, str(script))


def _status(folder: Path) -> list[str]:
    return [result["status"] for result in read_results(folder)]


@pytest.mark.own_torch
def test_files_named_like_installed_modules_are_not_imported(
    start: Start, installed: tuple[str, ...], seen: Seen
) -> None:
    # With --env each rank is an interpreter of its own; the machine is probed by the zygote.
    flags = ("--world-size=1", "--env=SOME_NAME=1", "--no-breakdown")
    run = start("train", *TINY, *flags, command=installed).finish()
    assert (run.returncode, run.stderr) == (0, "")
    assert _status(run.folder) == ["ok"]
    seen("ignored by the command, its zygote, fresh and attached ranks")


@pytest.mark.own_torch
def test_the_command_as_a_module_does_not_import_them_either(cli: Cli, shadowed: Path) -> None:
    """`python -m` puts the working folder first; a package scalescope there is what it runs then."""
    run = cli("list")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in use may not be removed")
def test_a_working_folder_that_was_removed(tmp_path: Path, seen: Seen) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    script = (
        "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", script, "-m", "scalescope", "list"]
    run = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    seen("a working folder that was removed: no traceback")


@pytest.mark.own_torch
def test_attached_ranks_do_not_import_them_either(start: Start, installed: tuple[str, ...]) -> None:
    leader, _ = [
        run.finish()
        for run in start_as_ranks(partial(start, command=installed), "train", *TINY, "--no-breakdown")
    ]
    assert leader.returncode == 0, leader.stderr
    assert _status(leader.folder) == ["ok"]


@pytest.mark.own_torch
def test_a_workload_finds_its_helpers(start: Start, shadowed: Path) -> None:
    (shadowed / "jobs").mkdir()
    (shadowed / "jobs" / "mine.py").write_text(_WORKLOAD)
    (shadowed / "jobs" / "beside.py").write_text("")
    (shadowed / "jobs" / "loaded_late.py").write_text("")
    (shadowed / "in_working_folder.py").write_text("")
    steps = (
        "--steps-per-epoch=5",
        "--warmup-steps=3",
        "--batch-size=4",
        "--device=cpu",
        "--no-repeat-disturbed",
        "--no-breakdown",
    )
    run = start("train", "--workload=jobs/mine.py:build", *steps, "--world-size=1").finish()
    assert (run.returncode, run.stderr) == (0, "")
    assert _status(run.folder) == ["ok"]


_SCRIPT = """
import torch

import statistics  # the one beside this script, not Python's

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=statistics.LEARNING_RATE)
for _ in range(100_000):
    optimizer.zero_grad()
    model(torch.zeros(4, 8)).sum().backward()
    optimizer.step()
"""


def test_a_training_command_keeps_its_modules_and_we_keep_ours(run_here: RunsHere, seen: Seen) -> None:
    folder = run_here.directory / "script"
    folder.mkdir()
    (folder / "train.py").write_text(_SCRIPT)
    (folder / "statistics.py").write_text("LEARNING_RATE = 0.01\n")
    flags = ("--device=cpu", "--window=0.2s", "--no-repeat-disturbed", "--no-breakdown")
    run = run_here.reading("train", *flags, "--output-dir=of-script", "--", sys.executable, "script/train.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert _status(run_here.directory / "of-script") == ["ok"]
    seen("a command's own modules stay its own")
