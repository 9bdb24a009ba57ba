"""Which blocks of a model are gathered one at a time."""

from unittest import mock

import pytest
import torch
from torch import nn

from scalescope.catalog.strategies.fsdp import Fsdp
from scalescope.worker.strategies import fsdp
from scalescope.worker.strategies.fsdp import units_of
from scalescope.worker.training.step import Data, Workload

from ..making import CPU, options


def test_the_blocks_of_a_sequential_model_are_units() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert units_of(model) == [model[0], model[2]]


def test_a_block_is_not_taken_apart() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), block, nn.Linear(4, 4), nn.Linear(4, 4))
    assert units_of(model) == list(model)


def test_a_container_of_most_parameters_is_taken_apart() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), layers, nn.Linear(4, 4))
    assert units_of(model) == [model[0], *layers, model[2]]


def test_containers_are_found_inside_other_modules() -> None:
    class Model(nn.Module):
        """A list of layers between a beginning and an end."""

        def __init__(self) -> None:
            super().__init__()
            self.begin = nn.Linear(4, 4)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    model = Model()
    assert units_of(model) == list(model.layers)  # what is left over belongs to the root


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
