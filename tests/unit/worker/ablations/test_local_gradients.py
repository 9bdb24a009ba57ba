"""The hook of ranks without communication divides exactly where DDP would divide in place."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from scalescope.catalog.strategies.ddp import Ddp
from scalescope.worker.strategies.ddp import wrap, wrap_own_step
from scalescope.worker.training.step import Data, OwnStep, Step, Workload
from tests.builders.workers import CPU, options

_DIVISIONS = ("aten::div_", "aten::mul_", "aten::div")


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank, which DDP requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class ForgetfulSgd(torch.optim.SGD):
    """An optimizer that always sets gradients to None, as a user's own may."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=True)


def _step(without_communication: bool, kind: type[torch.optim.SGD], **settings: Any) -> Step:
    model = nn.Sequential(*(nn.Linear(30, 30) for _ in range(4)))
    workload = Workload(model=model, data=Data(), loss=lambda output, targets: output.sum())
    card = options(Ddp, **settings)
    return wrap(workload, card, CPU, without_communication, lambda parameters: kind(parameters, lr=0.01))


def _divisions(step: Step) -> list[int]:
    """Divisions in each of the first steps."""
    counts = []
    for _ in range(5):
        with profile(activities=[ProfilerActivity.CPU]) as recorder:
            step.backward(step.forward((torch.ones(3, 30), torch.zeros(3))))
            step.apply()
            step.clear()
        names = Counter(event.name for event in recorder.events())
        counts.append(sum(names[name] for name in _DIVISIONS))
    return counts


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", [torch.optim.SGD, ForgetfulSgd])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"static_graph": False},
        {"bucket_cap_mb": 0.005},
        {"gradient_as_bucket_view": False},
    ],
)
def test_as_many_divisions_as_one_rank_inside_ddp(
    settings: dict[str, Any], kind: type[torch.optim.SGD]
) -> None:
    normal = _divisions(_step(False, kind, **settings))
    assert _divisions(_step(True, kind, **settings)) == normal
    in_place = settings.get("gradient_as_bucket_view", True) and kind is torch.optim.SGD
    assert normal[-1] == (8 if in_place else 0)  # one per parameter


def _own_step(without_communication: bool, *, early: bool, set_to_none: bool, **settings: Any) -> Step:
    """A user's step that clears gradients before its backward, or after its update."""

    def run(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = model(batch[0]).sum()
        if early:
            optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()
        if not early:
            optimizer.zero_grad(set_to_none=set_to_none)
        return loss

    model = nn.Sequential(*(nn.Linear(30, 30) for _ in range(4)))
    workload = Workload(
        model=model,
        data=Data(),
        loss=lambda output, targets: output.sum(),
        own_step=OwnStep(run=run, models=model),
    )
    card = options(Ddp, **settings)
    return wrap_own_step(
        workload, card, CPU, without_communication, lambda parameters: torch.optim.SGD(parameters, lr=0.01)
    )


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("settings", [{"static_graph": False}, {"gradient_as_bucket_view": False}])
def test_as_many_divisions_in_a_step_of_the_users_own(
    settings: dict[str, Any], set_to_none: bool, early: bool
) -> None:
    normal = _divisions(_own_step(False, early=early, set_to_none=set_to_none, **settings))
    silent = _own_step(True, early=early, set_to_none=set_to_none, **settings)
    assert _divisions(silent) == normal
    in_place = settings.get("gradient_as_bucket_view", True) and not set_to_none
    assert normal[-1] == (8 if in_place else 0)  # one per parameter
    assert silent.counters().keys() == {"no_comm_hook_s_per_step", "no_comm_division_s_per_step"}


@pytest.mark.usefixtures("alone")
def test_beside_a_conversion_to_16_bits_nothing_is_divided() -> None:
    """The conversions and their division belong to the exchange that is left out."""
    assert _divisions(_step(True, torch.optim.SGD, comm_hook="bf16"))[-1] == 0


@pytest.mark.usefixtures("alone")
def test_the_hook_has_times_once_it_has_settled() -> None:
    step = _step(True, torch.optim.SGD)
    assert step.counters() == {}
    _divisions(step)
    counters = step.counters()
    assert counters.keys() == {"no_comm_hook_s_per_step", "no_comm_division_s_per_step"}
    assert _step(False, torch.optim.SGD).counters() == {}
