"""Training end to end on real CPU ranks: what is shown, what is stored, and that the training is right."""

import math
import re
import sys
from typing import Any

import pytest

from scalescope.results.result import SCHEMA_VERSION
from tests.conftest import TINY
from tests.gloo.conftest import Start, start_as_ranks
from tests.gloo.real_runs import FinishedRun, RunsHere
from tests.speed import duration

pytestmark = pytest.mark.gloo

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "scalescope")
_NO_BATCH = [flag for flag in TINY if not flag.startswith("--batch-size")]
_SUMMARY_KEYS = {"schema_version", "name", "world_size", "timestamp", "config", "results"}


def _assert_summary_of_two_ranks(run: FinishedRun) -> None:
    """The two placement lines, the labels of the summary and the folder that a launch on two ranks leaves."""
    assert run.returncode == 0
    placements = re.findall(
        r"^\[Rank (\d)\] CUDA_VISIBLE_DEVICES=.+, LOCAL_RANK=(\d), current_device=cpu, name=.",
        run.stdout,
        re.MULTILINE,
    )
    assert placements == [("0", "0"), ("1", "1")]
    shown = dict(re.findall(r"^(\w[\w %]*?) *: (.*)$", run.stdout, re.MULTILINE))
    assert shown["World size"] == "2"
    assert shown["Device"] == "cpu"
    assert "hidden_dim 16" in shown["Config"]
    assert shown["Warmup steps"] == "3"
    assert shown["Measured steps"] == "5 / 8"
    assert re.fullmatch(r"[\d.]+ ms", shown["Avg step time"])
    assert re.fullmatch(r"[\d,]+ samples/s", shown["Throughput"])
    assert shown["Measured samples"] == "40"

    (result,) = run.results
    assert (result["status"], result["launch"]) == ("ok", 0)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    for rank in result["ranks"]:
        assert len(rank["samples"]["warmup_step_time_s"]) == 3
        assert len(rank["samples"]["step_time_s"]) == 5
        assert all(time_s > 0 for time_s in rank["samples"]["step_time_s"])
    _assert_summary_file(run, result)


def _assert_summary_file(run: FinishedRun, result: dict[str, Any]) -> None:
    summary = run.summary
    assert set(summary) >= _SUMMARY_KEYS
    assert (summary["schema_version"], summary["world_size"]) == (SCHEMA_VERSION, 2)
    assert (summary["config"]["warmup_iters"], summary["config"]["benchmark_iters"]) == (3, 5)
    assert set(summary["results"]) >= {"communication", "training", "memory", "scaling", "findings"}
    (training,) = summary["results"]["training"]
    facts = {"workload": "mlp", "strategy": "ddp", "world_size": 2, "batch_size": 4, "status": "ok"}
    assert facts.items() <= training.items()
    assert training["step_time_s"]["ci95"] is None
    times = [rank["samples"]["step_time_s"] for rank in result["ranks"]]
    longest = max(math.fsum(time) for time in times)
    assert training["samples_per_s"] == pytest.approx(40 / longest)


@pytest.mark.basic
def test_train_on_two_ranks(start: Start) -> None:
    _assert_summary_of_two_ranks(start("train", *TINY, "--world-size=2").finish())


@pytest.mark.own_torch
def test_train_under_torchrun_shows_and_stores_the_same(start: Start) -> None:
    # Steps are long enough for several samples of the host.
    run = start("train", *TINY, command=_TORCHRUN, SCALESCOPE_FAULT="slow@all:0")
    finished = run.finish()
    assert run.leftovers() == []
    _assert_summary_of_two_ranks(finished)
    _assert_telemetry_as_of_local_ranks(finished)


def _assert_telemetry_as_of_local_ranks(run: FinishedRun) -> None:
    (result,) = run.results
    telemetry = result["telemetry"]
    assert set(telemetry) == {"samples", "interval_s", "cpu", "load"}
    assert telemetry["samples"] >= 2
    assert set(telemetry["cpu"]) == {"host_utilization", "host_busy_cores", "rank_busy_cores"}
    assert len(telemetry["cpu"]["rank_busy_cores"]) == 2
    assert 0.0 < telemetry["cpu"]["host_utilization"] <= 1.0
    (training,) = run.summary["results"]["training"]
    assert training["telemetry"]["host_utilization"] == telemetry["cpu"]["host_utilization"]
    assert training["telemetry"]["rank_busy_cores"] > 0.0
    assert training["model_flops_per_s"] > 0.0


@pytest.mark.basic
def test_two_ranks_train_like_one_that_averages_gradients(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--world-size=2", "--repeats=2")
    assert run.returncode == 0
    first, second = run.results
    expected = _losses_of_averaged_training(steps=8)
    for result in (first, second):
        measured = [rank["samples"]["loss"] for rank in result["ranks"]]
        assert measured == [pytest.approx(losses[3:], rel=1e-4) for losses in expected]
        assert len({rank["counters"]["parameter_checksum"] for rank in result["ranks"]}) == 1
    assert (
        first["ranks"][0]["counters"]["parameter_checksum"]
        == second["ranks"][1]["counters"]["parameter_checksum"]
    )


def _losses_of_averaged_training(steps: int) -> list[list[float]]:
    """Losses of two ranks, worked out in one process: each its own batch, one averaged update."""
    import torch

    from scalescope.catalog.workloads.mlp import Mlp
    from scalescope.worker.training.feeding import Shard, feed
    from scalescope.worker.training.step import BuildContext
    from scalescope.worker.workloads.mlp import build
    from tests.builders.workers import input_options

    torch.manual_seed(0)
    options = Mlp(input_dim=16, hidden_dim=16, num_layers=2, output_dim=4)
    cpu = torch.device("cpu")
    workload = build(options, cpu, BuildContext(reference="mlp", rank=0, world_size=2, batch_size=4))
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=0.01)
    batches = [
        feed(workload.data, 4, input_options(), cpu, Shard(index=rank, count=2), seed=0).batches
        for rank in (0, 1)
    ]
    losses: list[list[float]] = [[], []]
    for _ in range(steps):
        optimizer.zero_grad()
        for rank in (0, 1):
            inputs, targets = next(batches[rank])
            loss = workload.loss(workload.model(inputs), targets)
            (loss / 2).backward()
            losses[rank].append(loss.item())
        optimizer.step()
    return losses


