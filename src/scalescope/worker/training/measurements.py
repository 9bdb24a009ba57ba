"""What a training loop hands on: samples and counters, a checksum of parameters, and failures."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from scalescope.errors import BadInput
from scalescope.results.ranks import is_secondary_error
from scalescope.worker.process.health import is_out_of_memory
from scalescope.worker.process.position import Position
from scalescope.worker.training.step import Batches, Step

# ---- Checksum of replicated parameters, which must be equal on all ranks


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def parameter_checksum(module: nn.Module) -> str:
    """Sum over the bits of all parameters, weighted by their position in the model."""
    total = 0
    with torch.no_grad():
        for position, parameter in enumerate(module.parameters(), start=1):
            bits = parameter.detach().contiguous().view(_WHOLE[parameter.element_size()])
            total += position * int(bits.sum(dtype=torch.int64).item())
    return f"{total % 2**64:016x}"


# ---- Explains failures of a step whose cause a strategy knows better than torch's message says


@contextlib.contextmanager
def explained(step: Step, batches: Batches, position: Position) -> Iterator[None]:
    """Let the strategy explain an error that the first step did not have; else the error stays unchanged."""
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


# ---- Measurements: what a benchmark returns from one rank


Store = Callable[[int, "Measurements"], None]  # of a phase, by its number


@dataclass(kw_only=True)
class Measurements:
    """Raw samples and single values of one rank."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, float | int | str | None] = field(default_factory=dict)
    tables: dict[str, list[dict[str, float | int | str | None]]] = field(default_factory=dict)
    # Writes the recorded trace to a path; returns counts of what the file holds.
    write_trace: Callable[[Path], dict[str, int]] | None = None
    # What follows on the window once that is stored; ends the loop.
    go_on: Callable[[Store], None] | None = None
