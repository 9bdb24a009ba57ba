"""The activity of a rank beside its steps: what batches held, and where the host was in long steps."""

import statistics
from collections.abc import Sequence

from scalescope.worker.training.activity.garbage import GarbageWatch
from scalescope.worker.training.batch_work import by_step, work_counters, work_samples
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.step import StepWindow

LONG_STEPS = "long_steps"
_LONG = 1.1  # times the median
_MOST_LONG_STEPS = 100
_DIGITS = 6  # microseconds


def store_activity(
    measurements: Measurements, window: StepWindow, first_step: int, garbage: GarbageWatch
) -> None:
    """Store what was noted of the timed steps; `first_step` is the number of the first, from 1 over all."""
    work = by_step(window.batch_work)
    measurements.counters |= work_counters(work)
    measurements.samples |= work_samples(work)
    times_s = measurements.samples["step_time_s"]
    pauses_s = [garbage.pause_s(first_step + step) for step in range(len(times_s))]
    measurements.tables[LONG_STEPS] = _long_steps(times_s, window, pauses_s)


def _long_steps(
    times_s: Sequence[float], window: StepWindow, pauses_s: Sequence[float]
) -> list[dict[str, float | int | str | None]]:
    """Where the host was in steps that took far longer than usual: seconds beyond the median of each.

    `step` counts measured steps from 0.
    """
    host_s = _differences(window.host_marks_s)
    usual_s = statistics.median(times_s)
    usual_parts_s = [statistics.median(part) for part in zip(*host_s, strict=True)]
    long = [step for step, time_s in enumerate(times_s) if time_s > _LONG * usual_s]
    longest = sorted(long, key=lambda step: times_s[step], reverse=True)[:_MOST_LONG_STEPS]
    rows: list[dict[str, float | int | str | None]] = []
    for step in sorted(longest):
        beyond = zip(window.host_s, host_s[step], usual_parts_s, strict=True)
        rows.append(
            {
                "step": step,
                "beyond_s": round(times_s[step] - usual_s, _DIGITS),
                **{
                    f"{part}_beyond_s": round(part_s - part_usual_s, _DIGITS)
                    for part, part_s, part_usual_s in beyond
                },
                "gc_s": round(pauses_s[step], _DIGITS),
            }
        )
    return rows


def _differences(marks_s: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The host's time by part in each step, from the sums after each."""
    before = (*([0.0] * len(mark) for mark in marks_s[:1]), *marks_s)
    return [
        tuple(now - earlier for now, earlier in zip(mark, previous, strict=True))
        for mark, previous in zip(marks_s, before, strict=False)
    ]