@pytest.mark.basic
def test_scale_measures_weak_scaling_and_explains_it(run_here: RunsHere) -> None:
    flags = ("--world-size=1,2", "--batch-size=4,8", "--repeats=1")
    run = run_here("scale", *_NO_BATCH, *flags)
    assert run.returncode == 0
    assert "weak scaling" in run.stdout
    assert "strong scaling" not in run.stdout
    rows = run.summary["results"]["scaling"]
    assert {(row["world_size"], row["batch_size"], row["mode"]) for row in rows} == {
        (ranks, batch, "weak") for ranks in (1, 2) for batch in (4, 8)
    }
    assert len(rows) == 4
    for row in rows:
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["world_size"])
        assert (row["exposed_comm_s"] is None) == (row["world_size"] == 1)
        fall = row["waterfall"]
        assert (fall is None) == (row["world_size"] == 1)
        if fall is not None:
            assert fall["delivered"] + sum(term["lost"] for term in fall["terms"]) == pytest.approx(2.0)
    training = [result for result in run.results if result["settings"]["benchmark"] == "train"]
    exchanges = [result for result in run.results if result["settings"]["benchmark"] == "comm"]
    assert [exchange["settings"]["world_size"] for exchange in exchanges] == [2]
    ablated = [result for result in training if result["settings"]["without_communication"]]
    assert len(ablated) == 2  # one of each batch
    for result in ablated:
        assert result["status"] == "ok"
        assert len({rank["counters"]["parameter_checksum"] for rank in result["ranks"]}) == 2


def test_scale_with_a_global_batch_is_strong_scaling(run_here: RunsHere) -> None:
    flags = ("--world-size=1,2", "--global-batch-size=8", "--repeats=1")
    run = run_here("scale", *_NO_BATCH, *flags)
    assert run.returncode == 0
    assert "strong scaling" in run.stdout
    assert "weak scaling" not in run.stdout
    rows = run.summary["results"]["scaling"]
    assert [(row["world_size"], row["mode"]) for row in rows] == [(1, "strong"), (2, "strong")]
    training = run.summary["results"]["training"]
    # One rank is also measured at its share, to tell what the smaller batch costs.
    assert {(row["world_size"], row["batch_size"]) for row in training} == {(1, 8), (1, 4), (2, 4)}
    assert rows[1]["waterfall"]["terms"][0]["name"] == "smaller batch"


def test_scale_on_attached_ranks_uses_all_of_them_once(start: Start) -> None:
    run, other = start_as_ranks(start, "scale", *TINY)
    finished = run.finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert other.finish().returncode == 0
    assert run.leftovers() == other.leftovers() == []
    assert "weak scaling" in finished.stdout
    rows = finished.summary["results"]["scaling"]
    assert [(row["world_size"], row["ci95_efficiency"]) for row in rows] == [(1, None), (2, None)]
    assert {(result["launch"], result["status"]) for result in finished.results} == {(0, "ok")}


def test_a_rank_that_fails_under_torchrun_is_named(start: Start) -> None:
    # The group's timeout ends a rank that waits for one that failed.
    timeout = f"--init-timeout={duration(12)}"
    run = start("train", *TINY, timeout, command=_TORCHRUN, SCALESCOPE_FAULT="raise@1:5")
    finished = run.finish()
    assert finished.returncode == 1  # torchrun's own exit code; it shows ours
    assert "exitcode  : 4" in finished.stderr
    (result,) = finished.results
    assert (result["status"], result["rank"], result["step"]) == ("failed", 1, 5)
    assert "RuntimeError: injected fault" in result["reason"]
    assert result["reason"] in finished.stdout
    assert run.leftovers() == []


def test_precisions_of_the_cpu_with_ddp_on_one_rank(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--strategy=ddp", "--precision=fp32,bf16", "--optimizer=sgd,adamw")
    assert run.returncode == 0
    combinations = {
        (result["settings"]["precision"], result["settings"]["optimizer"]) for result in run.results
    }
    assert combinations == {(p, o) for p in ("fp32", "bf16") for o in ("sgd", "adamw")}
    for result in run.results:
        assert (result["status"], result["settings"]["strategy"], len(result["ranks"])) == ("ok", "ddp", 1)
    losses = {
        result["settings"]["precision"]: result["ranks"][0]["samples"]["loss"]
        for result in run.results
        if result["settings"]["optimizer"] == "sgd"
    }
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)

    refused = run_here("train", *TINY, "--precision=fp16")
    assert refused.returncode == 3
    assert "fp16" in refused.stderr


@pytest.mark.own_torch
def test_the_same_variable_twice_is_a_sweep(run_here: RunsHere) -> None:
    run = run_here("train", *TINY, "--env=OMP_NUM_THREADS=1", "--env=OMP_NUM_THREADS=2")
    assert run.returncode == 0
    assert len({result["trial_id"] for result in run.results}) == 2
    for threads in (1, 2):
        result = run.only(env={"OMP_NUM_THREADS": str(threads)})
        assert result["status"] == "ok"
        assert result["ranks"][0]["placement"].endswith(f"threads={threads}")
