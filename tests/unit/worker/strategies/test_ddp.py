"""DDP's buckets: after the warm-up steps of the memory benchmark they are those that stay."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalescope.catalog.benchmarks.memory import WARMUP_STEPS
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.worker.strategies.ddp import wrap
from scalescope.worker.training.step import Data, Step, Workload
from tests.builders.workers import CPU, options


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank, which DDP requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
