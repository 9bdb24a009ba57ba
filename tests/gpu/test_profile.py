"""Traces of a GPU: what kernels and NCCL did, compared with DDP's own times."""

import json
from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.gpu

SMALL = [
    "--hidden-dim=2048",
    "--input-dim=2048",
    "--batch-size=1024",
    "--steps-per-epoch=12",
    "--no-breakdown",
]


def test_two_shares_of_a_gpu_overlap_as_ddp_reports(cli: Cli, tmp_path: Path) -> None:
    shares = ["--split-gpu=2", "--world-size=2", "--bucket-cap-mb=20"]
    done = cli("train", *shares, *SMALL, "--profile", "--output-dir=D", within_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (profile,) = json.loads((tmp_path / "D" / "results.json").read_text())["results"]["profile"]
    assert abs(profile["span_overlap"] - profile["ddp_overlap"]) < 0.1
    assert all(bucket["size_bytes"] for bucket in profile["buckets"])
    steps = [step for rank in profile["ranks"] for step in rank["steps"]]
    assert len(steps) == 6
    assert all(step["communication_s"] > 0.0 and step["compute_s"] > 0.0 for step in steps)


def test_one_gpu_that_waits_for_samples_is_idle_for_that(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *SMALL, "--num-workers=0", "--profile", "--output-dir=D", within_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (profile,) = json.loads((tmp_path / "D" / "results.json").read_text())["results"]["profile"]
    (rank,) = profile["ranks"]
    idle = [step["idle_s"] for step in rank["steps"]]
    assert sum(rank["data"] for rank in idle) > sum(rank["host"] for rank in idle)
    assert all(step["copy_s"] > 0.0 for step in rank["steps"])
    assert "ncclDevKernel" not in json.dumps(profile["kernels"])
