"""What a script does beside its steps is noted with its step, once, and with the time it takes."""

import io
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from scalescope.worker.hooks.events import ScriptEvents
from scalescope.worker.hooks.hook_guard import HookGuard


def _raise(error: Exception) -> None:
    raise error


class Script:
    """A script whose step is counted by hand."""

    def __init__(self) -> None:
        self.step = 0
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.events = ScriptEvents(HookGuard(_raise))
        self.events.install()

    def begin(self) -> None:
        self.events.begin(lambda: self.step, [self.model])

    def kinds(self) -> list[tuple[object, object]]:
        return [(row["step"], row["kind"]) for row in self.events.rows(100)]


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.events.remove()


def test_evaluations_and_checkpoints_are_noted_inside_the_window(script: Script) -> None:
    script.model.eval()
    torch.save({}, io.BytesIO())
    script.begin()
    script.step = 3
    script.model.eval()
    script.model.train()
    script.step = 7
    for _ in range(2):
        torch.save(script.model.state_dict(), io.BytesIO())
    assert script.kinds() == [(3, "evaluation"), (7, "checkpoint")]
    evaluation, checkpoint = script.events.rows(100)
    assert evaluation["time_s"] is None
    assert isinstance(checkpoint["time_s"], float) and checkpoint["time_s"] > 0.0
    assert script.events.rows(7) == [evaluation]


def test_a_model_that_is_wrapped_evaluates_by_any_of_its_names(script: Script) -> None:
    compiled = nn.Module()
    compiled._orig_mod = script.model  # as torch.compile does
    script.events.begin(lambda: script.step, [compiled])
    script.model.eval()
    script.step = 2
    compiled.eval()
    assert script.kinds() == [(0, "evaluation"), (2, "evaluation")]


def test_frozen_parts_and_saving_in_the_background_are_no_events(script: Script) -> None:
    script.begin()
    script.model[1].eval()
    saving = threading.Thread(target=torch.save, args=({}, io.BytesIO()))
    saving.start()
    saving.join()
    assert script.kinds() == []


def test_everything_is_put_back() -> None:
    before = torch.save, nn.Module.eval
    made = Script()
    assert torch.save is not before[0] and nn.Module.eval is not before[1]
    made.events.remove()
    assert (torch.save, nn.Module.eval) == before


def test_an_error_of_the_script_passes_and_later_calls_are_noted(script: Script) -> None:
    script.begin()
    with pytest.raises(AttributeError):
        torch.save({}, 3.0)
    script.step = 1
    torch.save({}, io.BytesIO())
    assert (1, "checkpoint") in script.kinds()
