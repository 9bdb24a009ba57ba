"""Ranges: every part of a step has its name in the trace, and does what it did."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scalescope.results.traces import events as trace
from scalescope.worker.training.ranges import named, ranges_on, step_marks, with_input_range, with_ranges
from scalescope.worker.training.step import Step
from tests.builders.workers import CPU


def ranges_of(action: Callable[[], object]) -> list[str]:
    """The names under which something ran, in their order."""
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        action()
    events = [event for event in recorder.events() if event.name.startswith(trace.PREFIX)]
    return [event.name for event in sorted(events, key=lambda event: event.time_range.start)]


def make_step(done: list[Any], **changes: Any) -> Step:
    parameter = torch.nn.Parameter(torch.ones(1))

    def forward(batch: Any) -> torch.Tensor:
        done.append(("forward", batch))
        return torch.tensor(3.0)

    parts: dict[str, Any] = {
        "forward": forward,
        "backward": lambda loss: done.append(("backward", loss.item())),
        "apply": lambda: done.append("apply"),
        "clear": lambda: done.append("clear"),
        **changes,
    }
    return Step(module=torch.nn.Module(), optimizer=torch.optim.SGD([parameter], lr=0.1), **parts)


def run_once(step: Step) -> None:
    step.backward(step.forward("batch"))
    step.apply()
    step.clear()


def test_every_part_of_a_step_has_its_name_and_clearing_is_the_last() -> None:
    plain = make_step([])
    step = with_ranges(plain, ranges_on(CPU))
    assert ranges_of(lambda: run_once(plain)) == []
    parts = [trace.FORWARD, trace.BACKWARD, trace.OPTIMIZER, trace.CLEAR]
    assert ranges_of(lambda: run_once(step)) == parts


def test_a_named_step_does_what_it_did() -> None:
    done: list[Any] = []
    plain = make_step(done, accumulation_steps=3, samples=lambda: {"a": [1.0]})
    marked = with_ranges(plain, ranges_on(CPU))
    run_once(marked)
    assert done == [("forward", "batch"), ("backward", 3.0), "apply", "clear"]
    assert marked.optimizer is plain.optimizer
    assert (marked.accumulation_steps, marked.samples(), marked.watch) == (3, {"a": [1.0]}, None)


def test_waiting_for_a_batch_has_its_name() -> None:
    marked = with_input_range(iter(["one", "two"]), ranges_on(CPU))
    names: list[str] = []
    assert ranges_of(lambda: names.extend(marked)) == [trace.INPUT] * 3  # the last finds the end
    assert names == ["one", "two"]


def test_a_range_ends_with_what_fails_in_it() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        with pytest.raises(ZeroDivisionError), named(trace.COMPUTE, CPU):
            raise ZeroDivisionError
        with named(trace.CLEAR, CPU):
            pass
    failed, after = (
        next(event for event in recorder.events() if event.name == name)
        for name in (trace.COMPUTE, trace.CLEAR)
    )
    assert failed.time_range.end <= after.time_range.start
    assert after.cpu_parent is None


def test_on_a_gpu_the_same_names_are_pushed_and_popped(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    with pytest.raises(ZeroDivisionError), named(trace.INPUT, torch.device("cuda")):
        raise ZeroDivisionError
    assert ranges == [trace.INPUT, "end"]


def test_steps_are_marked_from_the_end_of_the_one_before_to_their_own(tmp_path: Path) -> None:
    done: list[Any] = []
    with (
        profile(activities=[ProfilerActivity.CPU]) as recorder,
        step_marks(with_ranges(make_step(done), ranges_on(CPU)), range(7, 9)) as step,
    ):
        run_once(step)
        run_once(step)
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    events = trace.read_events(tmp_path / "trace.json")
    marks = {event["name"]: event for event in events if event["name"].startswith(trace.STEP)}
    assert sorted(marks) == ["ProfilerStep#7", "ProfilerStep#8"]
    ends = [marks[name]["ts"] + marks[name]["dur"] for name in sorted(marks)]
    clears = sorted(event["ts"] for event in events if event["name"] == trace.CLEAR)
    assert clears[0] < ends[0] <= marks["ProfilerStep#8"]["ts"] < clears[1] < ends[1]
    assert done.count("clear") == 2
