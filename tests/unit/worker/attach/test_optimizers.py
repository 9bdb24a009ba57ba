"""Events of optimizers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from scalescope.worker.attach.hook_guard import HookGuard
from scalescope.worker.attach.optimizers import OptimizerEvents


def _raise(error: Exception) -> None:
    raise error


GUARD = HookGuard(_raise)


@pytest.fixture
def events() -> Iterator[tuple[OptimizerEvents, list[Any]]]:
    stepped: list[Any] = []
    watch = OptimizerEvents(stepped.append, GUARD)
    watch.install()
    yield watch, stepped
    watch.remove()


def made() -> tuple[nn.Parameter, torch.optim.SGD]:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter, torch.optim.SGD([parameter], lr=0.1)


class Outer(torch.optim.Optimizer):
    """Steps another optimizer inside its own step, as ZeroRedundancyOptimizer does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_inner_optimizer_is_not_an_event(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    _, inner = made()
    outer = Outer(inner)
    outer.step()
    outer.step()
    assert stepped == [outer, outer]
    assert watch.key_of(outer) == 0


def test_a_step_that_raised_does_not_nest_later_ones(events: tuple[OptimizerEvents, list[Any]]) -> None:
    _, stepped = events
    _, optimizer = made()

    def fails() -> float:
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        optimizer.step(fails)
    optimizer.step()
    assert stepped == [optimizer]


def test_a_scaler_that_leaves_a_step_out_ends_a_step(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    parameter, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(parameter.sum()).backward()
    parameter.grad = torch.full((2,), float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert (stepped, watch.skipped) == ([optimizer], 1)


def test_nothing_is_noted_after_removal() -> None:
    stepped: list[Any] = []
    watch = OptimizerEvents(stepped.append, GUARD)
    watch.install()
    watch.remove()
    made()[1].step()
    assert stepped == []


def test_a_settled_script_calls_at_the_end_of_its_step(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    _, optimizer = made()
    _, other = made()
    optimizer.step()
    ends: list[int] = []
    watch.settle((optimizer, lambda: ends.append(1)))
    optimizer.step()
    other.step()
    assert (len(ends), stepped, watch.events) == (1, [optimizer, other], 3)


def test_what_is_stepped_inside_another_is_not_an_event_after_settling(
    events: tuple[OptimizerEvents, list[Any]],
) -> None:
    watch, stepped = events
    _, inner = made()
    outer = Outer(inner)
    outer.step()
    watch.settle(None)
    outer.step()
    assert stepped == [outer, outer]


def test_hooks_can_be_settled_and_removed_while_others_wait_for_their_turn() -> None:
    _, optimizer = made()
    calls: list[str] = []

    def on_step(_: torch.optim.Optimizer) -> None:
        calls.append("ours")
        if len(calls) == 1:
            watch.settle((optimizer, watch.remove))

    watch = OptimizerEvents(on_step, GUARD)
    watch.install()
    later = register_optimizer_step_post_hook(lambda *_: calls.append("later"))
    try:
        for _ in range(3):
            optimizer.step()
    finally:
        later.remove()
    assert calls == ["ours", "later", "later", "later"]
