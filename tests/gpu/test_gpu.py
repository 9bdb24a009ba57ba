"""Real ranks on a real GPU: one rank over NCCL, two ranks on one GPU, faults that only a GPU has."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.gpu

SMALL = ["--hidden-dim=512", "--input-dim=512", "--batch-size=64", "--steps-per-epoch=20"]
ONLY_SPEED = ["--no-breakdown"]  # of train: one launch, and none that explains it
TWO_ON_ONE = ["--world-size=2", "--oversubscribe"]


def results_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def succeed(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_rank_over_nccl(cli: Cli, tmp_path: Path) -> None:
    output = succeed(cli("train", "--strategy=ddp", "--backend=nccl", *SMALL, *ONLY_SPEED, "--output-dir=D"))
    assert "current_device=cuda:0" in output
    [result] = results_of(tmp_path / "D")
    assert result["settings"]["backend"] == "nccl"
    assert len(result["ranks"][0]["samples"]["step_time_s"]) == 15


def test_two_ranks_on_one_gpu_are_refused_and_then_marked(cli: Cli, tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() == 1:
        refused = cli("train", "--world-size=2", *SMALL)
        assert refused.returncode == 3
        assert "--oversubscribe" in refused.stderr
    succeed(cli("train", *TWO_ON_ONE, *SMALL, *ONLY_SPEED, "--output-dir=D", CUDA_VISIBLE_DEVICES="0"))
    summary = json.loads((tmp_path / "D" / "results.json").read_text())
    assert summary["results"]["training"][0]["scaling_measurement"] is False
    [result] = results_of(tmp_path / "D")
    sums = {rank["counters"]["parameter_checksum"] for rank in result["ranks"]}
    assert len(sums) == 1


def test_every_precision_trains(cli: Cli, tmp_path: Path) -> None:
    succeed(cli("train", "--precision=fp32,tf32,bf16,fp16", *SMALL, "--output-dir=D"))
    assert {result["status"] for result in results_of(tmp_path / "D")} == {"ok"}


def test_out_of_memory_is_data_and_the_sweep_goes_on(cli: Cli, tmp_path: Path) -> None:
    sizes = ["--hidden-dim=65536", "--num-layers=1,24", "--input-dim=64", "--batch-size=16"]
    steps = ["--steps-per-epoch=6", "--warmup-steps=3", *ONLY_SPEED, "--output-dir=D"]
    refused = cli("train", *sizes, *steps, within_s=280)
    assert (refused.returncode, "--allow-oom" in refused.stderr) == (3, True)
    done = cli("train", *sizes, *steps, "--allow-oom", within_s=280)
    assert done.returncode == 4
    statuses = {r["settings"]["num_layers"]: r["status"] for r in results_of(tmp_path / "D")}
    assert statuses == {1: "ok", 24: "oom"}


def test_a_killed_rank_is_named_while_the_other_waits_in_nccl(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *TWO_ON_ONE, *SMALL, *ONLY_SPEED, "--output-dir=D", SCALESCOPE_FAULT="kill@1:10")
    assert done.returncode == 4
    [result] = results_of(tmp_path / "D")
    assert result["rank"] == 1
    assert "SIGKILL" in result["reason"]


def test_a_rank_stuck_before_its_step_is_named(cli: Cli, tmp_path: Path) -> None:
    limits = ["--stall-timeout=4s", *ONLY_SPEED, "--output-dir=D"]
    done = cli("train", *TWO_ON_ONE, *SMALL, *limits, SCALESCOPE_FAULT="deadlock@1:10")
    assert done.returncode == 5
    [result] = results_of(tmp_path / "D")
    assert (result["status"], result["rank"]) == ("hang", 1)


def test_scale_without_communication_is_measured_over_nccl(cli: Cli, tmp_path: Path) -> None:
    sweep = ["--world-size=1,2", "--oversubscribe", "--repeats=1", "--output-dir=D"]
    output = succeed(cli("scale", *SMALL, *sweep))
    assert "not a scaling measurement" in output
    training = [result for result in results_of(tmp_path / "D") if result["settings"]["benchmark"] == "train"]
    assert {result["settings"]["without_communication"] for result in training} == {False, True}


def test_a_timed_launch_warms_up_until_ddp_takes_no_times_of_its_own(cli: Cli, tmp_path: Path) -> None:
    sizes = [flag for flag in SMALL if not flag.startswith("--steps")]
    succeed(cli("train", "--strategy=ddp", *sizes, "--window=0.5s", *ONLY_SPEED, "--output-dir=D"))
    [result] = results_of(tmp_path / "D")
    assert len(result["ranks"][0]["samples"]["warmup_step_time_s"]) >= 11


@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_sharded_ranks_without_communication_are_measured_over_nccl(
    cli: Cli, tmp_path: Path, strategy: str
) -> None:
    sweep = [f"--strategy={strategy}", "--world-size=2", "--oversubscribe", "--repeats=1", "--output-dir=D"]
    succeed(cli("scale", *SMALL, *sweep))
    training = [result for result in results_of(tmp_path / "D") if result["settings"]["benchmark"] == "train"]
    assert {result["settings"]["without_communication"] for result in training} == {False, True}
    assert {result["status"] for result in training} == {"ok"}
