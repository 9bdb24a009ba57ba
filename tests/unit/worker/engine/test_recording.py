"""Recorded steps, with torch's profiler on the CPU: what is stored, and whose lines wait."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scalescope.catalog.benchmarks.arrivals import MOST_STEPS
from scalescope.catalog.benchmarks.breakdown import WATCHED_STEPS, Breakdown
from scalescope.errors import BadInput
from scalescope.experiment.explanations import arrivals_of, breakdown_of
from scalescope.experiment.trial import Trial
from scalescope.results.traces.summary import TraceSummary
from scalescope.worker.engine.recording import Recording, check_recording, is_recorded, warmup_steps
from scalescope.worker.hooks.parts import StepPhases
from scalescope.worker.trace.host_lines import Synchronizations
from scalescope.worker.trace.recorder import torch_profiler
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.ranges import RangeOf
from tests.builders.commands import make_command
from tests.builders.loops import PlainLoop, engine_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
COMMAND = make_command(window=1.0)
STEP_S = 0.25


def recording_of(trial: Trial, model: nn.Module, device: torch.device = CPU, **rest: Any) -> Recording:
    @contextlib.contextmanager
    def marked(range_of: RangeOf) -> Iterator[Callable[[], None]]:
        phases = StepPhases(range_of, [model])
        with phases.installed():
            yield phases.end_step

    engine = engine_of(trial, PlainLoop(enter=marked), device)
    return Recording(engine=engine, trial=trial, step_s=STEP_S, **rest)


class Ticks:
    """Goes on with a recording at the end of every step."""

    def __init__(self, recording: Recording) -> None:
        is_breakdown = recording.trial.benchmark == "breakdown"
        self._steps = recording._breakdown() if is_breakdown else recording.recorded()
        self.count = 0
        self.measurements: Measurements | None = None
        next(self._steps)

    def tick(self) -> None:
        self.count += 1
        try:
            next(self._steps)
        except StopIteration as end:
            self.measurements = end.value


def script(make: Callable[[nn.Module], Ticks]) -> tuple[Ticks, int]:
    """A training loop that reads its loss in every step; returns also the line at which it does."""
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ticks = make(model)
    while ticks.measurements is None:
        loss = model(torch.ones(8, 16)).sum()
        loss.item()
        loss.backward()
        optimizer.step()
        ticks.tick()
        optimizer.zero_grad()
    return ticks, _line_of("loss.item()")


def _line_of(code: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == code)


def test_arrivals_are_stored_as_our_own_ranks_do() -> None:
    announced = []

    def begin(model: nn.Module) -> Ticks:
        recording = recording_of(arrivals_of(COMMAND), model)
        announced.append(recording.steps)
        return Ticks(recording)

    ticks, _ = script(begin)
    measurements = ticks.measurements
    assert measurements is not None
    assert [ticks.count] == announced == [1 + 4]  # a window of 1 s
    summary = TraceSummary.from_record(measurements.samples)
    assert summary is not None and summary.steps == 4
    assert all(step_s > 0.0 for step_s in summary.parts["compute_s"])
    assert len(measurements.samples["recorded_step_time_s"]) == 5


@contextlib.contextmanager
def located(device: torch.device) -> Iterator[Synchronizations]:
    """Every wait of the loop above, as torch would report it on a GPU."""
    waits = Synchronizations(can_locate=True)
    item = torch.Tensor.item

    def waiting(tensor: torch.Tensor) -> Any:
        frame = sys._getframe(1)
        waits.sites[(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)] += 1
        return item(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "item", waiting)
        yield waits


def rates(device: torch.device) -> dict[str, float]:
    return {"matmul_flops_per_s/fp32": 1.0}


def test_a_breakdown_names_and_times_the_lines_of_a_loop_that_runs_already() -> None:
    tracer, announced = sys.gettrace(), []

    def begin(model: nn.Module) -> Ticks:
        recording = recording_of(breakdown_of(COMMAND), model, locate=located, rates=rates)
        announced.append(recording.steps)
        return Ticks(recording)

    ticks, line = script(begin)
    measurements = ticks.measurements
    assert measurements is not None
    assert [ticks.count] == announced == [4 + 1 + 4 + 2 * WATCHED_STEPS]
    assert measurements.counters["syncs_were_located"] == 1
    assert measurements.counters["matmul_flops_per_s/fp32"] == 1.0
    assert isinstance(measurements.counters["plain_step_s"], float)
    (row,) = measurements.tables["synchronizations"]
    assert (Path(str(row["file"])).name, row["line"]) == (Path(__file__).name, line)
    assert (row["code"], row["function"], row["per_step"]) == ("loss.item()", "script", 1.0)
    assert isinstance(row["time_s"], float) and row["time_s"] > 0.0
    assert len(measurements.samples["parts/step_s"]) == 4
    assert sys.gettrace() is tracer
    kept = {
        "samples": measurements.samples,
        "counters": measurements.counters,
        "tables": measurements.tables,
    }
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept  # plain data


def test_a_gpu_without_room_for_bare_products_costs_only_their_rates() -> None:
    def full(device: torch.device) -> dict[str, float]:
        raise torch.cuda.OutOfMemoryError("no room")

    trial = breakdown_of(COMMAND)
    ticks, _ = script(lambda model: Ticks(recording_of(trial, model, locate=located, rates=full)))
    assert ticks.measurements is not None
    assert ticks.measurements.tables["synchronizations"]
    assert not any(name.startswith("matmul") for name in ticks.measurements.counters)


def test_a_breakdown_is_refused_on_the_cpu() -> None:
    with pytest.raises(BadInput, match="requires a CUDA GPU"):
        check_recording(breakdown_of(COMMAND), CPU)
    check_recording(breakdown_of(COMMAND), CUDA)
    check_recording(arrivals_of(COMMAND), CPU)
    long = recording_of(arrivals_of(COMMAND.replace(window=100.0)), nn.Linear(1, 1))
    assert long.steps == 1 + MOST_STEPS  # short steps are recorded often enough and no more


def test_two_profilers_at_once_are_refused() -> None:
    with (
        torch_profiler(CPU, record_shapes=False),
        pytest.raises(BadInput, match="profiler is already in use"),
    ):
        check_recording(arrivals_of(COMMAND), CPU)
    check_recording(arrivals_of(COMMAND), CPU)


def test_recordings_warm_up_as_long_as_those_of_our_own_ranks() -> None:
    on_gpu = make_command(device="cuda", warmup_steps=5)
    assert warmup_steps(breakdown_of(on_gpu), CUDA) == breakdown_of(on_gpu).options(Breakdown).warmup_on(
        "cuda"
    )
    assert warmup_steps(arrivals_of(COMMAND), CPU) == COMMAND.warmup_steps
    assert [is_recorded(trial) for trial in (COMMAND, arrivals_of(COMMAND), breakdown_of(COMMAND))] == [
        False,
        True,
        True,
    ]
