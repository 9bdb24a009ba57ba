"""A model that cannot fit is refused while it is built, before its parameters have values."""

import pytest
from torch import nn

from scalescope.errors import BadInput
from scalescope.results.rank_job import ROOM_VARIABLE
from scalescope.worker.training.model_room import check_model, parameters_within, room_of
from tests.unit.analysis.made_results import make_trial

LINEAR_BYTES = 4 * (100 * 100 + 100)


class Unwritten(nn.Linear):
    """Fails if its values would be written."""

    def reset_parameters(self) -> None:
        raise AssertionError("values were written")


def test_a_layer_that_exceeds_the_room_is_refused_before_its_values_exist() -> None:
    with pytest.raises(Exception, match=r"more than .* of parameters.*--allow-oom"), parameters_within(100):
        Unwritten(100, 100)


def test_layers_together_are_refused() -> None:
    layers = []
    with pytest.raises(Exception, match="of parameters"), parameters_within(3 * LINEAR_BYTES):
        layers += [nn.Linear(100, 100) for _ in range(10)]
    nn.Linear(1000, 1000)  # the limit ends with the block


def test_models_that_are_gone_shared_parameters_and_other_devices_do_not_count() -> None:
    with parameters_within(LINEAR_BYTES):
        for _ in range(3):
            layer = nn.Linear(100, 100)
            del layer
        kept = nn.Linear(100, 100)
        other = nn.Module()
        other.weight = kept.weight
        nn.Linear(10_000, 10_000, device="meta")


def test_without_a_limit_nothing_is_refused() -> None:
    with parameters_within(room_of({})):
        nn.Linear(100, 100)
    assert room_of({ROOM_VARIABLE: "12"}) == 12
    assert room_of({ROOM_VARIABLE: "none"}) is None


def test_gradients_count_once_the_model_is_there() -> None:
    model, trial = nn.Linear(100, 100), make_trial()
    check_model(model, trial, 2 * LINEAR_BYTES)
    with pytest.raises(BadInput, match="gradients"):
        check_model(model, trial, 2 * LINEAR_BYTES - 1)
    check_model(model, make_trial(strategy="fsdp", world_size=2), LINEAR_BYTES)
    check_model(model.requires_grad_(requires_grad=False), trial, LINEAR_BYTES)
