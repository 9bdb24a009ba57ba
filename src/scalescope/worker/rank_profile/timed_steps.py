"""Timed steps: the parts of marked steps, when gradients were ready in them, and medians of several steps."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER, WHOLE_STEP
from scalescope.worker.rank_profile.marks import REST, Mark, MarkedStep, MarkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """The forward and the backward pass of a unit."""

    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """The times of one step; gradients by the number of their parameter, units by theirs.

    Gradients and units are those of the last micro-batch. A gradient's time is that of the backward pass up
    to it; where a step has several passes, such as one per loss, it is that of all of them up to there.
    """

    parts_s: Mapping[str, float]
    step_s: float
    micro_batches: int = 1
    gradients_s: Mapping[int, float] = field(default_factory=dict)
    units: Mapping[int, PassTimes] = field(default_factory=dict)

    @property
    def input_s(self) -> float:
        return self.parts_s.get(INPUT, 0.0)

    @property
    def forward_s(self) -> float:
        """Of one micro-batch; of a user's own step all that is neither of the others."""
        return (self.parts_s.get(FORWARD, 0.0) + self.parts_s.get(WHOLE_STEP, 0.0)) / self.micro_batches

    @property
    def backward_s(self) -> float:
        """Of one micro-batch."""
        return self.parts_s.get(BACKWARD, 0.0) / self.micro_batches

    @property
    def optimizer_s(self) -> float:
        """Applying and clearing gradients."""
        return self.parts_s.get(OPTIMIZER, 0.0) + self.parts_s.get(CLEAR, 0.0)

    @property
    def rest_s(self) -> float:
        return self.parts_s.get(REST, 0.0)


def timed_step(
    step: MarkedStep, micro_batches: int | None = None, owners: Mapping[int, int] | None = None
) -> TimedStep:
    """The times of a marked step; `owners` has the unit of each parameter.

    Where the number of micro-batches is not known, every parameter gets a gradient in each of them.
    """
    ready = _ready_times(step)
    passes = len(ready.passes_began_s)
    if micro_batches is None:
        micro_batches = min(ready.counts.values(), default=1)
    if passes % micro_batches:
        micro_batches = 1
    first = passes - passes // micro_batches  # the last micro-batch's first pass
    began_s = ready.passes_began_s[first] if ready.passes_began_s else 0.0
    return TimedStep(
        parts_s=_parts_s(step),
        step_s=step.step_s,
        micro_batches=micro_batches,
        gradients_s={
            number: ready_s - began_s
            for number, (pass_number, ready_s) in ready.gradients.items()
            if pass_number >= first
        },
        units={} if owners is None else _units(step, owners),
    )


def _parts_s(step: MarkedStep) -> Mapping[str, float]:
    parts_s: defaultdict[str, float] = defaultdict(float)
    changes = [mark for mark in step.marks if mark.kind is MarkKind.PART]
    ends_s = [*(change.at_s for change in changes[1:]), step.step_s]
    for change, end_s in zip(changes, ends_s, strict=True):
        parts_s[str(change.subject)] += end_s - change.at_s
    return dict(parts_s)


@dataclass(slots=True)
class _Ready:
    """Gradients by the time of all backward passes up to them; what else happens takes none of it."""

    passes_began_s: list[float] = field(default_factory=list)
    gradients: dict[int, tuple[int, float]] = field(default_factory=dict)  # the last pass with one, its time
    counts: Counter[int] = field(default_factory=Counter)


def _ready_times(step: MarkedStep) -> _Ready:
    ready = _Ready()
    passed_s, since_s, under_way = 0.0, 0.0, False
    for mark in step.marks:
        elapsed_s = passed_s + (mark.at_s - since_s if under_way else 0.0)
        if mark.kind is MarkKind.PART:
            passed_s, since_s, under_way = elapsed_s, mark.at_s, mark.subject == BACKWARD
            if under_way:
                ready.passes_began_s.append(elapsed_s)
        elif mark.kind is MarkKind.GRADIENT and ready.passes_began_s:
            number = int(mark.subject)
            ready.gradients[number] = len(ready.passes_began_s) - 1, elapsed_s
            ready.counts[number] += 1
    return ready


