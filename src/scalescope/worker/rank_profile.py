"""Parts, gradients and units of a step, recorded in a few steps beside the timed ones, for predictions."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from scalescope import clocks
from scalescope.results.result import ROOT_UNIT
from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER, WHOLE_STEP

# ---- Moments: points in time of the host, or of the work queued on a GPU, read once all of them have passed


_CYCLES_PER_S = 2e9  # about; a GPU with a slower clock pauses longer


class Moments(Protocol):
    """Where moments come from."""

    def mark(self) -> Any:
        """This moment; on a GPU when the work queued so far is done."""
        ...

    def begin_step(self) -> Any:
        """The moment at which a step begins, which may follow a pause."""
        ...

    def finish(self) -> None:
        """Wait until all moments have passed."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two moments that have passed."""
        ...


class HostMoments:
    """The host's clock."""

    def mark(self) -> float:
        return clocks.perf_counter()

    def begin_step(self) -> float:
        return self.mark()

    def finish(self) -> None:
        """The host's clock never lags behind."""

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class GpuMoments:
    """Events in the current stream: marking one neither stops the GPU nor waits for it.

    With `head_start_s`, the GPU pauses before each step for so long, in which the host queues the step's
    work: what is marked then is the GPU's own pace, even where the GPU usually waits for the host.
    """

    def __init__(self, head_start_s: float = 0.0) -> None:
        self._pause_cycles = int(head_start_s * _CYCLES_PER_S)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin_step(self) -> torch.cuda.Event:
        if self._pause_cycles:
            torch.cuda._sleep(self._pause_cycles)
        return self.mark()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1e3


def moments_of(device: torch.device, head_start_s: float = 0.0) -> Moments:
    """The moments that fit a device; a host needs no head start over itself."""
    return GpuMoments(head_start_s) if device.type == "cuda" else HostMoments()


# ---- Marks in a few steps: which part of the step goes on, which gradient is ready, which unit computes


REST = ""  # the part between all others


class MarkKind(Enum):
    """What happens at a mark, and what its subject is."""

    PART = auto()  # a part of the step goes on from here: its name
    GRADIENT = auto()  # a gradient is ready: the number of its parameter
    UNIT_BEGINS = auto()  # the forward pass of a unit, as all below: its number
    UNIT_ENDS = auto()
    UNIT_OUTPUT_GRADIENT = auto()  # its backward pass begins
    UNIT_INPUT_GRADIENT = auto()  # and ends


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened so long after its step began."""

    kind: MarkKind
    subject: str | int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedStep:
    """The marks of one step, in the order in which the host made them."""

    marks: tuple[Mark, ...]
    step_s: float


class StepMarks:
    """Collects marks; a step ends where its gradients have been cleared."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._steps: list[list[tuple[MarkKind, str | int, Any]]] = []
        self._ends: list[Any] = []
        self._under_way = [REST]

    def begin(self) -> None:
        """The first step begins."""
        self._begin_step()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the step; one that lies inside another is taken out of it."""
        self._under_way.append(name)
        self.add(MarkKind.PART, name)
        try:
            yield
        finally:
            self._under_way.pop()
            if name == CLEAR:
                self._end_step()
            else:
                self.add(MarkKind.PART, self._under_way[-1])

    def add(self, kind: MarkKind, subject: str | int) -> None:
        """Note that something happens now."""
        self._steps[-1].append((kind, subject, self._moments.mark()))

    def read(self) -> list[MarkedStep]:
        """The steps that have ended."""
        self._moments.finish()
        return [self._read_step(marks, end) for marks, end in zip(self._steps, self._ends, strict=False)]

    def _begin_step(self) -> None:
        self._steps.append([(MarkKind.PART, self._under_way[-1], self._moments.begin_step())])

    def _end_step(self) -> None:
        self._ends.append(self._moments.mark())
        self._begin_step()

    def _read_step(self, marks: Sequence[tuple[MarkKind, str | int, Any]], end: Any) -> MarkedStep:
        began, seconds = marks[0][2], self._moments.seconds
        return MarkedStep(
            marks=tuple(Mark(kind, subject, seconds(began, moment)) for kind, subject, moment in marks),
            step_s=seconds(began, end),
        )


@contextmanager
def marked_gradients(parameters: Sequence[torch.Tensor], marks: StepMarks) -> Iterator[None]:
    """Mark when each of these parameters has its gradient."""
    add, kind = marks.add, MarkKind.GRADIENT
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: add(kind, number))
        for number, parameter in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


# ---- Units: the parts of a model that FSDP gathers as a whole, and marks of when each of them computes


_CONTAINERS = (nn.Sequential, nn.ModuleList)


def units_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered one at a time: children of containers that have parameters."""
    most = sum(parameter.numel() for parameter in model.parameters()) / 2
    return list(_units_in(model, most))


