"""Explains failures of a step whose cause a strategy knows better than torch's message says."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

from scalescope.errors import BadInput
from scalescope.results.ranks.secondary_errors import is_secondary_error
from scalescope.worker.process.health.out_of_memory import is_out_of_memory
from scalescope.worker.process.position import Position
from scalescope.worker.training.step import Batches, Step


@contextlib.contextmanager
def explained(step: Step, batches: Batches, position: Position) -> Iterator[None]:
    """Let the strategy explain an error that the first step did not have; else the error stays as it is."""
    try:
        yield
    except RuntimeError as error:
        explanation = None
        if position.begun > 1 and not is_out_of_memory(error) and not is_secondary_error(str(error)):
            with contextlib.suppress(Exception):  # the step has failed: what explains it may fail too
                explanation = step.explain_failure(error, next(batches))
        if explanation is None:
            raise
        raise BadInput(explanation) from error


def unused_parameters(model: nn.Module, loss: Tensor) -> list[str]:
    """The names of trained parameters that no path leads to from the loss."""
    used: set[int] = set()
    visited = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        used.add(id(getattr(node, "variable", None)))  # the end of a path: it accumulates a gradient
        waiting += [function for function, _ in node.next_functions]
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in used
    ]
