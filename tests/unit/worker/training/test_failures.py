"""Failures of a step that are explained: which parameters get no gradient, and when nobody is asked."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from scalescope.errors import BadInput
from scalescope.worker.process.position import Position
from scalescope.worker.training.measurements import explained, unused_parameters
from scalescope.worker.training.step import Batch, Data, Step, Workload, plain_step


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.frozen(self.used(inputs)))


def test_parameters_that_the_loss_does_not_depend_on_are_named() -> None:
    model = _Branches()
    assert unused_parameters(model, model(torch.ones(3, 2)).sum()) == ["unused.weight", "unused.bias"]


def _step(explanation: str | None) -> Step:
    model = nn.Linear(2, 2)
    workload = Workload(model=model, data=Data(), loss=nn.functional.mse_loss)

    def explain(error: RuntimeError, batch: Batch) -> str | None:
        if explanation == "raise":
            raise ValueError(batch)
        return explanation

    step = plain_step(workload, model, torch.optim.SGD(model.parameters()))
    return dataclasses.replace(step, explain_failure=explain)


def _fail(step: Step, error: Exception, begun: int = 2) -> None:
    position = Position(None, 0, 1)
    position.begun = begun
    batches: Iterator[Batch] = iter([(torch.zeros(1, 2), torch.zeros(1, 2))])
    with explained(step, batches, position):
        raise error


def test_what_the_strategy_explains_is_the_error() -> None:
    with pytest.raises(BadInput, match="because"):
        _fail(_step("because"), RuntimeError("what torch says"))


@pytest.mark.parametrize("explanation", [None, "raise"])
def test_what_nobody_can_explain_stays_as_it_is(explanation: str | None) -> None:
    with pytest.raises(RuntimeError, match="what torch says"):
        _fail(_step(explanation), RuntimeError("what torch says"))


@pytest.mark.parametrize(
    ("error", "begun"),
    [
        (RuntimeError("in the first step"), 1),
        (torch.OutOfMemoryError("no memory is left for another forward"), 2),
        (RuntimeError("Connection closed by peer"), 2),
        (ValueError("not of torch"), 2),
    ],
)
def test_errors_of_another_kind_are_not_explained(error: Exception, begun: int) -> None:
    with pytest.raises(type(error), match=str(error)):
        _fail(_step("because"), error, begun)
