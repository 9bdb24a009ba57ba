"""What lies in the working folder must not break the tool, and helpers of a workload are found there."""

from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.gloo.conftest import Start, start_as_ranks
from tests.gloo.real_runs import read_results

pytestmark = pytest.mark.gloo

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


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A working folder with files named like modules that torch and scalescope import."""
    for name in _BROKEN:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the module you look for')\n")
    return tmp_path


def _status(folder: Path) -> list[str]:
    return [result["status"] for result in read_results(folder)]


# Without --env ranks are forked from a zygote, with it each is an interpreter of its own.
@pytest.mark.parametrize("flags", [(), ("--env=SOME_NAME=1",)], ids=["zygote", "fresh"])
def test_files_named_like_installed_modules_are_not_imported(
    start: Start, shadowed: Path, flags: tuple[str, ...]
) -> None:
    run = start("train", *TINY, "--world-size=2", *flags).finish()
    assert (run.returncode, run.stderr) == (0, "")
    assert _status(run.folder) == ["ok"]


def test_attached_ranks_do_not_import_them_either(start: Start, shadowed: Path) -> None:
    leader, _ = [run.finish() for run in start_as_ranks(start, "train", *TINY)]
    assert leader.returncode == 0, leader.stderr
    assert _status(leader.folder) == ["ok"]


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
