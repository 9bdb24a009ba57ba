"""How well events are found in step times of a simulated machine: false alarms, recall and errors of costs.

`python benchmarks/events.py [SERIES]` prints Markdown tables, from so many series per cell (100 unless told).
"""

import random
import statistics
import sys
from collections.abc import Mapping

from from_tests import KINDS, noisy_steps

from scalescope.analysis.events import StepSeries, step_events

STEP_S = 0.04
LENGTHS = (0.2, 0.5, 1.0, 3.0, 10.0)  # of a step
PERIODS = (10, 50, 100)


def made(
    kind: str, steps: int, lengths: Mapping[int, float], seed: object
) -> tuple[StepSeries, dict[int, float]]:
    """A launch with events of random phase, and what each really costs per step."""
    rng = random.Random(f"{kind} {steps} {lengths} {seed}")
    work_s, costs_s = [STEP_S] * steps, {}
    for period, length in lengths.items():
        own_s = {
            step: length * STEP_S * rng.uniform(0.8, 1.2)
            for step in range(rng.randrange(period), steps, period)
        }
        costs_s[period] = sum(own_s.values()) / steps
        for step, time_s in own_s.items():
            work_s[step] += time_s
    return StepSeries(times_s=noisy_steps(rng, kind, work_s)), costs_s


def false_alarms(series: int) -> None:
    counts = (20, 50, 100, 150, 400)
    print("| noise | " + " | ".join(f"{count} steps" for count in counts) + " |")
    print("|---|" + "---|" * len(counts))
    for kind in KINDS:
        rates = []
        for count in counts:
            alarms = [bool(step_events((made(kind, count, {}, seed)[0],)).events) for seed in range(series)]
            rates.append(f"{100 * statistics.fmean(alarms):.1f} %")
        print(f"| {kind} | " + " | ".join(rates) + " |", flush=True)


def recall(series: int, launches: int, steps: int) -> None:
    print(f"\nRecall, and the median error of the cost: {launches} × {steps} steps\n")
    print("| noise | period | " + " | ".join(f"{length:g} of a step" for length in LENGTHS) + " |")
    print("|---|---|" + "---|" * len(LENGTHS))
    for kind in (KINDS[0], KINDS[-1]):
        for period in PERIODS:
            cells = [_cell(kind, period, length, series, launches, steps) for length in LENGTHS]
            print(f"| {kind} | {period} | " + " | ".join(cells) + " |", flush=True)


def _cell(kind: str, period: int, length: float, series: int, launches: int, steps: int) -> str:
    errors, missed = [], 0
    for seed in range(series):
        all_made = [made(kind, steps, {period: length}, (seed, launch)) for launch in range(launches)]
        events = step_events(tuple(launch for launch, _ in all_made))
        found = [event for event in events.events if event.period == period]
        missed += not found
        true_s = statistics.fmean(costs_s[period] for _, costs_s in all_made)
        errors += [abs(event.cost_s / true_s - 1.0) for event in found[:1]]
    error = f", {100 * statistics.median(errors):.0f} %" if errors else ""
    return f"{100 * (1 - missed / series):.0f} %{error}"


def superposed(series: int, steps: int) -> None:
    """Logging, evaluations and checkpoints at once, the last ones in the same steps."""
    lengths = dict(zip(PERIODS, (0.3, 4.0, 2.0), strict=True))
    print(f"\nAll three periods at once, {lengths} of a step, {steps} steps\n")
    for kind in (KINDS[0], KINDS[-1]):
        found: dict[int | None, int] = {}
        for seed in range(series):
            rng = random.Random(f"{kind} {seed}")
            work_s = [
                STEP_S + sum(length * STEP_S for period, length in lengths.items() if step % period == 0)
                for step in range(steps)
            ]
            for event in step_events((StepSeries(times_s=noisy_steps(rng, kind, work_s)),)).events:
                found[event.period] = found.get(event.period, 0) + 1
        print(
            f"- {kind}: "
            + ", ".join(f"every {p}: {100 * n / series:.0f} %" for p, n in sorted(found.items()))
        )


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    false_alarms(number)
    for launches, steps in ((1, 150), (1, 400), (3, 120)):
        recall(max(1, number // 5), launches, steps)
    superposed(max(1, number // 10), 1000)
