"""The sharded optimizer is made of parameters, whoever wrote the function that makes it."""

import pytest
import torch
from torch import nn


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