def _units(step: MarkedStep, owners: Mapping[int, int]) -> dict[int, PassTimes]:
    """The passes of units in the last micro-batch; what lies between two units belongs to the one before."""
    starts = [n for n, mark in enumerate(step.marks) if (mark.kind, mark.subject) == (MarkKind.PART, FORWARD)]
    marks = step.marks[starts[-1] :] if starts else ()
    turn = next((n for n, mark in enumerate(marks) if mark.subject == BACKWARD), len(marks))
    forward_s, backward_s = _forward_passes(marks[:turn]), _backward_passes(marks[turn:], owners)
    return {
        number: PassTimes(forward_s=forward_s.get(number, 0.0), backward_s=backward_s.get(number, 0.0))
        for number in sorted({*forward_s, *backward_s})
    }


def _forward_passes(marks: Sequence[Mark]) -> Mapping[int, float]:
    """From the beginning of a unit to that of the next; of the last to its end."""
    times_s: defaultdict[int, float] = defaultdict(float)
    unit, began_s, ended_s = None, 0.0, 0.0
    for mark in marks:
        if mark.kind is MarkKind.UNIT_BEGINS:
            if unit is not None:
                times_s[unit] += mark.at_s - began_s
            unit, began_s = int(mark.subject), mark.at_s
        elif mark.kind is MarkKind.UNIT_ENDS:
            ended_s = mark.at_s
    if unit is not None:
        times_s[unit] += ended_s - began_s
    return times_s


def _backward_passes(marks: Sequence[Mark], owners: Mapping[int, int]) -> Mapping[int, float]:
    """From the end of the unit behind, or of the last unit from the gradient of its output, to the last
    gradient that the unit computes: those of its input and of its parameters, but at most until another unit
    begins."""
    times_s: defaultdict[int, float] = defaultdict(float)
    unit, began_s, ended_s = None, 0.0, None
    for mark in _inputs_first(marks):
        if mark.kind is MarkKind.UNIT_OUTPUT_GRADIENT and (mark.subject != unit or ended_s is not None):
            end_s = mark.at_s if ended_s is None else ended_s
            if unit is not None:
                times_s[unit] += end_s - began_s
            unit, began_s, ended_s = int(mark.subject), end_s, None
        elif unit is not None and _computed_by(mark, owners) == unit:
            ended_s = mark.at_s
    if unit is not None and ended_s is not None:
        times_s[unit] += ended_s - began_s
    return times_s


def _inputs_first(marks: Sequence[Mark]) -> list[Mark]:
    """A tensor that a unit hands to the next has one gradient: with it, the later unit ends and the earlier
    one begins, in this order."""
    ordered = list(marks)
    for index, (before, after) in enumerate(pairwise(marks)):
        kinds = before.kind, after.kind
        if kinds == (MarkKind.UNIT_OUTPUT_GRADIENT, MarkKind.UNIT_INPUT_GRADIENT):
            ordered[index], ordered[index + 1] = after, before
    return ordered


def _computed_by(mark: Mark, owners: Mapping[int, int]) -> int | None:
    if mark.kind is MarkKind.UNIT_INPUT_GRADIENT:
        return int(mark.subject)
    return owners.get(int(mark.subject)) if mark.kind is MarkKind.GRADIENT else None


def typical_step(steps: Sequence[TimedStep]) -> TimedStep:
    """Medians of several steps, over the gradients that came in all of them, in the order of their times."""
    names = {name for step in steps for name in step.parts_s}
    gradients_s = _medians([step.gradients_s for step in steps])
    forward_s = _medians([{n: unit.forward_s for n, unit in step.units.items()} for step in steps])
    backward_s = _medians([{n: unit.backward_s for n, unit in step.units.items()} for step in steps])
    return TimedStep(
        parts_s={name: statistics.median(step.parts_s.get(name, 0.0) for step in steps) for name in names},
        step_s=statistics.median(step.step_s for step in steps),
        micro_batches=statistics.mode(step.micro_batches for step in steps),
        gradients_s=dict(sorted(gradients_s.items(), key=lambda gradient: gradient[1])),
        units={n: PassTimes(forward_s=forward_s[n], backward_s=backward_s[n]) for n in forward_s},
    )


def _medians(steps: Sequence[Mapping[int, float]]) -> dict[int, float]:
    numbers = set.intersection(*(set(times_s) for times_s in steps))
    return {number: statistics.median(times_s[number] for times_s in steps) for number in sorted(numbers)}
