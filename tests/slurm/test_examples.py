"""The job scripts under examples/ as they stand; their GPUs are only counted here, and ranks use the CPU."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.results.run import load_run
from tests.conftest import clean_environment
from tests.slurm.conftest import Commands, driven_by
from tests.speed import patience

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(patience(300))]

# Four ranks share what cores there are here: four threads in each would mostly wait for each other, and the
# example's model is larger than a test needs. Of its scaling run, one short launch is made.
_SHORTER = """\
case "$*" in *--only-launch=[12]*) exit 0 ;; esac
set -- "$@" --d-model=16 --n-heads=2 --dim-feedforward=16 --max-seq-len=12 --vocab-size=100
set -- "$@" --threads-per-rank=1
test "$1" = scale && set -- "$@" --no-waterfall --steps-per-epoch=6 --warmup-steps=3"""
_ROOT = Path(__file__).parents[2]


def _check_out(directory: Path) -> None:
    """The files that a job needs, a `scalescope` to run, and a little news."""
    shutil.copytree(_ROOT / "configs", directory / "configs")
    shutil.copytree(_ROOT / "examples/slurm", directory / "examples/slurm")
    command = directory / ".venv/bin/scalescope"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\n{_SHORTER}\nexec {sys.executable} -m scalescope "$@"\n')
    command.chmod(0o755)
    news = directory / "data/ag_news_csv"
    news.mkdir(parents=True)
    rows = [
        f'"{number % 4 + 1}","Title {number}","Words of story {number} to read."\n' for number in range(256)
    ]
    (news / "train.csv").write_text("".join(rows))
    (news / "test.csv").write_text("".join(rows[:64]))


def _submit(commands: Commands, script: str) -> tuple[int, str, Path]:
    """The exit code of the job, what it wrote, and where it ran."""
    directory = commands.directory
    _check_out(directory)
    done = subprocess.run(
        ["sbatch", "--wait", script],
        cwd=directory,
        env=clean_environment(**commands.cluster, DATA_DIR=str(directory / "data")),
        capture_output=True,
        text=True,
        timeout=patience(400),
    )
    output = "".join(path.read_text() for path in directory.glob("slurm-*.out"))
    return done.returncode, done.stderr + output, directory


def _one_gpu(commands: Commands) -> tuple[int, str, Path]:
    return _submit(commands, "examples/slurm/ag_news_1gpu.sbatch")


@driven_by(_one_gpu)
def test_ag_news_on_one_gpu(outcome: Any) -> None:
    code, output, directory = outcome
    assert code == 0, output
    assert "Results: runs/ag-news-1gpu-" in output
    (path,) = (directory / "runs").glob("ag-news-1gpu-*")
    assert [result.status for result in load_run(path).results] == ["ok"]


def _four_gpus(commands: Commands) -> tuple[int, str, Path]:
    return _submit(commands, "examples/slurm/ag_news_4gpu.sbatch")


@driven_by(_four_gpus)
def test_ag_news_on_four_gpus(outcome: Any) -> None:
    code, output, directory = outcome
    assert code == 0, output
    assert "strong scaling" in output
    (path,) = (directory / "runs").glob("ag-news-4gpu-*-scale")
    run = load_run(path)
    assert {result.status for result in run.results} == {"ok"}
    assert {result.settings["world_size"] for result in run.results} == {1, 2, 4}
