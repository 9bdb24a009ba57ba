"""FSDP: what is passed on to torch."""

from unittest import mock

import pytest
import torch
from torch import nn

from scalescope.catalog.strategies.fsdp import Fsdp
from scalescope.worker.strategies import fsdp
from scalescope.worker.training.step import Data, Workload
from tests.builders.workers import CPU, options


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
