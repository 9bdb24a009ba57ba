"""A user's optimizers: hooks survive a copy, each once; groups keep options and find parameters by name."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from scalescope.errors import BadInput
from scalescope.worker.training.optimizers import (
    GivenOptimizer,
    OptimizerRebuild,
    give_hooks,
    hooks_of,
    move_hooks,
    named_groups,
)


class _Counting(torch.optim.SGD):
    """An optimizer that registers a hook of its own."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.zeros(2))], lr=0.1)
        self.called: list[str] = []
        self.register_step_pre_hook(lambda optimizer, *_: optimizer.called.append("own"))


def test_a_hook_of_the_constructor_is_not_registered_twice_and_moved_ones_leave() -> None:
    source, target = _Counting(), _Counting()
    source.register_step_pre_hook(lambda optimizer, *_: optimizer.called.append("users"))
    give_hooks(hooks_of(source), target, "_Counting")
    target.step()
    assert (source.called, target.called) == ([], ["own", "users"])
    emptied, other = _Counting(), _Counting()
    emptied.register_step_post_hook(lambda optimizer, *_: optimizer.called.append("users"))
    move_hooks(emptied, other)
    emptied.step()
    other.step()
    assert (emptied.called, other.called) == ([], ["own", "users"])  # moved hooks run on the target alone


def test_hooks_that_cannot_be_kept_are_refused() -> None:
    source, target = _Counting(), _Counting()
    vars(source)["_newer_torch_hooks"] = {}
    give_hooks(hooks_of(source), target, "_Counting")  # none are registered
    vars(source)["_newer_torch_hooks"] = {0: print}
    with pytest.raises(BadInput, match="_newer_torch_hooks"):
        give_hooks(hooks_of(source), target, "_Counting")


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def _grouped(model: nn.Module) -> torch.optim.AdamW:
    """Weights decay and biases do not, and learn faster; biases come first."""
    weights = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    return torch.optim.AdamW(
        [{"params": biases, "weight_decay": 0.0, "lr": 0.5}, {"params": weights}], lr=0.25, betas=(0.5, 0.75)
    )


def _replace_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What a strategy that shards does."""
    for module in model.children():
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    return dict(model.named_parameters())


def _ids(groups: list[dict[str, Any]]) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in groups]


def _expected(parameters: dict[str, nn.Parameter]) -> list[list[int]]:
    return [[id(parameters[f"{number}.{kind}"]) for number in (0, 1)] for kind in ("bias", "weight")]


def test_groups_are_built_anew_with_the_parameters_of_the_same_names() -> None:
    model = _model()
    given = _grouped(model)
    rebuild = OptimizerRebuild.of(given, model)
    replaced = _replace_parameters(model)
    made = rebuild(model.parameters())
    assert type(made) is torch.optim.AdamW
    assert _ids(made.param_groups) == _expected(replaced)
    options = [(group["lr"], group["weight_decay"], group["betas"]) for group in made.param_groups]
    assert options == [(0.5, 0.0, (0.5, 0.75)), (0.25, 0.01, (0.5, 0.75))]


def test_part_of_the_parameters_keeps_its_groups() -> None:
    model = _model()
    rebuild = OptimizerRebuild.of(_grouped(model), model)
    assert _ids(rebuild([model[1].weight]).param_groups) == [[id(model[1].weight)]]
    assert rebuild([model[1].weight]).param_groups[0]["weight_decay"] == 0.01
    partly = OptimizerRebuild.of(torch.optim.SGD(model[1].parameters(), lr=0.1), model)  # it stays so
    assert _ids(partly(model.parameters()).param_groups) == [[id(model[1].weight), id(model[1].bias)]]
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    head = OptimizerRebuild.of(torch.optim.SGD(frozen[1].parameters(), lr=0.1), frozen)
    with pytest.raises(BadInput, match="holds no parameter of this rank's part"):
        head(frozen[0].parameters())


def test_parameters_of_a_copy_are_known_by_their_position() -> None:
    model = _model()
    rebuild = OptimizerRebuild.of(_grouped(model), model)
    other = _model()
    made = rebuild(other.parameters())
    assert _ids(made.param_groups) == _expected(dict(other.named_parameters()))
    with pytest.raises(BadInput, match="3 parameters do not belong to the model, which has 4"):
        rebuild(list(other.parameters())[:3])


def test_a_rebuild_holds_no_parameter() -> None:
    model = _model()
    rebuild = OptimizerRebuild.of(_grouped(model), model)
    old = [weakref.ref(parameter) for parameter in model.parameters()]
    _replace_parameters(model)
    gc.collect()
    assert [reference() for reference in old] == [None] * 4
    assert rebuild(model.parameters()).param_groups


def test_a_kept_optimizer_gets_the_parameters_of_the_same_names() -> None:
    model = _model()
    given = _grouped(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(given, gamma=0.5)
    kept = GivenOptimizer(optimizer=given, groups=named_groups(given, model))
    replaced = _replace_parameters(model)
    assert kept.on(model) is given
    assert _ids(given.param_groups) == _expected(replaced)
    for parameter in replaced.values():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in replaced.values()]
    given.step()
    scheduler.step()
    assert not any(map(torch.equal, before, replaced.values()))
    assert [group["lr"] for group in given.param_groups] == [0.25, 0.125]
