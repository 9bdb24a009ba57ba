"""The job scripts under examples/ as they stand; their GPUs are only counted here, and ranks use the CPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.results.run import load_run
from tests.conftest import clean_environment

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

# Four ranks share what cores there are here: four threads in each would mostly wait for each other. Of the
# example's scaling run, one short launch is made.
_SHORTER = """\
case "$*" in *--only-launch=[12]*) exit 0 ;; esac
set -- "$@" --threads-per-rank=1
test "$1" = scale && set -- "$@" --no-waterfall --steps-per-epoch=6 --warmup-steps=3"""
_ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that a job needs, a `scalescope` to run, and a little news."""
    shutil.copytree(_ROOT / "configs", tmp_path / "configs")
    shutil.copytree(_ROOT / "examples/slurm", tmp_path / "examples/slurm")
    command = tmp_path / ".venv/bin/scalescope"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\n{_SHORTER}\nexec {sys.executable} -m scalescope "$@"\n')
    command.chmod(0o755)
    news = tmp_path / "data/ag_news_csv"
    news.mkdir(parents=True)
    rows = [
        f'"{number % 4 + 1}","Title {number}","Words of story {number} to read."\n' for number in range(256)
    ]
    (news / "train.csv").write_text("".join(rows))
    (news / "test.csv").write_text("".join(rows[:64]))
    return tmp_path


def _submit(checkout: Path, cluster: dict[str, str], script: str) -> str:
    done = subprocess.run(
        ["sbatch", "--wait", script],
        cwd=checkout,
        env=clean_environment(**cluster, DATA_DIR=str(checkout / "data")),
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = "".join(path.read_text() for path in checkout.glob("slurm-*.out"))
    assert done.returncode == 0, done.stderr + said
    return said


def test_ag_news_on_one_gpu(checkout: Path, cluster: dict[str, str]) -> None:
    said = _submit(checkout, cluster, "examples/slurm/ag_news_1gpu.sbatch")
    assert "Results: runs/ag-news-1gpu-" in said
    (path,) = (checkout / "runs").glob("ag-news-1gpu-*")
    assert [result.status for result in load_run(path).results] == ["ok"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="four ranks on one core take too long")
def test_ag_news_on_four_gpus(checkout: Path, cluster: dict[str, str]) -> None:
    said = _submit(checkout, cluster, "examples/slurm/ag_news_4gpu.sbatch")
    assert "strong scaling" in said
    (path,) = (checkout / "runs").glob("ag-news-4gpu-*-scale")
    run = load_run(path)
    assert {result.status for result in run.results} == {"ok"}
    assert {result.settings["world_size"] for result in run.results} == {1, 2, 4}
