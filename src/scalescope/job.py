"""Job: what a function that describes a training job may return."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A training job: a model, its data, and either a loss or a step.

    `step(model, batch, optimizers)` does forward, backward, the update and zero_grad, and returns the loss.
    `model` may be a dict, tuple or list of models; `optimizer` an optimizer, a function of parameters, or a
    dict, tuple or list of these. The step gets both in the same structure.
    """

    model: Any
    data: Any
    loss: Callable[[Any, Any], Any] | None = None
    optimizer: Any = None
    step: Callable[[Any, Any, Any], Any] | None = None
