"""Stand-ins: what rank 0 measured becomes the pace of all, in the order in which gradients came."""

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalescope.experiment.expand import expand
from scalescope.experiment.trial import Trial
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, OPTIMIZER
from scalescope.worker.process.group import Group
from scalescope.worker.rank_profile import TimedStep, trained_parameters
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.stand_in import (
    ComputeTimes,
    PacedModel,
    SleepingOptimizer,
    compute_times,
    paced,
    stand_in_for,
)
from scalescope.worker.training.step import Data, Workload
from tests.builders.requests import ask
from tests.builders.workers import CPU
from tests.simulated.launcher import TWO_CORES


class _Backwards(nn.Module):
    """Registered in another order than used; one parameter is frozen, one never used."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(4, 2, bias=False)
        self.first = nn.Linear(3, 4, bias=False)
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(1))
        self.second = nn.BatchNorm1d(4)

    def forward(self, vectors: Tensor) -> Tensor:
        output: Tensor = self.third(self.second(self.first(vectors)))
        return output


def _synthesize(count: int, generator: torch.Generator) -> Any:
    vectors = torch.randn(count, 3, generator=generator)
    return vectors, torch.zeros(count, dtype=torch.long)


def _workload() -> Workload:
    torch.manual_seed(0)
    return Workload(model=_Backwards(), data=Data(synthesize=_synthesize), loss=nn.functional.cross_entropy)


def _trial(**texts: str) -> Trial:
    (trial,) = expand(ask(world_size="4", batch_size="8", stand_in="true", **texts), TWO_CORES).trials
    assert trial.settings["stand_in"] is True
    return trial


def _names(workload: Workload, numbers: list[int]) -> list[str]:
    names = {id(parameter): name for name, parameter in workload.model.named_parameters()}
    parameters = trained_parameters(workload.model)
    return [names[id(parameters[number])] for number in numbers]


def test_ranks_sleep_for_the_parts_that_they_leave_out() -> None:
    step = TimedStep(
        parts_s={FORWARD: 2.0, BACKWARD: 4.0, OPTIMIZER: 0.2, CLEAR: 0.1},
        step_s=6.3,
        gradients_s={1: 1.5, 2: 2.0, 0: 3.5},
    )
    assert compute_times(step) == ComputeTimes(
        forward_s=2.0, optimizer_s=0.2, ready_order=[1, 2, 0], gradient_ready_s=[1.5, 2.0, 3.5]
    )


def test_gradients_of_the_stand_in_come_in_the_measured_order() -> None:
    workload = _workload()
    facts = ComputeTimes(
        forward_s=0.0, optimizer_s=0.0, ready_order=[4, 1, 3, 2], gradient_ready_s=[0.0, 0.0, 0.0, 0.0]
    )
    stand_in = paced(workload, facts)
    came: list[str] = []
    for name, parameter in workload.model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    stand_in.loss_of(stand_in.model, _synthesize(8, torch.Generator())).backward()
    assert came == _names(workload, [4, 1, 3, 2])
    assert workload.model.unused.grad is None


def test_rank_0_measures_and_leaves_the_model_as_it_was() -> None:
    workload, untouched = _workload(), _workload()
    before = torch.get_rng_state()
    measurements = Measurements()
    alone = Group(rank=0, world_size=1, joined=False)
    stand_in = stand_in_for(workload, _trial(), alone, CPU, measurements)
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in untouched.model.state_dict().items():
        assert torch.equal(workload.model.state_dict()[name], value), name
    assert all(parameter.grad is None for parameter in workload.model.parameters())
    assert isinstance(stand_in.model, PacedModel)
    assert stand_in.make_optimizer is not None
    assert isinstance(stand_in.make_optimizer(workload.model.parameters()), SleepingOptimizer)
    assert set(measurements.counters) == {"stand_in_forward_s", "stand_in_backward_s", "stand_in_optimizer_s"}
    assert all(float(str(value)) > 0 for value in measurements.counters.values())


def test_the_number_format_of_the_trial_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    formats: list[torch.dtype] = []
    workload = _workload()
    workload.model.register_forward_hook(lambda _, __, output: formats.append(output.dtype))
    alone = Group(rank=0, world_size=1, joined=False)
    stand_in_for(workload, _trial(precision="bf16"), alone, CPU, Measurements())
    assert set(formats) == {torch.bfloat16}


def test_other_ranks_use_the_measurement_of_rank_0() -> None:
    store = dist.HashStore()
    times = {"forward_s": 0.25, "optimizer_s": 0.5, "ready_order": [1, 0], "gradient_ready_s": [1.0, 2.0]}
    store.set("pace/0", json.dumps(json.dumps(times)))
    measurements = Measurements()
    group = Group(rank=1, world_size=2, joined=False, store=store)
    stand_in_for(_workload(), _trial(), group, CPU, measurements)
    assert measurements.counters == {
        "stand_in_forward_s": 0.25,
        "stand_in_backward_s": 2.0,
        "stand_in_optimizer_s": 0.5,
    }
