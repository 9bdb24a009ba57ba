"""Marks of steps: parts take turns, a step ends where gradients are cleared, hooks end with their block."""

import itertools
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import nn

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, OPTIMIZER
from scalescope.worker import rank_profile
from scalescope.worker.rank_profile import (
    REST,
    GpuMoments,
    HostMoments,
    Mark,
    MarkKind,
    StepMarks,
    marked_gradients,
    moments_of,
    trained_parameters,
)


class CountedMoments(HostMoments):
    """Every moment is a second after the one before."""

    def __init__(self) -> None:
        self._seconds: Iterator[int] = itertools.count(100)

    def mark(self) -> float:
        return float(next(self._seconds))


def parts(*subjects: str) -> list[Mark]:
    """Changes of the part, one per second."""
    return [Mark(MarkKind.PART, subject, float(at)) for at, subject in enumerate(subjects)]


def test_steps_begin_and_end_with_clearing() -> None:
    marks = StepMarks(CountedMoments())
    marks.begin()
    for _ in range(2):
        with marks.part(FORWARD):
            pass
        with marks.part(CLEAR):
            pass
    first, second = marks.read()
    assert first == second
    assert list(first.marks) == parts(REST, FORWARD, REST, CLEAR)
    assert first.step_s == 4.0


def test_a_part_inside_another_interrupts_it() -> None:
    marks = StepMarks(CountedMoments())
    marks.begin()
    with marks.part(OPTIMIZER), marks.part(BACKWARD):
        pass
    with marks.part(CLEAR):
        pass
    (step,) = marks.read()
    assert list(step.marks) == parts(REST, OPTIMIZER, BACKWARD, OPTIMIZER, REST, CLEAR)


def test_a_step_that_has_not_ended_is_left_out() -> None:
    marks = StepMarks(CountedMoments())
    marks.begin()
    with pytest.raises(ZeroDivisionError), marks.part(FORWARD):
        raise ZeroDivisionError
    assert marks.read() == []


def test_gradients_are_marked_by_number_and_only_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    model.register_parameter("frozen", frozen)
    parameters = trained_parameters(model)
    assert len(parameters) == 2
    marks = StepMarks(CountedMoments())
    marks.begin()
    with marked_gradients(parameters, marks):
        model(torch.ones(1, 3)).sum().backward()
    model(torch.ones(1, 3)).sum().backward()
    with marks.part(CLEAR):
        pass
    (step,) = marks.read()
    assert [mark.subject for mark in step.marks if mark.kind is MarkKind.GRADIENT] == [1, 0]


def test_the_device_decides_on_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(moments_of(torch.device("cpu")), HostMoments)
    assert isinstance(moments_of(torch.device("cuda")), GpuMoments)


def test_a_gpu_is_waited_for_once_and_its_milliseconds_become_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def elapsed_time(self, end: "Event") -> float:
            return 250.0

    monkeypatch.setattr(rank_profile.torch.cuda, "Event", Event)
    monkeypatch.setattr(rank_profile.torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    marks = StepMarks(GpuMoments())
    marks.begin()
    with marks.part(CLEAR):
        pass
    assert calls == ["record"] * 4
    (step,) = marks.read()
    assert calls[4:] == ["synchronize"]
    assert step.step_s == 0.25


def test_a_gpu_pauses_before_each_step_but_not_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    event = mock.Mock(record=lambda: calls.append("record"))
    monkeypatch.setattr(rank_profile.torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(
        rank_profile.torch.cuda,
        "_sleep",
        lambda cycles: calls.append(f"pause of {cycles:g}"),
    )
    marks = StepMarks(moments_of(torch.device("cuda"), head_start_s=0.01))
    marks.begin()
    with marks.part(CLEAR):
        pass
    assert calls == ["pause of 2e+07", "record", "record", "record", "pause of 2e+07", "record"]
