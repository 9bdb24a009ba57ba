"""The parts of a script's step in a recorded trace: named, one after the other, and nothing left behind."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as loading

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER, PREFIX
from scalescope.worker.hooks.parts import StepPhases
from scalescope.worker.trace.recorder import recorded_events, torch_profiler
from scalescope.worker.training.ranges import ranges_on

CPU = torch.device("cpu")


class OwnCall(nn.Linear):
    """A module whose call is not torch's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Script:
    """A model and its optimizer, and the names of what is recorded of them."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = nn.Linear(4, 2) if model is None else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.phases = StepPhases(ranges_on(CPU), [self.model])
        self.after = register_optimizer_step_post_hook(self._after)

    def _after(self, *_: Any) -> None:
        self.phases.end(OPTIMIZER)

    def train(self) -> None:
        self.model(torch.ones(8, 4)).sum().backward()
        self.optimizer.step()

    def recorded(self, *steps: Callable[[], Any]) -> list[dict[str, Any]]:
        """Our ranges of these steps, in their order."""
        recorder = torch_profiler(CPU, record_shapes=False)
        with recorder, self.phases.installed():
            for step in steps:
                step()
                self.phases.end_step()
        events = recorded_events(recorder)
        return sorted((e for e in events if e["name"].startswith(PREFIX)), key=lambda event: event["ts"])


@pytest.fixture
def made() -> Iterator[list[Script]]:
    scripts: list[Script] = []
    yield scripts
    for script in scripts:
        script.after.remove()


@pytest.fixture
def script(made: list[Script]) -> Script:
    made.append(Script())
    return made[-1]


def names_of(ranges: Iterable[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in ranges]


def are_apart(ranges: list[dict[str, Any]]) -> bool:
    return all(a["ts"] + a["dur"] <= b["ts"] for a, b in itertools.pairwise(ranges))


STEP = [FORWARD, BACKWARD, OPTIMIZER, CLEAR]


@pytest.mark.parametrize("model", [nn.Linear(4, 2), OwnCall(4, 2)])
def test_every_part_of_a_step_is_named(made: list[Script], model: nn.Module) -> None:
    made.append(Script(model))
    ranges = made[-1].recorded(made[-1].train, made[-1].train)
    assert names_of(ranges) == [*STEP, *STEP]
    assert are_apart(ranges)


def test_batches_of_a_loader_are_input_up_to_its_end(script: Script) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4, 4)), batch_size=2)
    ranges = script.recorded(lambda: [script.train() for _ in loader])
    one = [INPUT, FORWARD, BACKWARD, OPTIMIZER]
    assert names_of(ranges) == [*one, *one, INPUT, CLEAR]


def test_a_model_that_runs_inside_the_optimizer_is_taken_out_of_its_part(script: Script) -> None:
    def closure() -> torch.Tensor:
        loss: torch.Tensor = script.model(torch.ones(8, 4)).sum()
        loss.backward()
        return loss

    ranges = script.recorded(lambda: script.optimizer.step(closure))
    parts = [name for name in names_of(ranges) if name != OPTIMIZER]
    assert parts == [FORWARD, BACKWARD, CLEAR]
    assert names_of(ranges)[0] == OPTIMIZER and names_of(ranges)[-2] == OPTIMIZER
    assert are_apart(ranges)


def test_an_optimizer_that_steps_another_is_one_part(script: Script) -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            script.optimizer.step()

    outer = Outer(script.model.parameters(), lr=0.1)
    script.after.remove()  # who counts steps does not count the inner one
    assert names_of(script.recorded(outer.step)) == [OPTIMIZER, CLEAR]


def test_a_part_that_fails_has_an_end_and_other_threads_have_no_parts(script: Script) -> None:
    def fail() -> None:
        with pytest.raises(RuntimeError):
            script.model(torch.ones(8, 5))

    def beside() -> None:  # other threads do not end what the script does
        thread = threading.Thread(target=lambda: script.model(torch.ones(1, 4)))
        thread.start()
        thread.join()

    assert names_of(script.recorded(fail, beside, script.train)) == [FORWARD, CLEAR, CLEAR, *STEP]


def test_afterwards_everything_is_as_before(script: Script) -> None:
    before = torch.autograd.backward, loading._BaseDataLoaderIter.__next__, dict(vars(script.model))
    script.recorded(script.train)
    after = torch.autograd.backward, loading._BaseDataLoaderIter.__next__, dict(vars(script.model))
    assert after == before
    script.train()
    assert script.phases._under_way == []


def test_what_stood_before_the_model_stands_there_again(script: Script) -> None:
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return script.model._call_impl(*args)

    vars(script.model)["_compiled_call_impl"] = counted
    script.recorded(script.train)
    assert len(calls) == 1
    assert vars(script.model)["_compiled_call_impl"] is counted
