"""Step: one optimizer step in parts that strategies and levers can replace one by one."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalescope.results.heartbeat import Phase
from scalescope.worker.faults import Fault
from scalescope.worker.position import Position
from scalescope.worker.timing import Clock

_LOOK_AGAIN_S = 0.0005  # shorter than a step, so that looking never adds to the window's end
Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its data and its loss on one device; knows nothing of ranks."""

    model: nn.Module
    batches: Callable[[int, torch.Generator], Batches]
    loss: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Forward, backward, applying and clearing gradients; `module` holds the trained parameters."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    forward: Callable[[Tensor, Tensor], Tensor]
    backward: Callable[[Tensor], None]
    apply: Callable[[], None]
    clear: Callable[[], None]


OptimizerFactory = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


def plain_step(
    workload: Workload,
    wrapped: nn.Module,
    make_optimizer: OptimizerFactory,
    *,
    keep_gradients: bool = False,
) -> Step:
    """The ordinary training step around `wrapped`.

    `keep_gradients` clears gradients in place: setting them to None would take them out of DDP's buckets
    and cost a copy every step.
    """
    optimizer = make_optimizer(workload.model.parameters())

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        return workload.loss(wrapped(inputs), targets)

    def backward(loss: Tensor) -> None:
        loss.backward()

    def apply() -> None:
        optimizer.step()

    def clear() -> None:
        optimizer.zero_grad(set_to_none=not keep_gradients)

    return Step(
        module=workload.model,
        optimizer=optimizer,
        forward=forward,
        backward=backward,
        apply=apply,
        clear=clear,
    )


def run_steps(
    step: Step,
    batches: Batches,
    count: int,
    clock: Clock,
    position: Position,
    fault: Fault | None = None,
) -> list[Tensor]:
    """Run `count` steps under the clock and return their losses, still on the device."""
    losses = []
    before = position.completed
    clock.start()
    for _ in range(count):
        position.begin_step()
        if fault is not None:
            fault.at_step(position.begun - 1)
        inputs, targets = next(batches)
        position.mark(Phase.FORWARD)
        loss = step.forward(inputs, targets)
        position.mark(Phase.BACKWARD)
        step.backward(loss)
        position.mark(Phase.OPTIMIZER)
        step.apply()
        step.clear()
        losses.append(loss.detach())
        position.completed = before + clock.tick()
    while (done := clock.finished()) < count - 1:  # a GPU may be far behind; its silence is no hang
        position.completed = before + done
        position.mark(Phase.OPTIMIZER)
        time.sleep(_LOOK_AGAIN_S)
    clock.finish()
    position.completed = before + count
    return losses
