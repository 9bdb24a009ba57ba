"""What the steps of a script consist of."""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scalescope import clocks
from scalescope.worker.attach import optimizers
from scalescope.worker.attach.hook_guard import HookGuard
from scalescope.worker.attach.inputs import ModelInputs
from scalescope.worker.attach.loaders import ScriptLoaders
from scalescope.worker.attach.optimizers import OptimizerEvents
from scalescope.worker.attach.parts import BackwardTime, CountedSamples, StepParts
from scalescope.worker.attach.wrappers import Wrappers


def _raise(error: Exception) -> None:
    raise error


GUARD = HookGuard(_raise)


class Script:
    """A script of one model, with everything that looks at it."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = ModelInputs(GUARD)
        self.loaders = ScriptLoaders({}, GUARD, preloads=False)
        events = OptimizerEvents(lambda _: None, GUARD)
        backward = BackwardTime(Wrappers({}, GUARD, silent=False))
        self.parts = StepParts(self.inputs, self.loaders, events, backward)
        self.watches: tuple[Any, ...] = (self.loaders, events, backward)
        for watch in self.watches:
            watch.install()
        self.inputs.watch(self.model.parameters())

    def step(self, inputs: torch.Tensor) -> None:
        self.model(inputs).sum().backward()
        self.optimizer.step()

    def warm_up(self, batches: Callable[[], Iterator[torch.Tensor]]) -> None:
        for inputs in batches():
            self.step(inputs)
        self.inputs.settle()
        self.parts.begin()
        for inputs in batches():
            self.step(inputs)
            self.parts.end_step()
        self.parts.settle()

    def remove(self) -> None:
        for watch in (self.inputs, *self.watches):
            watch.remove()


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.remove()


def test_regular_steps_are_not_counted_in_the_window(script: Script) -> None:
    script.warm_up(lambda: iter([torch.zeros(8, 4)] * 4))
    assert "_compiled_call_impl" not in vars(script.model)
    for _ in range(10):
        script.step(torch.zeros(8, 4))
    expected = CountedSamples(80, "samples", "first dimension of the input of Linear")
    assert script.parts.samples(10) == expected
    assert script.parts.micro_batches == 1


def test_steps_of_different_size_are_counted_in_the_window(script: Script) -> None:
    script.warm_up(lambda: iter([torch.zeros(8, 4), torch.zeros(6, 4)]))
    for samples in (3, 5):
        script.step(torch.zeros(samples, 4))
    counted = script.parts.samples(2)
    assert counted is not None
    assert counted.count == 8


def test_a_smaller_last_batch_of_a_loader_is_counted(script: Script) -> None:
    full = DataLoader(TensorDataset(torch.zeros(20, 4)), batch_size=8)

    def full_batches() -> Iterator[torch.Tensor]:
        return (inputs for (inputs,) in itertools.islice(full, 2))

    script.warm_up(full_batches)
    assert "_compiled_call_impl" not in vars(script.model)
    for (inputs,) in full:
        script.step(inputs)
    counted = script.parts.samples(3)
    assert counted is not None
    assert counted.count == 20


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is read: other processes make no part longer."""
    tick = itertools.count().__next__
    monkeypatch.setattr(clocks, "perf_counter", tick)
    monkeypatch.setattr(optimizers, "_now", tick)


@pytest.mark.usefixtures("ticking")  # before the script, which keeps the clock
def test_times_are_those_of_the_warm_up() -> None:
    script = Script()
    script.warm_up(lambda: iter([torch.zeros(8, 4)] * 4))
    script.remove()
    assert script.parts.times(10) == {"host/forward_s": 1, "host/backward_s": 1, "host/optimizer_s": 1}


def test_a_copied_model_is_not_counted(script: Script) -> None:
    script.warm_up(lambda: iter([torch.zeros(8, 4), torch.zeros(6, 4)]))
    copy.deepcopy(script.model)(torch.zeros(100, 4))
    assert script.parts.samples(1) is None
