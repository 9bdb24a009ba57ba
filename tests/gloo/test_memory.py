"""`memory` on the command line with real ranks on the CPU."""

import sys
from pathlib import Path

import pytest

from tests.gloo.real_runs import RunsHere

pytestmark = [
    pytest.mark.own_torch,
    pytest.mark.gloo,
    pytest.mark.skipif(sys.platform != "linux", reason="resident memory and limits need Linux"),
]
# Wide inputs: the batch takes much more than the model, so few samples fill the limit.
WIDE = ["--device=cpu", "--input-dim=65536", "--hidden-dim=32", "--num-layers=2", "--output-dim=4"]


@pytest.mark.basic
def test_the_largest_batch_within_a_limit_is_found(run_here: RunsHere) -> None:
    done = run_here("memory", *WIDE, "--batch-size=8,16", "--memory-limit=256M")
    assert done.returncode == 0, done.stdout + done.stderr
    *trials, job = done.summary["results"]["memory"]
    measured = [trial for trial in trials if trial["kind"] == "measure"]
    assert [trial["batch_size"] for trial in measured] == [8, 16]
    parameters = 4 * (65536 * 32 + 32 + 32 * 32 + 32 + 32 * 4 + 4)
    for trial in measured:
        assert trial["measured_bytes"]["parameters"] == trial["measured_bytes"]["gradients"] == parameters
        assert trial["forecast_bytes"]["parameters"] == parameters
        assert trial["measured_bytes"]["peak"] > 2 * parameters
    assert {trial["status"] for trial in trials} == {"ok", "oom"}, [
        result["reason"] for result in done.results
    ]
    assert job["largest_batch_is"] == "tried" and job["search_finished"]
    # Two batches wait on the device and a third is made: no more than 256 MiB / 256 KiB / 2 can fit.
    assert 32 <= job["largest_batch"] <= 512


def test_beyond_its_limit_a_rank_is_out_of_memory_and_has_not_crashed(run_here: RunsHere) -> None:
    done = run_here("memory", *WIDE, "--batch-size=4096", "--memory-limit=64M", "--no-search")
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = done.results
    assert (result["status"], result["rank"]) == ("oom", 0)


def test_two_ranks_with_adamw_and_a_forecast_for_ddp(run_here: RunsHere) -> None:
    small = ["--device=cpu", "--input-dim=512", "--hidden-dim=512", "--num-layers=2", "--batch-size=4"]
    done = run_here("memory", *small, "--world-size=2", "--optimizer=adamw")
    assert done.returncode == 0, done.stdout + done.stderr
    trial, job = done.summary["results"]["memory"]
    held = trial["measured_bytes"]
    assert held["optimizer"] == pytest.approx(2 * held["parameters"], rel=0.01)
    assert trial["forecast_bytes"]["gradients"] == held["gradients"]
    assert trial["no_forecast"] is None
    assert job["largest_batch_is"] == "calculated"


def test_a_small_data_set_fits_instead_of_a_batch_it_cannot_fill(run_here: RunsHere) -> None:
    workload = f"--workload={Path(__file__).parents[2] / 'examples/own_model.py'}:build"
    done = run_here("memory", workload, "--device=cpu", "--batch-size=8,3000", "--memory-limit=64M")
    assert done.returncode == 0, done.stdout + done.stderr
    small, large, job = done.summary["results"]["memory"]
    assert (small["all_samples"], large["all_samples"]) == (None, 2000)
    assert (job["largest_batch"], job["largest_batch_is"]) == (2000, "all_samples")
    assert "2,000" in done.stdout
