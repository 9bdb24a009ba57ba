"""What happened beside the steps: garbage collection, the allocator, the work of batches, and long steps."""

import gc
import itertools
import time
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from scalescope.results.result import HOST_PARTS
from scalescope.worker.benchmarks.train import OwnLoop
from scalescope.worker.engine.steps import driven
from scalescope.worker.process.position import Position
from scalescope.worker.training.activity import AllocatorWatch, GarbageWatch
from scalescope.worker.training.batch_work import (
    BatchWork,
    by_step,
    work_counters,
    work_of,
    work_samples,
)
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import Data, Step, Workload, plain_step
from tests.builders.loops import own_loop
from tests.builders.results import make_trial

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

    def measured(self, *counts: int, warmup: int) -> Measurements:
        trial = make_trial(
            steps_per_epoch="auto", window="1s", strategy="single", warmup_steps=warmup, world_size=1
        )
        loop = own_loop(self._step, self._batches, trial, self.position)
        with mock.patch.object(OwnLoop, "windows", lambda *_: list(counts)):
            return driven(loop.engine.trained(), loop.make_step)


def _measured(job: _Job, *counts: int, warmup: int = 3) -> Measurements:
    return job.measured(*counts, warmup=warmup)


def test_a_long_step_tells_in_which_part_its_host_was() -> None:
    measurements = _measured(_Job(3, pausing=9), 4, 6)  # step 6 without the three of the warm-up, so 5 from 0
    (row,) = [row for row in measurements.tables["long_steps"] if row["step"] == 5]
    parts = {part: row[f"{part}_beyond_s"] for part in HOST_PARTS}
    assert max(parts, key=lambda part: float(parts[part] or 0.0)) == "optimizer"


def test_collections_belong_to_their_step_across_windows() -> None:
    job = _Job(3, pausing=10, collecting=10)
    measurements = _measured(job, 4, 6)
    (row,) = [row for row in measurements.tables["long_steps"] if row["step"] == 6]
    assert row["gc_s"] > 0.0  # type: ignore[operator]
    assert measurements.counters["gc/collections_2"] >= 1  # type: ignore[operator]


def test_the_work_of_timed_steps_alone_is_stored() -> None:
    measurements = _measured(_Job(1, 1, 2, 3, 4, 5), 3)
    assert measurements.samples["work/elements"] == [24.0, 32.0, 40.0]
    assert measurements.counters["work/input_elements"] == 16.0


def test_on_the_cpu_without_a_compiler_these_facts_are_missing() -> None:
    measurements = _measured(_Job(2), 3)
    names = {name.partition("/")[0] for name in measurements.counters if "/" in name}
    assert names == {"gc", "work", "host"}
    assert set(measurements.tables) == {"long_steps"}
    assert "work/elements" not in measurements.samples


def test_collections_are_counted_by_generation_between_begin_and_end() -> None:
    callbacks = len(gc.callbacks)
    watch = GarbageWatch(Position(None, 0, 1))
    gc.disable()
    try:
        gc.collect(1)
        watch.begin()
        gc.collect(0)
        gc.collect(2)
        gc.collect(2)
        watch.end()
        gc.collect(1)
    finally:
        gc.enable()
    counters = watch.counters()
    counts = [counters[f"gc/collections_{generation}"] for generation in range(3)]
    assert counts == [1, 0, 2]
    assert 0.0 < counters["gc/longest_s"] <= counters["gc/pause_s"]  # type: ignore[operator]
    assert len(gc.callbacks) == callbacks


def test_pauses_belong_to_the_step_in_which_they_began() -> None:
    position = Position(None, 0, 1)
    watch = GarbageWatch(position)
    watch.begin()
    position.begin_step()
    position.begin_step()
    gc.collect()
    watch.end()
    assert watch.pause_s(2) > 0.0
    assert watch.pause_s(7) == 0.0


TEXT = torch.zeros(3, 7, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "work"),
    [
        ((torch.zeros(4, 3, 2, 2), torch.zeros(4, dtype=torch.long)), BatchWork(52, 48, None)),
        ((TEXT, torch.zeros(3)), BatchWork(24, 21, 21)),
        ({"mask": torch.zeros(3, 7), "ids": TEXT, "name": "x"}, BatchWork(42, 21, 21)),
        ([(TEXT, [torch.zeros(5)]), 7], BatchWork(26, 21, 21)),
        (torch.zeros(()), BatchWork(1, 1, None)),
        ("no tensor", BatchWork(0, 0, None)),
    ],
)
def test_the_elements_of_a_batch(batch: object, work: BatchWork) -> None:
    assert work_of(batch) == work


def test_a_step_has_the_work_of_all_its_batches() -> None:
    batches = [(4, BatchWork(10, 6, 6)), (4, BatchWork(20, 12, 12)), (5, BatchWork(30, 18, None))]
    assert by_step(batches) == [BatchWork(30, 18, 18), BatchWork(30, 18, None)]


def test_steps_that_differ_are_kept_one_by_one() -> None:
    steps = [BatchWork(10, 8, 8), BatchWork(30, 24, 24)]
    assert work_samples(steps) == {"work/elements": [10.0, 30.0]}
    assert work_counters(steps) == {
        "work/elements": 20.0,
        "work/input_elements": 16.0,
        "work/tokens": 16.0,
        "work/variation": 0.5,
    }


def test_of_equal_steps_only_the_mean_is_kept() -> None:
    steps = [BatchWork(10, 8, None)] * 5
    assert work_samples(steps) == {}
    assert work_counters(steps)["work/variation"] == 0.0
    assert work_counters(steps)["work/tokens"] is None


BEFORE = {"num_alloc_retries": 2, "num_device_alloc": 10, "num_device_free": 4, "num_ooms": 0}
AFTER = {
    "num_alloc_retries": 5,
    "num_device_alloc": 16,
    "num_device_free": 4,
    "num_ooms": 0,
    "reserved_bytes.all.current": 100,
    "allocated_bytes.all.current": 60,
    "inactive_split_bytes.all.current": 30,
}


def test_on_the_cpu_nothing_is_known() -> None:
    watch = AllocatorWatch(torch.device("cpu"))
    watch.begin()
    watch.end()
    assert watch.counters() == {}


def _watched(monkeypatch: pytest.MonkeyPatch, *statistics: dict[str, int]) -> dict[str, Any]:
    """What a watch tells after windows that began and ended with these statistics."""
    readings = iter(statistics)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: next(readings))
    watch = AllocatorWatch(torch.device("cuda", 0))
    for _ in range(len(statistics) // 2):
        watch.begin()
        watch.end()
    return watch.counters()


def test_events_are_counted_in_all_windows_and_bytes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    between = {**AFTER, "num_device_alloc": 100}
    later = {**between, "num_device_alloc": 101, "allocated_bytes.all.current": 50}
    counters = _watched(monkeypatch, BEFORE, AFTER, between, later)
    assert counters == {
        "allocator/retries": 3,
        "allocator/device_allocations": 7,
        "allocator/device_releases": 0,
        "allocator/out_of_memory": 0,
        "allocator/reserved_bytes": 100,
        "allocator/allocated_bytes": 50,
        "allocator/inactive_split_bytes": 30,
    }
    assert _watched(monkeypatch, {}, {}) == {}  # an allocator without these statistics
