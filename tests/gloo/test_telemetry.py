"""Telemetry of real ranks: what is sampled while they train, and where it is stored."""

from typing import Any

import pytest

from tests.conftest import TINY
from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

_WINDOW = ("window_began_monotonic_s", "window_ended_monotonic_s")

# Every step computes for 50 ms, so that a window of 20 is longer than several looks are apart.
_BUSY = """
import time
import torch
from torch import nn

class Busy(nn.Linear):
    def forward(self, inputs):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return super().forward(inputs)

def build():
    data = torch.utils.data.TensorDataset(torch.ones(64, 3), torch.zeros(64, 5))
    return Busy(3, 5), data, nn.functional.mse_loss
"""
_LONG = (
    "--device=cpu",
    "--batch-size=4",
    "--steps-per-epoch=23",
    "--warmup-steps=3",
    "--repeats=1",
    "--workload=busy.py:build",
)
_OPERATIONS = 2 * 2 * 3 * 5  # forward and the weights' gradients; inputs need none


def _only(run: FinishedRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one launch, raw and as results.json has it."""
    assert run.returncode == 0, run.stderr
    (result,) = run.results
    (training,) = run.summary["results"]["training"]
    return result, training


def _assert_counted(result: dict[str, Any], training: dict[str, Any]) -> None:
    """The operations of the own model, in raw records and as a share of a bare matrix product."""
    counters = [rank["counters"] for rank in result["ranks"]]
    assert [counter["model_flops_per_sample"] for counter in counters] == [_OPERATIONS, _OPERATIONS]
    assert training["model_flops_per_s"] == pytest.approx(_OPERATIONS * training["samples_per_s"] / 2)
    products = [counter[f"matmul_flops_per_s_{when}"] for counter in counters for when in ("before", "after")]
    share = training["model_flops_per_s"]
    assert share / max(products) <= training["bare_product_share"] <= share / min(products)


def test_telemetry_of_two_ranks_that_compute(run_here: RunsHere) -> None:
    (run_here.directory / "busy.py").write_text(_BUSY)
    run = run_here("train", *_LONG, "--world-size=2", "--no-breakdown", "-v")
    result, training = _only(run)
    for rank in result["ranks"]:
        began, ended = (rank["counters"][name] for name in _WINDOW)
        assert began < ended
    telemetry = result["telemetry"]
    assert set(telemetry) == {"samples", "interval_s", "cpu"}  # there is no GPU, and no problem with one
    assert telemetry["samples"] >= 2
    assert 0.0 < telemetry["cpu"]["host_utilization"] <= 1.0
    cores = telemetry["cpu"]["rank_busy_cores"]
    assert len(cores) == 2
    assert all(core > 0.0 for core in cores)

    kept = training["telemetry"]
    assert kept["host_utilization"] == telemetry["cpu"]["host_utilization"]
    assert kept["rank_busy_cores"] == pytest.approx(sum(cores) / 2)
    assert (kept["gpu_utilization"], kept["problem"], kept["slowdowns"]) == (None, None, [])
    _assert_counted(result, training)
    assert f"{kept['rank_busy_cores']:.1f} cores" in run.stdout
    assert "\nGPU" not in run.stdout


def test_telemetry_of_a_window_too_short_for_it(run_here: RunsHere) -> None:
    result, training = _only(run_here("train", *TINY, "--world-size=2"))
    telemetry = result["telemetry"]
    assert telemetry["interval_s"] == 0.2
    assert telemetry["samples"] >= 0
    assert bool(telemetry["cpu"]) <= (telemetry["samples"] >= 2)  # no rates from a single look
    assert training["telemetry"]["host_utilization"] == telemetry["cpu"].get("host_utilization")
    assert "model_flops_per_sample" not in result["ranks"][0]["counters"]  # its formula knows
    operations = 6 * (16 * 16 + 16 * 16 + 16 * 4) - 2 * 16 * 16
    assert training["model_flops_per_s"] == pytest.approx(operations * training["samples_per_s"] / 2)
    assert 0.0 < training["bare_product_share"] < 1.0
