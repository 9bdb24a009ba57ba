"""The sharded optimizer is made of parameters, whoever wrote the function that makes it, and keeps groups."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalescope.worker.training.optimizers import GivenOptimizer, OptimizerRebuild, named_groups
from scalescope.worker.training.step import Data, OwnStep, Workload
from tests.builders.workers import CPU, options


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank, which DDP requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
