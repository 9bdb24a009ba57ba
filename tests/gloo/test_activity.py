"""What real ranks note during timed steps, and that a run's findings name the cause."""

from typing import Any

import pytest

from scalescope.diagnose.diagnosis import diagnose
from scalescope.results.run import load_run
from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

_WORKLOADS = """
import gc
import time
import torch
from torch import nn

PAUSE_S = 0.2
LENGTHS = 30, 120


class Batches:
    def __init__(self, rank, batch_size):
        self.shape = batch_size, LENGTHS[rank]

    def __iter__(self):
        while True:
            yield torch.zeros(self.shape, dtype=torch.long), torch.zeros(self.shape[0], dtype=torch.long)


class Sleeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Embedding(9, 8), nn.Linear(8, 2)

    def forward(self, tokens):
        time.sleep(5e-4 * tokens.shape[1])
        return self.out(self.layer(tokens).mean(1))


def uneven(rank, batch_size):
    return Sleeping(), Batches(rank, batch_size), nn.functional.cross_entropy


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        hidden = self.layer(inputs)
        torch._dynamo.graph_break()
        return hidden * 2


def saving():
    steps = 0

    def optimizer(parameters):
        made = torch.optim.SGD(parameters, lr=0.1)

        def save(*arguments):
            nonlocal steps
            steps += 1
            if steps % 5 == 0:
                gc.collect()
                time.sleep(PAUSE_S)

        made.register_step_post_hook(save)
        return made

    data = torch.utils.data.TensorDataset(torch.zeros(96, 4), torch.zeros(96, 4))
    return torch.compile(Compiled(), backend="eager"), data, nn.functional.mse_loss, optimizer
"""
_FLAGS = ("--device=cpu", "--repeats=1", "--warmup-steps=3", "--batch-size=4")


def _trained(run_here: RunsHere, function: str, *flags: str) -> FinishedRun:
    (run_here.directory / "activity.py").write_text(_WORKLOADS)
    run = run_here("train", *_FLAGS, "--no-breakdown", *flags, f"--workload=activity.py:{function}")
    assert run.returncode == 0, run.stderr
    return run


def _ranks(run: FinishedRun, **settings: Any) -> list[dict[str, Any]]:
    ranks: list[dict[str, Any]] = run.only(benchmark="train", **settings)["ranks"]
    return ranks


def _rules(run: FinishedRun) -> list[str]:
    return [cause.rule for cause in diagnose(load_run(run.folder)).findings]


def test_pauses_collections_and_graph_breaks_of_a_rank(run_here: RunsHere) -> None:
    run = _trained(run_here, "saving", "--world-size=1", "--steps-per-epoch=33")
    (rank,) = _ranks(run)
    paused = [row for row in rank["tables"]["long_steps"] if row["optimizer_beyond_s"] > 0.15]
    assert {1, 6, 11, 16, 21, 26} <= {row["step"] for row in paused}
    assert rank["counters"]["gc/collections_2"] >= 6
    (graph_break,) = rank["tables"]["graph_breaks"]
    assert graph_break["file"].endswith("activity.py")
    assert rank["counters"]["compile/compilations_inside"] == 0
    assert not any(name.startswith("allocator/") for name in rank["counters"])
    rules = _rules(run)
    assert "graph breaks" in rules
    assert "periodic pauses" in rules


def test_a_rank_with_longer_batches_is_not_called_slow(run_here: RunsHere) -> None:
    run = _trained(run_here, "uneven", "--world-size=2", "--steps-per-epoch=18")
    ranks = _ranks(run, without_communication=False)
    assert [rank["counters"]["work/tokens"] for rank in ranks] == [120.0, 480.0]
    assert all("work/elements" not in rank["samples"] for rank in ranks)
    assert "uneven work per rank" in _rules(run)
