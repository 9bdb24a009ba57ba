"""A model that cannot fit is refused while it is built, before its parameters have values."""

import time
from typing import Any

import pytest
import torch
from torch import nn

from scalescope.errors import BadInput
from scalescope.results.ranks import ROOM_VARIABLE
from scalescope.worker.machine.model_room import (
    ModelTooLarge,
    built_within,
    check_model,
    room_of,
    size_on_meta,
)
from tests.builders.results import make_trial

LINEAR_BYTES = 4 * (100 * 100 + 100)


class Unwritten(nn.Linear):
    """Fails if values would be written to memory."""

    def reset_parameters(self) -> None:
        assert self.weight.device.type == "meta", "values were written"


def many(count: int, kind: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    return nn.Sequential(*(kind(100, 100) for _ in range(count)))


def test_a_model_that_exceeds_the_room_is_refused_before_any_value_exists() -> None:
    with pytest.raises(Exception, match=r"of parameters, but there is .* --allow-oom"):
        built_within(5 * LINEAR_BYTES, lambda: many(10, Unwritten))
    many(100)  # the limit ends with the call
    for room in (10 * LINEAR_BYTES, None):
        assert len(built_within(room, lambda: many(10))) == 10


def test_a_model_whose_first_parameter_gets_no_memory_is_refused_as_a_whole() -> None:
    def build() -> nn.Module:
        if torch.get_default_device().type == "cpu":
            raise RuntimeError("no memory")
        return many(10)

    with pytest.raises(ModelTooLarge, match="of parameters") as refused:
        built_within(5 * LINEAR_BYTES, build)
    assert isinstance(refused.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match="no memory"):  # another reason, as the model would fit
        built_within(20 * LINEAR_BYTES, build)


def test_models_that_are_gone_shared_parameters_and_other_devices_do_not_count() -> None:
    def build() -> nn.Module:
        for _ in range(3):
            layer = nn.Linear(100, 100)
            del layer
        kept, other = nn.Linear(100, 100), nn.Module()
        other.weight = kept.weight
        nn.Linear(10_000, 10_000, device="meta")
        return kept

    # The meta device's own parameters are counted by the forked process alone, so leave room for its look.
    assert built_within(10_000 * LINEAR_BYTES, build) is not None


def test_a_function_that_cannot_run_on_the_meta_device_is_counted_up_to_there() -> None:
    def build() -> Any:
        layer = nn.Linear(100, 100)
        layer.weight.sum().item()
        return layer, nn.Linear(1000, 1000)

    assert size_on_meta(build) == LINEAR_BYTES
    assert torch.empty(1).device.type == "cpu"


def test_a_function_that_takes_long_is_not_waited_for() -> None:
    assert size_on_meta(lambda: time.sleep(600), limit_s=0.1) == 0


def test_without_a_limit_nothing_is_refused() -> None:
    assert room_of({}) is None
    assert room_of({ROOM_VARIABLE: "12"}) == 12
    assert room_of({ROOM_VARIABLE: "none"}) is None


def test_gradients_count_once_the_model_is_there() -> None:
    model, trial = nn.Linear(100, 100), make_trial()
    check_model(model, trial, 2 * LINEAR_BYTES)
    with pytest.raises(BadInput, match="gradients"):
        check_model(model, trial, 2 * LINEAR_BYTES - 1)
    check_model(model, make_trial(strategy="fsdp", world_size=2), LINEAR_BYTES)
    check_model(model.requires_grad_(requires_grad=False), trial, LINEAR_BYTES)
