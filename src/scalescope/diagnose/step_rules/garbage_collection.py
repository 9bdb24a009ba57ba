"""Garbage collection: Python stops the host to look for unused objects."""

import statistics

from scalescope.analysis.training.activity import RankActivity
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.quantities import in_ms

RULE = "garbage collection"
_ADVICE = (
    Advice(label="call gc.freeze() after building model, data and optimizer, so that they are not searched"),
    Advice(label="call gc.disable() before training, and gc.collect() every few hundred steps on all ranks"),
)


def rule(facts: StepFacts) -> Finding | Abstention | None:
    worst, cost_s = _worst(facts), pauses_cost_s(facts)
    garbage = None if worst is None else worst.garbage
    if garbage is None or not facts.is_worth(cost_s):
        return None
    return facts.finding(
        RULE,
        f"Python's garbage collector stops the host for {in_ms(garbage.pause_s)} per step "
        f"(longest pause {in_ms(garbage.longest_s)}).",
        cost_s,
        root=True,
        estimated=facts.trial.on_gpu,
        terms=HOST_TERMS if facts.trial.on_gpu else (),
        evidence=(
            Evidence(name="pauses per step", value=garbage.pause_s, unit="s", source="gc.callbacks"),
            Evidence(name="longest pause", value=garbage.longest_s, unit="s", source="gc.callbacks"),
            *(
                Evidence(
                    name=f"collections of generation {generation}",
                    value=count,
                    unit="in a launch",
                    source="gc.callbacks",
                )
                for generation, count in enumerate(garbage.collections)
            ),
        ),
        advice=_ADVICE,
    )


def _pause_s(activity: RankActivity) -> float:
    return 0.0 if activity.garbage is None else activity.garbage.pause_s


def _worst(facts: StepFacts) -> RankActivity | None:
    return max(facts.activities, key=_pause_s, default=None)


def pauses_cost_s(facts: StepFacts) -> float:
    """A GPU with enough queued work does not notice a pause of the host: it costs at most what the GPU waits
    for the host, or what single long steps take more."""
    worst = _worst(facts)
    pause_s = 0.0 if worst is None else _pause_s(worst)
    if worst is None or not facts.trial.on_gpu:
        return pause_s
    waits_s = 0.0 if facts.replay is None else facts.replay.step_s - facts.replay.fast_host_s
    times_s = worst.step_times_s
    beyond_s = statistics.fmean(times_s) - statistics.median(times_s) if times_s else 0.0
    return min(pause_s, max(0.0, waits_s, beyond_s))
