"""The profile of a script: parts and gradients of its steps, nothing left behind, no harm by failures."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from scalescope.results.traces.events import OPTIMIZER
from scalescope.worker.attach.recording.script_profile import ScriptProfile
from scalescope.worker.rank_profile.stored_profile import FAILED

CPU = torch.device("cpu")


class Script:
    """A model, its optimizer and their profile."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        parameters = [*self.model.parameters(), torch.zeros(1)]  # the last one gets no gradient
        self.profile = ScriptProfile(CPU, [self.model], parameters)
        self.after = register_optimizer_step_post_hook(lambda *_: self.profile.phases.end(OPTIMIZER))

    def step(self, micro_batches: int = 1) -> None:
        for _ in range(micro_batches):
            self.model(torch.ones(2, 3)).sum().backward()
        self.optimizer.step()
        self.profile.end_step()


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.profile.end()
    made.after.remove()


def test_parts_and_gradients_are_stored_and_the_first_step_is_not(script: Script) -> None:
    script.profile.begin()
    for _ in range(3):
        script.step()
    script.profile.end()
    stored = script.profile.stored()
    assert (stored.counters["profile/steps"], stored.counters["profile/micro_batches"]) == (2, 1)
    for part in ("forward_s", "backward_s", "optimizer_s"):
        assert float(str(stored.counters[f"profile/{part}"])) > 0.0, part
    assert stored.counters["profile/buffer_bytes"] == 4 * 4 + 4 * 4 + 8
    assert set(stored.tables) == {"gradients"}
    rows = stored.tables["gradients"]
    assert sorted(row["parameter"] for row in rows) == [0, 1, 2, 3]
    assert sum(int(str(row["size_bytes"])) for row in rows) == 4 * (12 + 4 + 4 + 4)
    accumulating = Script()
    accumulating.profile.begin()
    for _ in range(3):
        accumulating.step(micro_batches=2)
    accumulating.profile.end()
    accumulating.after.remove()
    assert accumulating.profile.stored().counters["profile/micro_batches"] == 2


def test_afterwards_the_script_is_as_it_was(script: Script) -> None:
    before = torch.autograd.backward, dict(vars(script.model))
    script.profile.begin()
    script.step()
    script.profile.end()
    script.profile.end()
    assert (torch.autograd.backward, dict(vars(script.model))) == before
    assert not any(parameter._post_accumulate_grad_hooks for parameter in script.model.parameters())


def test_without_a_finished_step_the_reason_is_stored(script: Script) -> None:
    script.profile.begin()
    script.profile.end()
    stored = script.profile.stored()
    assert set(stored.counters) == {FAILED} and not stored.tables


def test_a_failure_to_begin_leaves_the_script_alone(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ZeroDivisionError("no hooks")

    monkeypatch.setattr(script.profile.phases, "installed", fail)
    script.profile.begin()
    script.step()
    script.profile.end()
    assert script.profile.stored().counters == {FAILED: "ZeroDivisionError: no hooks"}
    assert not any(parameter._post_accumulate_grad_hooks for parameter in script.model.parameters())
