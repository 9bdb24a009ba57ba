"""Warm-up: the steps before the measured ones, of equal number on all ranks.

How many there are may depend on times, so the ranks agree: a rank that made one step more would wait for a
collective that no other rank joins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from scalescope import clocks
from scalescope.worker.machine.gpu_state import sm_clock_hz, temperature_c
from scalescope.worker.process.group import Group
from scalescope.worker.training.step import StepWindow

LEAST_GPU_S = 1.0  # until the clocks of an idle GPU are up
_MOST_EXTRA_STEPS = 10_000
MOST_STEPS = 10_000  # per window: raw samples are kept, and steps below 0.1 ms are not training
_CHUNK_S = 5.0  # between two looks at the clocks
_LEAST_CHUNKS = 6
_LEAST_CHUNK_STEPS = 5
_FLAT = 0.005  # relative change of step times and clocks
_FLAT_C = 1.0

RunSteps = Callable[[int], tuple[list[float], StepWindow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A chunk of soaking: how long its steps took, and what the sensors showed after it."""

    step_s: float
    clock_hz: float | None = None
    temperature_c: float | None = None


@dataclass(kw_only=True)
class Warmup:
    """Steps that were made before the window."""

    times_s: list[float] = field(default_factory=list)
    steps: StepWindow = field(default_factory=StepWindow)

    def run(self, run_steps: RunSteps, count: int) -> None:
        """Make more steps."""
        times_s, steps = run_steps(count)
        self.times_s += times_s
        self.steps.extend(steps)


def typical_step_s(warmup_times_s: Sequence[float]) -> float:
    """The shortest step in the second half of the warm-up: the first steps compile and allocate."""
    return min(warmup_times_s[len(warmup_times_s) // 2 :])


def extend_on_gpu(warmup: Warmup, run_steps: RunSteps, group: Group, device: torch.device) -> None:
    """Warm a GPU up for a second; the first steps may take that long on the host alone."""
    if device.type != "cuda":
        return
    step_s = max(typical_step_s(warmup.times_s), 1e-9)
    extra = int(group.largest(float(extra_steps(step_s, len(warmup.times_s))), device))
    if extra:
        warmup.run(run_steps, extra)


def extra_steps(step_s: float, made: int) -> int:
    """How many steps a GPU still needs until its clocks are up."""
    return max(0, min(math.ceil(LEAST_GPU_S / step_s - made), _MOST_EXTRA_STEPS))


def steps_in_window(window_s: float, step_s: float, min_steps: int) -> int:
    """The number of steps of that length that fill the window."""
    return max(min_steps, min(math.ceil(window_s / max(step_s, 1e-9)), MOST_STEPS))


def soak(
    step_s: float, run_steps: RunSteps, group: Group, device: torch.device, most_s: float
) -> dict[str, float | int | str | None]:
    """Train until nothing changes any more on any rank, or for `most_s`; returns what to record.

    Times and losses of these steps are dropped: there may be very many, and the losses lie on the device.
    """
    step_s = group.largest(step_s, device)
    chunk_s = min(_CHUNK_S, most_s / (2 * _LEAST_CHUNKS))
    count = max(_LEAST_CHUNK_STEPS, min(math.ceil(chunk_s / max(step_s, 1e-9)), _MOST_EXTRA_STEPS))
    began = clocks.monotonic()
    readings: list[GpuReading] = []
    reached, elapsed_s = False, 0.0
    while not reached and elapsed_s + count * step_s <= most_s:
        times_s, _ = run_steps(count)
        reading = GpuReading(
            step_s=math.fsum(times_s) / len(times_s),
            clock_hz=sm_clock_hz(device),
            temperature_c=temperature_c(device),
        )
        readings.append(reading)
        reached = group.largest(float(not is_steady(readings)), device) == 0.0
        elapsed_s = group.largest(clocks.monotonic() - began, device)
        step_s = elapsed_s / (count * len(readings))
    return {"soak_s": elapsed_s, "soak_reached": int(reached)}


def is_steady(readings: Sequence[GpuReading]) -> bool:
    """Whether the last two thirds show no drift: of clock and temperature, or else of the step times."""
    if len(readings) < _LEAST_CHUNKS:
        return False
    lasting = readings[len(readings) // 3 :]
    clocks = [reading.clock_hz for reading in lasting if reading.clock_hz]
    degrees = [reading.temperature_c for reading in lasting if reading.temperature_c is not None]
    if len(clocks) == len(degrees) == len(lasting):
        early, late = _halves(clocks)
        cool, warm = _halves(degrees)
        return abs(late / early - 1.0) <= _FLAT and abs(warm - cool) <= _FLAT_C
    early, late = _halves([reading.step_s for reading in lasting])
    return early > 0.0 and abs(late / early - 1.0) <= _FLAT


def _halves(values: Sequence[float]) -> tuple[float, float]:
    """The means of the earlier and the later half."""
    middle = len(values) // 2
    early, late = values[:middle], values[middle:]
    return math.fsum(early) / len(early), math.fsum(late) / len(late)
