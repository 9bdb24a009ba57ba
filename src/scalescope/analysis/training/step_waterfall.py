"""The waterfall of one rank's step: what it consists of, in terms that add up to the measured step.

On a GPU the terms come from recorded steps: each instant of the GPU's timeline belongs to one of them. The
profiler slows the host and not the kernels, so the time of kernels and copies is taken as recorded, and idle
time is what the step without a profiler leaves, divided as in the recorded steps. On the CPU the host's clock
around each part gives the terms. What an ablation measures replaces what a trace says. Events, which are not
in every step, are terms of their own; all others are those of the plain step.
"""

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.events import StepEvents
from scalescope.analysis.recording import StepRecording
from scalescope.analysis.statistics import Estimate, difference_of_means, moved
from scalescope.analysis.training.activity import RankActivity
from scalescope.experiment.trial import Trial
from scalescope.results.traces import step_parts

FORWARD = "forward"
BACKWARD = "backward"
BACKWARD_AND_EXCHANGE = "backward with communication"  # of several ranks on the CPU: one clock for both
OPTIMIZER = "optimizer"
WHOLE = "forward, backward and optimizer"  # of a workload's own step on the CPU: the host cannot part them
WHOLE_AND_EXCHANGE = "forward, backward, optimizer and communication"  # of several ranks
OTHER_KERNELS = "other kernels"
COMMUNICATION = "communication"  # of several ranks
COPIES = "copies"
IDLE_INPUT = "idle: waiting for input"
IDLE_SYNC = "idle: after a synchronization"
IDLE_HOST = "idle: host too slow"
IDLE_BETWEEN = "idle: between kernels"
IDLE_UNKNOWN = "idle: unknown"
INPUT = "input"  # on the CPU, which is not idle meanwhile
REST = "rest"
TERMS = (
    FORWARD, BACKWARD, BACKWARD_AND_EXCHANGE, OPTIMIZER, WHOLE, WHOLE_AND_EXCHANGE, OTHER_KERNELS,
    COMMUNICATION, COPIES, INPUT, IDLE_INPUT, IDLE_SYNC, IDLE_HOST, IDLE_BETWEEN, IDLE_UNKNOWN, REST,
)  # fmt: skip
COMPUTE = (FORWARD, BACKWARD, OPTIMIZER, WHOLE, OTHER_KERNELS)
MIXED = (BACKWARD_AND_EXCHANGE, WHOLE_AND_EXCHANGE)

