"""Real launches of one rank have a profile: parts that sum up to the step, and every gradient."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.prediction.profiles import MeasuredProfile, profiles_of
from scalescope.results.run import load_run
from tests.conftest import Cli
from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

# A step longer than its window is not profiled: one thread does not wait for others on a busy machine.
_FLAGS = (
    *("--device=cpu", "--repeats=1", "--window=1s", "--warmup-steps=3", "--no-repeat-disturbed"),
    "--threads-per-rank=1",
)
_MLP = ("--workload=mlp", "--input-dim=16", "--hidden-dim=32", "--output-dim=4", "--batch-size=8")
_COMMAND = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for _ in range(2):
        (model(torch.randn(8, 16)).square().mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_OWN_STEP = """
import scalescope
import torch
from torch import nn


def train():
    model = nn.Linear(16, 4)
    data = torch.utils.data.TensorDataset(torch.zeros(96, 16), torch.zeros(96, 4))

    def step(model, batch, optimizer):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return scalescope.Job(model=model, data=data, step=step)
"""


def _records(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert all(line["status"] == "ok" for line in lines), [line["reason"] for line in lines]
    return [
        rank
        for line in lines
        if line["settings"]["benchmark"] == "train" and settings.items() <= line["settings"].items()
        for rank in line["ranks"]
    ]


def _check(measured: MeasuredProfile, record: dict[str, Any]) -> None:
    """The parts are those of the measured step, the gradients those of the model."""
    profile, times_s = measured.profile, record["samples"]["step_time_s"]
    passes_s = measured.micro_batches * (profile.forward_s + profile.backward_s)
    whole_s = profile.input_s + passes_s + profile.optimizer_s + profile.rest_s
    assert math.isclose(whole_s, math.fsum(times_s) / len(times_s), rel_tol=1e-6)
    assert min(profile.forward_s, profile.backward_s, profile.optimizer_s) > 0.0
    assert profile.gradient_bytes == record["counters"]["gradient_bytes"]
    assert len(profile.gradients) == record["counters"]["parameter_tensors"]
    ready_s = [gradient.ready_s for gradient in profile.gradients]
    assert ready_s == sorted(ready_s)


def _finished(run: FinishedRun) -> Path:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.folder


@pytest.mark.parametrize(
    "workload",
    [
        _MLP,
        (*_MLP, "--accumulation-steps=2"),
        ("--workload=cnn", "--depth=18", "--channels=4", "--image-size=32", "--batch-size=2"),
        ("--workload=transformer", "--d-model=16", "--num-layers=1", "--vocab-size=50", "--batch-size=2"),
        ("--workload=paced", "--layers=3", "--batch-size=2"),
    ],
    ids=["mlp", "accumulated", "cnn", "transformer", "paced"],
)
def test_a_launch_of_one_rank_has_a_profile(run_here: RunsHere, workload: tuple[str, ...]) -> None:
    folder = _finished(run_here("train", *_FLAGS, "--world-size=1", "--no-breakdown", *workload))
    (record,) = _records(folder, world_size=1)
    assert "profile/step_s" in record["counters"], record["counters"]
    (measured,) = profiles_of(load_run(folder))
    _check(measured, record)
    assert measured.profile.samples in (2, 8)
    assert record["tables"]["units"][0]["name"] == "(root)"
    held = sum(unit["parameter_bytes"] for unit in record["tables"]["units"])
    assert held == record["counters"]["gradient_bytes"]


def test_scaling_has_profiles_of_its_baselines_alone(run_here: RunsHere) -> None:
    folder = _finished(run_here("scale", *_FLAGS, *_MLP, "--world-size=1,2"))
    profiles = profiles_of(load_run(folder))
    assert not profiles[0].trial.is_wrapped
    assert {measured.trial.world_size for measured in profiles} == {1}
    for record in _records(folder, world_size=2):
        assert not any(name.startswith("profile/") for name in record["counters"])
        assert not {"gradients", "units"} & set(record["tables"])


def test_an_own_step_has_parts_and_gradients(run_here: RunsHere) -> None:
    (run_here.directory / "own_step_profile.py").write_text(_OWN_STEP)
    flags = ("--world-size=1", "--batch-size=4", "--workload=own_step_profile.py:train", "--no-breakdown")
    folder = _finished(run_here("train", *_FLAGS, *flags))
    (record,) = _records(folder, world_size=1, with_preloaded_input=False)
    measured = profiles_of(load_run(folder))[0]
    _check(measured, record)
    assert measured.profile.units == ()


def test_counted_steps_are_not_profiled(run_here: RunsHere) -> None:
    flags = ("--device=cpu", "--repeats=1", "--warmup-steps=3", "--steps-per-epoch=8", "--world-size=1")
    folder = _finished(run_here("train", *flags, *_MLP, "--no-breakdown"))
    assert profiles_of(load_run(folder)) == ()


@pytest.mark.basic
def test_a_command_on_one_rank_has_a_profile(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_COMMAND)
    done = cli("train", *_FLAGS, "--output-dir=run", "--", sys.executable, "train.py", within_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    record = _records(tmp_path / "run", world_size=1)[0]
    measured = profiles_of(load_run(tmp_path / "run"))[0]
    _check(measured, record)
    assert (measured.micro_batches, measured.profile.samples) == (2, 8)
    assert measured.profile.buffer_bytes == 2 * 4 * 32 + 8
