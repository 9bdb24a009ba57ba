"""Jobs with a step of their own on two real ranks: clipping with a scheduler, a GAN, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

_EXAMPLE = Path(__file__).parents[2] / "examples" / "own_step.py"
_COUNTED = ("--device=cpu", "--world-size=2", "--steps-per-epoch=8", "--warmup-steps=3")
_SHORT = (*_COUNTED, "--repeats=1")
_STRATEGIES = ("ddp", "zero1", "fsdp")

# The same training three times: in parts, as a job in parts, and as a step.
_SAME = """
import torch
from torch import nn
import scalescope

def parts():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    inputs = torch.randn(256, 4)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0, "lr": 0.2},
    ]
    return model, data, nn.functional.cross_entropy, torch.optim.AdamW(groups, lr=0.05)

def job():
    model, data, loss, optimizer = parts()
    return scalescope.Job(model=model, data=data, loss=loss, optimizer=optimizer)

def step():
    model, data, loss, optimizer = parts()

    def train(model, batch, optimizer):
        value = loss(model(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return scalescope.Job(model=model, data=data, optimizer=optimizer, step=train)
"""


@pytest.fixture(scope="module")
def directory(run_here: RunsHere) -> Path:
    shutil.copy(_EXAMPLE, run_here.directory)
    (run_here.directory / "same.py").write_text(_SAME)
    return run_here.directory


def _losses(run: FinishedRun, **settings: Any) -> list[list[float]]:
    result = run.only(**settings)
    assert result["status"] == "ok", result["reason"]
    return [rank["samples"]["loss"] for rank in result["ranks"]]


@pytest.fixture(scope="module")
def trained(run_here: RunsHere, directory: Path) -> FinishedRun:
    run = run_here(
        "train",
        *_SHORT,
        "--no-breakdown",
        "--workload=own_step.py:clipped,own_step.py:gan",
        f"--strategy={','.join(_STRATEGIES)}",
    )
    assert run_here.leftovers() == []
    assert (run.returncode, run.stderr) == (0, "")
    return run


@pytest.mark.parametrize("function", ["clipped", "gan"])
def test_every_strategy_trains_the_example(trained: FinishedRun, function: str) -> None:
    losses = [_losses(trained, workload=f"own_step.py:{function}", strategy=name) for name in _STRATEGIES]
    for other in losses[1:]:
        for rank, values in enumerate(other):
            assert values == pytest.approx(losses[0][rank], rel=1e-3)
    result = trained.only(workload=f"own_step.py:{function}", strategy="ddp")
    counters = [rank["counters"] for rank in result["ranks"]]
    assert len({rank["parameter_checksum"] for rank in counters}) == 1
    assert not [name for name in counters[0] if name in ("host/forward_s", "host/backward_s")]
    assert "host/input_s" in counters[0]


def test_the_same_training_in_parts_and_as_a_step_has_the_same_losses(
    run_here: RunsHere, directory: Path
) -> None:
    workloads = [f"same.py:{name}" for name in ("parts", "job", "step")]
    run = run_here(
        "train", *_SHORT, "--no-breakdown", f"--workload={','.join(workloads)}", "--strategy=ddp,fsdp"
    )
    assert (run.returncode, run.stderr) == (0, "")
    for strategy in ("ddp", "fsdp"):
        losses = [_losses(run, workload=workload, strategy=strategy) for workload in workloads]
        assert losses[0] == losses[1] == losses[2]


def test_scaling_of_a_gan_has_a_waterfall(run_here: RunsHere, directory: Path) -> None:
    run = run_here(
        "scale",
        "--device=cpu",
        "--world-size=1,2",
        "--steps-per-epoch=8",
        "--warmup-steps=4",
        "--repeats=1",
        "--workload=own_step.py:gan",
    )
    assert run.returncode == 0, run.stderr
    silent = [result for result in run.results if result["settings"].get("without_communication")]
    assert silent and all(result["status"] == "ok" for result in silent)
    sums = {rank["counters"]["parameter_checksum"] for rank in silent[0]["ranks"]}
    assert len(sums) == 2  # each rank trained by itself
    rows = [row for row in run.summary["results"]["scaling"] if row["world_size"] == 2]
    assert rows and all(row["waterfall"] for row in rows)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--accumulation-steps=2",), "accumulation_steps 2 repeats forward and backward"),
        (("--strategy=pipeline",), "strategy pipeline runs forward and backward of microbatches"),
        (("--strategy=scratch_ddp",), "strategy scratch_ddp requires gradients that are cleared in place"),
    ],
)
def test_settings_that_need_the_parts_end_in_one_line(
    run_here: RunsHere, directory: Path, flags: tuple[str, ...], reason: str
) -> None:
    run = run_here("train", *_SHORT, "--no-breakdown", "--workload=own_step.py:clipped", *flags)
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"scalescope: {reason}")
    assert "and the workload defines its own step; " in line


def test_a_run_does_not_go_on_with_another_file(run_here: RunsHere, directory: Path) -> None:
    code = directory / "changing.py"
    code.write_text(_SAME)
    arguments = ("train", *_COUNTED, "--no-breakdown", "--workload=changing.py:step")
    run = run_here(*arguments, "--repeats=1", folder="changing")
    assert run.returncode == 0
    code.write_text(f"{_SAME}\n# another\n")
    refused = run_here(*arguments, "--repeats=2", "--resume", folder="changing")
    assert refused.returncode == 2
    assert refused.stderr == (
        "scalescope: --resume: changing.py has changed since this run began; start a new run, or restore it\n"
    )
    code.write_text(_SAME)
    assert run_here(*arguments, "--repeats=2", "--resume", folder="changing").returncode == 0
    assert len(read_launches(refused.folder)) == 2


def read_launches(folder: Path) -> list[str]:
    return (folder / "trials.jsonl").read_text().splitlines()


def test_memory_of_a_step_is_measured_without_its_parts(run_here: RunsHere, directory: Path) -> None:
    run = run_here("memory", "--device=cpu", "--workload=own_step.py:gan", "--batch-size=32", "--no-search")
    assert run.returncode == 0, run.stderr
    counters = run.results[0]["ranks"][0]["counters"]
    assert counters["measured/activations"] is None
    assert counters["measured/optimizer"] > 0
    assert "defines its own step" in counters["forecast/as_asked/problem"]
