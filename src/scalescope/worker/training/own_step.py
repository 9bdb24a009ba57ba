"""A user's own step: its models and optimizers as a strategy leaves them, and settings that it rules out."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from scalescope.catalog.levers.accumulation import Accumulation
from scalescope.catalog.levers.fusion import Fusion
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.worker.training.optimizers import GivenOptimizer
from scalescope.worker.training.step import NO_LOSS, Batch, OptimizerFactory, OwnStep, Step, Workload

WRAP = "wrap_own_step"  # the function of a strategy that can do this


def members_of(structure: Any) -> list[Any]:
    """The models or optimizers of one, or of a dict, tuple or list."""
    if isinstance(structure, Mapping):
        return list(structure.values())
    return list(structure) if isinstance(structure, tuple | list) else [structure]


def arranged(structure: Any, members: Sequence[Any]) -> Any:
    """Other members in the same structure."""
    if isinstance(structure, Mapping):
        return dict(zip(structure, members, strict=True))
    if isinstance(structure, tuple | list):
        return list(members) if isinstance(structure, list) else tuple(members)
    (member,) = members
    return member


def refuse_parts(trial: Trial, workload: Workload, strategy: Any) -> None:
    """Refuse settings that concern what a user's own step already does."""
    if workload.own_step is None:
        return
    accumulation = trial.options(Accumulation).accumulation_steps
    strategy_reason = getattr(strategy, "SPLITS_STEP", "splits a step into forward, backward and update")
    refusals = (
        (
            accumulation > 1,
            f"accumulation_steps {accumulation} repeats forward and backward",
            "accumulate inside the step",
        ),
        (
            trial.precision == "fp16",
            "precision fp16 scales the loss between forward and backward",
            "use bf16, or a GradScaler inside the step",
        ),
        (trial.options(Fusion).jit, "jit replaces the model, to which the step may refer", "use compile"),
        (
            trial.settings.get("stand_in"),
            "stand_in measures forward, backward and optimizer one by one",
            "use fewer ranks than cores",
        ),
        (
            trial.settings.get("eval"),
            "eval calls the model with the inputs of a batch",
            "evaluate outside of scalescope",
        ),
        (
            not hasattr(strategy, WRAP),
            f"strategy {trial.strategy} {strategy_reason}",
            "use single, ddp, zero1 or fsdp",
        ),
    )
    for applies, reason, instead in refusals:
        if applies:
            raise BadInput(f"{reason}, and the workload defines its own step; {instead}")


def own_step_of(workload: Workload) -> OwnStep:
    """The step of a workload that has one."""
    assert workload.own_step is not None
    return workload.own_step


def own_models(workload: Workload) -> list[nn.Module]:
    """The models of a user's own step."""
    return members_of(own_step_of(workload).models)


def own_optimizers(workload: Workload, make_default: OptimizerFactory) -> list[Optimizer]:
    """The optimizers of a user's own step, once a strategy has left its parameters in the models."""
    step = own_step_of(workload)
    given = members_of(step.optimizers)
    models = own_models(workload) if len(given) > 1 else [workload.model]
    optimizers = []
    for number, optimizer in enumerate(given):
        if isinstance(optimizer, GivenOptimizer):
            optimizers.append(optimizer.on(workload.model))
        elif optimizer is None:
            optimizers.append(make_default(workload.model.parameters()))
        else:
            optimizers.append(optimizer(models[number].parameters()))
    return optimizers


def whole_step(workload: Workload, wrapped: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Step:
    """The step that calls the user's own with the models as the strategy wrapped them."""
    step = own_step_of(workload)
    models, given = arranged(step.models, wrapped), arranged(step.optimizers, optimizers)

    def forward(batch: Batch) -> Tensor:
        return _loss_of(step.run(models, batch, given))

    return Step(
        module=workload.model,
        optimizer=optimizers[0],
        more_optimizers=tuple(optimizers[1:]),
        own_models=tuple(wrapped),
        forward=forward,
        backward=lambda loss: None,
        apply=_nothing,
        clear=_nothing,
    )


def _nothing() -> None:
    """Done in `forward`."""


def _loss_of(returned: Any) -> Tensor:
    """The loss that a step returned, where it returned one."""
    if returned is None:
        return NO_LOSS
    if isinstance(returned, Tensor) and returned.numel() == 1:
        return returned.detach().reshape(())
    if isinstance(returned, int | float):
        return torch.tensor(float(returned))
    what = (
        f"a tensor of shape {tuple(returned.shape)}"
        if isinstance(returned, Tensor)
        else repr(type(returned).__name__)
    )
    raise BadInput(f"the workload's step returned {what}; expected its loss as a scalar or number, or None")


def skip_update(optimizer: Optimizer) -> None:
    """Let an optimizer change no parameter; a closure is still called, for it computes the gradients."""

    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return None if closure is None else closure()

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