def _units_in(module: nn.Module, most: float) -> Iterator[nn.Module]:
    for child in module.children():
        size = sum(parameter.numel() for parameter in child.parameters())
        if size == 0:
            continue
        # Gathering a container that is most of the model would gather nearly the whole model.
        whole = isinstance(child, nn.ModuleList) or (isinstance(child, _CONTAINERS) and size > most)
        if isinstance(module, _CONTAINERS) and not whole:
            yield child
        else:
            yield from _units_in(child, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedUnit:
    """A unit; its number is its position in the forward pass, and the root's comes first."""

    name: str
    parameter_bytes: int
    activation_bytes: int  # handed to the next unit by one micro-batch


class UnitMarks:
    """Marks the passes of a model's units, and notes what they hand on."""

    def __init__(self, model: nn.Module, marks: StepMarks) -> None:
        self._model, self._marks = model, marks
        self._modules = units_of(model)
        self._entered: dict[
            int, int
        ] = {}  # units in the order of their first calls, with their input's bytes
        self._output_bytes: dict[int, int] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Mark passes inside the block."""
        with ExitStack() as hooks:
            for number, module in enumerate(self._modules):
                before = module.register_forward_pre_hook(partial(self._before, number), with_kwargs=True)
                hooks.callback(before.remove)
                after = module.register_forward_hook(partial(self._after, number))
                hooks.callback(after.remove)
            yield

    @property
    def numbers(self) -> list[int]:
        """The numbers of units in their marks, in the order of the forward pass; uncalled ones last."""
        uncalled = (number for number in range(len(self._modules)) if number not in self._entered)
        return [*self._entered, *uncalled]

    def owners(self, parameters: Sequence[Tensor]) -> dict[int, int]:
        """The unit of each parameter, both by number; those of the root are left out."""
        by_parameter = {
            id(parameter): number
            for number, module in enumerate(self._modules)
            for parameter in module.parameters()
        }
        return {
            number: by_parameter[id(parameter)]
            for number, parameter in enumerate(parameters)
            if id(parameter) in by_parameter
        }

    def unit(self, number: int) -> MarkedUnit:
        """What is known about a unit without the clock."""
        module = self._modules[number]
        name = next(name for name, part in self._model.named_modules() if part is module)
        return MarkedUnit(
            name=name,
            parameter_bytes=_bytes_of(module.parameters()),
            activation_bytes=self._output_bytes.get(number, 0),
        )

    def root(self) -> MarkedUnit:
        """The rest of the model, which hands on what the first unit takes."""
        inside = {id(parameter) for module in self._modules for parameter in module.parameters()}
        rest = (parameter for parameter in self._model.parameters() if id(parameter) not in inside)
        first_input = next(iter(self._entered.values()), 0)
        return MarkedUnit(name=ROOT_UNIT, parameter_bytes=_bytes_of(rest), activation_bytes=first_input)

    def _before(self, number: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = _tensors_in((args, kwargs))
        self._entered.setdefault(number, _bytes_of(inputs))
        self._watch(inputs, MarkKind.UNIT_INPUT_GRADIENT, number)
        self._marks.add(MarkKind.UNIT_BEGINS, number)

    def _after(self, number: int, _: nn.Module, args: Any, output: Any) -> None:
        self._marks.add(MarkKind.UNIT_ENDS, number)
        outputs = _tensors_in(output)
        self._output_bytes[number] = _bytes_of(outputs)
        self._watch(outputs, MarkKind.UNIT_OUTPUT_GRADIENT, number)

    def _watch(self, tensors: Sequence[Tensor], kind: MarkKind, number: int) -> None:
        """Hooks of tensors, which end with them; those of a module's backward pass would refuse in-place
        operations on its output."""
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self._marks.add(kind, number))


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [tensor for member in value for tensor in _tensors_in(member)]
    return []


def _bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---- Timed steps: the parts of marked steps, when gradients were ready in them, and medians of several steps


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


# ---- Stored profile: the counters and tables of a rank record that say what its step consists of


GRADIENTS, UNITS = "gradients", "units"
FAILED = "profile/failed"  # why there is no profile
_DIGITS = 9  # nanoseconds

Row = dict[str, float | int | str | None]


@dataclass(kw_only=True)
class StoredProfile:
    """What goes into the rank record."""

    counters: Row = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)


def stored_profile(
    step: TimedStep, steps: int, parameters: Sequence[torch.Tensor], units: UnitMarks | None
) -> StoredProfile:
    """The profile of a typical step; units are left out where their passes could not be marked.

    Without gradients there is no profile: it would promise a step without communication.
    """
    if not step.gradients_s:
        return StoredProfile(counters={FAILED: "no parameter got a gradient in a backward pass"})
    times_s = {
        name: getattr(step, name)
        for name in ("input_s", "forward_s", "backward_s", "optimizer_s", "rest_s", "step_s")
    }
    profile = StoredProfile(
        counters={
            **{f"profile/{name}": round(time_s, _DIGITS) for name, time_s in times_s.items()},
            "profile/steps": steps,
            "profile/micro_batches": step.micro_batches,
        },
        tables={GRADIENTS: _gradient_rows(step.gradients_s, parameters)},
    )
    if units is not None:
        profile.tables[UNITS] = _unit_rows(step, units)
    return profile


def _gradient_rows(ready_s: Mapping[int, float], parameters: Sequence[torch.Tensor]) -> list[Row]:
    """In the order in which they become ready; `parameter` is its number in the model."""
    return [
        {
            "parameter": number,
            "size_bytes": parameters[number].numel() * parameters[number].element_size(),
            "ready_s": round(time_s, _DIGITS),
        }
        for number, time_s in ready_s.items()
    ]


def _unit_rows(step: TimedStep, units: UnitMarks) -> list[Row]:
    """The root first, which is gathered first and has what no unit has; then as the forward pass goes."""
    known = {number: step.units.get(number, PassTimes()) for number in units.numbers}
    rest = PassTimes(
        forward_s=max(0.0, step.forward_s - sum(unit.forward_s for unit in known.values())),
        backward_s=max(0.0, step.backward_s - sum(unit.backward_s for unit in known.values())),
    )
    rows = [(units.root(), rest), *((units.unit(number), times) for number, times in known.items())]
    return [
        {
            "name": unit.name,
            "parameter_bytes": unit.parameter_bytes,
            "forward_s": round(times.forward_s, _DIGITS),
            "backward_s": round(times.backward_s, _DIGITS),
            "activation_bytes": unit.activation_bytes,
        }
        for unit, times in rows
    ]
