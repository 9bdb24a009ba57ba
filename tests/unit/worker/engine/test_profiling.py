"""A few steps of one rank are profiled, with torch on the CPU: which launches, and what is stored of them."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from scalescope.experiment.trial import Trial
from scalescope.results.result import ROOT_UNIT
from scalescope.results.traces.events import OPTIMIZER
from scalescope.worker.engine import profiling
from scalescope.worker.engine.profiling import WARMUPS, ProfiledModel, profiled_count
from scalescope.worker.engine.steps import driven
from scalescope.worker.hooks.parts import StepPhases
from scalescope.worker.process.position import Position
from scalescope.worker.rank_profile import FAILED, StoredProfile
from scalescope.worker.training.own_step import whole_step
from scalescope.worker.training.ranges import RangeOf
from scalescope.worker.training.stand_in import Pace, PacedModel
from scalescope.worker.training.step import Data, OwnStep, Step, Workload, plain_step
from tests.builders.loops import PlainLoop, engine_of, own_loop
from tests.builders.results import make_trial

BATCH = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)
PARTS = ("input_s", "forward_s", "backward_s", "optimizer_s", "rest_s", "step_s")
STEPS = 3


def timed_trial(**settings: Any) -> Trial:
    return make_trial(**{"steps_per_epoch": "auto", "window": "1s", "strategy": "single", **settings})


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def make_workload(model: nn.Module, **changes: Any) -> Workload:
    return Workload(model=model, data=Data(), loss=nn.functional.cross_entropy, **changes)


def plain(model: nn.Module, workload: Workload | None = None) -> Step:
    workload = workload or make_workload(model)
    return plain_step(workload, model, torch.optim.SGD(model.parameters(), lr=0.1))


def profiled(step: Step, trial: Trial | None = None, position: Position | None = None) -> StoredProfile:
    loop = own_loop(step, itertools.repeat(BATCH), trial or timed_trial(), position)
    return driven(
        profiling._profiled(loop.engine, WARMUPS + STEPS, 0.01, loop.profiled_model()), loop.make_step
    )


def bytes_of(model: nn.Module) -> list[int]:
    return [parameter.numel() * parameter.element_size() for parameter in model.parameters()]


def has_hooks(model: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()) or any(
        parameter._post_accumulate_grad_hooks for parameter in model.parameters()
    )


@pytest.mark.parametrize(("timed_steps", "count"), [(5, 2), (20, 3), (40, 6), (10_000, 9)])
def test_the_share_of_profiled_steps_is_small(timed_steps: int, count: int) -> None:
    assert profiled_count(timed_trial(), 0.01, timed_steps) == count


@pytest.mark.parametrize(
    "trial",
    [
        timed_trial(strategy="ddp", world_size=2),
        timed_trial().replace(without_optimizer=True),
        timed_trial().replace(with_preloaded_input=True),
        make_trial(strategy="single", steps_per_epoch=30),
    ],
    ids=["two ranks", "no optimizer", "preloaded", "counted steps"],
)
def test_only_plain_launches_of_one_rank_are_profiled(trial: Trial) -> None:
    assert profiled_count(trial, 0.01, 100) == 0
    assert profiled_count(timed_trial(), 1.5, 5) == 0  # steps longer than the window


def test_parts_gradients_and_units_of_a_plain_step() -> None:
    model = make_model()
    position = Position(None, 0, 1)
    profile = profiled(plain(model), position=position)
    assert profile.counters["profile/steps"] == STEPS
    assert profile.counters["profile/micro_batches"] == 1
    assert all(float(str(profile.counters[f"profile/{part}"])) >= 0.0 for part in PARTS)
    rows = profile.tables["gradients"]
    assert sorted(row["parameter"] for row in rows) == [0, 1, 2, 3]
    assert {row["parameter"] for row in rows[:2]} == {2, 3}
    assert sum(int(str(row["size_bytes"])) for row in rows) == sum(bytes_of(model))
    times_s = [row["ready_s"] for row in rows]
    assert times_s == sorted(times_s)
    units = profile.tables["units"]
    assert [unit["name"] for unit in units] == [ROOT_UNIT, "0", "2"]
    assert [unit["activation_bytes"] for unit in units] == [48, 64, 32]
    assert [unit["parameter_bytes"] for unit in units] == [0, 64, 40]
    for part in ("forward_s", "backward_s"):
        total_s = sum(float(str(unit[part])) for unit in units)
        assert total_s >= float(str(profile.counters[f"profile/{part}"])) - 1e-6  # the root has the rest
    assert position.completed == WARMUPS + STEPS  # a heartbeat that moves
    assert not has_hooks(model)


def test_micro_batches_are_counted() -> None:
    step = dataclasses.replace(plain(make_model()), accumulation_steps=3)
    profile = profiled(step)
    assert profile.counters["profile/micro_batches"] == 3
    assert len(profile.tables["gradients"]) == 4


def test_a_paced_model_is_one_unit_whose_gradients_come_in_its_order() -> None:
    layers = nn.ParameterList(torch.zeros(2) for _ in range(3))
    pace = Pace(forward_s=0.0, gradient_ready_s=(0.001, 0.002, 0.003))
    model = PacedModel(layers, list(layers), pace)
    workload = Workload(model=model, data=Data(), loss=lambda output, _: output)
    profile = profiled(plain(model, workload))
    assert [row["parameter"] for row in profile.tables["gradients"]] == [2, 1, 0]
    assert [(unit["name"], unit["parameter_bytes"]) for unit in profile.tables["units"]] == [(ROOT_UNIT, 24)]


def test_a_step_of_the_user_has_parts_and_no_units() -> None:
    model = make_model()

    def run(model: Any, batch: Any, optimizer: Any) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    workload = make_workload(model, own_step=OwnStep(run=run, models=model))
    backward = torch.autograd.backward
    profile = profiled(whole_step(workload, [model], [torch.optim.SGD(model.parameters(), lr=0.1)]))
    for part in ("forward_s", "backward_s", "optimizer_s"):
        assert float(str(profile.counters[f"profile/{part}"])) > 0.0, part
    assert len(profile.tables["gradients"]) == 4
    assert "units" not in profile.tables
    assert torch.autograd.backward is backward


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchScript
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda model: torch.compile(model, backend="eager")])
def test_a_model_that_was_compiled_has_no_units(compiled: Any) -> None:
    profile = profiled(plain(compiled(make_model())))
    assert set(profile.tables) == {"gradients"}, profile.counters
    assert len(profile.tables["gradients"]) == 4
    by_lever = profiled(plain(make_model()), timed_trial().replace(compile="default"))
    assert set(by_lever.tables) == {"gradients"}


def test_without_gradients_there_is_no_profile() -> None:
    profile = profiled(dataclasses.replace(plain(make_model()), backward=lambda loss: None))
    assert set(profile.counters) == {FAILED} and not profile.tables


def test_what_fails_costs_the_profile_alone() -> None:
    model = make_model()

    def fail(batch: Any) -> Tensor:
        raise ZeroDivisionError("divided\nby nothing")

    loop = own_loop(dataclasses.replace(plain(model), forward=fail), itertools.repeat(BATCH), timed_trial())
    body = profiling.profiled(loop.engine, [0.01] * 20, loop.profiled_model)
    assert driven(body, loop.make_step) == StoredProfile(counters={FAILED: "ZeroDivisionError: divided"})
    assert not has_hooks(model)


class Script:
    """A script's model and optimizer, whose parts get their names by hooks."""

    def __init__(self, micro_batches: int = 1) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._micro_batches = micro_batches
        self.made = 0

    def step(self) -> None:
        self.made += 1
        for _ in range(self._micro_batches):
            self.model(torch.ones(2, 3)).sum().backward()
        self._optimizer.step()

    @contextlib.contextmanager
    def marked(self, range_of: RangeOf) -> Iterator[Callable[[], None]]:
        phases = StepPhases(range_of, [self.model])
        after = register_optimizer_step_post_hook(lambda *_: phases.end(OPTIMIZER))
        try:
            with phases.installed():
                yield phases.end_step
        finally:
            after.remove()

    def profiled(self) -> StoredProfile:
        def subject() -> ProfiledModel:
            parameters = [*self.model.parameters(), nn.Parameter(torch.zeros(1))]  # unused
            return ProfiledModel(parameters=parameters, may_wait_for_gpu=True, counters={"buffer_bytes": 1})

        engine = engine_of(timed_trial(), PlainLoop(enter=self.marked))
        return driven(profiling.profiled(engine, [0.01] * 20, subject), self.step)


