"""Workloads and stand-ins on real ranks: they train, and their parameters are what they must be."""

from typing import Any

import pytest

from scalescope.cores import usable_cores
from tests.conftest import TINY
from tests.gloo.real_runs import RunsHere

pytestmark = pytest.mark.gloo

_SMALL = (
    "--device=cpu",
    "--batch-size=4",
    "--steps-per-epoch=8",
    "--warmup-steps=3",
    "--accumulation-steps=2",
    "--lr=0.25",
    *("--forward-ms=1", "--backward-ms=2", "--layers=3", "--layer-mb=0.25", "--bucket-cap-mb=0.3"),
    *("--image-size=16", "--channels=2", "--num-classes=3"),
)


def _checksums(result: dict[str, Any]) -> set[str]:
    return {rank["counters"]["parameter_checksum"] for rank in result["ranks"]}


def test_paced_and_cnn_train_on_one_rank_and_on_two(run_here: RunsHere) -> None:
    finished = run_here("train", *_SMALL, "--workload=paced,cnn", "--world-size=1,2", "--repeats=1")
    assert run_here.leftovers() == []
    assert (finished.returncode, finished.stderr) == (0, "")
    for ranks in (1, 2):
        result = finished.only(workload="paced", world_size=ranks)
        assert [rank["samples"]["loss"] for rank in result["ranks"]] == [[1.0] * 5] * ranks
        assert min(result["ranks"][0]["samples"]["step_time_s"]) >= 2 * 0.003  # two passes, each slept
        assert _checksums(result) == {_checksum_of_layers(-0.25 * 8)}
        assert result["ranks"][0]["counters"]["gradient_bytes"] == 3 * 2**18
        result = finished.only(workload="cnn", world_size=ranks)
        assert (result["status"], len(_checksums(result))) == ("ok", 1)


def _checksum_of_layers(value: float) -> str:
    import torch
    from torch import nn

    from scalescope.worker.training.measurements import parameter_checksum

    return parameter_checksum(nn.ParameterList(torch.full((2**16,), value) for _ in range(3)))


def test_stand_ins_keep_the_model_and_take_rank_0s_times(run_here: RunsHere) -> None:
    finished = run_here(
        "train",
        *TINY,
        "--world-size=2",
        f"--threads-per-rank={usable_cores()}",
        "--stand-in",
        "--precision=bf16",
        "--repeats=1",
    )
    assert run_here.leftovers() == []
    assert finished.returncode == 0
    (result,) = finished.results
    assert result["settings"]["stand_in"] is True  # each wants all cores
    assert _checksums(result) == {_checksum_of_untrained_mlp()}
    for part in ("forward", "backward", "optimizer"):
        (seconds,) = {rank["counters"][f"stand_in_{part}_s"] for rank in result["ranks"]}
        assert seconds > 0


def _checksum_of_untrained_mlp() -> str:
    import torch

    from scalescope.catalog.workloads.mlp import Mlp
    from scalescope.worker.training.measurements import parameter_checksum
    from scalescope.worker.workloads.mlp import build
    from tests.builders.workers import CPU, build_context

    torch.manual_seed(0)
    options = Mlp(input_dim=16, hidden_dim=16, num_layers=2, output_dim=4)
    return parameter_checksum(build(options, CPU, build_context()).model)