_BUSY = {
    FORWARD: step_parts.FORWARD,
    BACKWARD: step_parts.BACKWARD,
    OPTIMIZER: step_parts.OPTIMIZER,
    OTHER_KERNELS: step_parts.OTHER_KERNELS,
    COMMUNICATION: step_parts.COMMUNICATION,
    COPIES: step_parts.COPIES,
}
_IDLE = {
    IDLE_SYNC: step_parts.IDLE_SYNC,
    IDLE_HOST: step_parts.IDLE_HOST,
    IDLE_BETWEEN: step_parts.IDLE_BETWEEN,
    IDLE_UNKNOWN: step_parts.IDLE_QUEUED,
}
TermSource = Literal["trace", "ablation", "clock", "long steps", "rest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerm:
    """A part of the step."""

    name: str
    time_s: Estimate
    source: TermSource


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWaterfall:
    """A measured step and its terms, which add up to it."""

    trial: Trial
    step_s: float
    ideal_s: float | None  # the model's operations at the speed of a bare matrix product in this precision
    terms: tuple[StepTerm, ...]
    recorded_rank: int | None = None  # whose recording it is, of several
    events: StepEvents | None = None  # None where all steps have the same work

    def term(self, name: str) -> StepTerm | None:
        return next((term for term in self.terms if term.name == name), None)

    def time_s(self, name: str) -> float:
        """Of a term; 0 where the step has none of that name."""
        term = self.term(name)
        return 0.0 if term is None else term.time_s.value


def step_waterfall(
    configuration: Configuration,
    recording: StepRecording | None,
    activities: tuple[RankActivity, ...],
    *,
    input_s: Estimate | None = None,
    without_optimizer: Configuration | None = None,
    events: StepEvents | None = None,
) -> StepWaterfall | None:
    """The waterfall of a configuration; None where nothing tells what its steps consist of.

    `recording` is of this very configuration: one rank alone says nothing about waiting for others.
    `input_s` is what input adds to a step, where an ablation measured it.
    """
    step_s = configuration.step_time_s.value
    found = () if events is None else events.events
    plain_s = step_s if events is None or not found else events.plain_s
    if configuration.trial.on_gpu:
        if recording is None:
            return None
        terms = _gpu_terms(plain_s, recording, input_s, _removed(configuration, without_optimizer))
    else:
        steps = {step for event in found for step in event.steps[0]}
        plain = tuple(_without(activity, steps) for activity in activities)
        terms = _cpu_terms(plain_s, plain, input_s)
        if configuration.trial.world_size > 1:
            terms = [_renamed(term, dict(zip((BACKWARD, WHOLE), MIXED, strict=True))) for term in terms]
    if not terms:
        return None
    terms += [
        StepTerm(name=event.name, time_s=Estimate(event.cost_s), source="long steps") for event in found
    ]
    ideal_s = None if configuration.bare_product_share is None else configuration.bare_product_share * step_s
    return StepWaterfall(
        trial=configuration.trial,
        step_s=step_s,
        ideal_s=ideal_s,
        terms=tuple(term for term in terms if term.time_s.value > 0.0),
        recorded_rank=None if recording is None or configuration.trial.world_size == 1 else recording.rank,
        events=events if found else None,
    )


def _without(activity: RankActivity, steps: Collection[int]) -> RankActivity:
    """The host's time in each part without what these steps have beyond others, where that is known."""
    rows = [row for row in activity.long_steps or () if row.step in steps]
    beyond_s = {part: math.fsum(row.parts_s.get(part, 0.0) for row in rows) for part in activity.host_s}
    host_s = {
        part: max(0.0, time_s - beyond_s[part] / len(activity.step_times_s)) if rows else time_s
        for part, time_s in activity.host_s.items()
    }
    return dataclasses.replace(activity, host_s=host_s)


def _renamed(term: StepTerm, names: Mapping[str, str]) -> StepTerm:
    return dataclasses.replace(term, name=names.get(term.name, term.name))


def _removed(full: Configuration, ablation: Configuration | None) -> Estimate | None:
    """What a step takes longer than without a part of it; None where that was not measured."""
    if ablation is None or ablation is full:
        return None
    return difference_of_means(full.mean_steps_s, ablation.mean_steps_s)


def _gpu_terms(
    step_s: float, recording: StepRecording, input_s: Estimate | None, optimizer_s: Estimate | None
) -> list[StepTerm]:
    """Kernels and copies as recorded; what they leave of the step is idle time."""
    parts = recording.parts
    busy = {name: parts[part] for name, part in _BUSY.items()}
    busy_s = math.fsum(busy.values())
    if busy_s > step_s:  # a kernel may take longer under the profiler
        busy = {name: time_s * step_s / busy_s for name, time_s in busy.items()}
    idle_s = max(0.0, step_s - busy_s)
    idle = _idle(idle_s, parts, None if input_s is None else input_s.value - busy[COPIES])
    sources: dict[str, TermSource] = {} if input_s is None else {IDLE_INPUT: "ablation"}
    if (
        optimizer_s is not None
    ):  # the host's time in the optimizer counts for it, where the GPU waits for that
        # Of a step whose parts are not recorded, its kernels are among the others.
        is_whole = not any(busy[name] for name in (FORWARD, BACKWARD, OPTIMIZER))
        giving, name = (busy, OTHER_KERNELS) if is_whole else (idle, IDLE_HOST)
        extra_s = min(max(0.0, optimizer_s.value - busy[OPTIMIZER]), giving[name])
        busy[OPTIMIZER] += extra_s
        giving[name] -= extra_s
        sources[OPTIMIZER] = "ablation"
    return [
        StepTerm(name=name, time_s=Estimate(time_s), source=sources.get(name, "trace"))
        for name, time_s in (*busy.items(), *idle.items())
    ]


def _idle(idle_s: float, parts: Mapping[str, float], input_s: float | None) -> dict[str, float]:
    """Idle time by its cause. Waiting for input does not depend on the profiler, so it keeps its time; the
    others share the rest as recorded."""
    waiting_s = parts[step_parts.IDLE_INPUT] if input_s is None else input_s
    waiting_s = min(max(0.0, waiting_s), idle_s)
    recorded = {name: parts[part] for name, part in _IDLE.items()}
    recorded_s = math.fsum(recorded.values())
    rest_s = idle_s - waiting_s
    if recorded_s == 0.0:
        return {IDLE_INPUT: waiting_s, **dict.fromkeys(recorded, 0.0), IDLE_UNKNOWN: rest_s}
    return {IDLE_INPUT: waiting_s, **{name: rest_s * (s / recorded_s) for name, s in recorded.items()}}


def _whole_terms(
    step_s: float, known: Sequence[Mapping[str, float]], input_s: Estimate | None
) -> list[StepTerm]:
    """The input, and all else of a workload's own step together."""
    clocked_s = statistics.fmean(host_s.get("input", 0.0) for host_s in known)
    fixed_s = min(max(0.0, clocked_s if input_s is None else input_s.value), step_s)
    interval = Estimate(fixed_s) if input_s is None else moved(input_s, fixed_s)
    source: TermSource = "clock" if input_s is None else "ablation"
    return [
        StepTerm(name=INPUT, time_s=interval, source=source),
        StepTerm(name=WHOLE, time_s=Estimate(step_s - fixed_s), source="rest"),
    ]


def _cpu_terms(
    step_s: float, activities: tuple[RankActivity, ...], input_s: Estimate | None
) -> list[StepTerm]:
    """The host's clock around each part, the mean over ranks; the input as the ablation measures it."""
    known = [activity.host_s for activity in activities if activity.host_s]
    if not known:
        return []
    if not any("forward" in host_s for host_s in known):
        return _whole_terms(step_s, known, input_s)
    names = {INPUT: "input", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}
    times = {
        name: statistics.fmean(host_s.get(part, 0.0) for host_s in known) for name, part in names.items()
    }
    times[REST] = max(0.0, step_s - math.fsum(times.values()))
    sources: dict[str, TermSource] = {REST: "rest"}
    if input_s is not None:
        sources[INPUT] = "ablation"
    clocked_s = times.pop(INPUT)
    fixed_s = min(max(0.0, clocked_s if input_s is None else input_s.value), step_s)
    if not any(times.values()):
        times[REST] = step_s - fixed_s
    others_s = math.fsum(times.values())
    rest_s = step_s - fixed_s
    interval = Estimate(fixed_s) if input_s is None else moved(input_s, fixed_s)
    return [
        StepTerm(name=INPUT, time_s=interval, source=sources.get(INPUT, "clock")),
        *(
            StepTerm(
                name=name,
                time_s=Estimate(rest_s * (time_s / others_s) if others_s else 0.0),
                source=sources.get(name, "clock"),
            )
            for name, time_s in times.items()
        ),
    ]
