"""Hooks of an optimizer survive its copy, each once."""

import pytest
import torch
from torch import nn

from scalescope.errors import BadInput
from scalescope.worker.training.optimizers import give_hooks, hooks_of, move_hooks


class _Counting(torch.optim.SGD):
    """An optimizer that registers a hook of its own."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.zeros(2))], lr=0.1)
        self.called: list[str] = []
        self.register_step_pre_hook(lambda optimizer, *_: optimizer.called.append("own"))


def test_a_hook_of_the_constructor_is_not_registered_twice() -> None:
    source, target = _Counting(), _Counting()
    source.register_step_pre_hook(lambda optimizer, *_: optimizer.called.append("users"))
    give_hooks(hooks_of(source), target, "_Counting")
    target.step()
    assert (source.called, target.called) == ([], ["own", "users"])


def test_moved_hooks_run_on_the_target_alone() -> None:
    source, target = _Counting(), _Counting()
    source.register_step_post_hook(lambda optimizer, *_: optimizer.called.append("users"))
    move_hooks(source, target)
    source.step()
    target.step()
    assert (source.called, target.called) == ([], ["own", "users"])


def test_hooks_that_cannot_be_kept_are_refused() -> None:
    source, target = _Counting(), _Counting()
    vars(source)["_newer_torch_hooks"] = {}
    give_hooks(hooks_of(source), target, "_Counting")  # none are registered
    vars(source)["_newer_torch_hooks"] = {0: print}
    with pytest.raises(BadInput, match="_newer_torch_hooks"):
        give_hooks(hooks_of(source), target, "_Counting")
