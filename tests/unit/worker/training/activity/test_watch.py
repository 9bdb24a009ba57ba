"""The activity of real steps: what is stored, and where long steps were long."""

import gc
import itertools
import time

import torch
from torch import nn

from scalescope.worker.machine.timing import CpuClock
from scalescope.worker.process.position import Position
from scalescope.worker.training.activity.watch import ActivityWatch
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import (
    HOST_PARTS,
    Data,
    Step,
    StepWindow,
    Workload,
    plain_step,
    run_steps,
)

CPU = torch.device("cpu")
PAUSE_S = 0.1


def _step() -> Step:
    model = nn.Linear(4, 4)
    workload = Workload(model=model, data=Data(), loss=nn.functional.mse_loss)
    return plain_step(workload, model, torch.optim.SGD(model.parameters(), lr=0.1))


def _batches(*lengths: int) -> "itertools.cycle[tuple[torch.Tensor, torch.Tensor]]":
    return itertools.cycle([(torch.zeros(n, 4), torch.zeros(n, 4)) for n in lengths])


class _Job:
    """Steps that can be run in windows; one of them pauses in its optimizer, and one collects garbage."""

    def __init__(self, *lengths: int, pausing: int | None = None, collecting: int | None = None) -> None:
        self.position = Position(None, 0, 1)
        step, batches = _step(), _batches(*lengths)
        self._batches = batches
        apply = step.apply

        def pausing_apply() -> None:
            apply()
            if self.position.begun == pausing:
                time.sleep(PAUSE_S)
            if self.position.begun == collecting:
                gc.collect()

        self._step = Step(**{**vars(step), "apply": pausing_apply})

    def steps(self, count: int) -> tuple[list[float], StepWindow]:
        clock = CpuClock()
        window = run_steps(self._step, self._batches, count, clock, self.position)
        return clock.step_times_s(), window


def _measured(job: _Job, *counts: int, warmup: int = 2) -> Measurements:
    watch, measurements = ActivityWatch(CPU, job.position), Measurements()
    job.steps(warmup)
    for count in counts:
        watch.steps(job.steps, count)
    watch.record(measurements)
    return measurements


def test_a_long_step_tells_in_which_part_its_host_was() -> None:
    measurements = _measured(_Job(3, pausing=8), 4, 6)  # step 6 without the two of the warm-up, so 5 from 0
    (row,) = [row for row in measurements.tables["long_steps"] if row["step"] == 5]
    parts = {part: row[f"{part}_beyond_s"] for part in HOST_PARTS}
    assert max(parts, key=lambda part: float(parts[part] or 0.0)) == "optimizer"


def test_collections_belong_to_their_step_across_windows() -> None:
    job = _Job(3, pausing=9, collecting=9)
    measurements = _measured(job, 4, 6)
    (row,) = [row for row in measurements.tables["long_steps"] if row["step"] == 6]
    assert row["gc_s"] > 0.0  # type: ignore[operator]
    assert measurements.counters["gc/collections_2"] >= 1  # type: ignore[operator]


def test_the_work_of_timed_steps_alone_is_stored() -> None:
    measurements = _measured(_Job(1, 2, 3, 4, 5), 3, warmup=2)
    assert measurements.samples["work/elements"] == [24.0, 32.0, 40.0]
    assert measurements.counters["work/input_elements"] == 16.0


def test_on_the_cpu_without_a_compiler_these_facts_are_missing() -> None:
    measurements = _measured(_Job(2), 3)
    names = {name.partition("/")[0] for name in measurements.counters}
    assert names == {"gc", "work"}
    assert set(measurements.tables) == {"long_steps"}
    assert "work/elements" not in measurements.samples
