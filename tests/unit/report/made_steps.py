"""Step waterfalls whose every part is known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.step_waterfall import (
    BACKWARD,
    COPIES,
    FORWARD,
    IDLE_SYNC,
    OPTIMIZER,
    StepTerm,
    StepWaterfall,
)
from scalescope.diagnose.step_facts import StepFacts
from scalescope.experiment.trial import Trial
from tests.unit.analysis.made_results import make_configuration, make_trial

WAITING_MS = {FORWARD: 0.5, BACKWARD: 1.0, OPTIMIZER: 0.2, COPIES: 0.0, IDLE_SYNC: 9.8}


def make_step(
    trial: Trial, parts_ms: Mapping[str, float], *, ideal_ms: float | None = None, **more: Any
) -> StepWaterfall:
    """A step that consists of these parts, each ± 10 %."""
    return StepWaterfall(
        trial=trial,
        step_s=sum(parts_ms.values()) / 1e3,
        ideal_s=None if ideal_ms is None else ideal_ms / 1e3,
        terms=tuple(
            StepTerm(name=name, time_s=Estimate(ms / 1e3, 0.9 * ms / 1e3, 1.1 * ms / 1e3), source="trace")
            for name, ms in parts_ms.items()
        ),
        **more,
    )


def make_facts(
    parts_ms: Mapping[str, float] | None = None, *, ideal_ms: float | None = None, **settings: Any
) -> StepFacts:
    """One configuration; without parts, what its step consists of is unknown."""
    trial = make_trial(**{"strategy": "single", **settings})
    step = None if parts_ms is None else make_step(trial, parts_ms, ideal_ms=ideal_ms)
    return StepFacts(
        path=Path("run"),
        varied=(),
        strategies=(),
        configuration=make_configuration(trial, 0.010 if step is None else step.step_s),
        waterfall=step,
    )


def halves_of(configuration: Configuration, *_: object, **__: object) -> StepWaterfall:
    """In place of what a trace or a clock tells: half of every step is forward, half waits after a
    synchronization, and a tenth would be the ideal."""
    step_ms = configuration.step_time_s.value * 1e3
    parts_ms = {FORWARD: step_ms / 2, IDLE_SYNC: step_ms / 2}
    return make_step(configuration.trial, parts_ms, ideal_ms=step_ms / 10)
