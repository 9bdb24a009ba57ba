"""DDP, FSDP and the sharded optimizer: what is passed on to torch, and what is kept."""

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from scalescope.catalog.benchmarks.memory import WARMUP_STEPS
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.catalog.strategies.fsdp import Fsdp
from scalescope.worker.strategies import fsdp
from scalescope.worker.strategies.ddp import wrap
from scalescope.worker.training.optimizers import GivenOptimizer, OptimizerRebuild, named_groups
from scalescope.worker.training.step import Data, OwnStep, Step, Workload
from tests.builders.workers import CPU, options


def take_step(step: Step) -> set[int]:
    """One step; returns where the gradients lie after it."""
    step.backward(step.forward((torch.ones(3, 600), torch.zeros(3))))
    step.apply()
    step.clear()
    gradients = [parameter.grad for parameter in step.module.parameters()]
    return {gradient.untyped_storage().data_ptr() for gradient in gradients if gradient is not None}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("static", [True, False])
def test_the_buckets_stay_after_the_warm_up(static: bool) -> None:
    model = nn.Sequential(*(nn.Linear(600, 600) for _ in range(4)))
    workload = Workload(model=model, data=Data(), loss=lambda output, targets: output.sum())
    step = wrap(
        workload,
        options(Ddp, static_graph=static, bucket_cap_mb=1.0),
        CPU,
        False,
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
    for _ in range(WARMUP_STEPS):
        lasting = take_step(step)
    assert len(lasting) > 1  # they were made anew: static graphs begin with one for all
    assert take_step(step) == lasting


@pytest.mark.parametrize("asked", [None, True, False])
def test_what_is_freed_after_forward_is_left_to_torch_unless_it_was_set(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None
) -> None:
    sharded = mock.Mock()
    monkeypatch.setattr(fsdp, "fully_shard", sharded)
    monkeypatch.setattr(fsdp, "init_device_mesh", mock.Mock())
    monkeypatch.setattr(fsdp.dist, "get_world_size", lambda: 2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    workload = Workload(model=model, data=Data(), loss=lambda output, targets: output.sum())
    card = options(Fsdp) if asked is None else options(Fsdp, reshard_after_forward=asked)
    fsdp.wrap(workload, card, CPU, False, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert [call.args[0] for call in sharded.call_args_list] == [*model, model]  # the root is the last
    assert {call.kwargs["reshard_after_forward"] for call in sharded.call_args_list} == {asked}


# torch warns of itself when this part of it is imported
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_function_of_parameters_gets_parameters() -> None:
    from scalescope.worker.strategies.zero1 import _class_of

    model = nn.Linear(2, 2)
    given: list[nn.Parameter] = []

    def make(parameters):  # type: ignore[no-untyped-def]
        given.extend(parameters)
        return torch.optim.SGD(given, lr=0.5)

    optimizer = _class_of(make)([{"params": list(model.parameters())}], some_default=1)
    assert [id(parameter) for parameter in given] == [id(parameter) for parameter in model.parameters()]
    assert isinstance(optimizer, torch.optim.SGD)


def _grouped(model: nn.Linear) -> torch.optim.SGD:
    return torch.optim.SGD(
        [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.5}], lr=0.25
    )


def _decays(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["weight_decay"] for group in optimizer.param_groups]


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_groups_of_a_users_optimizer_are_kept() -> None:
    from scalescope.catalog.strategies.zero1 import Zero1
    from scalescope.worker.strategies.zero1 import wrap

    model = nn.Linear(2, 2)
    workload = Workload(model=model, data=Data(), loss=nn.functional.mse_loss)
    step = wrap(workload, options(Zero1), CPU, False, OptimizerRebuild.of(_grouped(model), model))
    assert _decays(step.optimizer) == _decays(step.optimizer.optim) == [0, 0.5]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_users_scheduler_changes_the_sharded_optimizer() -> None:
    from scalescope.catalog.strategies.zero1 import Zero1
    from scalescope.worker.strategies.zero1 import wrap_own_step

    model = nn.Linear(2, 2)
    given = _grouped(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(given, gamma=0.5)
    received: list[Any] = []

    def run(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        received.append(optimizer)
        return loss

    kept = GivenOptimizer(optimizer=given, groups=named_groups(given, model))
    workload = Workload(
        model=model,
        data=Data(),
        loss=nn.functional.mse_loss,
        own_step=OwnStep(run=run, models=model, optimizers=kept),
    )
    step = wrap_own_step(workload, options(Zero1), CPU, False, lambda parameters: given)
    for _ in range(3):
        step.forward(torch.ones(1, 2))
    (sharded,) = {id(optimizer): optimizer for optimizer in received}.values()
    assert sharded is step.optimizer and sharded is not given
    assert _decays(sharded) == [0, 0.5]
    assert [group["lr"] for group in sharded.optim.param_groups] == [0.0625, 0.0625]  # of the third step