def test_parts_and_gradients_of_a_script_without_its_first_step() -> None:
    script = Script()
    before = torch.autograd.backward, dict(vars(script.model))
    stored = script.profiled()
    assert (stored.counters["profile/steps"], stored.counters["profile/micro_batches"]) == (2, 1)
    for part in ("forward_s", "backward_s", "optimizer_s"):
        assert float(str(stored.counters[f"profile/{part}"])) > 0.0, part
    assert stored.counters["buffer_bytes"] == 1
    assert set(stored.tables) == {"gradients"}
    rows = stored.tables["gradients"]
    assert sorted(row["parameter"] for row in rows) == [0, 1, 2, 3]
    assert sum(int(str(row["size_bytes"])) for row in rows) == 4 * (12 + 4 + 4 + 4)
    assert (torch.autograd.backward, dict(vars(script.model))) == before
    assert not has_hooks(script.model)
    assert Script(micro_batches=2).profiled().counters["profile/micro_batches"] == 2


def test_a_failure_to_begin_leaves_the_script_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StepPhases) -> Any:
        raise ZeroDivisionError("no hooks")

    monkeypatch.setattr(StepPhases, "installed", fail)
    script = Script()
    assert script.profiled().counters == {FAILED: "ZeroDivisionError: no hooks"}
    assert script.made == 0 and not has_hooks(script.model)
