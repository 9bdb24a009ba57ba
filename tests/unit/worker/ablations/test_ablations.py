"""Ranks without communication: what stands in place of collectives, and what is refused."""

from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from scalescope.catalog.strategies.ddp import Ddp
from scalescope.errors import BadInput
from scalescope.worker.ablations import (
    KeepChunk,
    RepeatShard,
    count_model_collectives,
    keep_shards_local,
    refuse_model_collectives,
)
from scalescope.worker.strategies.ddp import wrap, wrap_own_step
from scalescope.worker.training.step import Data, OwnStep, Step, Workload
from tests.builders.workers import CPU, options

_DIVISIONS = ("aten::div_", "aten::mul_", "aten::div")


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
@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, torch.optim.SGD),
        ({"bucket_cap_mb": 0.005}, torch.optim.SGD),
        ({"gradient_as_bucket_view": False}, torch.optim.SGD),
        ({"static_graph": False}, ForgetfulSgd),
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
@pytest.mark.parametrize(
    ("settings", "set_to_none", "early"),
    [
        ({"static_graph": False}, True, True),
        ({"static_graph": False}, False, True),
        ({"static_graph": False}, False, False),
        ({"gradient_as_bucket_view": False}, False, False),
    ],
)
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


def _group(rank: int, ranks: int) -> dist.ProcessGroup:
    group = mock.Mock(spec=dist.ProcessGroup)
    group.rank.return_value, group.size.return_value = rank, ranks
    return group


@pytest.mark.parametrize(("rank", "inside"), [(0, True), (1, True), (2, False)])
def test_all_shards_are_the_local_one_and_none_is_left_unwritten(rank: int, inside: bool) -> None:
    gathered = torch.full((6,), float("nan"))
    shard = gathered[2 * rank : 2 * rank + 2] if inside else torch.empty(2)
    shard.copy_(torch.tensor([1.0, 2.0]))
    RepeatShard()(gathered, shard, _group(rank, 3))
    assert gathered.tolist() == [1.0, 2.0] * 3


@pytest.mark.parametrize(("op", "chunk"), [(dist.ReduceOp.AVG, [1.0, 1.5]), (dist.ReduceOp.SUM, [2.0, 3.0])])
def test_the_chunk_is_divided_where_the_collective_would_divide(op: object, chunk: list[float]) -> None:
    kept = torch.full((2,), float("nan"))
    KeepChunk()(kept, torch.arange(4.0), _group(1, 2), op)
    assert kept.tolist() == chunk


def test_a_torch_that_cannot_replace_them_is_refused() -> None:
    class OldFsdp(nn.Linear):
        """Inside FSDP, but of an older torch."""

        def unshard(self) -> None: ...

    with pytest.raises(BadInput, match="cannot train without communication"):
        keep_shards_local(nn.Sequential(OldFsdp(2, 2)))


# torch warns of itself when this part of it is imported
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_an_optimizer_that_broadcasts_in_another_way_is_refused() -> None:
    from scalescope.worker.ablations import keep_update_local

    with pytest.raises(BadInput, match="cannot update without communication"):
        keep_update_local(torch.optim.SGD([torch.zeros(1)], lr=1.0))  # type: ignore[arg-type]


def test_a_model_with_synchronised_statistics_is_counted_and_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2), nn.BatchNorm1d(2))
    assert count_model_collectives(model) == 1
    with pytest.raises(BadInput, match="a SyncBatchNorm layer cannot be trained without communication"):
        refuse_model_collectives(model)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert count_model_collectives(model) == 0
    refuse_model_collectives(model)
